"""`Turn`: what ends it, what comes out of the block, and what the outcome says."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from guard_tools import HANG, Recorder, on_manual_clock, run, script
from stallwatch._causes import (
    HardIdleError,
    PhaseViolationError,
    StallError,
    StreamIdleError,
    TurnBudgetError,
    UserCancelled,
)
from stallwatch._events import (
    BudgetExceeded,
    CoverageLost,
    HardIdle,
    HostSuspended,
    LateResult,
    Settled,
    StreamStalled,
    Unresponsive,
)
from stallwatch._limits import Limits
from stallwatch._outcome import NO_TEXT, Failure, Status
from stallwatch._phases import Phase
from stallwatch._retry import cause_of
from stallwatch._tracker import PhaseTracker
from stallwatch._turn import Turn
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats
from turn_tools import Host, finish, for_ever, host, quiet, start, stubborn

__all__ = ["host"]


async def block(
    turn: Turn, body: Callable[[Turn], Any] | None = None, counts: list[int] | None = None
) -> Any:
    """A block of a turn that awaits the model, and does what `body` says (waits for ever)."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        async with turn:
            turn.enter(Phase.AWAITING_LLM)
            return await (for_ever() if body is None else body(turn))
    finally:
        if counts is not None:
            counts.append(task.cancelling() - before)


def outcome(turn: Turn) -> tuple[Status, str | None]:
    """Status and kind of cause of a turn that has settled."""
    assert turn.outcome is not None
    cause = turn.outcome.cause
    return turn.outcome.status, None if cause is None else cause.kind


STALLED = (Status.STALLED, "hard_idle")


# --- it goes well ---


@on_manual_clock
async def test_a_turn_that_goes_well_is_completed(clock: ManualClock) -> None:
    """Text is kept, nothing is partial, nothing stands in for text, and no timer is left."""
    record, before = Recorder(), wheel_stats().armed
    async with Turn(name="answer", on_event=record) as turn:
        turn.enter(Phase.SETUP)
        assert turn.outcome is None
        with turn.phase(Phase.AWAITING_LLM):
            chunks = [chunk async for chunk in turn.stream(script("a", "b", "c"))]
        turn.enter(Phase.EXECUTING_TOOLS)
        await clock.advance(5)

    assert chunks == ["a", "b", "c"]
    found = turn.outcome
    assert found is not None
    assert (found.status, found.cause, found.also) == (Status.COMPLETED, None, None)
    assert (found.text, found.partial, found.placeholder) == ("abc", "", None)
    assert (found.turn, found.phase, found.seq, found.elapsed) == ("answer", Phase.DONE, 4, 5.0)
    assert turn.cause is None
    assert wheel_stats().armed == before
    (settled,) = record.of(Settled)
    assert (settled.status, settled.cause, settled.turn) == ("completed", None, "answer")


@on_manual_clock
async def test_an_error_of_the_body_is_its_own(clock: ManualClock) -> None:
    """The very same exception leaves the block, and the outcome has it as text."""
    error = ValueError("a bug of theirs")
    turn = Turn(on_event=quiet)
    with pytest.raises(ValueError) as caught:
        async with turn:
            raise error

    assert caught.value is error
    assert turn.outcome is not None
    assert turn.outcome.status is Status.FAILED
    assert turn.outcome.cause == Failure("builtins.ValueError", "a bug of theirs")
    assert turn.outcome.placeholder == NO_TEXT


@on_manual_clock
async def test_a_turn_is_entered_once_and_inside_a_task(clock: ManualClock) -> None:
    """A second entry is an error, and leaves the first alone."""
    turn = Turn()
    async with turn:
        with pytest.raises(RuntimeError, match="only once"):
            await turn.__aenter__()
    with pytest.raises(RuntimeError, match="only once"):
        await turn.__aenter__()

    assert outcome(turn) == (Status.COMPLETED, None)


# --- hard idle, whatever the body waits for ---


async def _inner_task(turn: Turn) -> None:
    await asyncio.create_task(for_ever())


async def _shielded(turn: Turn) -> None:
    inner = asyncio.ensure_future(for_ever())
    try:
        await asyncio.shield(inner)
    finally:
        inner.cancel()
        await asyncio.gather(inner, return_exceptions=True)


async def _gather(turn: Turn) -> None:
    await asyncio.gather(for_ever(), for_ever())


async def _task_group(turn: Turn) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(for_ever())
        group.create_task(for_ever())


async def _anyio_group(turn: Turn) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever)
        await for_ever()


async def _anyio_scope(turn: Turn) -> None:
    with anyio.CancelScope():
        await for_ever()


async def _timeout(turn: Turn) -> None:
    async with asyncio.timeout(100_000):
        await for_ever()


async def _wait_for(turn: Turn) -> None:
    await asyncio.wait_for(for_ever(), 100_000)


async def _stream(turn: Turn) -> None:
    async for _ in turn.stream(script("a", HANG), idle=None, progress_idle=None):
        pass


async def _clean_up(turn: Turn) -> None:
    try:
        pass
    finally:
        await for_ever()


async def _nested(turn: Turn) -> None:
    async with Turn(Limits(soft_idle=None, hard_idle=None), on_event=quiet):
        await for_ever()


WAITS = (
    _inner_task,
    _shielded,
    _gather,
    _task_group,
    _anyio_group,
    _anyio_scope,
    _timeout,
    _wait_for,
    _stream,
    _clean_up,
    _nested,
)


