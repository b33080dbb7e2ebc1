"""The guards for openai around its real streams: helpers, calls without `await`, blocking ones."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import time
from typing import Any

import pytest

import stallwatch
from guard_tools import Recorder
from sdk_tools import SLACK, ask, blocking_client_of, client_of, closed, manage
from stallwatch import FirstChunkError, StreamIdleError
from stallwatch.faults import FaultServer
from stallwatch.integrations.openai import guard, guard_sync

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

APIS = ("chat", "responses")
FINAL = {"chat": "get_final_completion", "responses": "get_final_response"}
IDLE = 0.5
"""Seconds of `idle`: chunks of a healthy answer come within milliseconds."""


def final_text(api: str, final: Any) -> str:
    """The text of what `get_final_…()` gave."""
    text = final.choices[0].message.content if api == "chat" else final.output_text
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", ["awaited", "coroutine", "function", "partial"])
def test_a_raw_stream(api: str, way: str) -> None:
    """The stream, the call without its `await`, and functions that make it give all chunks."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            bare = [chunk async for chunk in await ask(api, client)]
            given: Any = {
                "awaited": lambda: ask(api, client),
                "coroutine": lambda: ask(api, client),
                "function": lambda: lambda: ask(api, client),
                "partial": lambda: functools.partial(ask, api, client),
            }[way]()
            if way == "awaited":
                given = await given
            async with guard(given, idle=5) as chunks:
                seen = [chunk async for chunk in chunks]
                assert chunks.response.status_code == 200

        assert [type(chunk) for chunk in seen] == [type(chunk) for chunk in bare]
        assert chunks.text
        assert chunks.stats.terminal

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_headers_that_never_come(api: str) -> None:
    """`first_chunk` bounds the wait for the headers, and the SDK's own retries do not renew it."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server, max_retries=5) as client:
            with pytest.raises(FirstChunkError):
                async with guard(ask(api, client, "nohead"), first_chunk=0.5):
                    pass
            async for _ in guard(ask(api, client), first_chunk=5):
                pass

            assert len(server.requests) == 2
            assert await closed(server.requests[0])

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_helpers_of_a_whole_answer(api: str) -> None:
    """What the helpers give through the guard is what they give without it, at any point."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            async with manage(api, client) as bare:
                expected = await getattr(bare, FINAL[api])()

            async with guard(manage(api, client), idle=5) as stream:
                async for _ in stream:
                    break
                assert final_text(api, await getattr(stream, FINAL[api])()) == stream.text
                assert await stream.until_done() is stream
            at_once: Any = guard(manage(api, client), idle=5)
            final = await getattr(at_once, FINAL[api])()

        assert final_text(api, final) == final_text(api, expected) == at_once.text
        assert at_once.stats.terminal

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_helpers_of_a_stalled_answer(api: str) -> None:
    """A helper waits for ever without the guard; through it, it raises the cause with the text."""

    async def main() -> None:
        async with FaultServer() as server, client_of(api, server) as client:
            async with manage(api, client, "stall:8") as bare:
                left = asyncio.create_task(getattr(bare, FINAL[api])())
                await asyncio.wait([left], timeout=3 * IDLE)
                assert not left.done()  # the unsafe baseline
                left.cancel()
                await asyncio.wait([left])

            for helper in (FINAL[api], "until_done"):
                stream: Any
                with pytest.raises(StreamIdleError) as caught:
                    async with guard(manage(api, client, "stall:8"), idle=IDLE) as stream:
                        await getattr(stream, helper)()
                assert caught.value.partial
                assert caught.value.partial == stream.text
                assert await closed(server.requests[-1])
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    asyncio.run(main())


def test_the_snapshot_of_a_stalled_answer() -> None:
    """What was accumulated until the stall can be read from the guard afterwards."""

    async def main() -> None:
        async with FaultServer() as server, client_of("chat", server) as client:
            with pytest.raises(StreamIdleError) as caught:
                async with guard(manage("chat", client, "stall:8"), idle=IDLE) as stream:
                    await stream.until_done()

            message = stream.current_completion_snapshot.choices[0].message
            assert message.content == caught.value.partial

    asyncio.run(main())


@pytest.mark.parametrize("api", APIS)
def test_blocking_streams(api: str) -> None:
    """Raw streams and helpers of the blocking client: whole, and cut at `idle` with the text."""
    with (
        FaultServer.serve_in_thread() as server,
        blocking_client_of(api, server) as client,
    ):
        with guard_sync(ask(api, client), idle=5) as chunks:
            assert sum(1 for _ in chunks) == chunks.stats.chunks
        with guard_sync(manage(api, client), idle=5) as stream:
            final = getattr(stream, FINAL[api])()
            assert final_text(api, final) == stream.text == chunks.text

        for make, helper in ((ask, None), (manage, FINAL[api]), (manage, "until_done")):
            record, began = Recorder(), time.monotonic()
            with pytest.raises(StreamIdleError) as caught:
                stalled: Any = guard_sync(make(api, client, "stall:8"), idle=IDLE, on_event=record)
                with stalled:
                    list(stalled) if helper is None else getattr(stalled, helper)()
            assert time.monotonic() - began < IDLE + SLACK
            assert caught.value.partial
            assert "unresponsive" not in record.names
            assert server.requests[-1].wait_closed_sync(SLACK) is not None


def test_a_stream_of_the_other_kind_is_refused() -> None:
    """Guards for asynchronous and for blocking streams do not take each other's."""
    with pytest.raises(TypeError, match="not 'list_iterator'"):
        guard(iter([]))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not 'function'"):
        guard_sync(lambda: None)  # type: ignore[call-overload]


def test_options_are_those_of_the_plain_guards() -> None:
    """The typed keywords are the plain guards' own, and an unknown one is refused."""
    import inspect

    from stallwatch.integrations._options import GuardOptions, SyncGuardOptions

    for options, plain in (
        (GuardOptions, stallwatch.guard),
        (SyncGuardOptions, stallwatch.guard_sync),
    ):
        assert {"stream", *options.__annotations__} == {*inspect.signature(plain).parameters}
    with pytest.raises(TypeError, match="unexpected keyword"):
        guard(object(), patience=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_importing_does_not_need_the_library(library: str) -> None:
    """The module imports, and guards, in an interpreter that cannot import the SDK."""
    code = f"""
import asyncio, sys
sys.modules["{library}"] = None
from stallwatch.integrations.{library} import guard, guard_sync

async def chunks():
    yield "a"

async def main():
    return [chunk async for chunk in guard(chunks())]

assert asyncio.run(main()) == list(guard_sync(["a"])) == ["a"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    assert done.returncode == 0
