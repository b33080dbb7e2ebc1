"""`StallCompletion` and `StallLogger` around the real litellm, against the fault server."""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import Any

import pytest

from framework_tools import IDLE, LIMITS, import_without, run_in_turn
from stallwatch import FirstChunkError, Limits, Phase, Status, StreamIdleError, guard
from stallwatch.faults import FaultServer, Scenario
from stallwatch.integrations.litellm import StallCompletion, StallLogger

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no request at its import
with warnings.catch_warnings():
    # litellm's own, and those of the pydantic models that it builds at its import.
    warnings.simplefilter("ignore")
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")

pytestmark = [
    pytest.mark.sdk,
    pytest.mark.slow,
    # litellm imports much of itself in its calls, and builds pydantic models then.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]

APIS = ("openai", "anthropic")


def call_of(api: str, server: FaultServer, model: str = "plain", **options: Any) -> dict[str, Any]:
    """The arguments of a call."""
    return {
        "model": f"{api}/{model}",
        "base_url": server.openai_url if api == "openai" else server.anthropic_url,
        "api_key": "none",
        "messages": [{"role": "user", "content": "hello"}],
        **options,
    }


async def bare(**call: Any) -> str:
    """What litellm says without a guard."""
    text = ""
    async for chunk in await litellm.acompletion(stream=True, **call):
        text += chunk.choices[0].delta.content or ""
    return text


async def streamed(ask: StallCompletion, **call: Any) -> str:
    """What a guarded stream says."""
    text = ""
    async with ask.stream(**call) as chunks:
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
    return text


async def whole(ask: StallCompletion, **call: Any) -> str:
    """What a whole answer says."""
    answer = await ask(**call)
    return str(answer.choices[0].message.content)


WAYS = [pytest.param(way, id=way.__name__) for way in (streamed, whole)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
def test_silence_ends_it_with_one_request(api: str, way: Any) -> None:
    """Half an answer, then silence: cut with its text, and `num_retries` makes no second request.

    Without the guard litellm still waits after four times `idle`. Headroom: 5 s for the cut.
    """

    async def main() -> None:
        async with FaultServer() as server:
            call = call_of(api, server, "stall:8", num_retries=5)
            if way is streamed and api == "anthropic":
                waiting = asyncio.create_task(bare(**call))
                await asyncio.wait([waiting], timeout=4 * IDLE)
                assert not waiting.done()  # the unsafe baseline
                waiting.cancel()
                await asyncio.wait([waiting])

            seen = await run_in_turn(server, lambda turn: way(StallCompletion(turn), **call))

            assert type(seen.error) is StreamIdleError
            assert seen.outcome.cause is seen.error
            assert seen.error.phase is seen.outcome.phase is Phase.AWAITING_LLM
            assert seen.error.partial
            assert seen.outcome.text == seen.error.partial
            assert seen.closed == [True]
            assert seen.phases == ["awaiting_llm", "init"]

    asyncio.run(main())


@pytest.mark.parametrize("model", ["stall:0", "nohead"])
def test_silence_from_the_start_is_a_first_chunk(model: str) -> None:
    """No event, or not even headers: `first_chunk` bounds the request and all its retries."""

    async def main() -> None:
        async with FaultServer() as server:
            call = call_of("openai", server, model, num_retries=5)
            seen = await run_in_turn(server, lambda turn: streamed(StallCompletion(turn), **call))

            assert type(seen.error) is FirstChunkError
            assert seen.closed == [True]

    asyncio.run(main())


@pytest.mark.parametrize("model", ["plain", "linger"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
def test_an_answer_is_the_same_as_without(api: str, way: Any, model: str) -> None:
    """A whole answer is left as it is; a socket that lingers after it is a success.

    Headroom: the socket would linger for ever.
    """

    async def main() -> None:
        async with FaultServer() as server:
            text = await bare(**call_of(api, server))
            call = call_of(api, server, model)
            seen = await run_in_turn(server, lambda turn: way(StallCompletion(turn), **call))

            assert seen.error is None
            assert seen.result == text == seen.outcome.text
            assert seen.outcome.status is Status.COMPLETED
            assert "stream_stalled" not in seen.names
            assert "stream_truncated" not in seen.names

    asyncio.run(main())


def test_half_received_arguments_are_kept() -> None:
    """A tool call cut in its arguments: they are on the cause."""

    async def main() -> None:
        async with FaultServer() as server:
            server.play(Scenario(fault="stall", at=6, stream="builtin:tool"))
            seen = await run_in_turn(
                server, lambda turn: whole(StallCompletion(turn), **call_of("openai", server))
            )

            assert type(seen.error) is StreamIdleError
            (call,) = seen.error.tool_args.values()
            assert call["name"] == "read_log"
            assert call["arguments"].startswith("{")

    asyncio.run(main())


def test_a_plain_guard_does_as_well() -> None:
    """`guard` around the call itself: the request is inside of `first_chunk` too."""

    async def main() -> None:
        async with FaultServer() as server:
            call = call_of("openai", server, "nohead", num_retries=5)
            with pytest.raises(FirstChunkError):
                async with guard(litellm.acompletion(stream=True, **call), first_chunk=0.5):
                    pass

            assert len(server.requests) == 1

    asyncio.run(main())


def test_the_proxys_streams_are_guarded_by_a_callback() -> None:
    """The proxy hands its stream to the callback: cut there, with limits of its own."""

    async def main() -> None:
        async with FaultServer() as server:
            events: list[Any] = []
            logger = StallLogger(LIMITS, on_event=events.append)
            call = call_of("anthropic", server, "stall:8")
            stream = await litellm.acompletion(stream=True, **call)
            with pytest.raises(StreamIdleError) as caught:
                async for _ in logger.async_post_call_streaming_iterator_hook(
                    user_api_key_dict=None, response=stream, request_data=call
                ):
                    pass

            assert isinstance(logger, litellm.integrations.custom_logger.CustomLogger)
            assert caught.value.name == "anthropic/stall:8"
            assert events[-1].event == "stream_stalled"
            assert await server.requests[-1].wait_closed(5) is not None

    asyncio.run(main())


def test_limits_without_a_turn() -> None:
    """Calls can have limits of their own."""

    async def main() -> None:
        async with FaultServer() as server:
            ask = StallCompletion(Limits(first_chunk=0.4, stream_idle=0.3))
            with pytest.raises(FirstChunkError):
                await ask(**call_of("openai", server, "stall:0"))

    asyncio.run(main())


def test_the_library_is_imported_at_the_first_use() -> None:
    """Without litellm the module still imports, and its object can be made."""
    assert import_without("litellm", "litellm") == ""