@pytest.mark.parametrize("body", WAITS, ids=[body.__name__.strip("_") for body in WAITS])
@on_manual_clock
async def test_hard_idle_ends_every_kind_of_wait(
    clock: ManualClock, body: Callable[[Turn], Any]
) -> None:
    """Whatever is awaited, the block raises the cause at the limit, the count as before."""
    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, body, counts))
    await clock.advance(600)

    assert end.at == 540
    assert isinstance(end.error, HardIdleError)
    assert end.error is turn.cause
    assert outcome(turn) == STALLED
    assert counts == [0]


@on_manual_clock
async def test_without_a_turn_the_same_body_waits_on(clock: ManualClock) -> None:
    """The baseline: nothing ends the wait after three limits."""
    end = start(clock, for_ever())
    await clock.advance(3 * 540)

    assert end.at is None
    await finish(end)


@on_manual_clock
async def test_the_outcome_of_a_stall(clock: ManualClock) -> None:
    """Cause, phase, seq, elapsed, and that there was no text; `cause_of` finds it everywhere."""
    record = Recorder()
    turn = Turn(name="answer", on_event=record)
    end = start(clock, block(turn))
    await clock.advance(540)

    found = turn.outcome
    assert found is not None
    assert (found.phase, found.seq, found.elapsed) == (Phase.AWAITING_LLM, 1, 540.0)
    assert (found.text, found.partial, found.placeholder) == ("", "", NO_TEXT)
    cause = found.cause
    assert isinstance(cause, HardIdleError)
    assert (cause.name, cause.phase, cause.seq, cause.idle) == (
        "answer",
        Phase.AWAITING_LLM,
        1,
        540.0,
    )
    assert cause_of(turn) is cause_of(end.task) is cause_of(end.error) is cause
    assert record.names == ["phase_changed", "soft_idle", "hard_idle", "settled"]
    assert {event.turn for event in record.events} == {"answer"}


@on_manual_clock
async def test_partial_text_reaches_cause_and_outcome(clock: ManualClock) -> None:
    """Hard idle during a stream: what was received is kept, and the source is closed."""
    source = script("a", "b", HANG)
    turn = Turn(on_event=quiet)

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(source, idle=None, progress_idle=None):
            pass

    end = start(clock, block(turn, body))
    await clock.advance(540)

    assert turn.outcome is not None
    assert (turn.outcome.text, turn.outcome.partial, turn.outcome.placeholder) == ("ab", "ab", None)
    assert isinstance(end.error, HardIdleError)
    assert end.error.partial == "ab"
    assert source.finals == 1


# --- bodies that do not play along ---


@on_manual_clock
async def test_a_body_that_swallows_the_cancel_and_returns_has_stalled(clock: ManualClock) -> None:
    """Returning normally does not turn a stall into a success."""
    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, lambda turn: stubborn(1), counts))
    await clock.advance(540)

    assert end.at == 540
    assert isinstance(end.error, HardIdleError)
    assert outcome(turn) == STALLED
    assert counts == [0]


@on_manual_clock
async def test_a_body_that_takes_the_cancel_back_has_stalled(clock: ManualClock) -> None:
    """A body that follows asyncio's protocol to swallow a cancel does not upset the count."""

    async def body(turn: Turn) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()

    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, body, counts))
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)
    assert counts == [0]


@pytest.mark.parametrize(("swallows", "at"), [(0, 540), (1, 570), (2, 585), (3, 592.5)])
@on_manual_clock
async def test_a_body_that_waits_on_is_told_again(
    clock: ManualClock, swallows: int, at: float
) -> None:
    """After 1/2, 3/4 and 7/8 of `cleanup` it is told again, and ends at the first it follows."""

    async def body(turn: Turn) -> None:
        await stubborn(swallows + 1, lambda: told.append(clock.time()))

    async def once_more(turn: Turn) -> None:
        for _ in range(swallows):
            try:
                await for_ever()
            except asyncio.CancelledError:
                told.append(clock.time())
        await for_ever()

    told: list[float] = []
    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, once_more, counts))
    await clock.advance(700)

    assert end.at == at
    assert len(told) == swallows
    assert outcome(turn) == STALLED
    assert counts == [0]


@on_manual_clock
async def test_a_body_that_never_follows_is_settled_without(clock: ManualClock) -> None:
    """X6: at the end of `cleanup` the record is written; what comes later changes nothing in it."""
    record = Recorder()
    turn, counts = Turn(on_event=record), []

    async def body(turn: Turn) -> None:
        for _ in range(4):
            with contextlib.suppress(asyncio.CancelledError):
                await for_ever()
        await asyncio.sleep(100)

    end = start(clock, block(turn, body, counts))
    await clock.advance(600)
    assert end.at is None
    settled = turn.outcome
    assert settled is not None
    assert (settled.status, settled.elapsed, settled.late) == (Status.STALLED, 600.0, ())
    assert record.of(Unresponsive)[0].what == "body"
    await clock.advance(600)

    assert end.at == 692.5
    assert isinstance(end.error, HardIdleError)  # whoever waits for the block hears of it
    assert counts == [0]
    assert turn.outcome is not None
    assert turn.outcome.late == ("the body returned",)
    assert {**turn.outcome.to_dict(), "late": []} == settled.to_dict()
    assert [type(e) for e in record.events[-3:]] == [Unresponsive, Settled, LateResult]


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, ConnectionResetError])
@on_manual_clock
async def test_another_error_during_the_cancel_is_the_stalls_cause(
    clock: ManualClock, kind: type[Exception]
) -> None:
    """What the body makes of the cancel does not hide why it was cancelled."""

    async def body(turn: Turn) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise kind("went wrong while stopping") from None

    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, body, counts))
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)
    assert isinstance(end.error.__cause__, kind)
    assert outcome(turn) == STALLED
    assert counts == [0]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("when", ["in the body", "during the cancel"])
