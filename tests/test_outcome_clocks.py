"""`Outcome.clocks` and `Outcome.uncovered`: what the clocks measured, and what none of them saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard_tools import on_manual_clock
from stallwatch import Limits, Outcome, Phase, PhaseLimits, PhaseTracker, Turn, budget, run_turn
from stallwatch._clock_times import ClockTime, uncovered
from stallwatch.testing import ManualClock

IDLE = Phase.AWAITING_LLM
BUSY = Phase.EXECUTING_TOOLS
LIMITS = Limits(soft_idle=5, hard_idle=20, first_chunk=6, stream_idle=4, progress_idle=9)


async def settle(clock: ManualClock, body: Any, limits: Limits = LIMITS) -> Outcome:
    """Run a body in steps of a quarter of a second."""
    task = asyncio.ensure_future(run_turn(body, limits))
    for _ in range(2_000):
        if task.done():
            return await task
        await clock.advance(0.25)
    raise AssertionError("it did not return")


async def rest(seconds: float) -> None:
    """Sleep on the manual clock."""
    await asyncio.sleep(seconds)


async def words(*waits: float, end: bool = True) -> AsyncIterator[str]:
    """A word after each wait; then it ends, or is silent."""
    for wait in waits:
        await asyncio.sleep(wait)
        yield "word "
    if not end:
        await asyncio.Event().wait()


def near(value: float) -> Any:
    """Within the steps of the clock."""
    return pytest.approx(value, abs=0.8)


@on_manual_clock
async def test_idle_is_the_longest_silence_of_a_phase_that_counts(clock: ManualClock) -> None:
    """Not their sum, and not that of phases which do not count."""

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        await rest(3)
        turn.enter(IDLE)
        await rest(7)
        turn.enter(BUSY)
        await rest(60)
        turn.enter(IDLE)
        await rest(2)

    outcome = await settle(clock, body)

    assert outcome.status == "completed"
    assert outcome.clocks["soft_idle"] == ClockTime(5, near(7))
    assert outcome.clocks["hard_idle"] == ClockTime(20, near(7))
    assert outcome.clocks["turn_budget"] == ClockTime(None, near(72))


@on_manual_clock
async def test_the_silence_that_ended_it_is_one(clock: ManualClock) -> None:
    """At least as long as the cause says, and the limit is that of its phase."""
    limits = Limits(hard_idle=20, phases={IDLE: PhaseLimits(soft=1, hard=8)})

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        await rest(1_000)

    outcome = await settle(clock, body, limits)

    assert outcome.cause.kind == "hard_idle"
    assert outcome.clocks["hard_idle"].limit == 8
    assert outcome.clocks["hard_idle"].elapsed >= outcome.cause.idle >= 8


@on_manual_clock
async def test_a_borrowed_phase_is_not_charged_to_the_one_below(clock: ManualClock) -> None:
    """3 s, then a human for 100 s, then 4 s more: idle for 7 s."""

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        await rest(3)
        with turn.phase(Phase.AWAITING_APPROVAL):
            await rest(100)
        await rest(4)

    outcome = await settle(clock, body)

    assert outcome.clocks["hard_idle"].elapsed == near(7)
    assert outcome.uncovered == near(100)


@on_manual_clock
async def test_streams_tell_the_longest_of_each_clock(clock: ManualClock) -> None:
    """Over all streams of the turn, whichever it was."""

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        async for _ in turn.stream(words(5, 1, 1)):
            pass
        turn.enter(IDLE)
        async for _ in turn.stream(words(1, 3, 2), budget=30):
            pass

    outcome = await settle(clock, body)

    assert outcome.clocks["first_chunk"] == ClockTime(6, near(5))
    assert outcome.clocks["stream_idle"] == ClockTime(4, near(3))
    assert outcome.clocks["progress_idle"] == ClockTime(9, near(3))
    assert outcome.clocks["stream_budget"] == ClockTime(None, near(7))


@pytest.mark.parametrize(
    ("waits", "kind", "clock_name", "limit"),
    [((), "first_chunk", "first_chunk", 6), ((1.0, 1.0), "stream_idle", "stream_idle", 4)],
)
@on_manual_clock
async def test_the_clock_that_fired_ran_for_what_its_cause_says(
    clock: ManualClock, waits: tuple[float, ...], kind: str, clock_name: str, limit: float
) -> None:
    """No outcome has a cause that its own clocks deny."""

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        async for _ in turn.stream(words(*waits, end=False)):
            pass

    outcome = await settle(clock, body)

    assert outcome.cause.kind == kind
    assert outcome.clocks[clock_name].limit == limit
    assert outcome.clocks[clock_name].elapsed >= outcome.cause.idle >= limit


@on_manual_clock
async def test_a_turn_without_a_stream_has_no_clocks_of_streams(clock: ManualClock) -> None:
    """Nor has one with a stream that nobody ever pulled from."""

    async def body(turn: Turn) -> None:
        turn.stream(words())

    outcome = await settle(clock, body)

    assert set(outcome.clocks) == {"soft_idle", "hard_idle", "turn_budget"}


@on_manual_clock
async def test_clocks_make_the_round_trip(clock: ManualClock) -> None:
    """Through JSON, as all of the outcome."""

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(words(1)):
            pass

    outcome = await settle(clock, body)
    again = Outcome.from_json(outcome.to_json())

    assert again == outcome
    assert again.clocks == outcome.clocks
    assert outcome.to_dict()["clocks"]["first_chunk"]["limit"] == 6


# --- uncovered ---


@on_manual_clock
async def test_a_tool_without_a_limit_is_not_covered(clock: ManualClock) -> None:
    """Nothing would have ended it."""

    async def body(turn: Turn) -> None:
        turn.enter(BUSY)
        await turn.tool("slow", rest(50))

    assert (await settle(clock, body)).uncovered == near(50)


@on_manual_clock
async def test_a_tool_with_a_limit_is(clock: ManualClock) -> None:
    """Only what lies around it is not."""

    async def body(turn: Turn) -> None:
        turn.enter(BUSY)
        await rest(10)
        await turn.tool("slow", rest(50), timeout=60)
        await rest(10)

    assert (await settle(clock, body)).uncovered == near(20)


@on_manual_clock
async def test_tools_side_by_side_are_not_counted_twice(clock: ManualClock) -> None:
    """30 s of 50 are covered by two that overlap."""

    async def body(turn: Turn) -> None:
        turn.enter(BUSY)
        first = turn.start_tool("a", rest(20), timeout=60)
        await rest(10)
        second = turn.start_tool("b", rest(20), timeout=60)
        await first
        await second
        await rest(20)

    assert (await settle(clock, body)).uncovered == near(20)


@on_manual_clock
async def test_a_stream_in_a_busy_phase_is_covered(clock: ManualClock) -> None:
    """By its own clocks; one with all of them off is not."""

    async def body(turn: Turn) -> None:
        turn.enter(BUSY)
        async for _ in turn.stream(words(3, 3)):
            pass
        off = {"first_chunk": None, "idle": None, "progress_idle": None}
        async for _ in turn.stream(words(7, 7), **off):
            pass

    assert (await settle(clock, body)).uncovered == near(14)


@pytest.mark.parametrize("where", ["turn", "around"])
@on_manual_clock
async def test_with_a_budget_nothing_is_uncovered(clock: ManualClock, where: str) -> None:
    """Whoever set it."""

    async def body(turn: Turn) -> None:
        turn.enter(BUSY)
        await rest(30)

    if where == "turn":
        outcome = await settle(clock, body, Limits(turn_budget=100))
    else:
        with budget(100):
            outcome = await settle(clock, body)

    assert outcome.uncovered == 0.0
    assert outcome.clocks["turn_budget"].limit == near(100)


@on_manual_clock
async def test_from_a_broken_tracker_on_nothing_is_covered(clock: ManualClock) -> None:
    """The clocks are off then, and the outcome says for how long."""

    async def body(turn: Turn) -> None:
        turn.enter(IDLE)
        await rest(5)
        borrowed, inner = turn.phase(IDLE), turn.phase(BUSY)
        borrowed()  # the outer one first
        assert turn.tracker.invalid
        await rest(40)
        del inner

    turn = Turn(LIMITS, tracker=PhaseTracker(strict=False))
    task = asyncio.ensure_future(run_turn(body, turn=turn))
    while not task.done():
        await clock.advance(0.25)
    outcome = await task

    assert outcome.uncovered == near(40)
    assert outcome.clocks["hard_idle"].elapsed == near(5)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6)


@given(bare=SPANS, covers=SPANS)
def test_uncovered_agrees_with_counting_seconds(
    bare: list[tuple[int, int]], covers: list[tuple[int, int]]
) -> None:
    """Second by second."""
    apart: list[tuple[float, float]] = []
    for start, length in sorted(bare):
        if not apart or start >= apart[-1][1]:
            apart.append((start, start + length))
    over = [(float(start), float(start + length)) for start, length in covers]

    counted = sum(
        any(low <= second < high for low, high in apart)
        and not any(low <= second < high for low, high in over)
        for second in range(100)
    )

    assert uncovered(apart, over) == counted
