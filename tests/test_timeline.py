"""`Timeline`: what a turn leaves to draw, and how much of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise

from guard_tools import HANG, guard, on_manual_clock, script
from stallwatch import (
    Limits,
    Phase,
    PhaseChanged,
    Settled,
    SoftIdle,
    StreamStats,
    ToolEnded,
    ToolStarted,
    Turn,
    run_turn,
)
from stallwatch._timeline import MOST, MOST_BINS, Timeline
from stallwatch.testing import ManualClock
from turn_tools import start


@dataclass
class Stream:
    """A stream that has measured what a test says."""

    name: str | None = None
    stats: StreamStats = field(default_factory=StreamStats)


def changed(at: float, phase: Phase, seq: int) -> PhaseChanged:
    """A change of phase."""
    return PhaseChanged(at=at, phase=phase, seq=seq)


def test_phases_follow_each_other() -> None:
    """Each phase ends where the next begins; the last is open until the turn has settled."""
    timeline = Timeline(100.0)
    timeline(changed(101.0, Phase.SETUP, 1))
    timeline(changed(103.5, Phase.AWAITING_LLM, 2))
    open_ended = timeline.to_dict()["phases"]
    timeline(Settled(at=104.0, status="completed", elapsed=4.0))
    data = timeline.to_dict()

    assert open_ended[-1]["to"] is None
    assert data["phases"] == [
        {"phase": "init", "seq": 0, "from": 0.0, "to": 1.0},
        {"phase": "setup", "seq": 1, "from": 1.0, "to": 3.5},
        {"phase": "awaiting_llm", "seq": 2, "from": 3.5, "to": 4.0},
    ]
    assert data["seconds"] == 4.0
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_tools_are_spans() -> None:
    """Of two tools with one name that end in the other order, each gets its own end."""
    timeline = Timeline(0.0)
    timeline(ToolStarted(at=1.0, name="bash"))
    timeline(ToolStarted(at=2.0, name="bash"))
    timeline(ToolStarted(at=2.0, name="grep"))
    timeline(ToolEnded(at=5.0, name="bash", state="completed", elapsed=3.0))
    timeline(ToolEnded(at=6.0, name="bash", state="interrupted", elapsed=5.0))
    timeline(ToolEnded(at=6.0, name="never begun", state="completed", elapsed=5.0))

    assert timeline.to_dict()["spans"] == [
        {"kind": "tool", "name": "bash", "from": 1.0, "to": 6.0, "state": "interrupted"},
        {"kind": "tool", "name": "bash", "from": 2.0, "to": 5.0, "state": "completed"},
        {"kind": "tool", "name": "grep", "from": 2.0, "to": None, "state": None},
    ]


def test_other_events_are_marks() -> None:
    """Warnings keep what they measured, without the turn's name."""
    timeline = Timeline(10.0)
    timeline(SoftIdle(at=12.0, turn="x", phase=Phase.AWAITING_LLM, seq=1, idle=2.0, limit=2.0))

    (mark,) = timeline.to_dict()["marks"]
    assert (mark["at"], mark["event"], mark["idle"], mark["phase"]) == (
        2.0,
        "soft_idle",
        2.0,
        "awaiting_llm",
    )
    assert "turn" not in mark


def test_memory_is_bounded() -> None:
    """Of very many phases, tools and marks the first and the last are kept, the rest counted."""
    timeline = Timeline(0.0)
    count = 10 * MOST
    for number in range(count):
        timeline(changed(float(number), Phase.AWAITING_LLM, number))
        timeline(ToolStarted(at=float(number), name=str(number)))
        timeline(SoftIdle(at=float(number), phase=Phase.SETUP, seq=number, idle=1.0, limit=1.0))
    data = timeline.to_dict()

    assert [len(data[kind]) for kind in ("phases", "spans", "marks")] == [MOST] * 3
    assert data["dropped"] == {
        "phases": count + 1 - MOST,
        "spans": count - MOST,
        "marks": count - MOST,
    }
    assert data["phases"][0]["seq"] == 0
    assert data["phases"][-1]["seq"] == count - 1


def test_bins_are_bounded_and_lose_no_chunk() -> None:
    """However often a stream is looked at, its bins stay few, in order, and add up."""
    with ManualClock() as clock:
        timeline, stream = Timeline(), Stream("answer")
        for number in range(1, 5_000):
            clock.advance(0.25)
            stream.stats = StreamStats(
                chunks=2 * number, progress_chunks=number, elapsed=0.25 * number, last_chunk=0.0
            )
            timeline.sample([stream])
        (span,) = timeline.to_dict()["spans"]
    bins = span["bins"]

    assert MOST_BINS / 2 <= len(bins) <= MOST_BINS
    assert sum(one[2] for one in bins) == span["chunks"] == 9_998
    assert sum(one[3] for one in bins) == span["progress"] == 4_999
    assert all(one[1] == two[0] for one, two in pairwise(bins))
    assert (bins[0][0], bins[-1][1]) == (0.0, 1249.75)


def test_looks_become_rarer() -> None:
    """Four a second at first, and less than one in two minutes of a turn of three hours."""
    with ManualClock() as clock:
        timeline = Timeline()
        first = timeline.interval
        clock.advance(3 * 3600.0)

        assert first == 0.25
        assert 120.0 < timeline.interval < 240.0


def test_a_stream_that_is_not_given_any_more_is_forgotten() -> None:
    """Its span stays, and nothing holds on to the stream."""
    timeline, stream = Timeline(), Stream(stats=StreamStats(chunks=1, elapsed=1.0, ended=True))
    timeline.sample([stream, Stream("not begun")])
    timeline.sample([stream])
    timeline.sample([])

    assert timeline._streams == {}
    assert len(timeline.to_dict()["spans"]) == 1


@on_manual_clock
async def test_a_real_turn_and_its_stream(clock: ManualClock) -> None:
    """Looks at a stalled stream show when its chunks came, and that nothing came after them."""
    timeline = Timeline()
    turn = Turn(Limits(stream_idle=5.0), on_event=timeline)

    async def body(turn: Turn) -> None:
        with turn.phase(Phase.AWAITING_LLM):
            async for _ in turn.stream(script(1.0, "a", 1.0, "b", HANG), name="answer"):
                timeline.sample(turn._streams)

    end = start(clock, run_turn(body, turn=turn))
    await clock.advance(20)
    outcome = end.task.result()
    timeline.sample(turn._streams)
    data = timeline.to_dict()
    (span,) = data["spans"]

    assert outcome.cause is not None
    assert outcome.cause.kind == "stream_idle"
    assert (span["kind"], span["name"], span["from"], span["to"]) == ("stream", "answer", 0.0, 7.0)
    assert span["bins"] == [[0.0, 1.0, 1, 1], [1.0, 2.0, 1, 1]]
    assert (span["first"], span["last_chunk"], span["last_progress"]) == (1.0, 2.0, 2.0)
    assert [one["phase"] for one in data["phases"]] == ["init", "awaiting_llm", "init"]
    assert [one["event"] for one in data["marks"]] == [
        "first_chunk",
        "stream_slow",
        "stream_stalled",
        "settled",
    ]
    assert data["seconds"] == 7.0


@on_manual_clock
async def test_guards_are_what_it_looks_at(clock: ManualClock) -> None:
    """A guard outside a turn has what is asked for, too."""
    timeline, stream = Timeline(), guard(script("a", "b"))
    async for _ in stream:
        pass
    timeline.sample([stream])
    (span,) = timeline.to_dict()["spans"]

    assert (span["chunks"], span["name"], span["from"]) == (2, None, 0.0)