def test_a_fatal_error_goes_through(kind: type[BaseException], when: str) -> None:
    """`KeyboardInterrupt` and `SystemExit` leave the block as they are, and an outcome is there."""
    turns: list[Turn] = []

    async def main() -> None:
        with ManualClock() as clock:
            turns.append(Turn(on_event=quiet))

            async def body(turn: Turn) -> None:
                if when == "in the body":
                    raise kind
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    raise kind from None

            start(clock, block(turns[0], body))
            await clock.advance(540)

    with pytest.raises(kind):
        asyncio.run(main())
    found = turns[0].outcome
    assert found is not None
    assert found.status is (Status.FAILED if when == "in the body" else Status.STALLED)


@on_manual_clock
async def test_a_turn_in_a_generator_that_is_closed(clock: ManualClock) -> None:
    """`GeneratorExit` goes through: nothing is awaited, the outcome is there, no clock is left."""
    turn, before = Turn(on_event=quiet), wheel_stats().armed
    source = script("a", HANG)

    async def generate() -> Any:
        async with turn:
            turn.enter(Phase.AWAITING_LLM)
            async for chunk in turn.stream(source):
                yield chunk

    generator = generate()
    assert await anext(generator) == "a"
    await generator.aclose()

    assert turn.outcome is not None
    assert turn.outcome.status is Status.FAILED
    assert turn.outcome.partial == "a"
    assert wheel_stats().armed <= before + 1  # the stream, which goes when its source is collected


# --- users ---


@on_manual_clock
async def test_a_user_ends_the_turn(clock: ManualClock) -> None:
    """The block raises `UserCancelled`, which is a cancel; the reason is in the outcome."""
    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, None, counts))
    await clock.advance(10)
    turn.cancel("enough")
    await clock.advance(0)

    assert end.at == 10
    assert end.task.cancelled()
    assert turn.outcome is not None
    assert turn.outcome.status is Status.CANCELLED
    assert isinstance(turn.outcome.cause, UserCancelled)
    assert turn.outcome.cause.reason == "enough"
    assert turn.outcome.also is None
    assert cause_of(end.task) is turn.outcome.cause
    assert counts == [0]


@on_manual_clock
async def test_a_turn_cancelled_before_it_begins_never_does(clock: ManualClock) -> None:
    """The block raises at once: no line of the body runs."""
    turn, ran = Turn(on_event=quiet), []
    turn.cancel("changed my mind")

    async def body(turn: Turn) -> None:
        ran.append(True)

    end = start(clock, block(turn, body))
    await clock.settle()

    assert ran == []
    assert end.task.cancelled()
    assert outcome(turn) == (Status.CANCELLED, "user_cancelled")


@pytest.mark.parametrize("order", ["user first", "fire first", "on hearing", "after the cancel"])
@on_manual_clock
async def test_a_user_of_the_same_moment_beats_the_clock(clock: ManualClock, order: str) -> None:
    """X3: in every order the user wins, the record says both, and the count is balanced."""

    def hear(event: Any) -> None:
        if not isinstance(event, HardIdle):
            return
        if order == "on hearing":
            turn.cancel("enough")
        elif order == "fire first":
            asyncio.get_running_loop().call_soon(turn.cancel, "enough")

    async def body(turn: Turn) -> None:
        try:
            await for_ever()
        finally:
            if order == "after the cancel":
                turn.cancel("enough")

    turn, counts = Turn(on_event=hear), []
    end = start(clock, block(turn, body, counts))
    await clock.settle()
    if order == "user first":
        asyncio.get_running_loop().call_at(clock.time() + 540, turn.cancel, "enough")
    await clock.advance(1_000)

    assert end.at == 540
    assert end.task.cancelled()
    assert outcome(turn) == (Status.CANCELLED, "user_cancelled")
    assert turn.outcome is not None
    if order != "user first":
        assert isinstance(turn.outcome.also, HardIdleError)
    assert counts == [0]


@on_manual_clock
async def test_after_settlement_a_user_changes_nothing(clock: ManualClock) -> None:
    """A cancel that comes too late is nobody's, from any thread, even with the loop gone."""
    turn = Turn(on_event=quiet)
    async with turn:
        pass
    settled = turn.outcome
    turn.cancel("too late")
    worker = threading.Thread(target=turn.cancel)
    worker.start()
    worker.join()
    await clock.advance(10)

    assert turn.outcome is settled
    assert turn.cause is None


@on_manual_clock
async def test_a_user_may_cancel_from_another_thread(clock: ManualClock) -> None:
    """The cancel wakes the loop and ends the body."""
    turn = Turn(on_event=quiet)
    end = start(clock, block(turn))
    await clock.settle()
    worker = threading.Thread(target=turn.cancel, args=("from a thread",))
    worker.start()
    worker.join()
    await clock.settle()

    assert end.task.cancelled()
    assert outcome(turn) == (Status.CANCELLED, "user_cancelled")


