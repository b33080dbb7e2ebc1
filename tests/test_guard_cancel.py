"""Cancels of the user's and the guard's: who wins, what is left behind, who else is disturbed."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from guard_tools import (
    HANG,
    LOOPS,
    Recorder,
    Seen,
    consume,
    guard,
    on_manual_clock,
    play,
    run,
    script,
)
from stallwatch._bridge import drain
from stallwatch._causes import FirstChunkError, StreamIdleError
from stallwatch._events import StreamStalled, Unresponsive
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats

near = pytest.approx
TURNS = 24


async def forever() -> None:
    """Wait on a future of its own."""
    await asyncio.get_running_loop().create_future()


def fire_now(clock: ManualClock, seconds: float) -> None:
    """Move on without giving the loop a turn, and deliver what is due here and now."""
    until = clock.time() + seconds
    while clock._core.step(until):
        pass
    bridge = getattr(asyncio.get_running_loop(), "_stallwatch_manual_bridge", None)
    if bridge is not None:
        drain(bridge, asyncio.get_running_loop())


class Tracked:
    """A source that awaits in one style before each chunk, and tidies up at the end."""

    def __init__(self, style: str, *, chunks: int = 3, then_hang: bool = False) -> None:
        self.style = style
        self.chunks = chunks
        self.then_hang = then_hang
        self.finals = 0

    async def _pause(self) -> None:
        turn = functools.partial(asyncio.sleep, 0)
        if self.style == "yields":
            await turn()
            await turn()
        elif self.style == "future":
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(lambda: future.done() or future.set_result(1))
            await future
        elif self.style == "task":
            await asyncio.create_task(turn())
        else:
            await asyncio.gather(turn(), turn())

    async def _hang(self) -> None:
        if self.style == "task":
            await asyncio.create_task(forever())
        elif self.style == "gather":
            await asyncio.gather(forever(), forever())
        else:
            await forever()

    async def stream(self) -> AsyncIterator[str]:
        try:
            for number in range(self.chunks):
                await self._pause()
                yield f"{number}"
            if self.then_hang:
                await self._hang()
        finally:
            self.finals += 1
            # A cancel that comes here interrupts it, as it does without a guard.
            for _ in range(3):
                await asyncio.sleep(0)


STYLES = ["yields", "future", "task", "gather"]


async def in_block(stream: Any, log: list[str]) -> None:
    """The documented way to consume a stream."""
    async with guard(stream, first_chunk=5, idle=1, warn=None) as chunks:
        async for chunk in chunks:
            log.append(chunk)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("loop", LOOPS)
def test_cancel_at_every_await(style, loop):
    """X4: wherever a cancel lands, nothing is armed, the source closed, the count the user's."""

    async def main():
        ended = 0
        for k in range(40):
            source, log = Tracked(style), []
            armed = wheel_stats().armed
            task = asyncio.create_task(in_block(source.stream(), log))
            for _ in range(k):
                await asyncio.sleep(0)
            asked = task.cancel()
            await asyncio.wait([task])

            assert task.cancelled() == asked
            assert task.cancelling() == int(asked)
            assert source.finals == int(k > 0)  # at 0 the task never began
            assert wheel_stats().armed == armed
            ended += not asked
        assert ended > 5, "the last rounds should have let the stream end"

    run(main, loop=loop)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("k", range(TURNS))
@on_manual_clock
async def test_cancel_at_every_turn_of_a_cut(clock, style, k):
    """X3: a user's cancel at any turn after the deadline wins, as long as the cut is not over."""
    source, log = Tracked(style, then_hang=True), []
    task = asyncio.create_task(in_block(source.stream(), log))
    await clock.settle()
    fire_now(clock, 1)
    for _ in range(k):
        await asyncio.sleep(0)
    asked = task.cancel("mine")
    await asyncio.wait([task])

    assert log == ["0", "1", "2"]
    assert task.cancelled() == asked
    assert task.cancelling() == int(asked)
    assert asked or type(task.exception()) is StreamIdleError
    assert source.finals == 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("k", range(6))
