"""`stallwatch demo`: its judge, its chart, its manners, and a few of its scenarios for real."""

import asyncio
import dataclasses
import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stallwatch import (
    HardIdleError,
    Limits,
    Outcome,
    Phase,
    PhaseChanged,
    Status,
    StreamIdleError,
    StreamStalled,
    UserCancelled,
)
from stallwatch.cli import _demo_judge, demo, main
from stallwatch.cli._demo_chart import ASCII, UNICODE, WIDTH, Chart
from stallwatch.cli._demo_judge import TEXT, Expected, judge
from stallwatch.cli._demo_record import Chunk, Claim, Record, Sample
from stallwatch.cli._demo_scenes import SCENES
from stallwatch.cli._demo_show import Screen

HALF = TEXT[:60]
STALLED = Expected(
    status=Status.STALLED, cause="stream_idle", phase=Phase.AWAITING_LLM, text="part"
)
# A scenario takes 3 s, starting Python with both SDKs as much again; the rest is headroom.
CHILD_LIMIT = 60.0
needs_sdks = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("aiohttp", "anthropic", "openai")),
    reason="the demo needs aiohttp, anthropic and openai",
)


def stalled(**changes: Any) -> Outcome:
    """An outcome as `STALLED` expects it, but for the changes."""
    given: dict[str, Any] = {
        "status": Status.STALLED,
        "cause": StreamIdleError(idle=0.81, limit=0.8),
        "phase": Phase.AWAITING_LLM,
        "text": HALF,
    }
    return Outcome(**{**given, **changes})