@pytest.mark.slow
def test_a_cancel_from_a_thread_wakes_an_idle_loop() -> None:
    """In debug mode and with nothing else to do: at once, not in 60 s (headroom 5 s)."""

    async def main() -> None:
        turn = Turn(on_event=quiet)
        threading.Timer(0.1, turn.cancel, args=("enough",)).start()
        with pytest.raises(UserCancelled):
            async with turn:
                await asyncio.sleep(60)

    async def bounded() -> None:
        async with asyncio.timeout(5):
            await main()

    asyncio.run(bounded(), debug=True)


def test_a_cancel_that_races_with_the_start_is_never_lost() -> None:
    """From another thread, around the moment of the start: the turn ends in every case.

    Prevents that the note comes after the turn looked, and the look before the turn was there.
    """

    async def main() -> None:
        for _ in range(200):
            turn = Turn(Limits(hard_idle=5), on_event=quiet)
            barrier = threading.Barrier(2)

            def cancel(turn: Turn = turn, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                turn.cancel()

            worker = threading.Thread(target=cancel)
            worker.start()
            barrier.wait()
            with pytest.raises(UserCancelled):
                await block(turn)
            worker.join()

    run(main)


@pytest.mark.parametrize("then", ["return", "await", "raise"])
@on_manual_clock
async def test_a_body_may_cancel_its_own_turn(clock: ManualClock, then: str) -> None:
    """Whether it returns, waits or raises then: `UserCancelled`, and no cancel strikes later.

    Prevents that a cancel which the task has not seen yet ends an innocent wait after the block.
    """

    async def body(turn: Turn) -> None:
        turn.cancel("I give up")
        if then == "await":
            await for_ever()
        if then == "raise":
            raise ValueError("as well")

    async def whole() -> str:
        with pytest.raises(UserCancelled):
            await block(turn, body, counts)
        await asyncio.sleep(10)
        return "unharmed"

    turn, counts = Turn(on_event=quiet), []
    end = start(clock, whole())
    await clock.advance(20)

    assert end.task.result() == "unharmed"
    assert outcome(turn) == (Status.CANCELLED, "user_cancelled")
    assert counts == [0]


@on_manual_clock
async def test_a_cancel_from_outside_goes_through_unchanged(clock: ManualClock) -> None:
    """The caller sees its own `CancelledError`; the outcome says cancelled, by nobody we know."""
    turn, counts = Turn(on_event=quiet), []
    end = start(clock, block(turn, None, counts))
    await clock.advance(10)
    end.task.cancel("shutting down")
    await clock.settle()

    assert type(end.error) is asyncio.CancelledError
    assert turn.outcome is not None
    assert turn.outcome.status is Status.CANCELLED
    assert isinstance(turn.outcome.cause, Failure)
    assert counts == [1]


@pytest.mark.parametrize("order", ["before", "after"])
@on_manual_clock
async def test_an_outside_cancel_of_the_same_moment_wins(clock: ManualClock, order: str) -> None:
    """A `CancelledError` comes out, and the record keeps the stall beside it."""

    def hear(event: Any) -> None:
        if isinstance(event, HardIdle) and order == "after":
            asyncio.get_running_loop().call_soon(end.task.cancel)

    turn = Turn(on_event=hear)
    end = start(clock, block(turn))
    await clock.settle()
    if order == "before":
        asyncio.get_running_loop().call_at(clock.time() + 540, end.task.cancel)
    await clock.advance(700)

    assert end.at == 540
    assert type(end.error) is asyncio.CancelledError
    assert turn.outcome is not None
    assert turn.outcome.status is Status.CANCELLED
    assert isinstance(turn.outcome.cause, Failure)
    if order == "after":
        assert isinstance(turn.outcome.also, HardIdleError)


@on_manual_clock
async def test_cancels_swallowed_together_are_handed_on(clock: ManualClock) -> None:
    """If the body swallows ours and another's as one, the other still gets its `CancelledError`."""

    def hear(event: Any) -> None:
        if isinstance(event, HardIdle):
            asyncio.get_running_loop().call_soon(end.task.cancel)

    turn = Turn(on_event=hear)
    end = start(clock, block(turn, lambda turn: stubborn(1)))
    await clock.advance(700)

    assert end.task.cancelled()
    assert outcome(turn) == (Status.CANCELLED, "error")


@pytest.mark.parametrize("steps", range(12))
@on_manual_clock
async def test_a_cancel_at_any_await_keeps_the_invariants(clock: ManualClock, steps: int) -> None:
    """X4: wherever a cancel lands, the source is closed, nothing is armed, the count is right."""
    before = wheel_stats().armed
    source = script("a", 0.001, "b", 0.001, "c", HANG)
    turn, counts = Turn(on_event=quiet), []

    async def body(turn: Turn) -> None:
        async with turn.stream(source) as stream:
            async for _ in stream:
                await asyncio.sleep(0)

    end = start(clock, block(turn, body, counts))
    for _ in range(steps):
        await asyncio.sleep(0)
        await clock.advance(0.0005)
    end.task.cancel()
    await clock.settle()

    assert end.task.cancelled()
    assert source.finals == source.opened
    assert wheel_stats().armed <= before
    assert counts in ([1], [])
    if counts:
        assert turn.outcome is not None
        assert turn.outcome.status is Status.CANCELLED


# --- blocks around it and inside it ---


@on_manual_clock
async def test_a_stall_in_a_task_group_is_found_in_the_group(clock: ManualClock) -> None:
    """The group cancels the siblings and raises; `cause_of` finds the stall in it."""
    turn = Turn(on_event=quiet)

    async def whole() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(block(turn))
            group.create_task(for_ever())

    end = start(clock, whole())
    await clock.advance(540)

    assert isinstance(end.error, ExceptionGroup)
    assert cause_of(end.error) is turn.cause
    assert outcome(turn) == STALLED


@on_manual_clock
async def test_a_task_group_cancels_the_turn_when_a_sibling_fails(clock: ManualClock) -> None:
    """That is a cancel from outside, and only the sibling's error comes out of the group."""
    turn = Turn(on_event=quiet)

    async def fail() -> None:
        await asyncio.sleep(10)
        raise ValueError("sibling")

    async def whole() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(block(turn))
            group.create_task(fail())

    end = start(clock, whole())
    await clock.advance(20)

    assert isinstance(end.error, ExceptionGroup)
    assert [type(one) for one in end.error.exceptions] == [ValueError]
    assert outcome(turn) == (Status.CANCELLED, "error")


@on_manual_clock
async def test_a_child_that_fails_in_the_moment_of_the_fire(clock: ManualClock) -> None:
    """A group inside the turn raises its error on the cancel: the stall comes out, from it."""
    turn, counts = Turn(on_event=quiet), []

    async def fail() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("child")

    async def body(turn: Turn) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    end = start(clock, block(turn, body, counts))
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)
    assert isinstance(end.error.__cause__, ExceptionGroup)
    assert counts == [0]


