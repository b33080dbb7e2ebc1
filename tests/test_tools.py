"""`turn.tool` and `turn.start_tool`: spans of a turn with clocks of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from guard_tools import HANG, Recorder, on_manual_clock, script
from stallwatch._causes import (
    HardIdleError,
    StreamIdleError,
    ToolDeadlineError,
    UserCancelled,
)
from stallwatch._events import BudgetExceeded, LateResult, ToolEnded, ToolStarted, Unresponsive
from stallwatch._failure import Failure
from stallwatch._limits import Limits
from stallwatch._outcome import Outcome, Status
from stallwatch._phases import Phase
from stallwatch._run_turn import run_turn
from stallwatch._tool_call import lingering
from stallwatch._tool_record import ToolState
from stallwatch._turn import Turn
from stallwatch.testing import ManualClock
from turn_tools import for_ever, quiet, stubborn


async def after(seconds: float, value: Any = None) -> Any:
    """A tool that takes so long."""
    await asyncio.sleep(seconds)
    return value


async def outcome_of(
    clock: ManualClock,
    body: Callable[[Turn], Any],
    limits: Limits | None = None,
    *,
    on_event: Any = quiet,
    seconds: float = 2_000.0,
) -> Outcome:
    """Run a body while the clock moves on, and return how it ended."""
    task = asyncio.create_task(run_turn(body, limits, on_event=on_event))
    await clock.advance(seconds)
    return await task


def states(outcome: Outcome) -> list[tuple[str, str]]:
    """Name and state of each tool."""
    return [(one.name, str(one.state)) for one in outcome.tools]


# --- what a tool gives ---


@on_manual_clock
async def test_a_tool_gives_its_result(clock: ManualClock) -> None:
    """It is recorded with the time it took, and reported at both ends."""
    recorder = Recorder()

    async def body(turn: Turn) -> Any:
        return await turn.tool("bash", after(2, "ok"), timeout=10)

    outcome = await outcome_of(clock, body, on_event=recorder)
    (tool,) = outcome.tools

    assert (outcome.status, outcome.result) == (Status.COMPLETED, "ok")
    assert (tool.name, tool.state, tool.elapsed) == ("bash", ToolState.COMPLETED, pytest.approx(2))
    assert (tool.limit, tool.cause) == (10.0, None)
    assert [one.name for one in recorder.of(ToolStarted)] == ["bash"]
    assert [(one.name, one.state) for one in recorder.of(ToolEnded)] == [("bash", "completed")]


@on_manual_clock
async def test_an_error_of_a_tool_is_its_own(clock: ManualClock) -> None:
    """It reaches the caller as the very same object, and does not end the turn."""
    error = TimeoutError("theirs")

    async def broken() -> None:
        raise error

    async def body(turn: Turn) -> str:
        with pytest.raises(TimeoutError) as caught:
            await turn.tool("bash", broken(), timeout=10)
        assert caught.value is error
        return "went on"

    outcome = await outcome_of(clock, body)

    assert (outcome.status, outcome.result) == (Status.COMPLETED, "went on")
    assert states(outcome) == [("bash", "failed")]
    assert outcome.tools[0].cause == Failure("builtins.TimeoutError", "theirs")


@on_manual_clock
async def test_a_deadline_goes_to_the_caller_of_the_tool(clock: ManualClock) -> None:
    """The tool is cancelled, its caller gets the cause, and the turn goes on."""
    recorder = Recorder()
    told: list[str] = []

    async def slow() -> None:
        try:
            await for_ever()
        finally:
            told.append("cancelled")

    async def body(turn: Turn) -> ToolDeadlineError:
        turn.enter(Phase.EXECUTING_TOOLS)
        with pytest.raises(ToolDeadlineError) as caught:
            await turn.tool("bash", slow(), timeout=5)
        return caught.value

    outcome = await outcome_of(clock, body, on_event=recorder)
    cause = outcome.result

    assert (outcome.status, outcome.cause) == (Status.COMPLETED, None)
    assert (cause.name, cause.limit, cause.phase) == ("bash", 5.0, Phase.EXECUTING_TOOLS)
    assert cause.idle == pytest.approx(5, abs=0.01)
    assert told == ["cancelled"]
    assert states(outcome) == [("bash", "deadline")]
    assert outcome.tools[0].cause is cause
    assert [(one.owner, one.name) for one in recorder.of(BudgetExceeded)] == [("tool", "bash")]


@on_manual_clock
async def test_tool_timeout_is_the_default_of_a_tool(clock: ManualClock) -> None:
    """`Limits.tool_timeout` holds where a call names no limit, and None lifts it."""

    async def body(turn: Turn) -> Any:
        with pytest.raises(ToolDeadlineError):
            await turn.tool("short", for_ever())
        return await turn.tool("long", after(50, "done"), timeout=None)

    outcome = await outcome_of(clock, body, Limits(tool_timeout=3))

    assert outcome.result == "done"
    assert [one.limit for one in outcome.tools] == [3.0, None]
    assert states(outcome) == [("short", "deadline"), ("long", "completed")]


@pytest.mark.parametrize("hops", range(8))
@on_manual_clock
async def test_a_result_at_the_deadline_is_kept(clock: ManualClock, hops: int) -> None:
    """What arrives in the iteration of the deadline, or is on its way then, wins."""

    async def body(turn: Turn) -> Any:
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def arrive(left: int) -> None:
            if left:
                loop.call_soon(arrive, left - 1)
            elif not arrived.done():
                arrived.set_result("in time")

        loop.call_at(clock.time() + 5, arrive, hops)
        try:
            return await turn.tool("bash", arrived, timeout=5)
        except ToolDeadlineError:
            return "cut"

    outcome = await outcome_of(clock, body)

    assert outcome.result == ("in time" if hops < 3 else outcome.result)
    expected = "completed" if outcome.result == "in time" else "deadline"
    assert states(outcome) == [("bash", expected)]


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
@on_manual_clock
async def test_a_limit_of_zero_is_refused(clock: ManualClock, bad: float) -> None:
    """The coroutine that will not be run is closed, and nothing is recorded."""

    async def body(turn: Turn) -> None:
        with pytest.raises(ValueError, match="timeout"):
            await turn.tool("bash", after(1), timeout=bad)

    outcome = await outcome_of(clock, body)

    assert (outcome.status, outcome.tools) == (Status.COMPLETED, ())


@on_manual_clock
async def test_a_turn_that_does_not_run_starts_no_tool(clock: ManualClock) -> None:
    """Neither before it has begun nor after it has settled."""
    turn = Turn(on_event=quiet)
    with pytest.raises(RuntimeError, match="does not run"):
        await turn.tool("early", after(1))
    async with turn:
        pass
    with pytest.raises(RuntimeError, match="does not run"):
        await turn.tool("late", after(1))

    assert turn.outcome is not None
    assert turn.outcome.tools == ()


# --- clocks keep to their own ---


@on_manual_clock
async def test_tokens_do_not_extend_a_tool(clock: ManualClock) -> None:
    """A lively stream beside it does not move its deadline."""

    async def body(turn: Turn) -> float:
        call = turn.start_tool("bash", for_ever(), timeout=5)
        async for _ in turn.stream(script(*[1, "token"] * 20), idle=2):
            pass
        with pytest.raises(ToolDeadlineError):
            await call
        return call.elapsed

    outcome = await outcome_of(clock, body)

    assert outcome.result == pytest.approx(5, abs=0.01)
    assert (outcome.status, outcome.text) == (Status.COMPLETED, "token" * 20)


@on_manual_clock
async def test_a_tool_does_not_forgive_the_stream(clock: ManualClock) -> None:
    """A speculative tool that works beside a silent stream does not keep that from being cut."""

    async def busy(ticks: list[float]) -> None:
        while True:
            await asyncio.sleep(0.5)
            ticks.append(clock.time())

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(script("a", HANG), idle=3):
            turn.start_tool("bash", busy(ticks))

    ticks: list[float] = []
    begun = clock.time()
    outcome = await outcome_of(clock, body)

    assert outcome.status is Status.STALLED
    assert isinstance(outcome.cause, StreamIdleError)
    assert outcome.elapsed == pytest.approx(3, abs=0.1)
    assert states(outcome) == [("bash", "interrupted")]
    assert max(ticks) - begun == pytest.approx(3, abs=0.6)


@on_manual_clock
async def test_a_speculative_tool_does_not_stop_the_watchdog(clock: ManualClock) -> None:
    """Hard idle is about the phase the loop is in, whatever runs beside it."""

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        turn.start_tool("bash", for_ever())
        await for_ever()

    outcome = await outcome_of(clock, body, Limits(hard_idle=10))

    assert isinstance(outcome.cause, HardIdleError)
    assert states(outcome) == [("bash", "interrupted")]
    assert outcome.tools[0].cause is outcome.cause


@on_manual_clock
async def test_observe_only_lets_a_tool_run(clock: ManualClock) -> None:
    """The clock says what it would have done."""
    recorder = Recorder()

    async def body(turn: Turn) -> Any:
        return await turn.tool("bash", after(20, "ok"), timeout=5)

    outcome = await outcome_of(clock, body, Limits(observe_only=True), on_event=recorder)

    assert outcome.result == "ok"
    assert [one.would_have_fired for one in recorder.of(BudgetExceeded)] == [True]


# --- tools ahead of time ---


@on_manual_clock
async def test_a_tool_that_was_started_ahead_is_awaited_later(clock: ManualClock) -> None:
    """It runs meanwhile, and its result may be taken more than once."""

    async def body(turn: Turn) -> Any:
        call = turn.start_tool("bash", after(3, "ok"))
        async for _ in turn.stream(script("a", 5, "b")):
            pass
        assert (call.state, call.elapsed) == (ToolState.COMPLETED, pytest.approx(3))
        return await call, await call

    outcome = await outcome_of(clock, body)

    assert outcome.result == ("ok", "ok")


@on_manual_clock
async def test_a_tool_that_nobody_claims_ends_with_its_turn(clock: ManualClock) -> None:
    """It is cancelled and recorded, and does nothing afterwards."""
    ticks: list[float] = []

    async def busy() -> None:
        while True:
            await asyncio.sleep(0.5)
            ticks.append(clock.time())

    async def body(turn: Turn) -> str:
        turn.start_tool("bash", busy())
        await asyncio.sleep(2)
        return "done"

    outcome = await outcome_of(clock, body)

    assert (outcome.status, outcome.result) == (Status.COMPLETED, "done")
    assert states(outcome) == [("bash", "interrupted")]
    assert outcome.tools[0].cause is None
    assert len(ticks) <= 4


@on_manual_clock
async def test_a_call_can_be_cancelled_by_itself(clock: ManualClock) -> None:
    """As its caller: whoever awaits it gets a cancel, and the turn goes on."""

    async def body(turn: Turn) -> str:
        call = turn.start_tool("bash", for_ever())
        asyncio.get_running_loop().call_later(1, call.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call
        return "went on"

    outcome = await outcome_of(clock, body)

    assert outcome.result == "went on"
    assert states(outcome) == [("bash", "interrupted")]


# --- ends ---


@on_manual_clock
async def test_a_running_tool_is_interrupted_with_the_turn(clock: ManualClock) -> None:
    """It gets the cancel before the turn has settled, and appends nothing afterwards."""
    lines: list[float] = []

    async def talk() -> None:
        while True:
            await asyncio.sleep(0.1)
            lines.append(clock.time())

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await turn.tool("bash", talk())

    begun = clock.time()
    outcome = await outcome_of(clock, body, Limits(hard_idle=10))

    assert isinstance(outcome.cause, HardIdleError)
    assert states(outcome) == [("bash", "interrupted")]
    assert outcome.tools[0].cause is outcome.cause
    assert max(lines) - begun <= 10.05


@on_manual_clock
async def test_streams_are_closed_before_tools_are_cancelled(clock: ManualClock) -> None:
    """Also when the body waits for the tool while a stream is open."""
    order: list[str] = []

    async def source() -> Any:
        try:
            yield "a"
            await for_ever()
        finally:
            order.append("stream")

    async def slow() -> None:
        try:
            await for_ever()
        finally:
            order.append("tool")

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        stream = turn.stream(source())
        await anext(stream)
        await turn.tool("bash", slow())

    outcome = await outcome_of(clock, body, Limits(hard_idle=10))

    assert order == ["stream", "tool"]
    assert outcome.status is Status.STALLED


@on_manual_clock
async def test_a_tool_that_ignores_its_cancel_is_unresponsive(clock: ManualClock) -> None:
    """It is told twice, then left behind and listed as live until it ends; its end is late."""
    recorder = Recorder()
    told: list[float] = []
    enough = asyncio.Event()

    async def deaf() -> str:
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                told.append(clock.time() - begun)
        return "at last"

    async def body(turn: Turn) -> None:
        turns.append(turn)
        turn.enter(Phase.AWAITING_LLM)
        await turn.tool("bash", deaf())

    turns: list[Turn] = []
    begun = clock.time()
    outcome = await outcome_of(clock, body, Limits(hard_idle=10, cleanup=8), on_event=recorder)
    left = [one.name for one in lingering()]
    enough.set()
    await clock.advance(0.1)

    assert isinstance(outcome.cause, HardIdleError)
    assert states(outcome) == [("bash", "unresponsive")]
    assert told == [pytest.approx(10, abs=0.1), pytest.approx(12, abs=0.2)]
    assert outcome.elapsed < 18
    assert [one.name for one in recorder.of(Unresponsive)] == ["bash"]
    assert left == ["bash"]
    assert lingering() == []
    assert [one.name for one in recorder.of(LateResult)] == ["bash"]
    assert turns[0].outcome is not None
    assert turns[0].outcome.late == ("tool 'bash' returned",)
    assert turns[0].outcome.status is Status.STALLED


@on_manual_clock
async def test_a_deadline_does_not_wait_for_ever(clock: ManualClock) -> None:
    """A tool that ignores its cancel at its deadline is left behind after `close_grace`."""

    async def body(turn: Turn) -> Any:
        begun = clock.time()
        with pytest.raises(ToolDeadlineError):
            await turn.tool("bash", stubborn(2), timeout=5)
        return clock.time() - begun

    outcome = await outcome_of(clock, body, Limits(close_grace=4))

    assert outcome.result == pytest.approx(7, abs=0.1)  # the second cancel was the last it needed
    assert states(outcome) == [("bash", "deadline")]
    assert outcome.late == ("tool 'bash' returned",)


@on_manual_clock
async def test_a_cancel_of_the_caller_reaches_the_tool(clock: ManualClock) -> None:
    """`asyncio.timeout` around a tool works as around anything else."""

    async def body(turn: Turn) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await turn.tool("bash", for_ever())
        return "went on"

    outcome = await outcome_of(clock, body)

    assert outcome.result == "went on"
    assert states(outcome) == [("bash", "interrupted")]


@on_manual_clock
async def test_a_body_that_swallows_its_cancel_does_not_keep_tools(clock: ManualClock) -> None:
    """Tools are cancelled with the cause, not when the body lets go; new ones are refused."""
    ended: list[float] = []

    async def slow() -> None:
        try:
            await for_ever()
        finally:
            ended.append(clock.time() - begun)

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        turn.start_tool("bash", slow())
        await stubborn(2)
        with pytest.raises(HardIdleError):
            await turn.tool("another", for_ever())

    begun = clock.time()
    outcome = await outcome_of(clock, body, Limits(hard_idle=10, cleanup=8))

    assert ended == [pytest.approx(10, abs=0.2)]
    assert states(outcome) == [("bash", "interrupted")]
    assert outcome.elapsed == pytest.approx(14, abs=0.2)


@on_manual_clock
async def test_parallel_tools_end_together(clock: ManualClock) -> None:
    """Those of a `gather` too, when a user ends the turn."""

    async def body(turn: Turn) -> None:
        turn.enter(Phase.EXECUTING_TOOLS)
        asyncio.get_running_loop().call_later(4, turn.cancel, "enough")
        await asyncio.gather(
            turn.tool("one", for_ever()),
            turn.tool("two", after(1)),
            turn.tool("three", for_ever(), timeout=2),
            turn.tool("four", for_ever()),
            return_exceptions=True,
        )

    outcome = await outcome_of(clock, body)

    assert outcome.status is Status.CANCELLED
    assert isinstance(outcome.cause, UserCancelled)
    assert states(outcome) == [
        ("one", "interrupted"),
        ("two", "completed"),
        ("three", "deadline"),
        ("four", "interrupted"),
    ]
