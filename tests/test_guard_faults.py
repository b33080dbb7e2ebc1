"""Faults of a stream, each shown first to hang or to misbehave without the guard, then with it."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
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
    only,
    play,
    run,
    script,
)
from stallwatch._bridge import drain
from stallwatch._causes import (
    FirstChunkError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._events import StreamStalled, Unresponsive
from stallwatch.testing import ManualClock

PING = {"type": "ping"}
STOP = {"type": "message_stop"}
near = pytest.approx


def delta(text: str) -> dict[str, Any]:
    """An Anthropic text delta."""
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }


async def hangs_without(clock: ManualClock, source: Any, *, limit: float) -> Seen:
    """Show that an unguarded consumer of `source` still waits after three times the limit."""
    seen = await play(clock, source, upto=3 * limit)
    assert seen.waits, "the baseline does not show the fault"
    return seen


# --- S1, S2: silence ---


@on_manual_clock
async def test_silent_before_the_first_chunk(clock):
    """S1: a source that never starts ends at `first_chunk`, never at `idle`, with no text."""
    await hangs_without(clock, script(HANG), limit=0.5)

    source = script(HANG)
    seen = await play(clock, guard(source, idle=0.2, first_chunk=0.5), upto=10)

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(0.5)
    assert (seen.error.partial, seen.error.text_received) == ("", False)
    assert source.finals == 1


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_silent_before_the_first_chunk_in_real_time(loop):
    """S1 once for real: cut at 0.4 s, within 0.6 s more, on both loops."""

    async def main():
        started = time.monotonic()
        seen = await consume(guard(script(HANG), idle=0.2, first_chunk=0.4))
        took = time.monotonic() - started

        assert type(seen.error) is FirstChunkError
        assert 0.4 <= took < 1.0
        assert seen.cancelling == 0

    run(main, loop=loop)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_silent_after_a_chunk_in_real_time(loop):
    """S2 once for real: one warning and the cut at 0.4 s, within 0.6 s more, on both loops."""

    async def main():
        record = Recorder()
        started = time.monotonic()
        seen = await consume(guard(script("a", HANG), idle=0.4, on_event=record))
        took = time.monotonic() - started

        assert type(seen.error) is StreamIdleError
        assert 0.4 <= took < 1.0
        # A busy machine may let the loop run late, which is said and is no failure.
        names = [name for name in record.names if name != "observer_stalled"]
        assert names == ["first_chunk", "stream_slow", "stream_stalled"]

    run(main, loop=loop)


@pytest.mark.parametrize("k", [1, 2, 3, 31, 32, 33, 64, 100])
@on_manual_clock
async def test_silent_after_chunk_k(clock, k):
    """S2: one warning at half, the cause at the full limit, every chunk in the partial text."""
    chunks = [f"{number} " for number in range(k)]
    await hangs_without(clock, script(*chunks, HANG), limit=1)

    record = Recorder()
    source = script(*chunks, HANG)
    seen = await play(clock, guard(source, idle=1, on_event=record), upto=10)

    assert type(seen.error) is StreamIdleError
    assert seen.chunks == chunks
    assert seen.ended_at == near(1)
    assert seen.error.partial == "".join(chunks)
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]
    assert (source.cancels, source.finals) == (1, 1)


@on_manual_clock
async def test_partial_text_survives_a_reraise(clock):
    """Case 52: the text is on the cause after the consumer has re-raised it."""
    source = script("a", "b", "c", HANG)

    async def consumer() -> None:
        try:
            async for _ in guard(source, idle=0.3):
                pass
        except StreamIdleError as error:
            raise LookupError("wrapped") from error

    task = asyncio.create_task(consumer())
    await clock.advance(5)
    cause = task.exception().__cause__

    assert (cause.partial, cause.text_received) == ("abc", True)


# --- S3, S4, S5: the transport ---


@on_manual_clock
async def test_last_chunk_sent_and_socket_left_open(clock):
    """S3: a completed answer whose source lingers is a success, by any predicate."""
    await hangs_without(clock, script("a", "END", HANG), limit=1)

    record = Recorder()
    source = script("a", "END", HANG)
    ends = {"is_terminal": lambda chunk: chunk == "END"}
    seen = await play(clock, guard(source, idle=0.5, on_event=record, **ends), upto=10)

    assert seen.error is None
    assert seen.chunks == ["a", "END"]
    assert seen.ended_at == near(0.5)
    assert record.names == ["first_chunk"]
    assert source.finals == 1


SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.sendall(b"hello\\n")
peer.recv(1)
"""