@pytest.mark.parametrize("scope", ["asyncio", "anyio"])
@on_manual_clock
async def test_a_timeout_around_the_turn(clock: ManualClock, scope: str) -> None:
    """It is a cancel from outside; the scope turns it into its own `TimeoutError`."""
    turn = Turn(on_event=quiet)

    async def whole() -> None:
        if scope == "asyncio":
            async with asyncio.timeout(100):
                await block(turn)
        else:
            with anyio.fail_after(100):
                await block(turn)

    end = start(clock, whole())
    await clock.advance(200)

    assert end.at == 100
    assert isinstance(end.error, TimeoutError)
    assert turn.outcome is not None
    assert turn.outcome.status is Status.CANCELLED


@pytest.mark.parametrize("scope", ["asyncio", "anyio"])
@pytest.mark.parametrize("limit", [100, 540])
@on_manual_clock
async def test_a_timeout_inside_the_turn(clock: ManualClock, scope: str, limit: float) -> None:
    """It is the body's own: handled there, the turn goes on; hard idle follows it all the same."""
    turn, counts, handled = Turn(on_event=quiet), [], []

    async def body(turn: Turn) -> None:
        try:
            if scope == "asyncio":
                async with asyncio.timeout(limit):
                    await for_ever()
            else:
                with anyio.fail_after(limit):
                    await for_ever()
        except TimeoutError as error:
            handled.append(error)
        await for_ever()

    end = start(clock, block(turn, body, counts))
    await clock.advance(1_000)

    assert isinstance(end.error, HardIdleError)
    assert end.at is not None
    assert 540 <= end.at <= 540.1
    if limit == 100:
        assert len(handled) == 1
    assert outcome(turn) == STALLED
    assert counts == [0]


@pytest.mark.parametrize("backend", ["task group", "scope"])
@on_manual_clock
async def test_an_anyio_scope_around_the_turn_is_cancelled(
    clock: ManualClock, backend: str
) -> None:
    """anyio cancels again and again until the scope is left; the turn settles once."""
    record = Recorder()
    turn = Turn(on_event=record)

    async def whole() -> str:
        if backend == "scope":
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().call_later(10, scope.cancel)
                await block(turn)
        else:
            async with anyio.create_task_group() as group:
                asyncio.get_running_loop().call_later(10, group.cancel_scope.cancel)
                group.start_soon(block, turn)
        await asyncio.sleep(5)
        return "left"

    end = start(clock, whole())
    await clock.advance(100)

    assert end.task.result() == "left"
    assert outcome(turn) == (Status.CANCELLED, "error")
    assert len(record.of(Settled)) == 1


@on_manual_clock
async def test_two_turns_of_one_task_and_one_moment(clock: ManualClock) -> None:
    """X5: both have stalled, the outer cause comes out, and no cancel is left over."""
    outer, inner = Turn(name="outer", on_event=quiet), Turn(name="inner", on_event=quiet)
    counts: list[int] = []
    end = start(clock, block(outer, lambda turn: block(inner), counts))
    await clock.advance(1_000)

    assert end.at == 540
    assert isinstance(end.error, HardIdleError)
    assert outer.outcome is not None
    assert outer.outcome.status is Status.STALLED
    assert outer.cause is end.error
    assert counts == [0]


@on_manual_clock
async def test_an_inner_turn_that_is_handled_does_not_end_the_outer(clock: ManualClock) -> None:
    """A stall of the inner turn which the outer body handles leaves the outer one complete."""
    outer = Turn(on_event=quiet)
    inner = Turn(Limits(hard_idle=50), on_event=quiet)

    async def body(turn: Turn) -> str:
        with pytest.raises(HardIdleError):
            await block(inner)
        await asyncio.sleep(100)
        return "well"

    end = start(clock, block(outer, body))
    await clock.advance(1_000)

    assert (end.at, end.task.result()) == (150, "well")
    assert outcome(inner) == STALLED
    assert outcome(outer) == (Status.COMPLETED, None)


