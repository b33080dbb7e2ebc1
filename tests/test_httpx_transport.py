"""`AsyncStallTransport` on a manual clock, for clients of httpx and httpx2."""

from __future__ import annotations

import asyncio
import gzip
import math
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from guard_tools import HANG, LOOPS, Recorder, Seen, consume, on_manual_clock, play, script
from stallwatch import (
    FirstChunkError,
    StallError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
    StreamStalled,
    StreamTruncated,
    UnboundedWait,
)
from stallwatch.integrations.httpx import AsyncStallTransport, StallTransport

SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}

PING = b": ping\n\n"

OFF: dict[str, Any] = dict.fromkeys(
    ("headers", "first_byte", "idle", "first_chunk", "progress_idle")
)


def word(text: str) -> bytes:
    """An event of Anthropic's with a piece of text."""
    delta = '{"type": "text_delta", "text": "' + text + '"}'
    data = '{"type": "content_block_delta", "index": 0, "delta": ' + delta + "}"
    return f"event: content_block_delta\ndata: {data}\n\n".encode()


END = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'

ANTHROPIC_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each of the two clients."""
    return pytest.importorskip(request.param)


class Transport:
    """A transport that follows two scripts: until the headers, and of the body.

    Attributes:
        asking: What happens before the headers.
        body: The body.
        closes: Times the body was closed.
    """

    def __init__(
        self, library: Any, *body: Any, before: tuple[Any, ...] = (), headers: Any = SSE
    ) -> None:
        self.asking, self.body = script(*before), script(*body)
        self.closes = 0
        self.requests = 0
        transport = self

        class Bytes(library.AsyncByteStream):  # type: ignore[misc]
            def __aiter__(self) -> Any:
                return aiter(transport.body)

            async def aclose(self) -> None:
                transport.closes += 1

        self.make = lambda: library.Response(200, headers=headers, stream=Bytes())

    async def handle_async_request(self, request: Any) -> Any:
        """As every transport."""
        self.requests += 1
        async for _ in self.asking:
            pass
        return self.make()

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: Any) -> None:
        pass


async def read(library: Any, transport: Any, **limits: Any) -> AsyncIterator[bytes]:
    """The bytes of a streamed answer, with every clock off that is not given."""
    wrapped = AsyncStallTransport(transport, **{**OFF, **limits})
    async with library.AsyncClient(transport=wrapped) as client:
        async with client.stream("GET", "http://none/") as response:
            async for chunk in response.aiter_raw():
                yield chunk


def stalls(record: Recorder) -> list[tuple[str, float]]:
    """Which clocks fired, and with what."""
    return [(event.clock, event.idle) for event in record.of(StreamStalled)]


# --- the clocks ---


@pytest.mark.parametrize("loop", LOOPS)
@on_manual_clock
async def test_headers_bounds_the_wait_for_the_response(clock, library, loop):
    """Fires at its limit, cancels the transport, and says which wait it was."""
    transport, record = Transport(library, before=(HANG,)), Recorder()

    seen = await play(clock, read(library, transport, headers=7, on_event=record))

    assert isinstance(seen.error, FirstChunkError)
    assert (seen.error.owner, seen.error.idle, seen.ended_at) == ("response headers", 7, 7)
    assert seen.cancelling == 0
    assert transport.asking.cancels == 1
    assert stalls(record) == [("headers", 7)]


@on_manual_clock
async def test_headers_are_not_reset_by_anything(clock, library):
    """A transport that makes several steps has one limit for all of them."""
    transport = Transport(library, word("a"), before=(3, 3, 3))

    late = await play(clock, read(library, transport, headers=8))
    good = await play(clock, read(library, transport, headers=10))

    assert isinstance(late.error, FirstChunkError)
    assert late.ended_at == 8
    assert good.error is None
    assert good.chunks == [word("a")]


@pytest.mark.parametrize("loop", LOOPS)
@on_manual_clock
async def test_silence_in_a_body_is_cut_on_both_loops(clock, library, loop):
    """By each clock that can be the first to run out."""
    for name in ("idle", "progress_idle", "budget"):
        transport = Transport(library, word("a"), HANG)

        seen = await play(clock, read(library, transport, **{name: 5}))

        assert isinstance(seen.error, StallError)
        assert (seen.error.limit, seen.error.partial, seen.ended_at) == (5, "a", 5)
        assert seen.cancelling == 0
        assert transport.body.cancels == transport.closes == 1


@on_manual_clock
async def test_first_byte_runs_from_the_first_read(clock, library):
    """The wait between headers and body has a clock of its own, whatever the body is."""
    for headers in (SSE, JSON):
        transport = Transport(library, HANG, before=(5,), headers=headers)

        seen = await play(clock, read(library, transport, first_byte=4))

        assert isinstance(seen.error, FirstChunkError)
        assert (seen.error.owner, seen.ended_at) == ("response body", 9)
        assert transport.closes == 1


@on_manual_clock
async def test_idle_is_about_bytes(clock, library):
    """Every byte resets it, a comment and half an event too; silence after that fires."""
    chatter = (PING, 4, b"eve", 4, b"nt: ping\n", 4, b"\n", HANG)
    transport, record = Transport(library, *chatter), Recorder()

    seen = await play(clock, read(library, transport, idle=5, on_event=record))

    assert isinstance(seen.error, StreamIdleError)
    assert (seen.error.owner, seen.ended_at) == ("response body", 17)
    assert stalls(record) == [("idle", 5)]
    assert transport.body.cancels == 1
    assert transport.closes == 1


@on_manual_clock
async def test_pings_are_transport_and_no_progress(clock, library):
    """Comments and the provider's pings keep `idle` quiet, and not `progress_idle`."""
    for ping in (PING, ANTHROPIC_PING, b"\n", b"data:\n\n"):
        transport, record = Transport(library, word("hello"), *[2, ping] * 50), Recorder()

        seen = await play(
            clock, read(library, transport, idle=5, progress_idle=31, on_event=record)
        )

        assert isinstance(seen.error, StreamProgressError)
        assert (seen.error.owner, seen.error.idle, seen.ended_at) == ("event stream", 31, 31)
        assert seen.error.partial == "hello"
        assert stalls(record) == [("progress_idle", 31)]
        assert transport.closes == 1


