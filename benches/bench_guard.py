"""B2 and B3: what a guard adds to each chunk.

Nothing here ever blocks, so time is CPU time of the thread: the same on a quiet machine, and less
moved by whatever else a busy one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from time import monotonic, thread_time_ns
from typing import Any

import anyio
import async_timeout
import pytest

from harness import Contest, Row, Scale, at_least, at_most, publish
from stallwatch import guard

WINDOW = 90.0

# --- sources of `str` chunks ---


async def generator(count: int) -> AsyncIterator[str]:
    """Has every chunk ready."""
    for _ in range(count):
        yield "chunk"


class Source:
    """The same as a class."""

    def __init__(self, count: int) -> None:
        self._left = iter(range(count))

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> str:
        for _ in self._left:
            return "chunk"
        raise StopAsyncIteration


async def sleeping(count: int) -> AsyncIterator[str]:
    """Every chunk after one turn of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
        yield "chunk"


async def answered(count: int) -> AsyncIterator[str]:
    """The same through a future, as a transport's callback would do it."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
        yield "chunk"


MakeSource = Callable[[int], Any]

# --- ways to consume them; each returns the nanoseconds it took ---


async def bare(source: Any) -> int:
    """Nobody watches."""
    start = thread_time_ns()
    async for _ in source:
        pass
    return thread_time_ns() - start


async def guarded(source: Any) -> int:
    """`guard` with all its defaults."""
    start = thread_time_ns()
    async for _ in guard(source):
        pass
    return thread_time_ns() - start


class Lazy:
    """The best that is written by hand: one timer, and the time of the last chunk for it to see."""

    __slots__ = ("_handle", "_loop", "last")

    def __init__(self) -> None:
        self.last = monotonic()
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(WINDOW, self._look)

    def _look(self) -> None:
        left = self.last + WINDOW - monotonic()
        if left <= 0:
            raise AssertionError("no source here is silent")
        self._handle = self._loop.call_later(left, self._look)

    def close(self) -> None:
        self._handle.cancel()


async def stamped(source: Any) -> int:
    """A stored timestamp, written in the consumer's own loop: no wrapper at all."""
    lazy = Lazy()
    start = thread_time_ns()
    async for _ in source:
        lazy.last = monotonic()
    took = thread_time_ns() - start
    lazy.close()
    return took


async def _watch(source: Any) -> AsyncIterator[Any]:
    lazy = Lazy()
    try:
        async for chunk in source:
            lazy.last = monotonic()
            yield chunk
    finally:
        lazy.close()


async def in_generator(source: Any) -> int:
    """The same in an asynchronous generator around the source."""
    return await bare(_watch(source))


class Wrapper:
    """The same in a class around the source."""

    def __init__(self, source: Any) -> None:
        self._next = aiter(source).__anext__
        self._lazy = Lazy()

    def __aiter__(self) -> Wrapper:
        return self

    async def __anext__(self) -> Any:
        try:
            chunk = await self._next()
        except BaseException:
            self._lazy.close()
            raise
        self._lazy.last = monotonic()
        return chunk


async def in_class(source: Any) -> int:
    """A hand-written wrapper with an `async def __anext__`."""
    return await bare(Wrapper(source))


def each_in(scope: Callable[[float], AbstractAsyncContextManager[Any]]) -> Consume:
    """A timeout of its own around every pull."""

    async def consume(source: Any) -> int:
        start = thread_time_ns()
        pull = aiter(source).__anext__
        try:
            while True:
                async with scope(WINDOW):
                    await pull()
        except StopAsyncIteration:
            return thread_time_ns() - start

    return consume


def each_in_sync(scope: Callable[[float], AbstractContextManager[Any]]) -> Consume:
    """The same for a scope that is entered without `async`."""

    async def consume(source: Any) -> int:
        start = thread_time_ns()
        pull = aiter(source).__anext__
        try:
            while True:
                with scope(WINDOW):
                    await pull()
        except StopAsyncIteration:
            return thread_time_ns() - start

    return consume


Consume = Callable[[Any], Awaitable[int]]

WATCHED: dict[str, Consume] = {
    "bare": bare,
    "guard": guarded,
    "stored timestamp, inline": stamped,
    "stored timestamp, in a class": in_class,
    "stored timestamp, in a generator": in_generator,
}

TIMED: dict[str, Consume] = {
    "asyncio.timeout a chunk": each_in(asyncio.timeout),
    "async_timeout.timeout a chunk": each_in(async_timeout.timeout),
    "anyio.fail_after a chunk": each_in_sync(anyio.fail_after),
}


def contest_of(source: MakeSource, chunks: int, *, slices: int) -> Contest:
    """All ways to consume a source; those that are slow get a tenth of the chunks."""

    def turn(consume: Consume, count: int) -> Callable[[], float]:
        async def main() -> float:
            # What a loop's first stream makes once for all of them is no part of a chunk.
            await consume(source(10))
            return await consume(source(count)) / count

        return lambda: asyncio.run(main())

    entrants = {name: turn(consume, chunks) for name, consume in WATCHED.items()}
    entrants |= {name: turn(consume, chunks // 10) for name, consume in TIMED.items()}
    return Contest(entrants, slices=slices)


@pytest.mark.parametrize("source", [generator, Source], ids=["generator", "class"])
def bench_ready_chunks(benchmark: Any, scale: Scale, source: MakeSource) -> None:
    """Every chunk is there already: nothing hides what a guard costs."""
    # 100 000 chunks a round.
    contest = contest_of(source, scale.pick(20_000, 10_000), slices=5)
    contest.play(benchmark, rounds=scale.rounds())

    inline, around = "stored timestamp, inline", "stored timestamp, in a generator"
    checks = (
        at_most("added to a bare `async for`", contest.added("guard", "bare"), 60, "ns"),
        at_most("a stored timestamp, inline", contest.added_ratio("guard", inline, "bare"), 1),
        at_least("a Python generator guard", contest.added_ratio(around, "guard", "bare"), 3),
        at_least(
            "`asyncio.timeout` per chunk",
            contest.added_ratio("asyncio.timeout a chunk", "guard", "bare"),
            50,
        ),
    )
    kind = "a generator" if source is generator else "a class with `async def __anext__`"
    publish(
        benchmark,
        Row(
            "B2",
            f"`guard`, per chunk that is there already, from {kind}",
            checks,
            contest.figures("ns"),
            contest.rounds,
        ),
    )


@pytest.mark.parametrize("source", [sleeping, answered], ids=["sleep", "future"])
def bench_chunks_after_a_hop(benchmark: Any, scale: Scale, source: MakeSource) -> None:
    """Every chunk comes one turn of the loop later, as from a socket that is never slow."""
    # Three per cent of two microseconds is far below what a busy second adds: many short slices.
    contest = contest_of(source, 5_000, slices=scale.pick(9, 5))
    contest.play(benchmark, rounds=scale.rounds(15, 5))

    kind = "`sleep(0)`" if source is sleeping else "a future set by `call_soon`"
    publish(
        benchmark,
        Row(
            "B3",
            f"`guard`, per chunk after one hop through {kind}",
            (
                at_most(
                    "added to a bare `async for`", contest.added_percent("guard", "bare"), 3, "%"
                ),
            ),
            contest.figures("ns"),
            contest.rounds,
        ),
    )
