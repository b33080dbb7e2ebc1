"""The byte tap below SDK streams: `idle` hears keep-alives that the SDK keeps to itself."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guard_tools import HANG, Recorder, on_manual_clock, play, script
from stallwatch import StreamIdleError, StreamProgressError, guard, guard_sync
from stallwatch._tap import tap
from stallwatch.faults import FaultServer, Scenario
from sync_tools import Blocking, play_sync, staged

LIBRARIES = ("httpx", "httpx2")

PING = b": ping\n\n"
EVENT = b"data: word\n\n"


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    """Each of the two clients."""
    return pytest.importorskip(request.param)


class Answer:
    """An SDK's stream: it has a response, and gives the events of its body but no comment.

    Attributes:
        source: The script of the body.
        closes: Times its byte stream was closed.
    """

    def __init__(self, library: Any, source: Any) -> None:
        answer = self
        self.source = source
        self.closes = 0

        class Bytes(library.AsyncByteStream):  # type: ignore[misc]
            def __aiter__(self) -> Any:
                return aiter(source)

            async def aclose(self) -> None:
                answer.closes += 1

        self.response = library.Response(200, stream=Bytes())
        self.bytes = self.response.stream

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self.response.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")

    async def aclose(self) -> None:
        """Closes the response."""
        await self.response.aclose()


class BlockingAnswer:
    """As `Answer`, for threads."""

    def __init__(self, library: Any, source: Any) -> None:
        class Bytes(library.SyncByteStream):  # type: ignore[misc]
            def __iter__(self) -> Any:
                return iter(source)

        self.response = library.Response(200, stream=Bytes())
        self.bytes = self.response.stream

    def __iter__(self) -> Iterator[str]:
        for line in self.response.iter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")

    def close(self) -> None:
        """Closes the response."""
        self.response.close()


class Hidden:
    """The same stream with nothing of its response to be seen."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __aiter__(self) -> Any:
        return aiter(self.answer)


@on_manual_clock
async def test_pings_that_the_sdk_hides_keep_idle_quiet(clock, library):
    """Only `progress_idle` fires while the wire pings; without the tap `idle` did, in error."""
    chatter = (EVENT, *[2, PING] * 100)
    hidden = await play(clock, guard(Hidden(Answer(library, script(*chatter))), idle=5))
    assert isinstance(hidden.error, StreamIdleError)  # the baseline
    record = Recorder()

    seen = await play(
        clock,
        guard(Answer(library, script(*chatter)), idle=5, progress_idle=61, on_event=record),
    )

    assert isinstance(seen.error, StreamProgressError)
    assert (seen.error.idle, seen.ended_at) == (61, 61)
    assert seen.chunks == ["word"]
    assert seen.error.since_chunk == 1
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]


@on_manual_clock
async def test_idle_counts_from_the_last_byte(clock, library):
    """Once the pings end too, `idle` runs from the last of them."""
    answer = Answer(library, script(EVENT, *[2, PING] * 10, HANG))

    seen = await play(clock, guard(answer, idle=5))

    assert isinstance(seen.error, StreamIdleError)
    assert (seen.error.idle, seen.ended_at) == (5, 25)
    assert answer.closes == 1


@on_manual_clock
async def test_without_pings_idle_fires(clock, library):
    """A tap alone keeps nothing alive."""
    answer = Answer(library, script(EVENT, HANG))

    seen = await play(clock, guard(answer, idle=5))

    assert isinstance(seen.error, StreamIdleError)
    assert seen.ended_at == 5
    assert seen.cancelling == 0


@on_manual_clock
async def test_pings_do_not_end_the_first_wait(clock, library):
    """Bytes are neither chunks nor progress: `first_chunk` runs on through them."""
    answer = Answer(library, script(*[2, PING] * 100))

    guarded = guard(answer, first_chunk=31, idle=5)
    seen = await play(clock, guarded)

    assert seen.error is not None
    assert (seen.error.kind, seen.ended_at) == ("first_chunk", 31)
    assert guarded.stats.chunks == 0


@on_manual_clock
async def test_half_an_event_is_a_sign_of_life(clock, library):
    """An event that drips in byte by byte counts with every byte."""
    drip = [piece for byte in EVENT for piece in (2, bytes([byte]))]
    answer = Answer(library, script(EVENT, *drip, HANG))

    seen = await play(clock, guard(answer, idle=5))

    assert seen.chunks == ["word", "word"]
    assert seen.times[1] >= 2 * (len(EVENT) - 2)


@on_manual_clock
async def test_the_largest_gap_is_one_between_bytes(clock, library):
    """Statistics speak of the same silences that `idle` does."""
    answer = Answer(library, script(EVENT, 3, PING, 2, PING, 1, EVENT))

    guarded = guard(answer, idle=5)
    await play(clock, guarded)

    assert guarded.stats.largest_gap == pytest.approx(3)
    assert guarded.stats.chunks == 2


