"""`guard_sync` around real blocking clients on loopback: the read is released, the peer sees it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stallwatch._abort import release_of
from stallwatch._causes import (
    FirstChunkError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._events import StreamSlow, Unresponsive
from sync_tools import Background, RawServer, Recorder, Seen, consume_sync, guard_sync, only

pytestmark = pytest.mark.slow

LIMIT = 0.3
LATE = 1.5
"""A cut at 0.3 s is seen by 1.5 s: 1.2 s of headroom."""

DATA = 'data: {"choices": [{"index": 0, "delta": {"content": "hello"}}]}'
TEXT = "hello"


def chunked(text: str) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(text):x}\r\n{text}\r\n".encode()


def silent(connection: socket.socket) -> None:
    """An SSE head and one event, and then nothing."""
    read_head(connection)
    connection.sendall(head() + chunked(f"{DATA}\n\n"))


def head() -> bytes:
    """The head of an SSE response."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def read_head(connection: socket.socket) -> None:
    """Reads a request."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = connection.recv(4096)
        if not more:
            raise ConnectionResetError
        got += more


def whole(connection: socket.socket) -> None:
    """A short answer that is complete."""
    read_head(connection)
    connection.sendall(head() + chunked(f"{DATA}\n\n") + chunked("data: [DONE]\n\n") + chunked(""))


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


# Each opens a stream of lines: what iterates, and what to release it by.
Opened = tuple[Any, Any]
Opener = Callable[[contextlib.ExitStack, RawServer, Any], Opened]


def by_httpx(name: str) -> Opener:
    def opened(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
        library = pytest.importorskip(name)
        client = stack.enter_context(library.Client(verify=context or True, timeout=30))
        response = stack.enter_context(client.stream("GET", url(server, context)))
        return response.iter_lines(), response

    return opened


def by_requests(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
    requests = pytest.importorskip("requests")
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **more: Any) -> Any:
            return super().init_poolmanager(*args, **more, ssl_context=context)

    session = stack.enter_context(requests.Session())
    session.mount("https://", Adapter())
    response = stack.enter_context(session.get(url(server, context), stream=True, timeout=30))
    return response.iter_lines(chunk_size=1), response


def by_requests_itself(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
    return by_requests(stack, server, context)[1], None


def by_urllib3(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
    urllib3 = pytest.importorskip("urllib3")
    pool = stack.enter_context(urllib3.PoolManager(ssl_context=context))
    response = pool.request("GET", url(server, context), preload_content=False)
    stack.callback(response.close)
    return response, None


def by_http_client(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
    stack.callback(connection.close)
    connection.request("GET", "/")
    response = stack.enter_context(connection.getresponse())
    return response, None


def by_urllib(stack: contextlib.ExitStack, server: RawServer, context: Any) -> Opened:
    response = urllib.request.urlopen(url(server, context), context=context)
    return stack.enter_context(response), None


def url(server: RawServer, context: Any) -> str:
    return f"http{'s' if context else ''}://127.0.0.1:{server.port}/"


CLIENTS: dict[str, Opener] = {
    "httpx": by_httpx("httpx"),
    "httpx2": by_httpx("httpx2"),
    "requests": by_requests,
    "requests itself": by_requests_itself,
    "urllib3": by_urllib3,
    "http.client": by_http_client,
    "urllib": by_urllib,
}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", CLIENTS)
def test_silence_in_a_clients_stream(client, secure, tls):
    """Case 01: cut at 0.3 s with the text so far and one warning; the peer sees the close."""
    context = tls[1] if secure else None
    record = Recorder()
    with RawServer(silent, context=tls[0] if secure else None) as server:
        with contextlib.ExitStack() as stack:
            stream, abort = CLIENTS[client](stack, server, context)
            guarded = guard_sync(stream, idle=LIMIT, abort=abort, on_event=record)
            seen = Background(guarded).result()
        server.wait_closed()

    assert type(seen.error) is StreamIdleError, seen.error
    assert LIMIT <= seen.ended_at < LATE
    assert seen.error.partial == TEXT
    names = [name for name in record.names if name != "observer_stalled"]
    assert names == ["first_chunk", "stream_slow", "stream_stalled"]


@pytest.mark.parametrize("client", ["httpx", "requests", "urllib3", "http.client"])
def test_without_the_guard_it_blocks(client):
    """The baseline: an unguarded reader still waits after three limits."""
    with RawServer(silent) as server, contextlib.ExitStack() as stack:
        stream, abort = CLIENTS[client](stack, server, None)
        consumer = Background(stream)
        assert consumer.blocks(3 * LIMIT)
        release_of(stream if abort is None else abort)()
        consumer.result()


# --- raw sockets and their files ---


def after(seconds: float, data: bytes) -> Callable[[socket.socket], None]:
    """A server script: waits, then sends."""

    def play(connection: socket.socket) -> None:
        time.sleep(seconds)
        connection.sendall(data)

    return play


def chunks_of(connection: socket.socket) -> Iterator[bytes]:
    """What a socket receives."""
    while data := connection.recv(4096):
        yield data


def files_of(connection: socket.socket) -> dict[str, Any]:
    """Ways to iterate over a socket."""
    return {
        "binary file": lambda: connection.makefile("rb"),
        "text file": lambda: connection.makefile("r"),
        "generator": lambda: chunks_of(connection),
        "iter": lambda: iter(lambda: connection.recv(4096), b""),
    }


@pytest.mark.parametrize("form", ["binary file", "text file", "generator", "iter"])
def test_case_10_first_chunk_on_a_blocked_socket_read(form):
    """Case 10: a read that is blocked before the first chunk is released at 0.3 s, not at 5 s."""
    with RawServer(after(5, b"late\n")) as server, server.connect() as connection:
        stream = files_of(connection)[form]()
        guarded = guard_sync(stream, first_chunk=LIMIT, idle=5, abort=connection)
        seen = Background(guarded).result()

    assert type(seen.error) is FirstChunkError
    assert LIMIT <= seen.ended_at < LATE
    assert (seen.error.partial, seen.error.text_received) == ("", False)


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_case_01_a_files_socket_is_found_and_the_peer_sees_the_close(mode):
    """Case 01 on a socket's file, without `abort=`: warned once, cut, and closed at the peer's."""
    record = Recorder()
    with RawServer(after(0, f"{DATA}\n\n".encode())) as server:
        connection = server.connect()
        stream = connection.makefile(mode)
        connection.close()
        guarded = guard_sync(stream, idle=LIMIT, on_event=record)
        began = time.monotonic()
        seen = Background(guarded).result()
        closed, _ = server.wait_closed()

    assert type(seen.error) is StreamIdleError
    assert seen.error.partial == TEXT
    assert len(record.of(StreamSlow)) == 1
    assert record.names.index("stream_slow") < record.names.index("stream_stalled")
    assert closed - began < LATE
    assert stream.closed


def test_half_a_line_of_a_cut_file_is_no_chunk():
    """The half line that a shut-down file gives up is in the text, and never delivered."""
    with RawServer(after(0, b"one\ntw")) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile("r"), idle=LIMIT)
        seen = Background(guarded).result()

    assert (seen.chunks, type(seen.error)) == (["one\n"], StreamIdleError)
    assert seen.error.partial == "one\ntw"


def lively(connection: socket.socket) -> None:
    """Forty lines, 0.05 s apart."""
    for _ in range(40):
        connection.sendall(b"x\n")
        time.sleep(0.05)
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("how", ["loop", "collect"])
def test_case_02_a_lively_stream_longer_than_idle_completes(how):
    """Case 02: two seconds of chunks under an `idle` of 0.5 s complete, however read."""
    # Headroom: 0.45 s a gap.
    record = Recorder()
    with RawServer(lively) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile("r"), idle=0.5, warn=None, on_event=record)
        chunks = list(guarded) if how == "collect" else [chunk for chunk in guarded]  # noqa: C416

    assert chunks == ["x\n"] * 40
    assert "stream_stalled" not in record.names
    assert guarded.is_complete


def comments(connection: socket.socket) -> None:
    """One event, then keep-alive comments until the peer goes."""
    connection.sendall(f"{DATA}\n\n".encode())
    with contextlib.suppress(OSError):
        while True:
            time.sleep(0.1)
            connection.sendall(b": keep-alive\n\n")


def test_case_05_keep_alive_comments():
    """Case 05: comments for ever are cut by `progress_idle`; the cause has both ages."""
    with RawServer(comments) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile("r"), idle=5, progress_idle=0.55)
        seen = Background(guarded).result()

    assert type(seen.error) is StreamProgressError
    assert 0.55 <= seen.ended_at < 0.55 + LATE
    assert seen.error.since_progress >= 0.55
    assert seen.error.since_chunk < seen.error.since_progress
    assert seen.error.partial == TEXT


def test_s6_a_budget_cuts_a_lively_socket():
    """S6: what drips for ever is cut by the budget in the middle of a read."""
    with RawServer(comments) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile("r"), **only("budget", 0.55))
        seen = Background(guarded).result()

    assert type(seen.error) is StreamBudgetError
    assert 0.55 <= seen.ended_at < 0.55 + LATE


def reset(connection: socket.socket) -> None:
    """One line, and a reset."""
    connection.sendall(b"hello\n")
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_s5_a_reset_is_the_transports_own_error():
    """S5: a reset in the middle leaves as the socket's very own exception, without a cause."""
    raised: list[BaseException] = []
    record = Recorder()

    def source(connection: socket.socket) -> Iterator[bytes]:
        try:
            yield connection.recv(100)
            connection.sendall(b"x")
            yield connection.recv(100)
        except OSError as error:
            raised.append(error)
            raise

    with RawServer(reset) as server, server.connect() as connection:
        guarded = guard_sync(source(connection), idle=30, abort=connection, on_event=record)
        seen = consume_sync(guarded, Seen())

    assert type(seen.error) is ConnectionResetError
    assert seen.error is raised[0]
    assert (guarded.cause, guarded.text) == (None, "hello\n")
    assert record.names == ["first_chunk"]


