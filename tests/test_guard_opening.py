"""A guard around a stream that has yet to be asked for, and around helpers that read it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from guard_tools import HANG, LOOPS, Recorder, Source, consume, on_manual_clock, play, script
from stallwatch import FirstChunkError, Limits, StreamIdleError, Turn, guard, guard_sync
from stallwatch.testing import ManualClock


async def asked(stream: Any, wait: float = 0.0) -> Any:
    """What an SDK's call is: a coroutine that gives a stream, after `wait` seconds."""
    await asyncio.sleep(wait)
    return stream


@asynccontextmanager
async def managed(stream: Any) -> AsyncIterator[Any]:
    """A context manager that yields a stream."""
    yield stream


OPENERS = {
    "coroutine": asked,
    "function of a coroutine": lambda stream: lambda: asked(stream),
    "function of a manager": lambda stream: lambda: managed(stream),
    "function of a stream": lambda stream: lambda: stream,
    "coroutine of a manager": lambda stream: asked(managed(stream)),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("entered", [True, False])
@pytest.mark.parametrize("opener", OPENERS)
@on_manual_clock
async def test_whatever_gives_a_stream_is_opened(
    clock: ManualClock, opener: str, entered: bool, loop: str
) -> None:
    """A call without its `await` and functions that make one give their chunks, entered or not."""
    source = script("a", "b")
    guarded: Any = guard(OPENERS[opener](source))
    if entered:
        async with guarded:
            seen = await consume(guarded)
    else:
        seen = await consume(guarded)

    assert seen.chunks == ["a", "b"]
    assert seen.error is None
    assert source.finals == 1


@pytest.mark.parametrize("entered", [True, False])
@on_manual_clock
async def test_the_answer_to_the_request_is_waited_for(clock: ManualClock, entered: bool) -> None:
    """A request that is never answered is `first_chunk`'s business, and is cancelled."""
    request = asked(None, 1000)
    guarded: Any = guard(request, first_chunk=5, idle=1)

    async def read() -> Any:
        if not entered:
            return await consume(guarded)
        async with guarded:
            return await consume(guarded)

    task = asyncio.create_task(read())
    await clock.advance(4.9)
    assert not task.done()
    await clock.advance(0.2)
    error = task.exception() if entered else task.result().error

    assert isinstance(error, FirstChunkError)
    assert request.cr_frame is None  # it has ended
    assert task.cancelling() == 0


@on_manual_clock
async def test_a_slow_answer_is_no_silence(clock: ManualClock) -> None:
    """The wait for the answer counts for `first_chunk`, not for `idle`."""
    seen = await play(clock, guard(asked(script(1, "a"), 4), first_chunk=6, idle=2))

    assert seen.chunks == ["a"]
    assert seen.error is None


@on_manual_clock
async def test_a_function_is_called_when_it_is_needed(clock: ManualClock) -> None:
    """No request is made before the guard is entered or pulled from, and only one then."""
    calls = []

    def make() -> Source:
        calls.append(1)
        return script("a")

    guarded: Any = guard(make)
    assert calls == []
    async with guarded:
        assert calls == [1]
        await consume(guarded)

    assert calls == [1]


@on_manual_clock
async def test_what_the_request_raises_is_raised(clock: ManualClock) -> None:
    """An error of the request leaves as the very same object."""
    trouble = TimeoutError("no route")

    async def fail() -> Source:
        raise trouble

    with pytest.raises(TimeoutError) as entered:
        async with guard(fail()):
            pass
    pulled = await consume(guard(fail))

    assert entered.value is trouble
    assert pulled.error is trouble


@on_manual_clock
async def test_a_coroutine_that_is_not_needed_is_closed(clock: ManualClock) -> None:
    """A guard that is closed unused says nothing of a coroutine that was never awaited."""
    guarded: Any = guard(asked(script("a")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await guarded.aclose()

    assert await consume(guarded) is not None
    assert (await consume(guarded)).chunks == []


@on_manual_clock
async def test_an_answer_that_is_no_stream_is_refused(clock: ManualClock) -> None:
    """Whoever forgets `stream=True` is told so, by the name of what came."""
    with pytest.raises(TypeError, match="'dict' given: is stream= set"):
        async with guard(asked({"choices": []})):
            pass


@on_manual_clock
async def test_a_turn_opens_too(clock: ManualClock) -> None:
    """A turn's stream takes the call without its `await`, and closes what came of it."""
    source = script("a", HANG)

    async def run_it() -> None:
        async with Turn(Limits(hard_idle=None, stream_idle=5)) as turn:
            async for _ in turn.stream(asked(source)):
                pass

    task = asyncio.create_task(run_it())
    await clock.advance(20)
    error = task.exception()

    assert isinstance(error, StreamIdleError)
    assert error.partial == "a"
    assert source.finals == 1


class Answer:
    """A stream with helpers that read it, as SDKs have them."""

    def __init__(self, *steps: Any) -> None:
        self.source = script(*steps)
        self.chunks = self.source.__aiter__()
        self.said: list[str] = []

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        chunk: str = await anext(self.chunks)
        self.said.append(chunk)
        return chunk

    async def until_done(self) -> Answer:
        async for _ in self:
            pass
        return self

    async def get_final_text(self, end: str = "") -> str:
        await self.until_done()
        return "".join(self.said) + end

    get_final_number = 7


@on_manual_clock
async def test_helpers_read_through_the_guard(clock: ManualClock) -> None:
    """A helper gives what it gives without a guard, and its chunks are counted."""
    guarded: Any = guard(Answer("a", "b"))

    assert await anext(guarded) == "a"
    assert await guarded.get_final_text(end="!") == "ab!"
    assert await guarded.until_done() is guarded
    assert guarded.stats.chunks == 2
    assert guarded.text == "ab"


@on_manual_clock
async def test_a_helper_of_a_silent_stream_raises_the_cause(clock: ManualClock) -> None:
    """Without the guard the helper waits for ever; with it, it raises the cause, each time."""
    bare = asyncio.create_task(Answer("a", HANG).get_final_text())
    await clock.advance(1000)
    assert not bare.done()  # the unsafe baseline
    bare.cancel()
    await asyncio.wait([bare])

    record = Recorder()
    guarded: Any = guard(Answer("a", HANG), idle=5, on_event=record)
    helped = asyncio.create_task(guarded.get_final_text())
    await clock.advance(6)
    error = helped.exception()

    assert isinstance(error, StreamIdleError)
    assert error.partial == "a"
    assert helped.cancelling() == 0
    with pytest.raises(StreamIdleError) as again:
        await guarded.until_done()
    assert again.value is error
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]


@on_manual_clock
async def test_a_helper_opens_what_is_not_open(clock: ManualClock) -> None:
    """A manager's helper can be asked for at once; what it does not have is not there."""
    assert await guard(managed(Answer("a"))).get_final_text() == "a"

    guarded: Any = guard(managed(Answer("a")))
    async with guarded:
        assert not hasattr(guarded, "get_final_message")
        assert guarded.get_final_number == 7


def test_helpers_of_a_blocking_stream_read_through_the_guard() -> None:
    """The same for `guard_sync`: results, the guard for the stream, and what is not there."""

    class Blocking(list[str]):
        def until_done(self) -> Blocking:
            return self

        def get_final_text(self) -> str:
            return "".join(self)

    guarded: Any = guard_sync(Blocking(["a", "b"]))

    assert guarded.get_final_text() == "ab"
    assert guarded.until_done() is guarded
    assert guarded.stats.chunks == 2
    assert not hasattr(guarded, "get_final_message")
