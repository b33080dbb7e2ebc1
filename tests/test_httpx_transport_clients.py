"""The stall transports under real clients and SDKs, over real sockets.

In real time: limits are 0.4 s or more, healthy parts take milliseconds, and nothing is asserted
about how much later than its limit a cut may come, but that it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guard_tools import LOOPS, Recorder
from stallwatch import (
    FirstChunkError,
    StallError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
    Unresponsive,
)
from stallwatch.faults import FaultServer
from stallwatch.integrations.httpx import AsyncStallTransport, StallTransport
from sync_tools import PATIENCE, RawServer

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

pytestmark = pytest.mark.slow

LIMIT = 0.4
LONGER = 1.5
"""Where many clients start at once, so that each has sent its request well before."""

OFF: dict[str, Any] = dict.fromkeys(
    ("headers", "first_byte", "idle", "first_chunk", "progress_idle")
)

# By clock: the model that makes it run out, whether it is streamed, the cause, and whose it is.
CUTS: dict[str, tuple[str, bool, type[StallError], str]] = {
    "headers": ("nohead", True, FirstChunkError, "response headers"),
    "headers of a whole answer": ("nohead:60", False, FirstChunkError, "response headers"),
    "first_byte": ("stall:0", True, FirstChunkError, "response body"),
    "idle": ("stall:7", True, StreamIdleError, "response body"),
    "first_chunk": ("ping:0:0.05", True, FirstChunkError, "event stream"),
    "progress_idle": ("ping:7:0.05", True, StreamProgressError, "event stream"),
    "budget": ("drip:0.15", True, StreamBudgetError, "response body"),
}

APIS = ("chat", "responses", "messages", "chat on httpx", "responses on httpx")

WORDS: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each of the two clients."""
    return pytest.importorskip(request.param)


def sdk(api: str, server: FaultServer, transport: Any) -> Any:
    """A client of the SDK that tries five times again."""
    blocking = isinstance(transport, StallTransport)
    library = pytest.importorskip("httpx" if "httpx" in api else "httpx2")
    http = (library.Client if blocking else library.AsyncClient)(transport=transport, timeout=60)
    options = {"api_key": "none", "max_retries": 5, "http_client": http}
    if api == "messages":
        kind = anthropic.Anthropic if blocking else anthropic.AsyncAnthropic
        return kind(base_url=server.anthropic_url, **options)
    kind = openai.OpenAI if blocking else openai.AsyncOpenAI
    return kind(base_url=server.openai_url, **options)


def inner(api: str, name: str) -> Any:
    """A transport that is quick to make: reading the certificates takes its time."""
    library = pytest.importorskip("httpx" if "httpx" in api else "httpx2")
    return getattr(library, name)(verify=False)


def ask(api: str, client: Any, model: str, *, stream: bool) -> Any:
    """The call of the SDK."""
    if api == "messages":
        return client.messages.create(model=model, messages=WORDS, max_tokens=9, stream=stream)
    if api.startswith("chat"):
        return client.chat.completions.create(model=model, messages=WORDS, stream=stream)
    return client.responses.create(model=model, input="hello", stream=stream)


def check(server: FaultServer, api: str, clock: str, record: Recorder, cause: Any) -> None:
    """One request, the typed cause as it was raised, its owner, and text where some had come."""
    _, _, kind, owner = CUTS[clock]
    assert type(cause) is kind
    assert (cause.owner, cause.limit) == (owner, LONGER)
    assert cause.__cause__ is None
    if clock != "budget":  # how far that gets is a matter of speed
        assert bool(cause.partial) == (clock in ("idle", "progress_idle"))
    assert [event.clock for event in record.events if event.event == "stream_stalled"] == [
        clock.split()[0]
    ]
    assert len(server.requests) == 1, api


# --- the SDKs: each clock, once ---