def play(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the demo as a child, its output piped."""
    return subprocess.run(
        [sys.executable, "-m", "stallwatch", "demo", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CHILD_LIMIT,
        check=False,
        **options,
    )


# The judge.


def test_judge_is_content_with_what_was_expected() -> None:
    """An outcome as expected, with claims that hold, has no problems."""
    assert judge(STALLED, stalled(), [Claim("it was silent", True)]) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"status": Status.COMPLETED}, "status is completed, not stalled"),
        ({"cause": HardIdleError(idle=1.5, limit=1.5)}, "cause is hard_idle, not stream_idle"),
        ({"cause": UserCancelled("stop")}, "cause is user_cancelled, not stream_idle"),
        ({"cause": None}, "cause is None, not stream_idle"),
        ({"phase": Phase.COMPACTING}, "phase is compacting, not awaiting_llm"),
        ({"text": ""}, "kept text is none, not part"),
        ({"text": TEXT}, "kept text is all, not part"),
        ({"text": "Hello"}, "kept text is not from the answer ('Hello'), not part"),
        (
            {"cause": StreamIdleError(idle=0.79, limit=0.8)},
            "stream_idle fired at 0.790 s with a limit of 0.8 s",
        ),
        (
            {"cause": StreamIdleError(idle=9.0, limit=0.8)},
            "stream_idle fired at 9.000 s with a limit of 0.8 s",
        ),
    ],
)
def test_judge_names_what_is_wrong(changes: dict[str, Any], problem: str) -> None:
    """Whatever differs from the expectation is named, with what it is and what it must be."""
    assert judge(STALLED, stalled(**changes), []) == [problem]


def test_judge_names_a_claim_that_does_not_hold() -> None:
    """A scenario that ended as it must, but does not show what it says, is a failure too."""
    problems = judge(STALLED, stalled(), [Claim("the client still waits", False)])

    assert problems == ["does not hold: the client still waits"]


def test_judge_refuses_a_turn_without_an_outcome() -> None:
    """A turn that never settled is a failure."""
    assert judge(STALLED, None, []) == ["the turn has no outcome"]


def test_text_is_what_the_server_says() -> None:
    """The judge knows the fault server's whole answer word for word."""
    from stallwatch.faults._scripts import _TEXT

    assert "".join(_TEXT) == _demo_judge.TEXT


# The chart.


def record_of_a_stall() -> Record:
    """A record of one second: chunks up to 0.2 s, then a silence that is cut at 1 s."""
    record = Record(Limits(stream_idle=0.8, hard_idle=2), on_note=lambda at, note: None)
    record.started = 100.0
    record.event(PhaseChanged(at=100.0, phase=Phase.AWAITING_LLM, seq=1, previous=Phase.INIT))
    record.chunks = [Chunk(0.1, False), Chunk(0.2, True, "A stall ")]
    for step in range(50):
        at = step / 50
        clocks = {"idle": max(0.0, at - 0.2), "hard_idle": at, "progress_idle": None}
        record.samples.append(Sample(at, Phase.AWAITING_LLM, {"first_chunk": None, **clocks}))
    record.event(StreamStalled(at=101.0, clock="idle", idle=0.8, limit=0.8, cause="stream_idle"))
    return record


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_chart_shows_phase_chunks_and_the_clock_that_fired(glyphs: Any) -> None:
    """The rows share one axis; the clock that fired ends in its mark, the other does not."""
    chart = Chart(
        record_of_a_stall(), ("idle", "hard_idle"), glyphs=glyphs, paint=lambda text, style: text
    )
    rows = {line[:21].strip(): line[22:] for line in chart.lines()}

    assert set(rows) == {"seconds", "", "awaiting_llm", "chunks", "idle 0.8 s", "hard_idle 2 s"}
    assert set(rows["awaiting_llm"]) == {glyphs.phase}
    assert rows["chunks"].split() == [glyphs.other, glyphs.progress]
    assert rows["idle 0.8 s"].endswith(glyphs.levels[-1] + glyphs.fired)
    assert glyphs.fired not in rows["hard_idle 2 s"]
    assert all(len(line) < WIDTH for line in chart.lines())


def test_screen_colours_a_terminal_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escape codes go to a terminal, unless NO_COLOR is set there; never to a pipe."""

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    assert "\x1b[" in Screen(Terminal()).paint("text", "bad")
    assert Screen(io.StringIO()).paint("text", "bad") == "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(Terminal()).paint("text", "bad") == "text"


def test_screen_writes_ascii_where_nothing_else_can_be_written() -> None:
    """An output that cannot encode block characters gets none."""
    assert Screen(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).glyphs is ASCII
    assert Screen(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).glyphs is UNICODE


# The command.


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` gives one line a scenario, its name first, and plays nothing."""
    assert main(["demo", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [scene.name for scene in SCENES]
    assert len({scene.name for scene in SCENES}) == len(SCENES) == 8


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` with a name that does not exist ends with status 2 and the names there are."""
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--only", "nothing"])

    assert caught.value.code == 2
    assert "'healthy'" in capsys.readouterr().err


def test_missing_sdks_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an SDK the demo says what to install, and ends with status 2."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "anthropic" else found(name)
    )
    monkeypatch.setattr(demo, "_NEEDS", ("anthropic", "json"))

    assert main(["demo"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ("stallwatch demo: anthropic not found: pip install stallwatch[demo]\n")


@needs_sdks
def test_a_file_that_cannot_be_written_shows_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad path for `--json` ends with status 1 before anything is played."""
    assert main(["demo", "--json", str(tmp_path / "no" / "where.json")]) == 1

    captured = capsys.readouterr()
    assert "No such file" in captured.err
    assert captured.out == ""


@pytest.mark.slow
@pytest.mark.sdk
@needs_sdks
def test_a_scenario_that_ends_differently_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong end and an exception are each named, and the others are played all the same."""

    async def broken(stage: object) -> None:
        raise ValueError("no such thing")

    healthy = SCENES[0]
    assert healthy.name == "healthy"
    scenes = (
        dataclasses.replace(healthy, name="raises", play=broken),
        dataclasses.replace(healthy, name="differs", expected=STALLED),
        healthy,
    )
    monkeypatch.setattr(demo, "SCENES", scenes)

    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "stallwatch demo: did not end as it must: raises, differs\n"
    assert "the scenario raised ValueError: no such thing" in captured.out
    assert "status is completed, not stalled" in captured.out
    assert re.search(r"✓ healthy +completed +completed", captured.out)


@pytest.mark.slow
@pytest.mark.sdk
@needs_sdks
def test_scenarios_end_as_they_must(tmp_path: Path) -> None:
    """A child plays four scenarios: status 0, plain text of 80 columns, JSON that says the same."""
    path = tmp_path / "demo.json"
    names = ["silence", "pings", "compaction", "stop"]
    done = play(
        *(word for name in names for word in ("--only", name)),
        *("--json", str(path)),
        env={"PYTHONIOENCODING": "utf-8"},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= WIDTH
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["ok"] is True
    assert [one["name"] for one in data["scenarios"]] == names
    for scene in data["scenarios"]:
        check_consistent(scene)
        assert f"{scene['outcome']['status']} in phase {scene['outcome']['phase']}" in done.stdout
    bare = data["scenarios"][0]["without_stallwatch"]
    assert bare["hung"] is True
    # Never early: the client was left alone with the silence for three times the limit.
    assert bare["stopped_at"] - bare["chunks"][-1] >= 3 * 0.8 - 0.01
    pings = [one for one in data["scenarios"][1]["chunks"] if one["kind"] == "ping"]
    assert len(pings) >= 5
    assert not any(one["progress"] for one in pings)


def check_consistent(scene: dict[str, Any]) -> None:
    """Events, chunks and outcome of one scenario tell the same story."""
    outcome = Outcome.from_dict(scene["outcome"])
    settled = [one for one in scene["events"] if one["event"] == "settled"]
    cause = None if outcome.cause is None else outcome.cause.kind

    assert scene["problems"] == []
    assert all(claim["holds"] for claim in scene["claims"])
    assert [(one["status"], one["cause"]) for one in settled] == [(outcome.status, cause)]
    assert scene["expected"]["status"] == outcome.status
    assert scene["expected"]["cause"] == cause
    assert scene["expected"]["phase"] == str(outcome.phase)
    assert "".join(one["text"] for one in scene["chunks"]) == outcome.text
    times = [one["t"] for one in scene["events"]]
    assert times == sorted(times)


@pytest.mark.slow
@pytest.mark.sdk
@needs_sdks
def test_ctrl_c_is_quiet() -> None:
    """SIGINT in the middle of a scenario ends the demo with status 130 and no traceback."""
    child = subprocess.Popen(
        [sys.executable, "-m", "stallwatch", "demo", "--only", "tool"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8"},
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "executing_tools" in line:
            break
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=CHILD_LIMIT)

    assert child.returncode == 130
    assert errors == ""


def test_every_scenario_has_limits_that_fit_its_story() -> None:
    """Each scenario shows only clocks that are on, and explains itself in a few words."""
    for scene in SCENES:
        record = Record(scene.limits, on_note=lambda at, note: None)
        assert all(record.limit_of(clock) for clock in scene.clocks), scene.name
        assert asyncio.iscoroutinefunction(scene.play)
        assert len(f"[1/8] {scene.name}: {scene.title} -") < WIDTH