@on_manual_clock
async def test_first_chunk_waits_for_progress(clock, library):
    """Pings and metadata end `first_byte`, and leave `first_chunk` running."""
    start = b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n'
    transport = Transport(library, start, *[2, PING] * 50)

    seen = await play(clock, read(library, transport, first_byte=3, idle=3, first_chunk=20))

    assert isinstance(seen.error, FirstChunkError)
    assert (seen.error.owner, seen.ended_at) == ("event stream", 20)


@on_manual_clock
async def test_other_bodies_have_no_progress_clocks(clock, library):
    """What is no stream of events is only timed by its bytes."""
    transport = Transport(library, b"{", *[2, b" "] * 50, b"}", headers=JSON)

    seen = await play(
        clock, read(library, transport, first_byte=1, idle=3, first_chunk=5, progress_idle=5)
    )

    assert seen.error is None
    assert seen.ended_at == 100


@on_manual_clock
async def test_budget_is_absolute(clock, library):
    """However lively the body, and however slow its reader."""
    transport = Transport(library, *[word("a"), 2] * 50)
    quick = await play(clock, read(library, transport, budget=21))
    transport = Transport(library, *[word("a")] * 50)
    slow = await play(clock, read(library, transport, budget=21), pause=2)

    for seen in (quick, slow):
        assert isinstance(seen.error, StreamBudgetError)
        assert (seen.error.owner, seen.error.limit) == ("response body", 21)
        assert seen.error.partial == "a" * 11
    assert quick.ended_at == 21
    assert slow.ended_at == 22  # at the next read


@on_manual_clock
async def test_a_slow_reader_is_no_silent_provider(clock, library):
    """The other clocks of the body stand still while nobody reads."""
    transport = Transport(library, *[word("a"), 1] * 5, END)

    seen = await play(
        clock,
        read(library, transport, first_byte=2, idle=2, first_chunk=2, progress_idle=2),
        pause=10,
    )

    assert seen.error is None
    assert len(seen.chunks) == 6


# --- what the events say ---


@on_manual_clock
async def test_the_cause_has_the_text_and_the_tool_arguments(clock, library):
    """Whichever clock fired, of the bytes or of the events."""
    begin = (
        b'data: {"type": "content_block_start", "index": 1, "content_block": '
        b'{"type": "tool_use", "id": "t", "name": "f", "input": {}}}\n\n'
    )
    piece = (
        b'data: {"type": "content_block_delta", "index": 1, "delta": '
        b'{"type": "input_json_delta", "partial_json": "{\\"a\\": 1"}}\n\n'
    )
    body = (word("he"), word("llo")[:40], word("llo")[40:], begin, piece)
    for limits in ({"idle": 5}, {"progress_idle": 5}, {"idle": 5, "progress_idle": 6}):
        transport = Transport(library, *body, HANG)

        seen = await play(clock, read(library, transport, **limits))

        assert isinstance(seen.error, StallError)
        assert seen.error.partial == "hello"
        assert [tool["arguments"] for tool in seen.error.tool_args.values()] == ['{"a": 1']


