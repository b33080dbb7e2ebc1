"""Children that are run: how they end, and that nothing of them is left, async and blocking."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from child_tools import BOTH, Run, eventually, is_alive, nothing_left, of_session, python, shell
from stallwatch import ChildIdle, ChildIdleError, ChildOutcome, ToolDeadlineError

IDLE = 0.3


@pytest.fixture(params=BOTH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Both ways to run a child; nothing may be left behind by either."""
    with nothing_left():
        yield BOTH[request.param]


def assert_cut(outcome: ChildOutcome, idle: float = IDLE) -> None:
    """It was killed for idleness, by the window, and all of its session is gone."""
    assert outcome.killed_for_idle
    assert isinstance(outcome.cause, ChildIdleError)
    assert outcome.cause.limit == idle
    assert outcome.cause.idle is not None
    assert outcome.cause.idle >= idle
    assert of_session(outcome.pid) == []


def test_a_quick_exit_has_its_own_status(run: Run) -> None:
    """A child that ends by itself is reported with its status and output, and never blamed."""
    outcome = run(shell("echo out; echo err >&2; exit 7"), idle=30)

    assert (outcome.status, outcome.stdout, outcome.stderr) == (7, b"out\n", b"err\n")
    assert (outcome.killed_for_idle, outcome.cause, outcome.drained) == (False, None, True)
    assert outcome.check() is outcome


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.slow
def test_one_that_ticks_survives(run: Run, stream: str) -> None:
    """Output on either pipe keeps a child alive far beyond its window. Real time: 0.1 s of 1 s."""
    outcome = run(shell(f"for i in $(seq 20); do echo tick >&{stream}; sleep 0.1; done"), idle=1)

    assert (outcome.status, outcome.cause) == (0, None)
    assert (outcome.stdout + outcome.stderr).count(b"tick") == 20
    assert outcome.elapsed > 1.5


def test_a_silent_one_is_killed(run: Run) -> None:
    """A child that shows nothing is killed after its window."""
    outcome = run(["sleep", "60"], idle=IDLE)

    assert_cut(outcome)
    assert outcome.status == -signal.SIGTERM
    assert outcome.elapsed < 10
    with pytest.raises(ChildIdleError):
        outcome.check()


def test_what_was_said_before_is_kept(run: Run) -> None:
    """A child that talks and then hangs is cut with its earlier output."""
    outcome = run(shell("echo hi; echo there >&2; sleep 60"), idle=IDLE)

    assert_cut(outcome)
    assert (outcome.stdout, outcome.stderr) == (b"hi\n", b"there\n")


def test_a_grandchild_that_keeps_the_pipe(run: Run) -> None:
    """A shell whose pipeline hangs is cut with all of it, within the graces."""
    began = time.monotonic()
    outcome = run(shell("echo hi; sleep 60 | cat"), idle=0.5, kill_grace=2, drain_grace=2)

    assert_cut(outcome, 0.5)
    assert outcome.stdout == b"hi\n"
    assert time.monotonic() - began < 0.5 + 2 + 2 + 2


def test_an_exit_does_not_wait_for_a_grandchild(run: Run) -> None:
    """A child that exits while another process holds its pipe is back within the drain grace."""
    outcome = run(shell("sleep 60 & echo done"), idle=30, drain_grace=0.3)

    assert (outcome.status, outcome.stdout, outcome.cause) == (0, b"done\n", None)
    assert not outcome.drained
    assert outcome.elapsed < 10
    assert of_session(outcome.pid) == []


def test_a_background_process_is_not_left_behind(run: Run) -> None:
    """What a child leaves in its own session is ended, though it holds no pipe."""
    outcome = run(shell("sleep 60 >/dev/null 2>&1 & exit 3"), idle=30)

    assert (outcome.status, outcome.drained) == (3, True)
    assert of_session(outcome.pid) == []


def test_a_descendant_in_a_session_of_its_own(run: Run, tmp_path: Path) -> None:
    """A descendant that left the session is found by its parents, killed, and named."""
    note = tmp_path / "pid"
    outcome = run(shell(f"setsid sh -c 'echo $$ >{note}; exec sleep 60' & wait"), idle=IDLE)

    assert_cut(outcome)
    pid = int(note.read_text())
    assert outcome.escaped == (pid,)
    assert eventually(lambda: not is_alive(pid))


def test_one_that_ignores_term(run: Run) -> None:
    """KILL follows TERM after the grace, for a child that ignores TERM."""
    outcome = run(
        shell("trap '' TERM; echo on; while :; do sleep 60; done"), idle=IDLE, kill_grace=0.3
    )

    assert_cut(outcome)
    assert outcome.status == -signal.SIGKILL