STOPPED = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.sendall(b"hello\\n")
peer.recv(1)
"""


def test_s4_a_peer_that_is_gone_without_a_word():
    """S4: a stopped peer that sends no FIN is cut at 0.3 s, and closing does not block."""
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE) as peer:
        try:
            port = int(peer.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                guarded = guard_sync(connection.makefile("r"), idle=LIMIT)
                assert next(guarded) == "hello\n"
                os.kill(peer.pid, signal.SIGSTOP)
                seen = Background(guarded).result()
        finally:
            peer.kill()

    assert type(seen.error) is StreamIdleError
    assert LIMIT <= seen.ended_at < LATE


@pytest.mark.parametrize("form", ["r", "rb"])
def test_close_from_another_thread_beside_a_blocked_file(form):
    """`close()` returns at once although the file's own `close` would wait for the reader."""
    with RawServer(after(0, b"one\n")) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile(form), idle=60)
        consumer = Background(guarded)
        while not consumer.seen.chunks:
            time.sleep(0.01)
        assert consumer.blocks(0.2)
        began = time.monotonic()
        guarded.close()
        assert time.monotonic() - began < 1
        seen = consumer.result()
        server.wait_closed()

    assert (len(seen.chunks), seen.error) == (1, None)
    assert guarded.cause is None
    assert not guarded.is_complete