@on_manual_clock
async def test_a_socket_that_lingers_after_the_end_is_a_success(clock, library):
    """After the provider's end the body ends by itself within a second, or is ended."""
    for limits in ({"idle": 0.5}, {"progress_idle": 5}, {"idle": 5, "progress_idle": 6}):
        transport, record = Transport(library, word("a"), END, HANG), Recorder()

        seen = await play(clock, read(library, transport, **limits, on_event=record))

        assert seen.error is None
        assert seen.chunks == [word("a"), END]
        assert seen.ended_at == min(limits.get("idle", 1), 1)
        assert stalls(record) == []
        assert transport.closes == 1


@on_manual_clock
async def test_an_early_end_is_said_once(clock, library):
    """A body of events that ends without its end event ends as it does, with one event."""
    record = Recorder()
    transport = Transport(library, word("a"))

    seen = await play(clock, read(library, transport, progress_idle=5, idle=5, on_event=record))

    assert seen.error is None
    assert len(record.of(StreamTruncated)) == 1


@pytest.mark.parametrize("coding", ["gzip", "deflate", "bare deflate"])
@on_manual_clock
async def test_events_in_compressed_bodies_are_read(clock, library, coding):
    """Progress and text are those of the events, and the client gets the bytes as they came."""
    words = [word(text) for text in ("compressed ", "text")]
    if coding == "gzip":
        packer = zlib.compressobj(wbits=31)
    else:
        packer = zlib.compressobj(wbits=15 if coding == "deflate" else -15)
    body = []
    for event in (*words, *[PING] * 20):
        body += [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH), 2]
    headers = {**SSE, "content-encoding": coding.split()[-1]}
    transport = Transport(library, *body, headers=headers)

    seen = await play(clock, read(library, transport, idle=5, progress_idle=9))

    assert isinstance(seen.error, StreamProgressError)
    assert seen.error.partial == "compressed text"
    assert seen.chunks == [part for part in body if part != 2][: len(seen.chunks)]
    assert seen.ended_at == 11


@on_manual_clock
async def test_encodings_that_cannot_be_read_have_byte_clocks_only(clock, library):
    """Of a body in brotli or in broken gzip the bytes alone are timed, and it stays as it is."""
    for coding in ("br", "gzip"):
        headers = {**SSE, "content-encoding": coding}
        transport = Transport(library, *[b"\x00garbage", 2] * 9, HANG, headers=headers)

        seen = await play(clock, read(library, transport, idle=5, first_chunk=300))

        assert isinstance(seen.error, StreamIdleError)
        assert seen.ended_at == 5 + 2 * 8
        assert seen.chunks == [b"\x00garbage"] * 9


def test_gzip_of_the_standard_library_is_what_is_meant():
    """The bodies made above are what servers send."""
    assert gzip.decompress(zlib.compressobj(wbits=31).flush()) == b""


# --- what must not change ---


@on_manual_clock
async def test_an_exception_of_the_transport_is_the_same_object(clock, library):
    """Before the headers as in the body, a time-out of the client's own included."""
    for error in (OSError("cable"), library.ReadTimeout("slow"), TimeoutError()):
        for steps in ({"before": (1, error)}, {"body": (word("a"), 1, error)}):
            transport = Transport(library, *steps.get("body", ()), before=steps.get("before", ()))

            seen = await play(clock, read(library, transport, headers=5, idle=5, progress_idle=5))

            assert seen.error is error


@on_manual_clock
async def test_chunks_are_the_same_objects(clock, library):
    """Bytes are handed on as they came, as the client's own raw bytes."""
    body = [word("a"), PING, word("b"), END]
    transport = Transport(library, *body)

    seen = await play(clock, read(library, transport, idle=5, progress_idle=5))

    assert [id(chunk) for chunk in seen.chunks] == [id(chunk) for chunk in body]