async def lines(port: int, closed: list[float]) -> AsyncIterator[str]:
    """The lines of a TCP server, with the connection closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async for line in reader:
            yield line.decode()
    finally:
        writer.close()
        closed.append(time.monotonic())


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_half_open_connection(loop):
    """S4: a stopped peer that sends no FIN is cut at 0.3 s; closing does not block."""
    # Headroom: 0.7 s.

    async def main():
        with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
            try:
                port = int(server.stdout.readline())
                closed: list[float] = []
                guarded = guard(lines(port, closed), idle=0.3)
                assert await anext(guarded) == "hello\n"
                os.kill(server.pid, signal.SIGSTOP)
                started = time.monotonic()
                seen = await consume(guarded)
                took = time.monotonic() - started
            finally:
                server.kill()

            assert type(seen.error) is StreamIdleError
            assert 0.3 <= took < 1.0
            assert len(closed) == 1
            assert seen.error.partial == "hello\n"

    run(main, loop=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_reset_mid_stream(loop):
    """S5: a reset is the transport's own error, without a cause; the text is still there."""

    async def main():
        async def serve(reader, writer):
            writer.write(b"hello\n")
            await reader.readline()
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def source():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                yield (await reader.readline()).decode()
                writer.write(b"\n")
                await asyncio.sleep(0.05)
                yield (await reader.readexactly(5)).decode()
            finally:
                writer.close()

        record = Recorder()
        guarded = guard(source(), on_event=record)
        seen = await consume(guarded)
        server.close()
        await server.wait_closed()

        assert isinstance(seen.error, ConnectionResetError | asyncio.IncompleteReadError)
        assert guarded.text == "hello\n"
        assert guarded.cause is None
        assert record.names == ["first_chunk"]

    run(main, loop=loop)


ERRORS = [
    TimeoutError("the source's own"),
    ConnectionResetError("reset"),
    ValueError("bad"),
    asyncio.IncompleteReadError(b"", 5),
    RuntimeError("async generator ignored GeneratorExit"),
    ExceptionGroup("several", [ValueError("bad")]),
    TimeoutError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("waits", [0, 0.2, 1.0])
@on_manual_clock
async def test_the_sources_error_leaves_as_the_same_object(clock, error, waits):
    """Case 18: whatever the source raises is no cause, also at the very moment of the deadline."""
    record = Recorder()
    guarded = guard(script("a", waits, error), idle=1.0, warn=None, on_event=record)
    seen = await play(clock, guarded, upto=10)

    assert seen.error is error
    assert guarded.cause is None
    assert record.names == ["first_chunk"]
    with pytest.raises(StopAsyncIteration):
        await anext(guarded)


def test_a_library_read_timeout_leaves_as_the_same_object():
    """Case 18: `httpx.ReadTimeout` of the source is the caller's, unchanged."""
    httpx = pytest.importorskip("httpx")

    async def main():
        error = httpx.ReadTimeout("read")
        guarded = guard(script("a", error), idle=5)
        seen = await consume(guarded)

        assert seen.error is error
        assert guarded.cause is None

    run(main)


# --- S6, S7, S8: alive, but ---


def drip(clock_name: str) -> Any:
    """One byte of one SSE event, a byte per 0.9 s."""
    event = b'data: {"type": "content_block_delta", "index": 0, "delta": '
    return script(delta("a"), *[step for byte in event * 9 for step in (0.9, bytes([byte]))], HANG)


@on_manual_clock
async def test_slow_drip_is_alive_for_idle(clock):
    """S6: a byte every 0.9 of `idle` never fires `idle`."""
    await hangs_without(clock, drip("idle"), limit=100)
    seen = await play(clock, guard(drip("idle"), **only("idle", 1.0)), upto=400)

    assert seen.waits
    assert len(seen.chunks) > 400


@pytest.mark.parametrize(
    ("name", "error"), [("progress_idle", StreamProgressError), ("budget", StreamBudgetError)]
)
@on_manual_clock
async def test_slow_drip_is_cut_by_the_other_clocks(clock, name, error):
    """S6: bytes that make no event are no progress, and the budget counts them out too."""
    seen = await play(clock, guard(drip(name), **only(name, 10.0)), upto=400)

    assert type(seen.error) is error
    assert seen.ended_at == near(10)


@pytest.mark.parametrize("form", ["lines", "events", "bytes"])
@on_manual_clock
async def test_pings_only(clock, form):
    """S7, case 05: keep-alives for ever are cut by `progress_idle`; the cause has both ages."""
    first, ping = {
        "lines": ('data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n', ": ping\n"),
        "events": (delta("a"), PING),
        "bytes": (b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n', b": p\n\n"),
    }[form]
    steps = [first, *([""] if form == "lines" else []), *[0.1, ping] * 100, HANG]
    await hangs_without(clock, script(*steps), limit=0.35)

    seen = await play(clock, guard(script(*steps), idle=5, progress_idle=0.35), upto=10)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(0.35)
    assert seen.error.since_chunk == near(0.05)
    assert seen.error.since_progress == near(0.35)
    assert seen.error.partial == "a"


@on_manual_clock
async def test_a_thinking_model_that_pings_is_left_alone(clock):
    """Case 06: with separate clocks a long thought survives, whichever way its life is seen."""
    alive = [*[0.1, PING] * 10, delta("text"), STOP]
    any_chunk = guard(script(delta("a"), *alive), idle=0.3, is_progress=lambda chunk: True)
    separate = guard(script(delta("a"), *alive), idle=0.3, progress_idle=2)
    for guarded in (any_chunk, separate):
        seen = await play(clock, guarded, upto=10)
        assert seen.error is None
        assert seen.chunks[-1] == STOP


@on_manual_clock
async def test_a_slow_consumer_is_not_a_silent_producer(clock):
    """S8: a consumer that sleeps three limits between pulls sees no warning and no cut."""
    record = Recorder()
    source = script(*[0.1, "x"] * 5)
    guarded = guard(source, idle=1, first_chunk=1, progress_idle=1, on_event=record)
    seen = await play(clock, guarded, upto=100, pause=3)

    assert seen.error is None
    assert seen.chunks == ["x"] * 5
    assert record.names == ["first_chunk"]


# --- S9: what swallows the cancel, and what will not close ---


class Stubborn:
    """A class-based source whose pull answers the cancel in its own way."""

    def __init__(
        self, answer: Callable[[], Any], *, close: Callable[[], Any] | None = None
    ) -> None:
        self.answer = answer
        self.first = True
        self.cancels = 0
        self.closed = 0
        self.close_with = close

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.first:
            self.first = False
            return "a"
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancels += 1
            return await self.answer()

    async def aclose(self):
        self.closed += 1
        if self.close_with is not None:
            await self.close_with()


async def give_chunk():
    return "late"


async def end_normally():
    raise StopAsyncIteration


async def raise_other():
    raise KeyError("mine")


async def return_none():
    return None


async def slow_cleanup():
    await asyncio.sleep(4)
    raise asyncio.CancelledError


async def await_for_ever():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()


async def await_once_more():
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("answer", "ended_at", "partial"),
    [
        (give_chunk, 1, "alate"),
        (end_normally, 1, "a"),
        (raise_other, 1, "a"),
        (return_none, 1, "a"),
        (slow_cleanup, 5, "a"),
        (await_once_more, 11, "a"),
    ],
)
@on_manual_clock
async def test_a_source_that_answers_the_cancel_in_its_own_way(clock, answer, ended_at, partial):
    """S9: whatever a source makes of the cancel, the stall is raised, the source closed once."""
    record = Recorder()
    source = Stubborn(answer)
    guarded = guard(source, idle=1, on_event=record)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is StreamIdleError
    assert seen.ended_at == near(ended_at)
    assert seen.error.partial == partial
    assert source.closed == 1
    assert seen.cancelling == 0
    assert guarded.is_over
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]