@on_manual_clock
async def test_cancel_some_turns_before_the_deadline(clock, style, k):
    """X3: a user's cancel that is on its way when the deadline comes is the user's."""
    source, log, record = Tracked(style, then_hang=True), [], Recorder()
    guarded = guard(source.stream(), first_chunk=5, idle=1, warn=None, on_event=record)

    async def body() -> None:
        async with guarded as chunks:
            async for chunk in chunks:
                log.append(chunk)

    task = asyncio.create_task(body())
    await clock.settle()
    await clock.advance(0.5)
    assert task.cancel()
    for _ in range(k):
        await asyncio.sleep(0)
    fire_now(clock, 0.5)
    await asyncio.wait([task])

    assert task.cancelled()
    assert task.cancelling() == 1
    assert source.finals == 1
    assert record.of(StreamStalled) == []
    assert guarded.cause is None


@pytest.mark.parametrize("order", ["cancel first", "deadline first"])
@pytest.mark.parametrize("style", STYLES)
@on_manual_clock
async def test_cancel_in_the_tick_of_the_deadline(clock, style, order):
    """X3: in the very same tick, in either order, the user wins."""
    source, log = Tracked(style, then_hang=True), []
    task = asyncio.create_task(in_block(source.stream(), log))
    await clock.settle()
    acts = [task.cancel, lambda: fire_now(clock, 1)]
    for act in acts if order == "cancel first" else reversed(acts):
        act()
    await asyncio.wait([task])

    assert task.cancelled()
    assert task.cancelling() == 1


@pytest.mark.parametrize("order", ["cancel first", "deadline first"])
@on_manual_clock
async def test_cancel_of_a_spinning_source(clock, order):
    """X3: also while the pull waits for nothing but its next turn, the user wins."""

    async def spin() -> AsyncIterator[str]:
        yield "a"
        while True:
            await asyncio.sleep(0)

    task = asyncio.create_task(in_block(spin(), []))
    for _ in range(5):
        await asyncio.sleep(0)
    acts = [task.cancel, lambda: fire_now(clock, 1)]
    for act in acts if order == "cancel first" else reversed(acts):
        act()
    await asyncio.wait([task])

    assert task.cancelled()
    assert task.cancelling() == 1


@on_manual_clock
async def test_a_cancel_that_was_swallowed_before_is_left_counted(clock):
    """A count the consumer has brought along is neither taken for a cancel nor taken back."""
    started = asyncio.Event()

    async def body() -> None:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        async for _ in guard(script("a", HANG), idle=1):
            pass

    task = asyncio.create_task(body())
    await started.wait()
    task.cancel()
    await clock.advance(10)

    assert type(task.exception()) is StreamIdleError
    assert task.cancelling() == 1


@on_manual_clock
async def test_a_helper_task_that_ignores_every_cancel_is_reported(clock):
    """Nothing takes a task away from a helper it waits for: it is said, and no end is claimed."""

    give_in: list[bool] = []

    async def stubborn() -> None:
        while not give_in:
            with contextlib.suppress(asyncio.CancelledError):
                await forever()

    helpers: list[asyncio.Task[None]] = []

    async def source() -> AsyncIterator[str]:
        yield "a"
        helpers.append(asyncio.create_task(stubborn()))
        await helpers[0]

    record, seen = Recorder(), Seen()
    guarded = guard(source(), idle=5, on_event=record)
    task = asyncio.create_task(consume(guarded, seen=seen, clock=clock))
    await clock.advance(4)
    task.cancel()
    await clock.advance(100)

    assert not task.done()
    assert [event.waited for event in record.of(Unresponsive)] == [10.0]
    give_in.append(True)
    helpers[0].cancel()
    await asyncio.wait([task])
    assert seen.error is None  # the source ended by itself, late; asyncio loses the cancel as well
    assert seen.cancelling == 1  # the user's