def test_what_has_no_socket_is_unresponsive():
    """A pipe cannot be shut down: that is said, the reader stays, and nobody claims otherwise."""
    reading, writing = os.pipe()
    record = Recorder()
    with os.fdopen(reading, "r") as stream, os.fdopen(writing, "w") as other:
        guarded = guard_sync(stream, first_chunk=LIMIT, idle=LIMIT, on_event=record)
        consumer = Background(guarded)
        assert consumer.blocks(3 * LIMIT)
        assert len(record.of(Unresponsive)) == 1
        other.write("late\n")
        other.flush()
        seen = consumer.result()

    assert seen.chunks == ["late\n"]
    assert type(seen.error) is FirstChunkError


def test_an_interrupt_reaches_the_main_thread_in_its_read():
    """A `KeyboardInterrupt` in the middle of a guarded read is the user's, and no cause."""
    # Headroom: the limit is 30 s, the interrupt comes after 0.3 s.
    with RawServer(after(0, b"one\n")) as server, server.connect() as connection:
        guarded = guard_sync(connection.makefile("r"), idle=30)
        main = threading.main_thread().ident
        timer = threading.Timer(LIMIT, lambda: signal.pthread_kill(main, signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), guarded:
            for _ in guarded:
                pass
        timer.join()

    assert time.monotonic() - began < 10
    assert guarded.cause is None


EXIT = """
import os, sys, threading, time, types
from stallwatch import guard_sync
reading, writing = os.pipe()
def run():
    with os.fdopen(reading, "rb") as stream:
        WORK
threading.Thread(target=run, daemon=True).start()
time.sleep(0.2)
class Slow:
    # Runs while the interpreter ends: whoever asks for the GIL now is ended where it is.
    def __del__(self, sleep=time.sleep, write=os.write, fd=writing):
        write(fd, b"x\\n")
        sleep(0.1)
module = types.ModuleType("slow")
module.slow = Slow()
sys.modules["slow"] = module
del module
"""
WORKS = {
    "read": "list(guard_sync(stream))",
    "generator": "list(guard_sync(line for line in stream))",
    "predicate": "list(guard_sync([1], is_progress=lambda _: stream.readline()))",
    "event": "list(guard_sync(['a'], on_event=lambda _: stream.readline()))",
    "enter": """
        class Manager:
            def __enter__(self): return [stream.readline()]
            def __exit__(self, *details): pass
        list(guard_sync(Manager()))""",
}


@pytest.mark.parametrize("work", WORKS)
def test_exit_while_a_daemon_thread_is_in_a_guarded_read(work):
    """The interpreter ends a daemon thread wherever it is below a guard, and nothing aborts."""
    code = EXIT.replace("WORK", WORKS[work])
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert (child.returncode, child.stderr) == (0, "")


# --- pools ---


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_pool_of_one_connection_survives_five_cuts(library):
    """After each of five cuts the connection is out of the pool, and the next request works."""
    httpx = pytest.importorskip(library)
    scripts = iter([silent] * 5 + [whole])
    with RawServer(lambda connection: next(scripts)(connection)) as server:
        limits = httpx.Limits(max_connections=1)
        with httpx.Client(limits=limits, timeout=httpx.Timeout(10, pool=1)) as client:
            for count in range(5):
                with client.stream("GET", url(server, None)) as response:
                    guarded = guard_sync(response.iter_lines(), abort=response, idle=LIMIT)
                    assert type(Background(guarded).result().error) is StreamIdleError
                server.wait_closed(count + 1)
            with client.stream("GET", url(server, None)) as response:
                guarded = guard_sync(response.iter_lines(), abort=response, idle=10)
                assert list(guarded) == [DATA, "", "data: [DONE]", ""]
    assert guarded.is_complete


# --- SDKs ---

pytest.importorskip("aiohttp")
from stallwatch.faults import Fault, FaultServer, Scenario  # noqa: E402

STALL = "stall:8"
"""Silence after some text: the eighth event of all three protocols is beyond the first."""


def openai_stream(server: FaultServer, client: Any, model: str) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "?"}], stream=True
    )