@pytest.mark.sdk
@pytest.mark.parametrize("loop", LOOPS)
def test_the_sdks_raise_the_cause_and_do_not_try_again(loop):
    """Every clock under every SDK with `max_retries=5`: the server sees one request, and its end.

    All of them run at once, each against a server of its own.
    """

    async def one(api: str, clock: str, record: Recorder, server: FaultServer, client: Any) -> None:
        model, stream, kind, _ = CUTS[clock]
        with pytest.raises(kind) as caught:
            chunks = await ask(api, client, model, stream=stream)
            async for _ in chunks:
                pass
        check(server, api, clock, record, caught.value)
        assert await server.requests[0].wait_closed(PATIENCE) is not None

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            calls = []
            for api, clock in itertools.product(APIS, CUTS):
                record = Recorder()
                transport = AsyncStallTransport(
                    inner(api, "AsyncHTTPTransport"),
                    **{**OFF, clock.split()[0]: LONGER},
                    on_event=record,
                )
                server = await stack.enter_async_context(FaultServer())
                client = await stack.enter_async_context(sdk(api, server, transport))
                calls.append(one(api, clock, record, server, client))
            await asyncio.gather(*calls)

    run(main, loop)


@pytest.mark.sdk
def test_the_blocking_sdks_raise_the_cause_and_do_not_try_again():
    """The same in threads."""

    def one(api: str, clock: str) -> None:
        model, stream, kind, _ = CUTS[clock]
        record = Recorder()
        transport = StallTransport(
            inner(api, "HTTPTransport"), **{**OFF, clock.split()[0]: LONGER}, on_event=record
        )
        with FaultServer.serve_in_thread() as server, sdk(api, server, transport) as client:
            with pytest.raises(kind) as caught:
                for _ in ask(api, client, model, stream=stream):
                    pass
            check(server, api, clock, record, caught.value)
            assert server.requests[0].wait_closed_sync(PATIENCE) is not None

    with ThreadPoolExecutor(18) as pool:
        list(pool.map(lambda pair: one(*pair), itertools.product(APIS, CUTS)))


@pytest.mark.sdk
def test_answers_come_whole_and_errors_are_the_sdks_own():
    """With every clock on: the same events as without, a success that lingers, an error status."""

    async def events(client: Any, api: str, model: str) -> list[Any]:
        return [event async for event in await ask(api, client, model, stream=True)]

    async def one(api: str) -> None:
        library = pytest.importorskip("httpx" if "httpx" in api else "httpx2")
        bare = library.AsyncHTTPTransport()
        async with FaultServer() as server:
            async with sdk(api, server, bare) as plain:
                expected = await events(plain, api, "ok")
            async with sdk(api, server, AsyncStallTransport()) as client:
                assert [type(e) for e in await events(client, api, "ok")] == [
                    type(e) for e in expected
                ]
                assert len(await events(client, api, "linger")) == len(expected)
                once = client.with_options(max_retries=0)
                with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
                    await events(once, api, "http500")

    async def main() -> None:
        await asyncio.gather(*(one(api) for api in APIS))

    run(main, "asyncio")


HALF = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


@pytest.mark.sdk
def test_half_of_a_whole_answer_is_the_cause_too():
    """An answer that is not streamed and stops in the middle: one request, the cause unchanged."""

    def one(api: str) -> None:
        with RawServerAt(answering("request", HALF)) as server:
            with sdk(api, server, StallTransport(idle=LIMIT)) as client:
                with pytest.raises(StreamIdleError) as caught:
                    ask(api, client, "any", stream=False)
            assert (caught.value.owner, caught.value.__cause__) == ("response body", None)
            assert server.accepted == 1

        async def main() -> None:
            with RawServerAt(answering("request", HALF)) as server:
                async with sdk(api, server, AsyncStallTransport(idle=LIMIT)) as client:
                    with pytest.raises(StreamIdleError) as caught:
                        await ask(api, client, "any", stream=False)
                assert (caught.value.owner, caught.value.__cause__) == ("response body", None)
                assert server.accepted == 1

        run(main, "asyncio")

    with ThreadPoolExecutor(len(APIS)) as pool:
        list(pool.map(one, APIS))