@on_manual_clock
async def test_a_cancel_by_the_user_goes_through(clock, library):
    """While waiting for headers and for the body; the transport sees it, and nothing is fired."""
    for steps in ({"before": (HANG,)}, {"body": (word("a"), HANG)}):
        record = Recorder()
        transport = Transport(library, *steps.get("body", ()), before=steps.get("before", ()))
        reading = read(library, transport, headers=9, idle=9, progress_idle=9, on_event=record)
        seen = Seen()
        task = asyncio.create_task(consume(reading, seen=seen, clock=clock))
        await clock.advance(5)
        task.cancel()
        await asyncio.wait([task])

        assert isinstance(seen.error, asyncio.CancelledError)
        assert transport.asking.cancels + transport.body.cancels == 1
        assert stalls(record) == []


@on_manual_clock
async def test_a_response_that_came_whole_is_left_alone(clock, library):
    """There is nothing to wait for."""
    whole = library.Response(200, content=b"all of it")
    inner = library.MockTransport(lambda request: whole)
    wrapped = AsyncStallTransport(inner, idle=5)

    async with library.AsyncClient(transport=wrapped) as client:
        response = await client.get("http://none/")

    assert response is whole
    assert response.content == b"all of it"


@on_manual_clock
async def test_leaving_early_closes_the_body(clock, library):
    """Half a body read, and the response left: the transport's stream is closed once."""
    transport = Transport(library, word("a"), HANG)
    wrapped = AsyncStallTransport(transport)

    async with library.AsyncClient(transport=wrapped) as client:
        async with client.stream("GET", "http://none/") as response:
            async for _ in response.aiter_raw():
                break

    assert transport.closes == 1


@on_manual_clock
async def test_a_read_of_all_raises_the_cause(clock, library):
    """`client.get()` reads the body itself, and raises the cause as it is."""
    transport = Transport(library, b"{", HANG, headers=JSON)
    wrapped = AsyncStallTransport(transport, idle=5)

    async def get() -> AsyncIterator[bytes]:
        async with library.AsyncClient(transport=wrapped) as client:
            yield (await client.get("http://none/")).content

    seen = await play(clock, get())

    assert isinstance(seen.error, StreamIdleError)
    assert seen.error.__cause__ is None
    assert transport.closes == 1


@on_manual_clock
async def test_observing_cuts_nothing(clock, library):
    """Every clock says what it would have done, and the answer comes whole."""
    body = (3, word("a"), 3, PING, 3, word("b"), END)
    transport, record = Transport(library, *body, before=(3,)), Recorder()
    limits: dict[str, Any] = {"headers": 2, "first_byte": 2, "idle": 2}

    seen = await play(
        clock,
        read(
            library,
            transport,
            **limits,
            first_chunk=2.5,
            progress_idle=2.5,
            observe_only=True,
            on_event=record,
        ),
    )

    assert seen.error is None
    assert len(seen.chunks) == 4
    assert {clock for clock, _ in stalls(record)} == {
        "headers",
        "first_byte",
        "first_chunk",
        "idle",
        "progress_idle",
    }
    assert all(event.would_have_fired for event in record.of(StreamStalled))


@on_manual_clock
async def test_an_on_event_that_raises_stops_no_clock(clock, library):
    """It is logged, and the cause comes all the same."""

    def broken(event: Any) -> None:
        raise ValueError("no")

    for steps in ({"before": (HANG,)}, {"body": (word("a"), HANG)}):
        transport = Transport(library, *steps.get("body", ()), before=steps.get("before", ()))

        seen = await play(clock, read(library, transport, headers=5, idle=5, on_event=broken))

        assert isinstance(seen.error, StallError)


@on_manual_clock
async def test_only_a_wait_without_any_clock_is_called_unbounded(clock, library):
    """One `UnboundedWait` where neither the first byte nor the first progress is timed."""
    for limits, count in (({}, 1), ({"first_chunk": 5}, 0), ({"first_byte": 5}, 0)):
        record = Recorder()

        await play(
            clock,
            read(library, Transport(library, word("a"), END), idle=5, **limits, on_event=record),
        )

        assert len(record.of(UnboundedWait)) == count


# --- limits ---


@pytest.mark.parametrize("kind", [AsyncStallTransport, StallTransport])
@pytest.mark.parametrize(
    "name", ["headers", "first_byte", "idle", "first_chunk", "progress_idle", "budget"]
)
def test_limits_that_mean_nothing_are_refused(kind, name):
    """0, negative and NaN are refused by name; None, `inf` and a `timedelta` are fine."""
    for value in (0, -1, math.nan):
        with pytest.raises(ValueError, match=name):
            kind(**{name: value})
    with pytest.raises(TypeError, match=name):
        kind(**{name: "5"})
    for value in (None, math.inf, 5, timedelta(seconds=5)):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [AsyncStallTransport, StallTransport])