def responses_stream(server: FaultServer, client: Any, model: str) -> Any:
    return client.responses.create(model=model, input="?", stream=True)


def anthropic_stream(server: FaultServer, client: Any, model: str) -> Any:
    return client.messages.create(
        model=model, max_tokens=9, messages=[{"role": "user", "content": "?"}], stream=True
    )


def openai_manager(server: FaultServer, client: Any, model: str) -> Any:
    return client.chat.completions.stream(model=model, messages=[{"role": "user", "content": "?"}])


def anthropic_manager(server: FaultServer, client: Any, model: str) -> Any:
    return client.messages.stream(
        model=model, max_tokens=9, messages=[{"role": "user", "content": "?"}]
    )


SDKS = {
    "openai chat": ("openai", openai_stream),
    "openai responses": ("openai", responses_stream),
    "openai chat stream()": ("openai", openai_manager),
    "anthropic": ("anthropic", anthropic_stream),
    "anthropic stream()": ("anthropic", anthropic_manager),
}


@contextlib.contextmanager
def sdk(library: str, server: FaultServer, **more: Any) -> Iterator[Any]:
    """A blocking SDK client with a pool of one connection, which retries five times if let."""
    module = pytest.importorskip(library)
    httpx = pytest.importorskip("httpx2")
    http_client = httpx.Client(limits=httpx.Limits(max_connections=1))
    make, base = {
        "openai": ("OpenAI", server.openai_url),
        "anthropic": ("Anthropic", server.anthropic_url),
    }[library]
    with getattr(module, make)(
        base_url=base, api_key="any", max_retries=5, http_client=http_client, timeout=20
    ) as client:
        yield client