@pytest.mark.parametrize("offset", range(-5, 6))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_cancel_around_the_arrival_of_a_chunk_is_never_lost(offset, loop):
    """Case 17: cancelled up to five turns around a chunk's arrival, the task ends cancelled."""

    async def main():
        queue: asyncio.Queue[str] = asyncio.Queue()

        async def source() -> AsyncIterator[str]:
            while True:
                yield await queue.get()

        task = asyncio.create_task(consume_plain(guard(source(), idle=5)))
        for _ in range(3):
            await asyncio.sleep(0)
        acts: list[tuple[int, Callable[[], Any]]] = [
            (max(0, -offset), lambda: queue.put_nowait("a")),
            (max(0, offset), task.cancel),
        ]
        for turn in range(7):
            for at, act in acts:
                if at == turn:
                    act()
            await asyncio.sleep(0)
        await asyncio.wait([task], timeout=1)

        assert task.cancelled()
        assert task.cancelling() == 1

    run(main, loop=loop)


async def consume_plain(stream: Any) -> list[Any]:
    """Read a stream to its end."""
    return [chunk async for chunk in stream]


# --- X7: nothing is left armed ---


@pytest.mark.parametrize("way", ["end", "break", "raise", "cancel", "error", "cut", "no block"])
@on_manual_clock
async def test_nothing_is_cancelled_after_the_exit(clock, way):
    """X7: left just before its deadline, a guard does not touch what its task awaits next."""
    steps = {"end": (0.9,), "error": (0.9, KeyError("mine"))}.get(way, (0.9, "b", HANG))
    source = script("a", *steps)
    before = wheel_stats().armed

    async def body() -> None:
        guarded = guard(source, idle=1, budget=2, progress_idle=1.5, warn=0.99)
        if way == "no block":
            async for chunk in guarded:
                if chunk == "b":
                    break
            return
        async with guarded as chunks:
            async for chunk in chunks:
                if chunk == "b" and way == "break":
                    break
                if chunk == "b" and way == "raise":
                    raise KeyError("mine")

    async def life() -> str:
        with contextlib.suppress(KeyError, StreamIdleError, asyncio.CancelledError):
            await body()
        await asyncio.sleep(20)
        return "undisturbed"

    task = asyncio.create_task(life())
    await clock.advance(0.95)
    if way == "cancel":
        task.cancel()
    await clock.advance(100)

    assert task.result() == "undisturbed"
    assert wheel_stats().armed == before


# --- among other deadlines and groups ---


@pytest.mark.parametrize(("outer", "expected"), [(1.0, TimeoutError), (5.0, StreamIdleError)])
@on_manual_clock
async def test_inside_asyncio_timeout(clock, outer, expected):
    """Whoever is due first ends the stream, and the other has not fired."""
    source = script("a", HANG)
    guarded = guard(source, idle=2)

    async def body() -> None:
        async with asyncio.timeout(outer) as bound:
            try:
                await consume_plain(guarded)
            finally:
                task = asyncio.current_task()
                log.append((bound.expired(), task.cancelling()))

    log: list[Any] = []
    task = asyncio.create_task(body())
    await clock.advance(100)

    assert type(task.exception()) is expected
    assert task.cancelling() == 0
    assert (guarded.cause is None) == (expected is TimeoutError)
    assert log[0][1] == int(expected is TimeoutError)
    assert source.finals == 1


@on_manual_clock
async def test_inside_asyncio_timeout_with_equal_deadlines(clock):
    """At the same moment one of the two ends it, and no cancel is left over."""
    guarded = guard(script("a", HANG), idle=2)

    async def body() -> None:
        async with asyncio.timeout(2):
            await consume_plain(guarded)

    task = asyncio.create_task(body())
    await clock.advance(100)

    assert type(task.exception()) in (TimeoutError, StreamIdleError)
    assert task.cancelling() == 0