@pytest.mark.sdk
def test_the_baseline_is_another_error_after_more_requests():
    """Without our response in between, a cause raised by a transport is wrapped and tried again."""
    httpx2 = pytest.importorskip("httpx2")
    raised = []

    class Raising(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            raised.append(request)
            raise FirstChunkError(limit=1.0)

    async def main() -> None:
        http = httpx2.AsyncClient(transport=Raising())
        client = anthropic.AsyncAnthropic(api_key="none", max_retries=1, http_client=http)
        with pytest.raises(anthropic.APIConnectionError):
            await ask("messages", client, "any", stream=True)

    run(main, "asyncio")
    assert len(raised) == 2


class RawServerAt(RawServer):
    """A raw server with the addresses of a fault server."""

    @property
    def openai_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    anthropic_url = openai_url


def run(main: Any, loop: str) -> None:
    """Run on a loop of this kind, with no task left behind."""

    async def body() -> None:
        await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())


# --- plain clients ---


@pytest.mark.parametrize("loop", LOOPS)
def test_the_only_connection_of_a_pool_is_free_after_a_cut(library, loop):
    """Cut in every stage, again and again, a pool of one connection still serves."""

    async def main() -> None:
        async with FaultServer() as server:
            inner = library.AsyncHTTPTransport(limits=library.Limits(max_connections=1))
            transport = AsyncStallTransport(
                inner,
                headers=LIMIT,
                first_byte=LIMIT,
                idle=LIMIT,
                first_chunk=0.6,
                progress_idle=0.6,
            )
            url = f"{server.openai_url}/chat/completions"
            async with library.AsyncClient(transport=transport, timeout=60) as client:
                for model in ("nohead", "stall:0", "stall:5", "ping:0:0.05", "ping:5:0.05"):
                    with pytest.raises(StallError):
                        await client.post(url, json={"model": model, "stream": True})
                    assert await server.requests[-1].wait_closed(PATIENCE) is not None
                for _ in range(2):
                    answer = await client.post(url, json={"model": "ok", "stream": True})
                    assert answer.text.endswith("data: [DONE]\n\n")

    run(main, loop)


def test_the_only_connection_of_a_blocking_pool_is_free_after_a_cut(library):
    """As for asynchronous clients."""
    with FaultServer.serve_in_thread() as server:
        inner = library.HTTPTransport(limits=library.Limits(max_connections=1))
        transport = StallTransport(
            inner, headers=LIMIT, first_byte=LIMIT, idle=LIMIT, first_chunk=0.6, progress_idle=0.6
        )
        url = f"{server.openai_url}/chat/completions"
        with library.Client(transport=transport, timeout=60) as client:
            for model in ("nohead", "stall:0", "stall:5", "ping:0:0.05", "ping:5:0.05"):
                with pytest.raises(StallError):
                    client.post(url, json={"model": model, "stream": True})
                assert server.requests[-1].wait_closed_sync(PATIENCE) is not None
            for _ in range(2):
                answer = client.post(url, json={"model": "ok", "stream": True})
                assert answer.text.endswith("data: [DONE]\n\n")


def test_without_the_transport_a_client_waits_on(library):
    """The baseline: keep-alives reset the client's own read time-out for ever."""
    with FaultServer.serve_in_thread() as server, ThreadPoolExecutor(1) as pool:
        url = f"{server.openai_url}/chat/completions"
        with library.Client(timeout=LIMIT) as client:
            waiting = pool.submit(client.post, url, json={"model": "ping:5:0.05", "stream": True})
            time.sleep(3 * LIMIT)
            assert not waiting.done()
            assert server.requests[0].ended_at is None
    with pytest.raises(library.TransportError):
        waiting.result(PATIENCE)


# --- a blocking wait for headers ---


def answering(*steps: Any) -> Any:
    """A script of `RawServer`: bytes are sent once a request has come, a number is a pause."""

    def script(connection: socket.socket) -> None:
        for step in steps:
            if step == "request":
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(4096)
            elif isinstance(step, bytes):
                connection.sendall(step)
            else:
                time.sleep(step)

    return script


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_a_used_connection_is_released_too(library):
    """The second request of a connection gets no headers: bounded by what is left, and typed."""
    with RawServer(answering("request", WHOLE, "request")) as server:
        record = Recorder()
        transport = StallTransport(headers=LIMIT, on_event=record)
        with library.Client(transport=transport, timeout=60) as client:
            url = f"http://127.0.0.1:{server.port}/"
            assert client.get(url).text == "ok"
            with pytest.raises(FirstChunkError) as caught:
                client.get(url)

        assert caught.value.owner == "response headers"
        assert server.accepted == 1
        assert server.wait_closed()[1] == "end"
        assert record.names == ["first_chunk", "stream_stalled"]