def test_one_that_cleans_up(run: Run) -> None:
    """What a child says on TERM is part of its output, and its own status counts."""
    outcome = run(
        shell("trap 'echo bye; exit 5' TERM; echo hi; while :; do sleep 0.05; done"), idle=IDLE
    )

    assert_cut(outcome)
    assert (outcome.status, outcome.stdout) == (5, b"hi\nbye\n")


def test_a_stopped_one(run: Run) -> None:
    """A child that was stopped is silent, and is killed all the same."""
    outcome = run(shell("kill -STOP $$"), idle=IDLE, kill_grace=1)

    assert_cut(outcome)
    assert outcome.status in (-signal.SIGTERM, -signal.SIGKILL)


def test_one_that_closes_its_pipes(run: Run) -> None:
    """The end of both pipes is no exit and no sign of life."""
    outcome = run(shell("echo hi; exec >/dev/null 2>&1; sleep 60"), idle=IDLE)

    assert_cut(outcome)
    assert (outcome.stdout, outcome.drained) == (b"hi\n", True)


def test_a_mebibyte_to_stderr_only(run: Run) -> None:
    """One pipe that fills up while the other is silent blocks nothing."""
    outcome = run(shell("head -c 1048576 /dev/zero >&2"), idle=30)

    assert (outcome.status, outcome.stdout, len(outcome.stderr)) == (0, b"", 2**20)


def test_a_long_line(run: Run) -> None:
    """A line of 200 KiB without its end arrives whole."""
    outcome = run(python("print('x' * 204800, end='')"), idle=30)

    assert (outcome.status, outcome.stdout) == (0, b"x" * 204800)


def test_bytes_that_are_no_text(run: Run) -> None:
    """Exact bytes are kept; as text, what is none becomes U+FFFD."""
    outcome = run(python(r"import os; os.write(1, b'a\xff\0\r\n\xe2\x82')"), idle=30)

    assert outcome.stdout == b"a\xff\0\r\n\xe2\x82"
    assert outcome.stdout_text == "a\ufffd\0\r\n\ufffd"


def test_more_than_is_kept(run: Run) -> None:
    """Head and tail are kept within the cap, and what is lost between them is counted."""
    outcome = run(shell("seq 1 100000"), idle=30, max_output=1000)

    whole = b"".join(b"%d\n" % number for number in range(1, 100001))
    assert outcome.stdout == whole[:500] + whole[-500:]
    assert outcome.stdout_dropped == len(whole) - 1000
    assert f"[{len(whole) - 1000} bytes dropped]" in outcome.stdout_text


@pytest.mark.parametrize(
    ("args", "error"),
    [(["/nowhere/at/all"], FileNotFoundError), (["/etc/passwd"], PermissionError)],
    ids=["no such file", "not executable"],
)
def test_one_that_cannot_start(run: Run, args: list[str], error: type[OSError]) -> None:
    """A program that cannot be run raises what `subprocess` raises, with its name."""
    with pytest.raises(error) as caught:
        run(args)

    assert caught.value.filename == args[0]


def test_no_such_directory(run: Run, tmp_path: Path) -> None:
    """A directory that is not there is named, not the program."""
    with pytest.raises(FileNotFoundError) as caught:
        run(["true"], cwd=tmp_path / "none")

    assert caught.value.filename == str(tmp_path / "none")


def test_where_and_with_what_it_runs(run: Run, tmp_path: Path) -> None:
    """Directory and environment are those given; it leads a session of its own."""
    outcome = run(
        shell("pwd; echo $WHAT; ps -o sid= -p $$ | tr -d ' '"),
        cwd=tmp_path,
        env={"WHAT": "this", "PATH": os.environ["PATH"]},
        idle=30,
    )

    assert outcome.stdout_text.split() == [str(tmp_path), "this", str(outcome.pid)]


def test_it_has_nothing_to_read(run: Run) -> None:
    """Standard input is closed unless something is asked for."""
    assert run(["cat"], idle=30).stdout == b""


def test_it_is_fed(run: Run) -> None:
    """More input than a pipe holds, to a child that answers meanwhile, is no deadlock."""
    data = bytes(range(256)) * 4096 * 2
    outcome = run(["cat"], input=data, idle=30)

    assert outcome.stdout == data


def test_input_that_nobody_reads(run: Run) -> None:
    """A child that exits without reading its input is no error."""
    assert run(["true"], input=b"x" * 2**20, idle=30).status == 0


