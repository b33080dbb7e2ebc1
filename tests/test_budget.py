"""`budget`: an absolute bound that nests, is carried everywhere, and cannot be renewed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import stallwatch
from guard_tools import HANG, Recorder, on_manual_clock, script
from stallwatch import (
    BudgetExceeded,
    Limits,
    Status,
    StreamBudgetError,
    Turn,
    TurnBudgetError,
    Unresponsive,
    UserCancelled,
    budget,
    cause_of,
    guard,
    guard_sync,
    is_retryable,
    remaining,
    run_turn,
)
from stallwatch.testing import ManualClock
from sync_tools import PATIENCE
from turn_tools import finish, for_ever, quiet, start, stubborn


async def bounded(
    seconds: Any, body: Callable[[], Awaitable[Any]], *, cancels: int = 0, **more: Any
) -> Any:
    """A body in a block of its own; on the task's count are only the cancels of others."""
    task = asyncio.current_task()
    assert task is not None
    try:
        with budget(seconds, on_event=quiet, **more):
            return await body()
    finally:
        assert task.cancelling() == cancels


@on_manual_clock
async def test_it_ends_what_waits_for_ever(clock: ManualClock) -> None:
    """The block raises its cause at its deadline, and the unbounded run waits on."""
    free = start(clock, for_ever())
    end = start(clock, bounded(30, for_ever, name="answer"))
    await clock.advance(100)

    assert free.at is None
    assert end.at == 30
    assert isinstance(end.error, TurnBudgetError)
    assert (end.error.owner, end.error.name, end.error.limit) == ("budget", "answer", 30)
    assert end.error.idle == pytest.approx(30)
    assert not is_retryable(end.error)
    assert end.error.__cause__ is None
    await finish(free)


@on_manual_clock
async def test_one_event_tells_of_it(clock: ManualClock) -> None:
    """`BudgetExceeded` comes once, and says whose budget it was."""
    record = Recorder()

    async def body() -> None:
        async with budget(5, on_event=record):
            await for_ever()

    end = start(clock, body())
    await clock.advance(60)

    assert end.at == 5
    assert [event.owner for event in record.of(BudgetExceeded)] == ["budget"]