@on_manual_clock
async def test_the_body_comes_through_as_it_is(clock, library):
    """Chunks of bytes are handed on one by one, as the very same objects."""
    parts = [b"data: a\n", b"\n", b"data: b\n\n"]
    answer = Answer(library, script(*parts))
    leave = tap(answer, guard(script()))

    got = [part async for part in answer.response.stream]
    assert leave is not None
    leave()

    assert [id(part) for part in got] == [id(part) for part in parts]


@on_manual_clock
async def test_an_error_of_the_body_is_the_same_object(clock, library):
    """What the byte stream raises comes through the tap as it was raised."""
    broken = OSError("cable cut")
    answer = Answer(library, script(EVENT, broken))

    seen = await play(clock, guard(answer, idle=5))

    assert seen.error is broken


@on_manual_clock
async def test_the_tap_goes_when_the_guard_does(clock, library):
    """At the end of the guard the response has its own byte stream back."""
    answer = Answer(library, script(EVENT, 1, EVENT))
    during = []
    answer.source.steps = (*answer.source.steps, lambda: during.append(answer.response.stream))

    await play(clock, guard(answer, idle=5))

    assert len(during) == 1
    assert during[0] is not answer.bytes
    assert isinstance(during[0], library.AsyncByteStream)
    assert answer.response.stream is answer.bytes
    assert answer.closes == 1


@on_manual_clock
async def test_two_guards_share_one_tap(clock, library):
    """A guard around a guarded stream hears the same bytes, and neither disturbs the other."""
    answer = Answer(library, script(EVENT, *[2, PING] * 100))
    seen_streams = []
    answer.source.steps = (*answer.source.steps[:4], lambda: seen_streams.append(1), HANG)
    inner = guard(answer, idle=5, progress_idle=None)
    outer = guard(inner, idle=4, progress_idle=None)

    seen = await play(clock, outer)
    await outer.aclose()

    assert isinstance(seen.error, StreamIdleError)
    assert seen.error.limit == 4
    assert seen_streams == [1]
    assert answer.response.stream is answer.bytes


@on_manual_clock
async def test_one_of_two_listeners_leaves(clock, library):
    """The tap stays for the other one, and goes with that."""
    answer = Answer(library, script(EVENT))
    first, second = guard(script()), guard(script())
    leave_first, leave_second = tap(answer, first), tap(answer, second)
    assert leave_first is not None
    assert leave_second is not None
    tapped = answer.response.stream

    leave_first()
    assert answer.response.stream is tapped
    leave_second()
    leave_second()

    assert answer.response.stream is answer.bytes


@on_manual_clock
async def test_whoever_replaced_the_tap_is_left_alone(clock, library):
    """A byte stream that someone else has put above the tap since stays where it is."""
    answer = Answer(library, script(EVENT))
    keep = guard(script())
    leave = tap(answer, keep)
    other = Answer(library, script()).bytes
    answer.response.stream = other
    assert leave is not None

    leave()

    assert answer.response.stream is other


@on_manual_clock
async def test_a_response_that_is_being_read_is_not_tapped(clock, library):
    """Bytes already asked for elsewhere cannot be heard: chunks alone reset `idle` then."""
    answer = Answer(library, script(EVENT, 1, EVENT, *[2, PING] * 10))
    chunks = aiter(answer)
    assert await anext(chunks) == "word"

    class Begun:
        response = answer.response

        def __aiter__(self) -> Any:
            return chunks

    seen = await play(clock, guard(Begun(), idle=5))

    assert isinstance(seen.error, StreamIdleError)
    assert seen.chunks == ["word"]
    assert answer.response.stream is answer.bytes


def test_a_body_that_is_all_there_is_not_tapped(library):
    """There is nothing to hear about bytes that have come already."""

    class Whole:
        response = library.Response(200, content=EVENT)

    before = Whole.response.stream

    assert tap(Whole(), guard(script())) is None
    assert Whole.response.stream is before


def test_what_is_no_response_is_not_tapped():
    """Mocks, properties that raise and responses of other libraries are left as they are."""
    from unittest.mock import MagicMock

    class Trouble:
        @property
        def response(self) -> Any:
            raise ValueError("no")

    class Fixed:
        class response:  # noqa: N801
            is_stream_consumed = False
            stream = b"bytes"

    for source in (MagicMock(), Trouble(), Fixed(), object()):
        assert tap(source, guard(script())) is None


def test_a_tap_keeps_no_guard_alive(library):
    """A dropped guard goes at once though its tap is in place, and so does the tap itself."""

    class Nothing(library.AsyncByteStream):
        pass

    class Stream:
        def __init__(self) -> None:
            self.response = library.Response(200, stream=Nothing())

    stream, dropped = Stream(), guard(script())
    assert tap(stream, dropped) is not None
    gone, tapped = weakref.ref(dropped), weakref.ref(stream.response.stream)
    gc.disable()
    try:
        del dropped
        assert gone() is None
        del stream
        assert tapped() is None
    finally:
        gc.enable()