@on_manual_clock
async def test_the_user_of_an_inner_turn_cancels_the_outer(clock: ManualClock) -> None:
    """`UserCancelled` is a cancel: it goes up through the outer block, which says cancelled."""
    outer, inner = Turn(on_event=quiet), Turn(on_event=quiet)
    end = start(clock, block(outer, lambda turn: block(inner)))
    await clock.advance(10)
    inner.cancel("enough")
    await clock.settle()

    assert end.task.cancelled()
    assert outcome(inner) == outcome(outer) == (Status.CANCELLED, "user_cancelled")


# --- the budget ---


@pytest.mark.parametrize("budget", [5, 77.5, 300])
@on_manual_clock
async def test_the_turn_budget_ends_a_lively_turn(clock: ManualClock, budget: float) -> None:
    """It is reset by nothing, in whatever phase."""
    record = Recorder()
    turn = Turn(Limits(turn_budget=budget), name="answer", on_event=record)

    async def body(turn: Turn) -> None:
        while True:
            for phase in (Phase.AWAITING_LLM, Phase.EXECUTING_TOOLS):
                turn.enter(phase)
                await asyncio.sleep(1)

    end = start(clock, block(turn, body))
    await clock.advance(1_000)

    assert end.at == budget
    assert isinstance(end.error, TurnBudgetError)
    assert (end.error.idle, end.error.limit, end.error.name) == (budget, budget, "answer")
    assert end.error.phase in (Phase.AWAITING_LLM, Phase.EXECUTING_TOOLS)
    (event,) = record.of(BudgetExceeded)
    assert (event.owner, event.elapsed, event.limit, event.turn) == (
        "turn",
        budget,
        budget,
        "answer",
    )
    assert outcome(turn) == (Status.STALLED, "turn_budget")


@on_manual_clock
async def test_budget_and_hard_idle_of_one_moment(clock: ManualClock) -> None:
    """One of them is the cause and the other is kept beside it; the body is told once."""
    told: list[float] = []

    async def body(turn: Turn) -> None:
        try:
            await for_ever()
        finally:
            told.append(clock.time())
            await asyncio.sleep(1)

    record = Recorder()
    turn, counts = Turn(Limits(hard_idle=100, turn_budget=100), on_event=record), []
    end = start(clock, block(turn, body, counts))
    await clock.advance(500)

    assert end.at == 101
    assert len(told) == 1
    assert turn.outcome is not None
    both = {type(turn.outcome.cause), type(turn.outcome.also)}
    assert both == {HardIdleError, TurnBudgetError}
    assert counts == [0]
    assert (len(record.of(HardIdle)), len(record.of(BudgetExceeded))) == (1, 1)


@on_manual_clock
async def test_a_body_that_ends_in_the_moment_of_the_budget_has_made_it(clock: ManualClock) -> None:
    """If the end and the deadline meet, the end wins."""
    turn = Turn(Limits(turn_budget=100), on_event=quiet)
    end = start(clock, block(turn, lambda turn: asyncio.sleep(100, "made it")))
    await clock.advance(500)

    assert end.task.result() == "made it"
    assert outcome(turn) == (Status.COMPLETED, None)


# --- streams of the turn ---


@on_manual_clock
async def test_a_stall_of_a_stream_is_the_turns_cause(clock: ManualClock) -> None:
    """Case 52: partial text is kept, the phase is on the cause, and it is no success."""
    turn = Turn(on_event=quiet)

    async def body(turn: Turn) -> None:
        with turn.phase(Phase.AWAITING_LLM):
            async for _ in turn.stream(script("a", "b", "c", HANG), idle=30):
                pass

    end = start(clock, block(turn, body))
    await clock.advance(100)

    assert isinstance(end.error, StreamIdleError)
    assert turn.outcome is not None
    assert turn.outcome.cause is end.error
    assert (turn.outcome.status, turn.outcome.partial) == (Status.STALLED, "abc")
    assert (turn.outcome.text, turn.outcome.placeholder) == ("abc", None)
    assert (end.error.phase, end.error.seq, end.error.partial) == (Phase.AWAITING_LLM, 2, "abc")
    assert (turn.outcome.phase, turn.outcome.seq) == (Phase.AWAITING_LLM, 2)


@on_manual_clock
async def test_a_stream_without_any_chunk_says_so(clock: ManualClock) -> None:
    """Case 52: no text, and an explicit word in its place."""
    turn = Turn(on_event=quiet)

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(script(HANG), first_chunk=30):
            pass

    start(clock, block(turn, body))
    await clock.advance(100)

    assert turn.outcome is not None
    assert outcome(turn) == (Status.STALLED, "first_chunk")
    assert (turn.outcome.text, turn.outcome.partial) == ("", "")
    assert turn.outcome.placeholder == NO_TEXT


@on_manual_clock
async def test_a_stall_that_the_body_handles_is_no_stall_of_the_turn(clock: ManualClock) -> None:
    """A body that catches it and goes on completes; the text is all text."""
    turn = Turn(on_event=quiet)

    async def body(turn: Turn) -> str:
        with pytest.raises(StreamIdleError):
            async for _ in turn.stream(script("a", HANG), idle=30):
                pass
        async for _ in turn.stream(script("b", "c")):
            pass
        return "well"

    end = start(clock, block(turn, body))
    await clock.advance(100)

    assert end.task.result() == "well"
    assert outcome(turn) == (Status.COMPLETED, None)
    assert turn.outcome is not None
    assert (turn.outcome.text, turn.outcome.partial) == ("abc", "")