@pytest.mark.parametrize(("inner", "expected"), [(1.0, TimeoutError), (5.0, StreamIdleError)])
@on_manual_clock
async def test_around_asyncio_timeout(clock, inner, expected):
    """Case 18: a timeout of the source's own names itself; a longer one is cut with the pull."""

    async def source() -> AsyncIterator[str]:
        yield "a"
        async with asyncio.timeout(inner):
            await forever()

    guarded = guard(source(), idle=2)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is expected
    assert seen.cancelling == 0
    assert (guarded.cause is None) == (expected is TimeoutError)


@pytest.mark.parametrize(("outer", "inner"), [(5.0, 0.5), (0.5, 5.0)])
@on_manual_clock
async def test_guard_in_guard(clock, outer, inner):
    """Of two guards around one source the one that is due first gives the cause, once."""
    source = script("a", HANG)
    below = guard(source, idle=inner, name="inner")
    above = guard(below, idle=outer, name="outer")
    seen = await play(clock, above, upto=100)

    assert type(seen.error) is StreamIdleError
    assert seen.error.name == ("inner" if inner < outer else "outer")
    assert seen.ended_at == near(0.5)
    assert seen.cancelling == 0
    assert source.finals == 1


@pytest.mark.parametrize(("outer", "expected"), [(1.0, TimeoutError), (5.0, StreamIdleError)])
@on_manual_clock
async def test_inside_anyio_fail_after(clock, outer, expected):
    """The same inside `anyio.fail_after`."""
    anyio = pytest.importorskip("anyio")
    source = script("a", HANG)
    guarded = guard(source, idle=2)

    async def body() -> None:
        with anyio.fail_after(outer):
            await consume_plain(guarded)

    task = asyncio.create_task(body())
    await clock.advance(100)

    assert type(task.exception()) is expected
    assert task.cancelling() == 0
    assert (guarded.cause is None) == (expected is TimeoutError)
    assert source.finals == 1


@pytest.mark.parametrize(("inner", "expected"), [(1.0, TimeoutError), (5.0, StreamIdleError)])
@on_manual_clock
async def test_around_anyio_fail_after(clock, inner, expected):
    """The same with `anyio.fail_after` and a task group inside the source."""
    anyio = pytest.importorskip("anyio")

    class Source:
        first = True

        def __aiter__(self):
            return self

        async def __anext__(self):
            if self.first:
                self.first = False
                return "a"
            with anyio.fail_after(inner):
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep_forever)
                    await anyio.sleep_forever()
            raise StopAsyncIteration

    guarded = guard(Source(), idle=2)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is expected
    assert seen.cancelling == 0


@on_manual_clock
async def test_inside_a_task_group_a_stall_ends_the_group(clock):
    """A stall in one child leaves as itself inside the group, and cancels its siblings."""
    siblings: list[str] = []

    async def sibling() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            siblings.append("cancelled")
            raise

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(consume_plain(guard(script("a", HANG), idle=2)))
            group.create_task(sibling())

    task = asyncio.create_task(body())
    await clock.advance(100)
    error = task.exception()

    assert isinstance(error, ExceptionGroup)
    assert [type(one) for one in error.exceptions] == [StreamIdleError]
    assert siblings == ["cancelled"]


@pytest.mark.parametrize("at", [1.0, 2.0])
@on_manual_clock
async def test_inside_a_task_group_that_fails(clock, at):
    """A sibling's failure cancels the consumer: no stall is made of it, even at the deadline."""
    source = script("a", HANG)

    async def fail() -> None:
        await asyncio.sleep(at)
        raise KeyError("mine")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(consume_plain(guard(source, idle=2)))

    task = asyncio.create_task(body())
    await clock.advance(100)

    assert [type(one) for one in task.exception().exceptions] == [KeyError]
    assert source.finals == 1