@on_manual_clock
async def test_a_source_that_never_lets_go(clock):
    """S9: a pull that ignores every cancel is left alone after `close_grace`, and said to be so."""
    source = Stubborn(await_for_ever)
    bare = asyncio.create_task(consume(source))
    await clock.advance(1)
    bare.cancel()
    await clock.advance(30)
    assert not bare.done(), "the baseline does not show the fault"

    record = Recorder()
    source = Stubborn(await_for_ever)
    seen = await play(clock, guard(source, idle=1, name="n", on_event=record), upto=100)

    assert type(seen.error) is StreamIdleError
    assert seen.ended_at == near(11)
    assert seen.cancelling == 0
    assert source.cancels == 1
    (event,) = record.of(Unresponsive)
    assert (event.what, event.name, event.waited) == ("stream", "n", 10)
    # The task of the baseline cannot be ended by asking; it goes with its generator.
    coroutine = bare.get_coro()
    bare._log_destroy_pending = False
    with contextlib.suppress(RuntimeError):
        coroutine.close()
    asyncio.tasks._unregister_task(bare)


@pytest.mark.parametrize("ignores", [True, False])
@on_manual_clock
async def test_closing_that_hangs_is_bounded(clock, ignores):
    """S9: `aclose()` that hangs takes `close_grace` seconds at most, with the cause after it."""
    record = Recorder()
    close = await_for_ever if ignores else await_once_more
    source = Stubborn(end_normally, close=close)
    seen = await play(clock, guard(source, idle=1, on_event=record), upto=100)

    assert type(seen.error) is StreamIdleError
    assert seen.ended_at == near(11)
    assert seen.cancelling == 0
    assert len(record.of(Unresponsive)) == int(ignores)


