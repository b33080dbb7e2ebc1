"""Children under hard conditions: a held GIL, a flood, a crowd, a freeze, an exit at the limit."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from child_tools import (
    BOTH,
    Run,
    children,
    eventually,
    is_alive,
    nothing_left,
    of_session,
    python,
    shell,
)
from stallwatch import ChildIdle, ChildOutcome, ObserverStalled, run_child, run_child_sync

IDLE = 0.3


@pytest.fixture(params=BOTH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Both ways to run a child; nothing may be left behind by either."""
    with nothing_left():
        yield BOTH[request.param]


def in_python(code: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit, check=False
    )


GIL = """
import ctypes, threading, time
from stallwatch import run_child_sync
runs = threading.Event()
def main():
    outcome = run_child_sync(
        ["sh", "-c", "echo; exec sleep 60"],
        idle=0.5,
        on_output=lambda *_: runs.set(),
        on_event=lambda event: None,
    )
    print(outcome.killed_for_idle, outcome.elapsed)
thread = threading.Thread(target=main)
thread.start()
runs.wait()
ctypes.PyDLL(None).usleep(4000000)
thread.join()
"""


@pytest.mark.slow
def test_the_gil_is_not_needed() -> None:
    """A C call holds the GIL for 4 s; a child with a window of 0.5 s is dead long before its end.

    Real time: 0.5 s, with 2.5 s to spare.
    """
    done = in_python(GIL)

    killed, elapsed = done.stdout.split()
    assert (done.stderr, killed) == ("", "True")
    assert 0.5 <= float(elapsed) < 3


def test_the_loop_is_not_needed() -> None:
    """A child is cut on time, by its own clock, while the loop that awaits it is blocked."""

    async def main() -> ChildOutcome:
        task = asyncio.ensure_future(run_child(["sleep", "60"], idle=IDLE))
        await asyncio.sleep(0.05)
        time.sleep(2)
        return await task

    with nothing_left():
        outcome = asyncio.run(main())

    assert outcome.killed_for_idle
    assert outcome.elapsed < 1.9


@pytest.mark.slow
def test_an_exit_at_the_limit(run: Run) -> None:
    """Exits within 5 ms of the window, 100 times: each is an exit with its status, or was cut.

    An exit that was cut has the status of the signal: nothing is both, and no status is made up.
    """
    window = 0.1

    def once(number: int) -> ChildOutcome:
        span = window + (number % 11 - 5) / 1000
        return run(["sleep", f"{span:.3f}"], idle=window)

    found = [once(number) for number in range(100)]

    for outcome in found:
        if outcome.killed_for_idle:
            assert outcome.status == -signal.SIGTERM
            assert outcome.cause is not None
            assert outcome.cause.idle >= window
        else:
            assert (outcome.status, outcome.cause) == (0, None)


def test_an_exit_that_nobody_has_seen_yet_wins() -> None:
    """A process that was frozen across both the exit and the limit reports the exit."""
    code = """
import os, signal, subprocess, sys
from stallwatch import run_child_sync
# Wakes us after the child has ended and its window is over.
subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
outcome = run_child_sync(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.2; exit 3"], idle=0.5)
print(outcome.status, outcome.cause)
"""
    done = in_python(code)

    assert (done.stdout, done.stderr) == ("3 None\n", "")


def test_a_frozen_parent_blames_nobody() -> None:
    """After a freeze of this process the silence begins anew, once, and that is reported."""
    code = """
import os, subprocess
from stallwatch import run_child_sync
subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
events = []
# Silent for the whole freeze, then done within the window after it.
outcome = run_child_sync(
    ["sh", "-c", f"kill -STOP {os.getpid()}; sleep 2.4"], idle=1.5, on_event=events.append
)
others = [type(event).__name__ for event in events if not hasattr(event, "warning")]
print(outcome.status, outcome.cause, others)
"""
    done = in_python(code)

    assert (done.stdout, done.stderr) == ("0 None ['ObserverStalled']\n", "")
    assert ObserverStalled.event == "observer_stalled"