class Wrapped(Exception):
    """An error of a library that wraps whatever it meets."""


@pytest.mark.parametrize("how", ["from", "context", "group", "task group"])
@on_manual_clock
async def test_a_stall_that_is_wrapped_is_found(clock: ManualClock, how: str) -> None:
    """X8: chained or in a group, the stall is the cause; the error that leaves is the wrapper."""
    turn = Turn(on_event=quiet)

    async def pull(turn: Turn) -> None:
        async for _ in turn.stream(script("a", HANG), idle=30):
            pass

    async def body(turn: Turn) -> None:
        if how == "task group":
            async with asyncio.TaskGroup() as group:
                group.create_task(pull(turn))
            return
        try:
            await pull(turn)
        except StallError as stall:
            if how == "from":
                raise Wrapped from stall
            if how == "context":
                raise Wrapped  # noqa: B904
            raise ExceptionGroup("several", [ValueError(), stall]) from None

    end = start(clock, block(turn, body))
    await clock.advance(100)

    assert isinstance(end.error, Wrapped if how in ("from", "context") else ExceptionGroup)
    assert outcome(turn) == (Status.STALLED, "stream_idle")
    assert turn.outcome is not None
    assert isinstance(turn.outcome.cause, StreamIdleError)
    assert turn.outcome.cause.partial == "a"


@on_manual_clock
async def test_a_stream_left_open_is_closed_at_the_end(clock: ManualClock) -> None:
    """The turn closes what the body left early, before it settles."""
    source, record = script("a", "b"), Recorder()

    def hear(event: Any) -> None:
        if isinstance(event, Settled):
            finals.append(source.finals)

    finals: list[int] = []
    async with Turn(on_event=[hear, record]) as turn:
        async for _ in turn.stream(source):
            break

    assert finals == [1]
    assert outcome(turn) == (Status.COMPLETED, None)


class Clinging:
    """A source whose close never ends."""

    def __init__(self, swallows: int = 0) -> None:
        self.swallows = swallows

    def __aiter__(self) -> Clinging:
        return self

    async def __anext__(self) -> str:
        return "a"

    async def aclose(self) -> None:
        await stubborn(self.swallows + 1) if self.swallows else await for_ever()


@on_manual_clock
async def test_closing_is_bounded_by_cleanup_in_total(clock: ManualClock) -> None:
    """Three sources that do not close take `cleanup`, not three times that."""
    turn = Turn(Limits(cleanup=15), on_event=quiet)

    async def body(turn: Turn) -> str:
        for _ in range(3):
            async for _ in turn.stream(Clinging()):
                break
        return "well"

    end = start(clock, block(turn, body))
    await clock.advance(100)

    assert end.at == 15
    assert outcome(turn) == (Status.COMPLETED, None)


@on_manual_clock
async def test_a_stall_and_a_source_that_clings_take_cleanup_in_total(clock: ManualClock) -> None:
    """What the body took of it is not there for the streams any more."""
    turn, counts = Turn(Limits(cleanup=15), on_event=quiet), []

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(Clinging()):
            break
        try:
            await for_ever()
        finally:
            await asyncio.sleep(7)

    end = start(clock, block(turn, body, counts))
    await clock.advance(1_000)

    assert end.at == 540 + 15
    assert outcome(turn) == STALLED
    assert counts == [0]


@on_manual_clock
async def test_a_user_cancels_while_a_source_clings(clock: ManualClock) -> None:
    """The close ends at once, and the turn is cancelled."""
    turn, counts = Turn(on_event=quiet), []

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(Clinging()):
            break

    end = start(clock, block(turn, body, counts))
    await clock.advance(3)
    assert end.at is None
    turn.cancel("enough")
    await clock.settle()

    assert end.at == 3
    assert outcome(turn) == (Status.CANCELLED, "user_cancelled")
    assert counts == [0]


@on_manual_clock
async def test_a_cancel_from_outside_while_a_source_clings(clock: ManualClock) -> None:
    """It goes through; the turn is cancelled."""
    turn, counts = Turn(on_event=quiet), []

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(Clinging()):
            break

    end = start(clock, block(turn, body, counts))
    await clock.advance(3)
    end.task.cancel()
    await clock.settle()

    assert end.task.cancelled()
    assert outcome(turn) == (Status.CANCELLED, "error")
    assert counts == [1]


@on_manual_clock
async def test_hard_idle_while_the_stall_of_a_stream_is_being_closed(clock: ManualClock) -> None:
    """A stream cut at 535 s whose source clings meets hard idle at 540 s: one end, both said."""
    turn, counts = Turn(on_event=quiet), []

    class Silent(Clinging):
        async def __anext__(self) -> str:
            await for_ever()
            raise AssertionError

    async def body(turn: Turn) -> None:
        await asyncio.sleep(505)
        async for _ in turn.stream(Silent(), first_chunk=30):
            pass

    end = start(clock, block(turn, body, counts))
    await clock.advance(1_000)

    assert end.at is not None
    assert 540 <= end.at <= 546
    assert turn.outcome is not None
    assert turn.outcome.status is Status.STALLED
    kinds = {getattr(one, "kind", None) for one in (turn.outcome.cause, turn.outcome.also)}
    assert "hard_idle" in kinds
    assert counts == [0]


# --- the tracker ---