@pytest.mark.sdk
@pytest.mark.parametrize("name", SDKS)
def test_silence_in_an_sdks_stream(name):
    """Cut at 0.3 s with the text so far, one request seen, the peer sees the close; five times over
    on a pool of one connection, on which the next request then works."""
    library, stream_of = SDKS[name]
    ended = threading.Semaphore(0)
    with FaultServer.serve_in_thread(on_end=lambda record: ended.release()) as server:
        with sdk(library, server) as client:
            for count in range(5):
                record = Recorder()
                stream = guard_sync(stream_of(server, client, STALL), idle=LIMIT, on_event=record)
                seen = Background(stream).result()

                assert type(seen.error) is StreamIdleError, seen.error
                assert LIMIT <= seen.ended_at < LATE
                assert seen.error.partial
                assert seen.error.partial == stream.text
                assert ended.acquire(timeout=10)
                assert len(server.requests) == count + 1
            whole_stream = guard_sync(stream_of(server, client, "ok"), idle=10)
            seen = Background(whole_stream).result()

            assert seen.error is None
            assert whole_stream.is_complete
            assert whole_stream.text.startswith(stream.text)
            assert len(whole_stream.text) > len(stream.text)


@pytest.mark.sdk
@pytest.mark.parametrize("name", ["openai chat", "anthropic"])
def test_an_unguarded_sdk_blocks(name):
    """The baseline: without the guard the SDK's reader still waits after three limits."""
    library, stream_of = SDKS[name]
    with FaultServer.serve_in_thread() as server:
        with sdk(library, server) as client:
            stream = stream_of(server, client, STALL)
            consumer = Background(stream)
            assert consumer.blocks(3 * LIMIT)
            release_of(stream)()
            consumer.result()


@pytest.mark.sdk
@pytest.mark.parametrize("name", ["openai responses", "anthropic"])
def test_a_completed_sdk_answer_that_lingers_is_a_success(name):
    """S3: a terminal event whose socket stays open ends the iteration; nobody is blamed."""
    library, stream_of = SDKS[name]
    record = Recorder()
    with FaultServer.serve_in_thread(Scenario(fault=Fault.LINGER)) as server:
        with sdk(library, server) as client:
            stream = guard_sync(stream_of(server, client, "linger"), idle=LIMIT, on_event=record)
            seen = Background(stream).result()

    assert seen.error is None
    assert seen.ended_at < LATE
    assert stream.is_complete
    assert "stream_stalled" not in record.names


@pytest.mark.sdk
@pytest.mark.parametrize("name", ["openai chat", "anthropic"])
def test_pass_through_of_an_sdks_stream(name):
    """`response` of the SDK's stream is reached through the guard, as is its use with `with`."""
    library, stream_of = SDKS[name]
    with FaultServer.serve_in_thread() as server:
        with sdk(library, server) as client:
            with guard_sync(stream_of(server, client, "ok")) as stream:
                assert stream.response.status_code == 200
                assert stream.response.headers["content-type"].startswith("text/event-stream")
                next(stream)
            assert stream.response.is_closed


# --- what can be released ---


def test_a_mock_transport_has_nothing_to_release():
    """A response without a network below it gives no release, and does not raise."""
    httpx = pytest.importorskip("httpx")
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="x"))
    with httpx.Client(transport=transport) as client, client.stream("GET", "http://test/") as r:
        assert release_of(r) is None


def test_looking_for_a_socket_ends_and_never_raises():
    """An object with every attribute, or one whose attributes raise, is looked at and given up."""
    from unittest.mock import MagicMock

    class Rude:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert release_of(MagicMock()) is None
    assert release_of(Rude()) is None
    assert release_of(None) is None
    loop: Any = type("Loop", (), {})()
    loop.raw = loop
    assert release_of(loop) is None


def test_releasing_a_closed_socket_is_no_error():
    """The peer, or the reader, may have been quicker."""
    ours, theirs = socket.socketpair()
    release = release_of(ours)
    ours.close()
    theirs.close()
    release()


def test_the_text_of_an_event_can_be_read_as_json():
    """The event these tests send is one that providers send."""
    assert json.loads(DATA.removeprefix("data: "))["choices"][0]["delta"]["content"] == TEXT