@pytest.mark.slow
def test_a_gibibyte(run: Run) -> None:
    """A flood of 1 GiB passes in bounded memory: less than 256 MiB, the cap being 1 MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = run(shell("head -c 1073741824 /dev/zero"), idle=30, max_output=2**20)

    assert (outcome.status, len(outcome.stdout)) == (0, 2**20)
    assert outcome.stdout_dropped == 2**30 - 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_a_slow_listener_holds_the_child_back(run: Run) -> None:
    """While `on_output` is busy little is read ahead, and the child that waits is not silent."""
    seen = 0

    def slow(stream: str, data: bytes) -> None:
        nonlocal seen
        if seen == 0:
            time.sleep(IDLE * 4)
        seen += len(data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = run(shell("head -c 67108864 /dev/zero"), idle=IDLE, on_output=slow, max_output=1024)

    assert (outcome.status, outcome.cause, seen) == (0, None, 2**26)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_both_pipes_full_for_ever(run: Run) -> None:
    """Two floods at once are no deadlock, and end at their budget."""
    outcome = run(shell("yes & yes >&2 & wait"), budget=0.5, max_output=1024)

    assert outcome.cause is not None
    assert min(outcome.stdout_dropped, outcome.stderr_dropped) > 2**16
    assert of_session(outcome.pid) == []


@pytest.mark.slow
def test_a_crowd_in_a_loop() -> None:
    """200 children at once: those that end have their own status, those that hang are cut."""

    async def main() -> list[ChildOutcome]:
        talks = [run_child(shell(f"echo {n}; sleep 0.3; exit {n}"), idle=20) for n in range(100)]
        hangs = [run_child(shell(f"echo {n}; sleep 60"), idle=1) for n in range(100)]
        return await asyncio.gather(*talks, *hangs)

    with nothing_left():
        found = asyncio.run(main())

    for number, outcome in enumerate(found[:100]):
        assert (outcome.status, outcome.stdout) == (number, b"%d\n" % number)
    for number, outcome in enumerate(found[100:]):
        assert (outcome.killed_for_idle, outcome.stdout) == (True, b"%d\n" % number)
        assert not is_alive(outcome.pid)


@pytest.mark.slow
def test_a_crowd_in_threads() -> None:
    """50 children from 8 threads, none of them the main one."""
    with nothing_left(), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: run_child_sync(shell(f"exit {n}"), idle=20), range(50)))

    assert [outcome.status for outcome in found] == list(range(50))


@pytest.mark.slow
def test_neighbours_keep_their_status() -> None:
    """50 children end in four ways beside plain subprocesses: no zombie, and all true codes."""

    def broken(stream: str, data: bytes) -> None:
        raise LookupError

    async def ours(number: int) -> None:
        kind = number % 4
        if kind == 0:
            assert (await run_child(shell(f"exit {number}"), idle=20)).status == number
        elif kind == 1:
            assert (await run_child(["sleep", "60"], idle=0.5)).killed_for_idle
        elif kind == 2:
            task = asyncio.ensure_future(run_child(["sleep", "60"], idle=20))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await run_child(["echo"], on_output=broken, idle=20)).status == 0

    async def neighbour(number: int) -> tuple[int, int | None]:
        process = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 0.2; exit {number}")
        return number, await process.wait()

    async def main() -> list[tuple[int, int | None]]:
        theirs = [asyncio.ensure_future(neighbour(number)) for number in range(20)]
        await asyncio.gather(*(ours(number) for number in range(50)))
        return await asyncio.gather(*theirs)

    with nothing_left():
        popen = subprocess.Popen(["sh", "-c", "sleep 0.5; exit 77"])
        found = asyncio.run(main())
        assert popen.wait() == 77

    assert all(number == code for number, code in found)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_cancel_ends_the_child(again: bool) -> None:
    """A cancel is raised once the child's tree is gone; a second one skips the grace."""

    async def main() -> tuple[list[int], float]:
        pids: list[int] = []
        script = "trap '' TERM; sleep 60 & echo $$ $!; while :; do sleep 60; done"

        def on_output(stream: str, data: bytes) -> None:
            pids.extend(map(int, data.split()))

        grace = 30 if again else 0.3
        task = asyncio.ensure_future(
            run_child(shell(script), idle=None, kill_grace=grace, on_output=on_output)
        )
        while not pids:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        if again:
            await asyncio.sleep(0.1)
            assert not task.done()
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(map(is_alive, pids))
        return pids, time.monotonic() - began

    with nothing_left():
        pids, elapsed = asyncio.run(main())

    assert len(pids) == 2
    assert elapsed < 10


def test_an_outer_timeout_ends_the_child() -> None:
    """`asyncio.timeout` around a child leaves as `TimeoutError`, with nothing of the child left."""

    async def main() -> None:
        async with asyncio.timeout(IDLE):
            await run_child(["sleep", "60"], idle=None)

    with nothing_left(), pytest.raises(TimeoutError):
        asyncio.run(main())


def test_an_interrupt_ends_the_child() -> None:
    """Ctrl-C while a thread blocks ends the child before it is raised."""
    before = children()

    def interrupt() -> None:
        eventually(lambda: children() - before)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with nothing_left():
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_child_sync(["sleep", "60"], idle=None)
        thread.join()