def test_a_limit_that_could_never_fire_is_refused(kind):
    """Above a given `budget` a given limit is refused; a default gives way."""
    with pytest.raises(ValueError, match=r"idle=30.* above budget=20"):
        kind(idle=30, budget=20)

    limits = kind(budget=20)._watch.limits

    assert (limits.first_byte, limits.idle, limits.first_chunk) == (None, None, None)
    assert (limits.headers, limits.budget) == (300, 20)


def test_what_is_no_transport_is_refused():
    """With a word on what was expected."""
    with pytest.raises(TypeError, match="asynchronous transport"):
        AsyncStallTransport(object())
    with pytest.raises(TypeError, match="blocking transport"):
        StallTransport(object())


# --- how it reaches an SDK's caller ---

SDK = {"x-stainless-retry-count": "0"}
"""A header by which an SDK is known that retries whatever its client raises."""


@on_manual_clock
async def test_a_cut_before_the_status_is_kept_for_the_look_at_it(clock, library):
    """Sending does not raise for an SDK; looking at the status does, both ways of it."""
    for steps, kind in (
        ({"before": (HANG,)}, FirstChunkError),
        ({"body": (b"{", HANG), "headers": JSON}, StreamIdleError),
    ):
        options: dict[str, Any] = dict(steps)
        body = options.pop("body", ())
        transport = Transport(library, *body, **options)
        wrapped = AsyncStallTransport(transport, headers=5, idle=5)
        caught: list[BaseException] = []

        async def ask(wrapped: Any = wrapped, caught: Any = caught) -> AsyncIterator[None]:
            async with library.AsyncClient(transport=wrapped) as client:
                response = await client.get("http://none/", headers=SDK)
                assert isinstance(response, library.Response)
                for look in (
                    response.raise_for_status,
                    lambda: response.is_success,
                    lambda: response.content,
                    lambda: response.text,
                    response.json,
                ):
                    with pytest.raises(StallError) as raised:
                        look()
                    caught.append(raised.value)
                yield

        seen = await play(clock, ask())

        assert seen.error is None
        assert len(caught) == 5
        assert all(error is caught[0] for error in caught)
        assert isinstance(caught[0], kind)
        assert transport.requests == 1
        assert transport.closes == len(body[:1])


@on_manual_clock
async def test_a_read_after_the_look_raises_itself(clock, library):
    """An SDK that streams reads later, and gets the cause where it reads."""
    wrapped = AsyncStallTransport(Transport(library, b"{", HANG, headers=JSON), idle=5)

    async def ask() -> AsyncIterator[None]:
        async with library.AsyncClient(transport=wrapped) as client:
            async with client.stream("GET", "http://none/", headers=SDK) as response:
                assert response.is_success
                yield
                await response.aread()

    seen = await play(clock, ask())

    assert isinstance(seen.error, StreamIdleError)


@on_manual_clock
async def test_a_good_answer_is_none_the_worse_for_it(clock, library):
    """Status, headers, body, history and extensions are those of the transport's response."""
    for headers in (None, SDK):
        transport = Transport(library, b"[1, ", 1, b"2]", headers={**JSON, "x-mine": "yes"})
        wrapped = AsyncStallTransport(transport, idle=5)
        got = []

        async def ask(wrapped: Any = wrapped, headers: Any = headers, got: Any = got) -> Any:
            async with library.AsyncClient(transport=wrapped) as client:
                got.append(await client.get("http://none/", headers=headers))
                yield

        await play(clock, ask())

        (response,) = got
        assert response.raise_for_status() is response
        assert (response.json(), response.status_code, response.is_success) == ([1, 2], 200, True)
        assert response.headers["x-mine"] == "yes"
        assert response.elapsed is not None
        assert response.is_closed


# --- which library ---


def test_no_library_is_imported_before_it_is_used():
    """Neither by the module nor by making a transport."""
    code = (
        "import sys; from stallwatch.integrations.httpx import *; "
        "AsyncStallTransport(); StallTransport(); "
        "sys.exit(any(name.partition('.')[0] in ('httpx', 'httpx2') for name in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_default_transport_is_that_of_the_requests_library(library):
    """One wrapper serves clients of both, with a transport of each."""
    wrapped = StallTransport()
    request = library.Request("GET", "http://none/")

    made = wrapped._transport_for(request)

    assert isinstance(made, library.HTTPTransport)
    assert wrapped._transport_for(request) is made
    wrapped.close()