@on_manual_clock
async def test_leaving_a_block_whose_source_will_not_close(clock):
    """Leaving early is bounded by `close_grace` as well, and raises nothing of its own."""
    record = Recorder()
    source = Stubborn(end_normally, close=await_for_ever)

    async def leave() -> str:
        async with guard(source, on_event=record) as chunks:
            async for _ in chunks:
                break
        return "left"

    task = asyncio.create_task(leave())
    await clock.advance(9.9)
    assert not task.done()
    await clock.advance(0.2)

    assert task.result() == "left"
    assert task.cancelling() == 0
    assert record.names[-1] == "unresponsive"


def test_an_error_of_closing_is_the_callers():
    """What `aclose()` of the source raises is not swallowed, in a block or by name."""

    async def main():
        error = KeyError("close")

        async def close():
            raise error

        for way in ("block", "aclose"):
            guarded = guard(Stubborn(end_normally, close=close))
            with pytest.raises(KeyError) as caught:
                if way == "block":
                    async with guarded:
                        pass
                else:
                    await guarded.aclose()
            assert caught.value is error

    run(main)


@on_manual_clock
async def test_an_error_of_closing_does_not_replace_the_cause(clock):
    """During a cut what closing raises is not the news."""
    source = Stubborn(end_normally, close=raise_other)
    seen = await play(clock, guard(source, idle=1), upto=100)

    assert type(seen.error) is StreamIdleError


@pytest.mark.parametrize("loop", LOOPS)
def test_a_source_that_spins_is_cut_at_first_chunk_and_not_at_once(loop):
    """A source that keeps the loop busy with bare yields gives no chunk: cut at its limit."""

    async def main():
        async def spin():
            while True:
                await asyncio.sleep(0)
                yield_never = False
                if yield_never:
                    yield

        started = time.monotonic()
        seen = await consume(guard(spin(), first_chunk=0.3))
        took = time.monotonic() - started

        assert type(seen.error) is FirstChunkError
        assert 0.3 <= took < 1.0
        assert seen.cancelling == 0

    run(main, loop=loop)


# --- S10: data and deadline in one tick ---


class Gate:
    """A source of one waiting style whose chunks are handed over by hand."""

    def __init__(self, style: str) -> None:
        self.style = style
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.cancels = 0

    async def _get(self) -> str:
        if self.style == "direct":
            return await self.queue.get()
        if self.style == "timeout":
            async with asyncio.timeout(1e6):
                return await self.queue.get()
        if self.style == "wait_for":
            return await asyncio.wait_for(self.queue.get(), 1e6)
        return await asyncio.create_task(self.queue.get())

    async def stream(self) -> AsyncIterator[str]:
        yield "first"
        while True:
            try:
                chunk = await self._get()
            except asyncio.CancelledError:
                self.cancels += 1
                raise
            yield chunk


@pytest.mark.parametrize("style", ["direct", "timeout", "wait_for", "task"])
@pytest.mark.parametrize("when", ["before", "after", "either", "next"])
@on_manual_clock
async def test_data_wins_over_a_deadline_of_the_same_tick(clock, style, when):
    """S10, 10 000 rounds in all: a chunk put in the very tick in which the fire is delivered wins.

    "next" is one turn of the loop later, where it still does.
    """
    loop = asyncio.get_running_loop()
    seed = random.Random(f"{style}{when}")
    gate = Gate(style)
    record = Recorder()
    guarded = guard(gate.stream(), idle=1, warn=None, on_event=record)
    seen = Seen()
    task = asyncio.create_task(consume(guarded, seen=seen, clock=clock))
    await clock.settle()

    def fire() -> None:
        # What the loop does on finding the descriptor readable, here and now.
        due = clock.time() + 1
        while clock._core.step(due):
            pass
        drain(loop._stallwatch_manual_bridge, loop)

    rounds = 625
    for number in range(rounds):
        put = functools.partial(gate.queue.put_nowait, f"{number}")
        order = [put, fire] if when == "before" else [fire, put]
        if when == "either":
            seed.shuffle(order)
        if when == "next":
            order[1] = functools.partial(loop.call_soon, put)
        for one in order:
            one()
        await clock.settle()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert record.of(StreamStalled) == []
    assert len(seen.chunks) == rounds + 1
    assert gate.cancels == 1


@on_manual_clock
async def test_data_between_the_decision_and_the_pull_wins(clock):
    """A chunk that lies ready when the consumer comes back late is delivered, not judged."""
    source = script("a", 0.5, "b", 0.9, "c")
    seen = await play(clock, guard(source, idle=1, warn=None), upto=100, pause=0.95)

    assert seen.chunks == ["a", "b", "c"]