def test_output_as_it_comes(run: Run, tmp_path: Path) -> None:
    """`on_output` and `tee` get all bytes in order."""
    seen: list[tuple[str, bytes]] = []
    copy = tmp_path / "copy"
    outcome = run(
        shell("seq 1 20000; echo err >&2"),
        on_output=lambda stream, data: seen.append((stream, data)),
        tee=copy,
        idle=30,
    )

    assert b"".join(data for stream, data in seen if stream == "stdout") == outcome.stdout
    assert b"".join(data for stream, data in seen if stream == "stderr") == b"err\n"
    assert copy.read_bytes() == b"".join(data for _, data in seen)


def test_an_on_output_that_raises(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged once, and supervision goes on."""

    def broken(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    outcome = run(shell("echo a; sleep 0.1; echo b; sleep 60"), on_output=broken, idle=IDLE)

    assert_cut(outcome)
    assert outcome.stdout == b"a\nb\n"
    assert [r.message for r in caplog.records if "on_output" in r.message] == [
        "on_output of a child raised: it is not called again"
    ]


def test_its_warning_and_its_end_are_events(run: Run) -> None:
    """At half of the window there is a warning, at the window the end; both carry its name."""
    events: list[ChildIdle] = []
    outcome = run(["sleep", "60"], idle=IDLE, name="build", on_event=events.append)

    assert [(type(e), e.name, e.warning) for e in events] == [
        (ChildIdle, "build", True),
        (ChildIdle, "build", False),
    ]
    assert events[0].idle >= IDLE / 2
    assert outcome.cause is not None
    assert outcome.cause.name == "build"
    assert events[1].idle == outcome.cause.idle


def test_its_life_has_an_end_if_asked(run: Run) -> None:
    """A budget ends a child however lively it is, which is no idleness."""
    outcome = run(shell("while :; do echo x; sleep 0.05; done"), budget=0.4)

    assert isinstance(outcome.cause, ToolDeadlineError)
    assert (outcome.killed_for_idle, outcome.cause.limit) == (False, 0.4)
    assert of_session(outcome.pid) == []


def test_observing_kills_nothing(run: Run) -> None:
    """With `observe_only` the event says what would have happened, and the child ends by itself."""
    events: list[ChildIdle] = []
    outcome = run(["sleep", "0.6"], idle=0.2, observe_only=True, on_event=events.append)

    assert (outcome.status, outcome.cause) == (0, None)
    assert [e.would_have_fired for e in events if not e.warning] == [True]


def test_a_terminal_if_asked(run: Run) -> None:
    """In a pseudo terminal the child writes to a terminal, and no byte is altered."""
    outcome = run(
        python("import os; print(os.isatty(1), os.isatty(2), flush=True)"), pty=True, idle=30
    )

    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"True True\n", b"")


def test_touch_is_a_sign_of_life(run: Run) -> None:
    """Writes to the descriptor in its environment keep a silent child alive. 0.1 s of 1 s."""
    code = (
        "import os, time\n"
        "fd = int(os.environ['STALLWATCH_TOUCH_FD'])\n"
        "for _ in range(20): os.write(fd, b'x'); time.sleep(0.1)"
    )
    outcome = run(python(code), progress=("touch",), idle=1)

    assert (outcome.status, outcome.cause) == (0, None)


def test_cpu_time_is_a_sign_of_life(run: Run) -> None:
    """CPU time of the tree keeps a silent child alive if asked; 2 s of work, a window of 1 s."""
    code = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    busy = run(python(code), progress=("cpu",), idle=1)
    idle = run(["sleep", "60"], progress=("cpu",), idle=IDLE)

    assert (busy.status, busy.cause) == (0, None)
    assert_cut(idle)


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize("option", ["idle", "budget", "kill_grace", "drain_grace", "max_runtime"])
def test_limits_that_are_none(run: Run, option: str, value: float) -> None:
    """Zero, negative values and NaN are refused, by name, and nothing is started."""
    with pytest.raises(ValueError, match=option):
        run(["true"], **{option: value})


def test_the_window_of_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`STALLWATCH_CHILD_IDLE` is the window of calls that name none; `off` works, 0 is refused."""
    monkeypatch.setenv("STALLWATCH_CHILD_IDLE", str(IDLE))
    assert_cut(run(["sleep", "60"]))
    assert run(["sleep", "0.6"], idle=30).cause is None
    monkeypatch.setenv("STALLWATCH_CHILD_IDLE", "off")
    assert run(["sleep", "0.6"]).cause is None
    monkeypatch.setenv("STALLWATCH_CHILD_IDLE", "0")
    with pytest.raises(ValueError, match="STALLWATCH_CHILD_IDLE"):
        run(["true"])