def test_headers_that_drip_in_are_released(library):
    """A byte now and then keeps every single read alive, and not the clock: the socket goes."""
    drip = [
        step
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 999
        for step in (bytes([byte]), 0.1)
    ]
    with RawServer(answering("request", *drip)) as server:
        transport = StallTransport(headers=LIMIT)
        with library.Client(transport=transport, timeout=60) as client:
            with pytest.raises(FirstChunkError) as caught:
                client.get(f"http://127.0.0.1:{server.port}/")

        assert caught.value.limit == LIMIT
        server.wait_closed()


@contextlib.contextmanager
def full_backlog() -> Any:
    """A port on which connecting hangs: the listener accepts nothing, and its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
        time.sleep(0.1)
        yield port


@pytest.mark.parametrize("loop", LOOPS)
def test_connecting_is_a_part_of_it(library, loop):
    """A connection that is never made is cut by `headers`, asynchronous or not."""
    with full_backlog() as port:
        url = f"http://127.0.0.1:{port}/"
        with library.Client(transport=StallTransport(headers=LIMIT), timeout=60) as client:
            with pytest.raises(FirstChunkError):
                client.get(url)

        async def main() -> None:
            transport = AsyncStallTransport(headers=LIMIT)
            async with library.AsyncClient(transport=transport, timeout=60) as client:
                with pytest.raises(FirstChunkError):
                    await client.get(url)

        run(main, loop)


def test_waiting_for_the_pool_is_a_part_of_it(library):
    """So is waiting for another request's connection to become free."""
    with RawServer(answering("request", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")) as server:
        inner = library.HTTPTransport(limits=library.Limits(max_connections=1))
        with library.Client(transport=StallTransport(inner, headers=LIMIT), timeout=60) as client:
            url = f"http://127.0.0.1:{server.port}/"
            with client.stream("GET", url):
                with pytest.raises(FirstChunkError):
                    client.get(url)

        assert server.accepted == 1


def test_the_clients_own_bounds_stay_its_own(library):
    """A read time-out below ours is the client's error; above `headers`, the body still has it."""
    with RawServer(answering("request")) as server:
        with library.Client(transport=StallTransport(headers=30), timeout=LIMIT) as client:
            with pytest.raises(library.ReadTimeout):
                client.get(f"http://127.0.0.1:{server.port}/")
    slow = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    with RawServer(answering("request", slow, 2.5 * LIMIT, b"ok")) as server:
        transport = StallTransport(headers=LIMIT)
        with library.Client(transport=transport, timeout=60) as client:
            trace: list[str] = []
            answer = client.get(
                f"http://127.0.0.1:{server.port}/",
                extensions={"trace": lambda name, info: trace.append(name)},
            )
        assert answer.text == "ok"
        assert "http11.receive_response_headers.complete" in trace
        assert answer.request.extensions["timeout"]["read"] == 60


def test_what_nothing_can_release_is_reported(library):
    """A transport of the user's that blocks: `Unresponsive`, and the cause once it is back."""
    free = threading.Event()

    class Deaf(library.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            assert free.wait(PATIENCE)
            return library.Response(200, content=b"late")

    told = threading.Event()
    record = Recorder()

    def on_event(event: Any) -> None:
        record(event)
        if isinstance(event, Unresponsive):
            told.set()

    transport = StallTransport(Deaf(), headers=LIMIT, on_event=on_event)
    with library.Client(transport=transport) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "http://none/")
        assert told.wait(PATIENCE)
        assert not waiting.done()
        free.set()

        assert isinstance(waiting.exception(PATIENCE), FirstChunkError)
    assert record.names == ["stream_stalled", "unresponsive"]


def test_a_blocking_body_is_released_under_tls(library):
    """The socket below the encryption is shut down, and the reader gets the cause."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"
    with RawServer(answering("request", head), context=context) as server:
        inner = library.HTTPTransport(verify=trusting)
        transport = StallTransport(inner, idle=LIMIT)
        with library.Client(transport=transport, timeout=60) as client:
            with pytest.raises(StreamIdleError):
                client.get(f"https://127.0.0.1:{server.port}/")
        server.wait_closed()