@on_manual_clock
async def test_around_a_task_group(clock):
    """A source that runs a task group is cut whole: its helpers end with it."""
    helpers: list[str] = []

    async def helper() -> None:
        try:
            await forever()
        finally:
            helpers.append("ended")

    async def source() -> AsyncIterator[str]:
        async with asyncio.TaskGroup() as group:
            group.create_task(helper())
            yield "a"
            await forever()

    seen = await play(clock, guard(source(), idle=2), upto=100)

    assert type(seen.error) is StreamIdleError
    assert seen.cancelling == 0
    assert helpers == ["ended"]


# --- other ways to pull ---


@on_manual_clock
async def test_wait_for_around_each_pull(clock):
    """`wait_for(anext(guard))` may pull in other tasks; chunks and causes come through."""
    guarded = guard(script(0.5, "a", 0.5, "b", HANG), idle=2)

    async def body() -> list[str]:
        found: list[str] = []
        with pytest.raises(StreamIdleError):
            while True:
                found.append(await asyncio.wait_for(anext(guarded), 10))
        return found

    task = asyncio.create_task(body())
    await clock.advance(100)

    assert task.result() == ["a", "b"]
    assert task.cancelling() == 0


@on_manual_clock
async def test_wait_for_that_runs_out_first(clock):
    """A `wait_for` of the user's that is due before the guard cancels the pull, and is no stall."""
    record = Recorder()
    source = script("a", HANG)
    guarded = guard(source, idle=20, warn=None, on_event=record)
    assert await anext(guarded) == "a"
    task = asyncio.create_task(asyncio.wait_for(anext(guarded), 10))
    await clock.advance(100)

    assert type(task.exception()) is TimeoutError
    assert record.names == ["first_chunk"]
    assert source.finals == 1


@on_manual_clock
async def test_pulls_in_many_tasks_one_after_another(clock):
    """Each pull may be in a task of its own, and is cut in that one."""
    guarded = guard(script("a", 1, "b", HANG), idle=2)
    for expected in ("a", "b"):
        task = asyncio.create_task(consume_one(guarded))
        await clock.advance(1.5)
        assert task.result() == expected
    task = asyncio.create_task(consume_one(guarded))
    await clock.advance(10)

    assert type(task.exception()) is StreamIdleError


async def consume_one(stream: Any) -> Any:
    """One chunk."""
    return await anext(stream)


@on_manual_clock
async def test_closing_from_another_task(clock):
    """`aclose()` while another task pulls ends that pull, without a cause or anything armed."""
    before = wheel_stats().armed

    class Source:
        def __init__(self):
            self.future = asyncio.get_running_loop().create_future()

        def __aiter__(self):
            return self

        async def __anext__(self):
            return await self.future

        async def aclose(self):
            self.future.set_exception(ConnectionError("closed below"))

    guarded = guard(Source(), idle=2)
    seen = Seen()
    task = asyncio.create_task(consume(guarded, seen=seen, clock=clock))
    await clock.settle()
    await guarded.aclose()
    await clock.advance(1000)
    await task

    assert isinstance(seen.error, ConnectionError)
    assert guarded.cause is None
    assert wheel_stats().armed == before


@on_manual_clock
async def test_a_cancel_while_entering_a_manager(clock):
    """A user's cancel during `__aenter__` of the stream's manager is the user's."""

    class Manager:
        async def __aenter__(self):
            await forever()

        async def __aexit__(self, *details):
            raise AssertionError("never entered")

    async def body() -> None:
        async with guard(Manager(), first_chunk=5):
            pass

    early, late = asyncio.create_task(body()), asyncio.create_task(body())
    await clock.advance(1)
    early.cancel()
    await clock.advance(100)

    assert early.cancelled()
    assert early.cancelling() == 1
    assert type(late.exception()) is FirstChunkError
    assert late.cancelling() == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cause_is_not_chained_to_our_own_cancel(loop):
    """The `CancelledError` that carried the cut is not shown, nor taken for the user's."""

    async def main():
        seen = await consume(guard(script("a", HANG), idle=0.05))

        assert type(seen.error) is StreamIdleError
        assert seen.error.__cause__ is None
        assert seen.error.__suppress_context__

    run(main, loop=loop)
