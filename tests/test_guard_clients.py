"""The guard around streams of the real SDKs, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from guard_tools import Recorder
from stallwatch import FirstChunkError, StreamIdleError, guard, wheel_stats
from stallwatch.faults import Fault, FaultServer, RequestRecord, Scenario

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

APIS = ("chat", "responses", "messages")
IDLE = 0.4
"""Seconds of `idle` in these tests: chunks of a healthy answer come within milliseconds."""

SLACK = 0.6
"""Headroom, in seconds, for a cut to be seen by all sides."""


@asynccontextmanager
async def client_of(api: str, server: FaultServer, **options: Any) -> AsyncIterator[Any]:
    """A client of the SDK that speaks an API, without retries of its own."""
    options = {"api_key": "none", "max_retries": 0, **options}
    if api == "messages":
        made: Any = anthropic.AsyncAnthropic(base_url=server.anthropic_url, **options)
    else:
        made = openai.AsyncOpenAI(base_url=server.openai_url, **options)
    async with made as client:
        yield client


async def ask(api: str, client: Any, model: str = "plain") -> Any:
    """The SDK's own stream object."""
    words = [{"role": "user", "content": "hello"}]
    if api == "messages":
        return await client.messages.create(
            model=model, messages=words, max_tokens=100, stream=True
        )
    if api == "chat":
        return await client.chat.completions.create(model=model, messages=words, stream=True)
    return await client.responses.create(model=model, input="hello", stream=True)


async def text_of(stream: Any, **limits: Any) -> str:
    """What a guarded stream said."""
    async with guard(stream, **limits) as chunks:
        async for _ in chunks:
            pass
        return str(chunks.text)


async def closed(record: RequestRecord) -> bool:
    """Whether the server saw our side close, in good time."""
    return await record.wait_closed(SLACK) is not None


@pytest.mark.parametrize("api", APIS)
def test_half_an_answer_then_silence(api: str) -> None:
    """Cut at `idle` with the text so far; without a guard it still waits after three times that."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            stream = await ask(api, client, "stall:8")
            left = asyncio.create_task(anext_until_silent(stream))
            await asyncio.wait([left], timeout=3 * IDLE)
            assert not left.done()  # the unsafe baseline
            left.cancel()
            await asyncio.wait([left])
            await stream.close()

            whole = await text_of(await ask(api, client), idle=IDLE)
            record, began = Recorder(), time.monotonic()
            stream = await ask(api, client, "stall:8")
            with pytest.raises(StreamIdleError) as caught:
                await text_of(stream, idle=IDLE, on_event=record)

            assert IDLE <= time.monotonic() - began < IDLE + SLACK
            assert caught.value.partial
            assert whole.startswith(caught.value.partial)
            assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]
            assert await closed(server.requests[-1])
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    asyncio.run(main())


async def anext_until_silent(stream: Any) -> None:
    """A loop without a guard."""
    async for _ in stream:
        pass


@pytest.mark.parametrize("api", APIS)
def test_silence_before_the_first_event(api: str) -> None:
    """Cut at `first_chunk`, never at `idle`, with no text and a mark that says so."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            began = time.monotonic()
            with pytest.raises(FirstChunkError) as caught:
                await text_of(await ask(api, client, "stall:0"), first_chunk=0.5, idle=0.1)

            assert 0.5 <= time.monotonic() - began < 0.5 + SLACK
            assert caught.value.partial == ""
            assert not caught.value.text_received
            assert await closed(server.requests[-1])

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_five_cuts_in_a_row_leave_the_only_connection_free(api: str) -> None:
    """Case 23: a pool of one connection still serves a healthy request after five cuts."""

    async def main() -> None:
        async with FaultServer() as server:
            library = __import__("httpx2")
            pool = library.AsyncClient(
                limits=library.Limits(max_connections=1), timeout=library.Timeout(5, pool=1)
            )
            async with pool, client_of(api, server, http_client=pool) as client:
                for _ in range(5):
                    with pytest.raises(StreamIdleError):
                        await text_of(await ask(api, client, "stall:6"), idle=0.2)
                assert await text_of(await ask(api, client), idle=5)
            assert all([await closed(record) for record in server.requests[:5]])

    asyncio.run(main())


@pytest.mark.parametrize("api", ["messages", "responses"])
def test_a_socket_that_lingers_after_the_end_is_a_success(api: str) -> None:
    """S3: after the terminal event no stall is reported, and the stream ends within a second."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            record, began = Recorder(), time.monotonic()
            async with guard(await ask(api, client, "linger"), idle=5, on_event=record) as chunks:
                async for _ in chunks:
                    pass

            assert chunks.stats.terminal
            assert chunks.text
            assert record.names == ["first_chunk"]
            assert time.monotonic() - began < 1 + SLACK

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_an_early_end_is_said(api: str) -> None:
    """An answer cut short with a proper end of the body ends as the source does, and is named."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            record = Recorder()
            stream = await ask(api, client, "trunc:8")
            async with guard(stream, idle=5, on_event=record) as chunks:
                async for _ in chunks:
                    pass

            assert record.names == ["first_chunk", "stream_truncated"]
            assert not chunks.stats.terminal

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_a_reset_is_the_sdks_own_error(api: str) -> None:
    """S5: an RST in the middle leaves as whatever the SDK makes of it, with no cause of ours."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            record = Recorder()
            with pytest.raises(Exception) as caught:
                await text_of(await ask(api, client, "rst:8"), idle=5, on_event=record)

            assert not isinstance(caught.value, RuntimeError)
            assert record.names == ["first_chunk"]

    asyncio.run(main())


def test_a_stream_manager_is_entered_and_left() -> None:
    """`messages.stream()` is a manager; its helpers and attributes work through the guard."""

    async def main() -> None:
        async with FaultServer() as server, client_of("messages", server) as client:
            manager = client.messages.stream(
                model="plain", max_tokens=100, messages=[{"role": "user", "content": "hello"}]
            )
            async with guard(manager, idle=5) as chunks:
                async for _ in chunks:
                    pass
                message = await chunks.get_final_message()
            assert message.content[0].text == chunks.text
            assert chunks.response.status_code == 200

            manager = client.messages.stream(
                model="stall:6", max_tokens=100, messages=[{"role": "user", "content": "hello"}]
            )
            with pytest.raises(StreamIdleError):
                await text_of(manager, idle=0.3)
            assert await closed(server.requests[-1])

    asyncio.run(main())


def test_a_break_closes_the_connection() -> None:
    """Leaving the loop inside `async with guard(...)` closes what a bare loop leaves open."""

    async def main() -> None:
        async with FaultServer() as server, client_of("chat", server) as client:
            server.play(Scenario(fault=Fault.DRIP, delay=0.05))
            async with guard(await ask("chat", client), idle=5) as chunks:
                async for _ in chunks:
                    break

            assert await closed(server.requests[-1])

    asyncio.run(main())


def test_nothing_is_left_armed() -> None:
    """Whatever became of a stream, no timer of it is left."""
    before = wheel_stats().armed

    async def main() -> None:
        async with FaultServer() as server, client_of("chat", server) as client:
            for model in ("plain", "stall:5", "trunc:5", "rst:5", "linger"):
                with pytest.raises(Exception) if model in ("stall:5", "rst:5") else no_error():
                    await text_of(await ask("chat", client, model), idle=0.3)
            assert wheel_stats().armed == before

    asyncio.run(main())


def no_error() -> Any:
    """A block in which nothing is raised."""
    from contextlib import nullcontext

    return nullcontext()
