"""The guards for anthropic around its real streams: helpers, `text_stream`, blocking ones."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from guard_tools import Recorder
from sdk_tools import ASKED, SLACK, ask, blocking_client_of, client_of, closed, manage
from stallwatch import FirstChunkError, StreamIdleError
from stallwatch.faults import FaultServer
from stallwatch.integrations.anthropic import guard, guard_sync

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

API = "messages"
HELPERS = ("get_final_message", "get_final_text", "until_done")
IDLE = 0.5
"""Seconds of `idle`: chunks of a healthy answer come within milliseconds."""


def manage_beta(_: str, client: Any, model: str = "plain") -> Any:
    """`stream()` of the beta messages."""
    return client.beta.messages.stream(model=model, **ASKED[API])


MANAGERS = {"messages": manage, "beta": manage_beta}


async def read(stream: Any, helper: str) -> Any:
    """Use a helper of an open stream, or read its texts."""
    if helper == "text_stream":
        return "".join([text async for text in stream.text_stream])
    return await getattr(stream, helper)()


@pytest.mark.parametrize("way", ["awaited", "coroutine", "function"])
def test_a_raw_stream(way: str) -> None:
    """The stream, the call without its `await`, and a function that makes it give all events."""

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server) as client:
            bare = [event.type async for event in await ask(API, client)]
            given: Any = (lambda: ask(API, client)) if way == "function" else ask(API, client)
            if way == "awaited":
                given = await given
            async with guard(given, idle=5) as events:
                assert [event.type async for event in events] == bare
                assert events.response.status_code == 200

        assert events.text
        assert events.stats.terminal

    asyncio.run(main())


def test_headers_that_never_come() -> None:
    """`first_chunk` bounds the wait for the headers, of `create()` and of `stream()`."""

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server, max_retries=5) as client:
            for make in (ask, manage):
                with pytest.raises(FirstChunkError):
                    async with guard(make(API, client, "nohead"), first_chunk=0.5):
                        pass
                assert await closed(server.requests[-1])

            assert len(server.requests) == 2

    asyncio.run(main())


@pytest.mark.parametrize("manager", MANAGERS)
def test_helpers_of_a_whole_answer(manager: str) -> None:
    """What the helpers give through the guard is what they give without it, in any order."""
    make = MANAGERS[manager]

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server) as client:
            async with make(API, client) as bare:
                expected = await bare.get_final_message()

            async with guard(make(API, client), idle=5) as stream:
                async for _ in stream:
                    break
                assert stream.current_message_snapshot.content == []
                texts = ""
                async for text in stream.text_stream:
                    texts += text
                    break
                texts += "".join([text async for text in stream.text_stream])
                assert await stream.get_final_message() == expected
                assert await stream.get_final_text() == texts == stream.text
                assert await stream.until_done() is None
                assert stream.response.status_code == 200
                assert stream.request_id is None  # the fault server names no request
            at_once: Any = guard(make(API, client), idle=5)

            assert await at_once.get_final_message() == expected

    asyncio.run(main())


@pytest.mark.parametrize("helper", [*HELPERS, "text_stream"])
def test_helpers_of_a_stalled_answer(helper: str) -> None:
    """A helper waits for ever without the guard; through it, it raises the cause with the text."""

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server) as client:
            async with manage(API, client, "stall:6") as bare:
                left = asyncio.create_task(read(bare, helper))
                await asyncio.wait([left], timeout=3 * IDLE)
                assert not left.done()  # the unsafe baseline
                left.cancel()
                await asyncio.wait([left])

            with pytest.raises(StreamIdleError) as caught:
                async with guard(manage(API, client, "stall:6"), idle=IDLE) as stream:
                    await read(stream, helper)

            assert caught.value.partial
            assert caught.value.partial == stream.current_message_snapshot.content[0].text  # type: ignore[union-attr]
            assert await closed(server.requests[-1])
            with pytest.raises(StreamIdleError):
                await stream.get_final_message()
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_helper_after_the_end_does_not_wait_for_the_socket() -> None:
    """A socket that lingers after `message_stop` costs a helper a second at most."""

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server) as client:
            began = time.monotonic()
            async with guard(manage(API, client, "linger"), idle=30) as stream:
                assert await stream.get_final_text() == stream.text

            assert time.monotonic() - began < 1 + SLACK
            assert await closed(server.requests[-1])

    asyncio.run(main())


def test_helpers_after_an_early_close_do_not_wait() -> None:
    """Reading on after the guard was left fails at once, as the SDK does: nothing more can come."""

    async def main() -> None:
        async with FaultServer() as server, client_of(API, server) as client:
            async with guard(manage(API, client, "stall:6"), idle=30) as stream:
                async for _ in stream:
                    break
            async with asyncio.timeout(SLACK):
                with pytest.raises(Exception) as caught:
                    await stream.get_final_message()

            assert type(caught.value).__name__ == "ReadError"

    asyncio.run(main())


@pytest.mark.parametrize("manager", MANAGERS)
def test_blocking_streams(manager: str) -> None:
    """Helpers of the blocking client: whole, and cut at `idle` with the text so far."""
    make = MANAGERS[manager]
    with (
        FaultServer.serve_in_thread() as server,
        blocking_client_of(API, server) as client,
    ):
        with guard_sync(ask(API, client), idle=5) as events:
            assert sum(1 for _ in events) == events.stats.chunks
        with guard_sync(make(API, client), idle=5) as stream:
            assert "".join(stream.text_stream) == stream.get_final_text() == events.text
            assert stream.get_final_message().stop_reason == "end_turn"

        for helper in (None, *HELPERS, "text_stream"):
            record = Recorder()
            with pytest.raises(StreamIdleError) as caught:
                given = (ask if helper is None else make)(API, client, "stall:6")
                with guard_sync(given, idle=IDLE, on_event=record) as stalled:
                    if helper is None:
                        list(stalled)
                    elif helper == "text_stream":
                        list(stalled.text_stream)
                    else:
                        getattr(stalled, helper)()
            assert caught.value.partial
            assert "unresponsive" not in record.names
            assert server.requests[-1].wait_closed_sync(SLACK) is not None