@on_manual_clock
async def test_a_phase_left_borrowed_is_a_failure_in_strict_mode(clock: ManualClock) -> None:
    """The block raises, and the outcome does not claim to be complete."""
    turn = Turn(tracker=PhaseTracker(strict=True), on_event=quiet)
    with pytest.raises(PhaseViolationError, match="still borrowed"):
        async with turn:
            turn.phase(Phase.AWAITING_APPROVAL)

    assert outcome(turn) == (Status.FAILED, "error")


@on_manual_clock
async def test_a_phase_left_borrowed_is_coverage_lost_in_production(clock: ManualClock) -> None:
    """One event, and the turn is complete."""
    record = Recorder()
    turn = Turn(tracker=PhaseTracker(strict=False), on_event=record)
    async with turn:
        turn.phase(Phase.AWAITING_APPROVAL)

    assert outcome(turn) == (Status.COMPLETED, None)
    assert len(record.of(CoverageLost)) == 1


@on_manual_clock
async def test_a_phase_borrowed_before_the_turn_is_not_its_fault(clock: ManualClock) -> None:
    """A turn on a tracker that the caller has borrowed from leaves that alone."""
    tracker = PhaseTracker(strict=True)
    restore = tracker.enter_transient(Phase.COMPACTING)
    async with Turn(tracker=tracker, on_event=quiet) as turn:
        with turn.phase(Phase.AWAITING_LLM):
            pass
    restore()

    assert outcome(turn) == (Status.COMPLETED, None)
    assert not tracker.invalid


@on_manual_clock
async def test_an_invalid_tracker_disarms_idle_and_not_the_budget(clock: ManualClock) -> None:
    """W1: nothing that reads the tracker fires any more; a budget reads no tracker."""
    record = Recorder()
    turn = Turn(Limits(turn_budget=2_000), tracker=PhaseTracker(strict=False), on_event=record)

    async def body(turn: Turn) -> None:
        turn.phase(Phase.COMPACTING)
        turn.enter(Phase.AWAITING_LLM)
        await for_ever()

    end = start(clock, block(turn, body))
    await clock.advance(10_000)

    assert end.at == 2_000
    assert isinstance(end.error, TurnBudgetError)
    assert (len(record.of(CoverageLost)), record.of(HardIdle)) == (1, [])


# --- observing, and a host that sleeps ---


@on_manual_clock
async def test_observe_only_cancels_nothing_anywhere(clock: ManualClock) -> None:
    """Hard idle, budget and the stream's clocks each say that they would have fired."""
    record = Recorder()
    turn = Turn(Limits(observe_only=True, turn_budget=550), on_event=record)

    async def body(turn: Turn) -> str:
        source = script("a", 600, "b")
        async for _ in turn.stream(source):
            pass
        assert source.cancels == 0
        return "well"

    end = start(clock, block(turn, body))
    await clock.advance(10_000)

    assert end.task.result() == "well"
    assert outcome(turn) == (Status.COMPLETED, None)
    would = [e for e in record.events if getattr(e, "would_have_fired", False)]
    assert {type(event) for event in would} == {HardIdle, BudgetExceeded, StreamStalled}
    assert not [
        e
        for e in record.events
        if isinstance(e, (HardIdle, BudgetExceeded, StreamStalled)) and not e.would_have_fired
    ]


@on_manual_clock
async def test_a_user_can_cancel_a_turn_that_only_observes(clock: ManualClock) -> None:
    """Observing is about clocks."""
    turn = Turn(Limits(observe_only=True), on_event=quiet)
    end = start(clock, block(turn))
    await clock.advance(1_000)
    turn.cancel()
    await clock.settle()

    assert end.task.cancelled()


@on_manual_clock
async def test_a_sleep_of_the_host_is_told_once_for_a_turn(clock: ManualClock, host: Host) -> None:
    """Case 37: the stream's gap starts anew, the budget does not count the sleep, one event."""
    record = Recorder()
    limits = Limits(turn_budget=600, soft_idle=None, hard_idle=500, stream_idle=90)
    turn = Turn(limits, on_event=record)

    async def body(turn: Turn) -> None:
        async for _ in turn.stream(script("a", HANG), progress_idle=None):
            pass

    end = start(clock, block(turn, body))
    await clock.advance(50)
    host.sleep(3_600)
    await clock.advance(10_000)

    assert [event.slept for event in record.of(HostSuspended)] == [3_600]
    assert end.at == 90 + 90
    assert isinstance(end.error, StreamIdleError)


@on_manual_clock
async def test_a_budget_does_not_count_a_sleep_and_says_so(clock: ManualClock, host: Host) -> None:
    """Case 37: an hour of sleep leaves the budget where it was; the event tells how long."""
    record = Recorder()
    turn = Turn(Limits(turn_budget=600, soft_idle=None, hard_idle=None), on_event=record)
    end = start(clock, block(turn))
    await clock.advance(50)
    host.sleep(3_600)
    await clock.advance(10_000)

    assert end.at == 600
    assert [event.slept for event in record.of(HostSuspended)] == [3_600]


@on_manual_clock
async def test_elapsed_is_by_the_monotonic_clock(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 36: a step of the wall clock is not in `elapsed`; `started_at` is by the wall clock."""
    import time

    monkeypatch.setattr(time, "time", lambda: 1_234.5)
    async with Turn(on_event=quiet) as turn:
        monkeypatch.setattr(time, "time", lambda: 1e9)
        await clock.advance(7)

    assert turn.outcome is not None
    assert (turn.outcome.elapsed, turn.outcome.started_at) == (7.0, 1_234.5)