@on_manual_clock
async def test_in_time_it_changes_nothing(clock: ManualClock) -> None:
    """A body that ends in time keeps its result, also at the very moment of the deadline."""

    async def body(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    early = start(clock, bounded(30, lambda: body(29)))
    level = start(clock, bounded(30, lambda: body(30)))
    await clock.advance(100)

    assert early.task.result() == level.task.result() == "done"


@pytest.mark.parametrize(("outer", "inner", "at"), [(10, 30, 10), (30, 10, 10), (10, 10, 10)])
@on_manual_clock
async def test_they_nest(clock: ManualClock, outer: float, inner: float, at: float) -> None:
    """The sooner deadline ends the inner block, and only the outer's own ends the outer."""
    seen: list[Any] = []

    async def body() -> None:
        with budget(outer, name="outer", on_event=quiet):
            try:
                with budget(inner, name="inner", on_event=quiet) as own:
                    seen.append(own.remaining)
                    await for_ever()
            except TurnBudgetError as error:
                seen.append(error.name)
                await for_ever()

    end = start(clock, body())
    await clock.advance(100)

    assert seen[0] == pytest.approx(min(outer, inner))
    assert seen[1:] == (["inner"] if inner < outer else [])
    assert end.at == outer
    assert isinstance(end.error, TurnBudgetError)
    assert end.error.name == "outer"


@on_manual_clock
async def test_nothing_inside_renews_it(clock: ManualClock) -> None:
    """Attempts inside get the remainder, and once it is over a block is not entered at all."""
    opened: list[float] = []
    spent: list[Any] = []

    async def attempts() -> None:
        with budget(1, on_event=quiet) as whole:
            for _ in range(10):
                try:
                    with budget(0.4, on_event=quiet) as own:
                        opened.append(round(own.remaining or 0, 3))
                        await for_ever()
                except TurnBudgetError:
                    spent.append(whole.expired)
            await for_ever()

    end = start(clock, attempts())
    await clock.advance(10)

    assert opened == [0.4, 0.4, 0.2]
    assert end.at == 1


@on_manual_clock
async def test_nested_retry_helpers_stay_inside_it(clock: ManualClock) -> None:
    """Twelve attempts of a source that always stalls end at the budget made outside them all."""
    opens: list[float] = []

    async def attempt() -> None:
        opens.append(clock.time())
        source = script(0, "half a", HANG)
        with budget(0.4, on_event=quiet):
            async for _ in guard(source, idle=0.3, on_event=quiet):
                pass

    async def again(times: int, work: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(times):
            try:
                return await work()
            except RuntimeError as error:
                last = error
        raise last

    end = start(clock, bounded(1, lambda: again(4, lambda: again(3, attempt))))
    await clock.advance(30)

    assert end.at == pytest.approx(1, abs=1e-3)
    assert len(opens) == 4
    assert isinstance(end.error, TurnBudgetError)


@on_manual_clock
async def test_text_of_a_cut_stream_is_kept(clock: ManualClock) -> None:
    """The stream is closed, and what came of it is the cause's `partial`."""
    source = script(0, "half a ", 1, "sentence", HANG)

    async def body() -> None:
        async with guard(source, on_event=quiet) as chunks:
            async for _ in chunks:
                pass

    end = start(clock, bounded(5, body))
    await clock.advance(30)

    assert end.at == 5
    assert isinstance(end.error, TurnBudgetError)
    assert end.error.partial == "half a sentence"
    assert source.finals == 1


@on_manual_clock
async def test_a_stream_in_another_task_is_bound_by_it(clock: ManualClock) -> None:
    """A task that the block cannot reach has its streams cut by the same deadline."""
    tasks: list[asyncio.Task[Any]] = []

    async def elsewhere() -> None:
        async for _ in guard(script(0, "a", HANG), idle=None, progress_idle=None, on_event=quiet):
            pass

    async def body() -> None:
        with budget(5, on_event=quiet):
            tasks.append(asyncio.create_task(elsewhere()))
            await asyncio.sleep(1)

    end = start(clock, body())
    await clock.advance(30)

    assert end.at == 1
    assert isinstance(tasks[0].exception(), StreamBudgetError)


@on_manual_clock
async def test_a_turn_inside_ends_by_it(clock: ManualClock) -> None:
    """`run_turn` gets the remainder as its own budget, and returns its outcome first."""
    outcomes: list[Any] = []

    async def body(turn: Turn) -> None:
        assert remaining() == pytest.approx(5)
        async for _ in turn.stream(script(0, "half", HANG), idle=None):
            pass

    async def caller() -> None:
        await asyncio.sleep(2)
        outcomes.append(await run_turn(body, Limits(turn_budget=60), on_event=quiet))
        await for_ever()

    end = start(clock, bounded(7, caller))
    await clock.advance(30)

    assert end.at == pytest.approx(7, abs=0.1)
    assert isinstance(end.error, TurnBudgetError)
    assert outcomes[0].status is Status.STALLED
    assert outcomes[0].cause.kind == "turn_budget"
    assert outcomes[0].partial == "half"


@on_manual_clock
async def test_a_turn_in_the_same_task_raises_its_own_cause(clock: ManualClock) -> None:
    """`async with Turn` inside a block settles as stalled, and its cause leaves the block."""
    turns: list[Turn] = []

    async def body() -> None:
        async with Turn(name="inner", on_event=quiet) as turn:
            turns.append(turn)
            await for_ever()

    end = start(clock, bounded(7, body, name="outer"))
    await clock.advance(30)

    assert end.at == 7
    assert turns[0].outcome is not None
    assert turns[0].outcome.status is Status.STALLED
    assert isinstance(end.error, TurnBudgetError)
    assert end.error.name == "inner"


@on_manual_clock
async def test_a_turns_budget_is_handed_down(clock: ManualClock) -> None:
    """Inside a turn the rest of its own budget is what `remaining` and blocks go by."""
    seen: list[Any] = []

    async def body(turn: Turn) -> None:
        await asyncio.sleep(4)
        seen.append(remaining())
        with budget(60) as own:
            seen.append(own.remaining)
        seen.append(await asyncio.to_thread(remaining))

    task = asyncio.create_task(run_turn(body, Limits(turn_budget=10), on_event=quiet))
    await clock.advance(4)
    while not task.done():  # a thread takes real time
        await asyncio.sleep(0)
    after = remaining()

    assert task.result().status is Status.COMPLETED
    assert seen == [pytest.approx(6)] * 3
    assert after is None


@pytest.mark.parametrize("wins", ["user", "both"])
@on_manual_clock
async def test_a_cancel_of_somebody_else_goes_through(clock: ManualClock, wins: str) -> None:
    """A cancel that comes first, or in the same moment, is not turned into a stall."""
    end = start(clock, bounded(5, for_ever, cancels=1))
    await clock.advance(4 if wins == "user" else 4.999)
    if wins == "user":
        end.task.cancel()
    else:
        asyncio.get_running_loop().call_later(0.001, end.task.cancel)
    await clock.advance(30)

    assert end.task.cancelled()


@on_manual_clock
async def test_a_user_cancel_inside_stays_one(clock: ManualClock) -> None:
    """`UserCancelled` of a turn inside leaves the block as it is."""

    async def body() -> None:
        async with Turn(on_event=quiet) as turn:
            turn.cancel("stop it")
            await for_ever()

    end = start(clock, bounded(5, body))
    await clock.advance(30)

    assert end.task.cancelled()
    assert isinstance(cause_of(end.task), UserCancelled)


@on_manual_clock
async def test_a_body_that_swallows_the_cancel(clock: ManualClock) -> None:
    """It is told again after 1/2, 3/4 and 7/8 of a minute, and returning is no success."""
    told: list[float] = []
    begun = clock.time()
    end = start(
        clock, bounded(5, lambda: stubborn(3, lambda: told.append(round(clock.time() - begun, 3))))
    )
    await clock.advance(600)

    assert told == [5, 35, 50]
    assert isinstance(end.error, TurnBudgetError)
    assert end.at == 50


@on_manual_clock
async def test_a_body_that_never_lets_go_is_reported(clock: ManualClock) -> None:
    """After a minute of swallowed cancels the body is called unresponsive, once."""
    record = Recorder()

    async def body() -> None:
        with budget(5, on_event=record):
            await stubborn(100)

    end = start(clock, body())
    await clock.advance(600)

    assert end.at is None
    assert [event.what for event in record.of(Unresponsive)] == ["body"]
    for _ in range(120):
        end.task.cancel()
        await asyncio.sleep(0)
    assert end.task.done()


@on_manual_clock
async def test_an_error_raised_instead_is_the_cause_of_the_cause(clock: ManualClock) -> None:
    """What clean-up raises after the cut is chained, not lost."""

    async def body() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("clean-up")

    end = start(clock, bounded(5, body))
    await clock.advance(30)

    assert isinstance(end.error, TurnBudgetError)
    assert isinstance(end.error.__cause__, ValueError)


@pytest.mark.parametrize("inside", [True, False])
@on_manual_clock
async def test_with_asyncios_timeout_whichever_fires_is_named(
    clock: ManualClock, inside: bool
) -> None:
    """The inner or the outer one, whichever fired, and never both."""

    async def body() -> None:
        if inside:
            async with asyncio.timeout(10):
                with budget(5, on_event=quiet):
                    await for_ever()
        else:
            with budget(10, on_event=quiet):
                async with asyncio.timeout(5):
                    await for_ever()

    end = start(clock, body())
    await clock.advance(30)

    assert end.at == 5
    assert type(end.error) is (TurnBudgetError if inside else TimeoutError)
    assert end.task.cancelling() == 0


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_zero_is_refused(value: float) -> None:
    """No budget means at once: 0 is a mistake."""
    with pytest.raises(ValueError, match="budget must be"):
        budget(value)


@on_manual_clock
async def test_none_is_what_is_left_outside(clock: ManualClock) -> None:
    """Without a bound of its own a block has that of the blocks around it, or none."""
    with budget(None) as free:
        unbounded = (free.remaining, remaining())
    with budget(8), budget(None) as inner:
        await clock.advance(3)
        bound = (inner.remaining, remaining())

    assert unbounded == (None, None)
    assert bound == (pytest.approx(5), pytest.approx(5))


def test_a_budget_is_entered_once() -> None:
    """Entering it again would renew it."""
    one = budget(5)
    with one, pytest.raises(RuntimeError, match="once"):
        one.__enter__()

    with pytest.raises(RuntimeError, match="once"):
        one.__enter__()


def test_without_a_task_it_is_looked_at() -> None:
    """Plain code asks: `check` raises once the time is over, and new blocks are refused."""
    with ManualClock() as clock, budget(5, name="sync") as own:
        own.check()
        clock.advance(4)
        own.check()
        assert not own.expired
        clock.advance(1)

        assert (own.expired, own.remaining, remaining()) == (True, 0.0, 0.0)
        with pytest.raises(TurnBudgetError, match="sync"):
            own.check()
        with pytest.raises(TurnBudgetError), budget(5):
            pass
    assert remaining() is None
    assert own.elapsed == pytest.approx(5)


@pytest.mark.slow
def test_a_blocking_stream_is_bound_by_it() -> None:
    """`guard_sync` in a thread inherits the deadline. Real time: 0.3 s, given 30 s."""
    released = threading.Event()

    def source() -> Any:
        yield "half"
        released.wait(PATIENCE)
        raise OSError("released")

    with (
        budget(0.3, on_event=quiet),
        pytest.raises(StreamBudgetError) as caught,
        guard_sync(source(), idle=None, abort=released.set, on_event=quiet) as chunks,
    ):
        list(chunks)

    assert caught.value.partial == "half"


@on_manual_clock
async def test_libraries_in_between_need_not_know(clock: ManualClock) -> None:
    """It goes down through tasks, generators and groups as context variables do."""
    seen: list[Any] = []

    async def library() -> AsyncIterator[int]:
        async def below() -> None:
            seen.append(remaining())

        async with asyncio.TaskGroup() as group:
            group.create_task(below())
        yield 1

    with budget(9):
        async for _ in library():
            seen.append(remaining())

    assert seen == [pytest.approx(9)] * 2
    assert stallwatch.remaining() is None