def test_no_client_is_imported():
    """The guard alone loads neither library."""
    code = (
        "import asyncio, sys, stallwatch\n"
        "async def words():\n"
        "    yield 'a'\n"
        "async def main():\n"
        "    async for _ in stallwatch.guard(words()): pass\n"
        "asyncio.run(main())\n"
        "sys.exit(any(name.startswith('httpx') for name in sys.modules))"
    )
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_blocking_pings_keep_idle_quiet(library):
    """As for asynchronous streams: only `progress_idle` fires while the wire pings."""
    with staged() as stage:
        chatter = Blocking(stage, (EVENT, *[2, PING] * 100))
        answer = BlockingAnswer(library, chatter)

        seen = play_sync(stage, guard_sync(answer, idle=5, progress_idle=61, abort=stage.abort))

        assert isinstance(seen.error, StreamProgressError)
        assert seen.ended_at == 61
        assert answer.response.stream is answer.bytes
        assert chatter.finals == 1


def test_blocking_idle_counts_from_the_last_byte(library):
    """As for asynchronous streams."""
    with staged() as stage:
        answer = BlockingAnswer(library, Blocking(stage, (EVENT, *[2, PING] * 10, HANG)))

        seen = play_sync(stage, guard_sync(answer, idle=5, abort=stage.abort))

        assert isinstance(seen.error, StreamIdleError)
        assert seen.ended_at == 25


# --- through the real SDKs ---

IDLE = 0.8
"""Seconds of `idle` below: a ping comes every 0.05 s, so 0.75 s are headroom."""

PROGRESS = 2.0

CALLS = ("chat", "responses", "messages", "chat.stream", "responses.stream", "messages.stream")

WORDS: Any = [{"role": "user", "content": "hello"}]


def ask(call: str, server: FaultServer, model: str, *, blocking: bool) -> Any:
    """What starts the call: for asynchronous clients an awaitable, or the manager of a stream."""
    kind = "" if blocking else "Async"
    options = {"api_key": "none", "max_retries": 0}
    if call.startswith("messages"):
        anthropic = importlib.import_module("anthropic")
        client = getattr(anthropic, f"{kind}Anthropic")(base_url=server.anthropic_url, **options)
        if call == "messages.stream":
            return client.messages.stream(model=model, max_tokens=9, messages=WORDS)
        return client.messages.create(model=model, max_tokens=9, messages=WORDS, stream=True)
    openai = importlib.import_module("openai")
    client = getattr(openai, f"{kind}OpenAI")(base_url=server.openai_url, **options)
    if call == "chat.stream":
        return client.chat.completions.stream(model=model, messages=WORDS)
    if call == "chat":
        return client.chat.completions.create(model=model, messages=WORDS, stream=True)
    if call == "responses.stream":
        return client.responses.stream(model=model, input="hello")
    return client.responses.create(model=model, input="hello", stream=True)


def sdk_test(function: Any) -> Any:
    """Marks a test that needs the SDKs and real time."""
    for name in ("openai", "anthropic"):
        function = pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"needs {name}"
        )(function)
    return pytest.mark.slow(pytest.mark.sdk(function))


@sdk_test
@pytest.mark.parametrize("keepalive", ["comment", "auto"])
def test_pings_on_the_wire_below_the_sdks(keepalive):
    """`idle` holds still for 2 s of pings every 0.05 s, `progress_idle` cuts; silence is cut by
    `idle`. All calls of both SDKs run at once, with 0.75 s of headroom."""

    async def ending(call: str, server: FaultServer, model: str) -> Any:
        stream = ask(call, server, model, blocking=False)
        if not call.endswith(".stream"):
            stream = await stream
        with pytest.raises((StreamIdleError, StreamProgressError)) as caught:
            async with guard(stream, idle=IDLE, progress_idle=PROGRESS) as chunks:
                async for _ in chunks:
                    pass
        return caught.value.kind

    async def main() -> None:
        async with FaultServer(Scenario(keepalive=keepalive)) as server:
            for model, kind in (("ping:8:0.05", "stream_progress"), ("stall:8", "stream_idle")):
                kinds = await asyncio.gather(*(ending(call, server, model) for call in CALLS))
                assert dict(zip(CALLS, kinds, strict=True)) == dict.fromkeys(CALLS, kind)

    asyncio.run(main())


@sdk_test
@pytest.mark.parametrize("keepalive", ["comment", "auto"])
def test_pings_on_the_wire_below_the_blocking_sdks(keepalive):
    """The same in threads, with the same headroom."""

    def ending(call: str, server: FaultServer, model: str) -> Any:
        stream = ask(call, server, model, blocking=True)
        with (
            pytest.raises((StreamIdleError, StreamProgressError)) as caught,
            guard_sync(stream, idle=IDLE, progress_idle=PROGRESS) as chunks,
        ):
            for _ in chunks:
                pass
        return caught.value.kind

    with (
        FaultServer.serve_in_thread(Scenario(keepalive=keepalive)) as server,
        ThreadPoolExecutor(len(CALLS)) as pool,
    ):
        for model, kind in (("ping:8:0.05", "stream_progress"), ("stall:8", "stream_idle")):
            kinds = pool.map(lambda call, model=model: ending(call, server, model), CALLS)
            assert dict(zip(CALLS, kinds, strict=True)) == dict.fromkeys(CALLS, kind)