@pytest.mark.parametrize("how", ["SIG_IGN", "catch-all"])
def test_a_host_that_takes_the_status(how: str) -> None:
    """With SIGCHLD ignored, or a reaper of everything, the status is unknown, and nothing hangs."""
    code = {
        "SIG_IGN": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "catch-all": """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal(signal.SIGCHLD, reap)""",
    }[how]
    done = in_python(f"""
import os, signal
from stallwatch import run_child_sync
{code}
one = run_child_sync(["sh", "-c", "echo hi; sleep 0.1; exit 3"], idle=20)
two = run_child_sync(["sleep", "60"], idle=0.3)
print(one.status in (None, 3), one.stdout, two.killed_for_idle, two.survivors)
""")

    assert (done.stdout, done.stderr[-300:]) == ("True b'hi\\n' True ()\n", done.stderr[-300:])
    assert "Traceback" not in done.stderr


def test_signal_handlers_of_the_host_stay() -> None:
    """No handler of the process is replaced by the first child."""
    done = in_python("""
import signal
from pathlib import Path
from stallwatch import run_child_sync
def handlers():
    status = Path("/proc/self/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    # Those above 31 are the C library's own.
    known = [signal.getsignal(number) for number in signal.valid_signals()]
    return int(caught, 16) & 0x7FFFFFFF, known
before = handlers()
run_child_sync(["true"])
print(handlers() == before)
""")

    assert (done.stdout, done.stderr) == ("True\n", "")


def test_exit_of_the_program_ends_its_children() -> None:
    """A program that ends while a daemon thread waits for a child leaves nothing, in silence."""
    done = in_python("""
import threading, time
from stallwatch import run_child_sync
def main():
    run_child_sync(["sh", "-c", "echo $$; sleep 60"], on_output=lambda s, d: print(d.decode()))
threading.Thread(target=main, daemon=True).start()
time.sleep(1)
""")

    assert (done.returncode, done.stderr) == (0, "")
    assert eventually(lambda: not is_alive(int(done.stdout)))


def test_a_fork_starts_clean() -> None:
    """A forked process runs children of its own, and its end spares those of its parent."""
    done = in_python("""
import os, threading, time
from stallwatch import run_child_sync
found = []
thread = threading.Thread(target=lambda: found.append(run_child_sync(["sleep", "1"], idle=20)))
thread.start()
time.sleep(0.3)
import warnings; warnings.simplefilter("ignore")
if os.fork() == 0:
    import sys
    sys.exit(run_child_sync(["sh", "-c", "exit 5"], idle=20).status)
print(os.waitstatus_to_exitcode(os.wait()[1]))
thread.join()
print(found[0].status)
""")

    assert (done.stdout, done.stderr) == ("5\n0\n", "")


@pytest.mark.parametrize("mode", ["pipe", "unbuffered", "pty", "cpu"])
@pytest.mark.slow
def test_output_in_the_buffer_of_the_child(run: Run, mode: str) -> None:
    """Dots in a child's own buffer look like silence: it is warned of, cut, and the hint says so.

    A pseudo terminal, or CPU time as a sign of life, lets it live. 0.1 s a dot, 1 s of window.
    """
    code = (
        "import time\nfor _ in range(25):\n"
        "    print('.', end='', flush=FLUSH)\n"
        "    end = time.monotonic() + 0.05\n"
        "    while time.monotonic() < end: pass\n"
        "    time.sleep(0.05)\n"
    ).replace("FLUSH", str(mode in ("unbuffered", "pty")))
    events: list[ChildIdle] = []
    progress = ("stdout", "cpu") if mode == "cpu" else ("stdout",)
    outcome = run(
        python(code), idle=1, pty=mode == "pty", progress=progress, on_event=events.append
    )

    if mode == "pipe":
        assert outcome.killed_for_idle
        assert outcome.buffered
        assert outcome.hint is not None
        assert [event.warning for event in events] == [True, False]
    else:
        assert (outcome.status, outcome.cause) == (0, None)


def test_a_silent_child_that_sleeps_is_not_called_busy(run: Run) -> None:
    """The hint is not given for a child that did nothing."""
    outcome = run(["sleep", "60"], idle=IDLE)

    assert (outcome.buffered, outcome.hint) == (False, None)


def test_one_that_waits_for_its_input(run: Run) -> None:
    """A child that is cut while it reads its standard input is told from one that hangs."""
    code = "import os; r, w = os.pipe(); os.dup2(r, 0); os.read(0, 1)"
    outcome = run(python(code), idle=1)

    assert outcome.killed_for_idle
    assert outcome.reads_stdin
    assert outcome.hint == "it was waiting for its standard input"
