"""`StallCapability` in real pydantic-ai agents, against the fault server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from framework_tools import IDLE, LIMITS, import_without, run_in_turn
from stallwatch import FirstChunkError, Limits, Phase, Status, StreamIdleError, Turn, cause_of
from stallwatch.faults import FaultServer, Scenario
from stallwatch.integrations._pydantic_chunks import as_chunk
from stallwatch.integrations.pydantic_ai import StallCapability

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from stallwatch._chunks import PROGRESS, Classifier

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

APIS = ("chat", "responses", "messages")


class World:
    """A fault server, and models that ask it, with the retries that their SDKs make by default."""

    async def __aenter__(self) -> World:
        self.server = await FaultServer().__aenter__()
        self.clients: list[Any] = []
        return self

    async def __aexit__(self, *details: Any) -> None:
        for client in self.clients:
            await client.close()
        await self.server.stop()

    def model(self, api: str, name: str = "plain") -> Any:
        """A model that speaks an API; its name is the fault."""
        if api == "messages":
            client: Any = AsyncAnthropic(base_url=self.server.anthropic_url, api_key="none")
            made: Any = AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
        else:
            client = AsyncOpenAI(base_url=self.server.openai_url, api_key="none")
            kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
            made = kind(name, provider=OpenAIProvider(openai_client=client))
        self.clients.append(client)
        return made


async def unguarded(agent: Any) -> tuple[str, int]:
    """What an agent says and its tokens, as a stream: the fault server gives nothing else."""
    async with agent.run_stream("hello") as run:
        return await run.get_output(), run.usage.output_tokens


@pytest.mark.parametrize("api", APIS)
def test_silence_ends_the_run_with_the_same_cause(api: str) -> None:
    """Half an answer, then silence: one request, its connection closed, the text so far kept.

    Without the capability the run still waits after four times `idle`. Headroom: `SLACK`.
    """

    async def main() -> None:
        async with World() as world:
            agent = Agent(world.model(api, "stall:8"))
            if api == "chat":
                bare = asyncio.create_task(unguarded(agent))
                await asyncio.wait([bare], timeout=4 * IDLE)
                assert not bare.done()  # the unsafe baseline
                bare.cancel()
                await asyncio.wait([bare])

            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert type(seen.error) is StreamIdleError
            assert seen.outcome.cause is seen.error
            assert seen.outcome.phase is Phase.AWAITING_LLM
            assert seen.error.partial
            assert seen.outcome.text == seen.error.partial
            assert seen.closed == [True]
            assert seen.names == ["first_chunk", "stream_slow", "stream_stalled"]
            assert seen.phases == ["setup", "awaiting_llm", "setup", "init"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("api", "model"), [*((api, "stall:0") for api in APIS), ("messages", "nohead")]
)
def test_silence_from_the_start_is_a_first_chunk(api: str, model: str) -> None:
    """No event, or not even headers: cut at `first_chunk`, with one request. Headroom: `SLACK`."""

    async def main() -> None:
        async with World() as world:
            agent = Agent(world.model(api, model))
            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert type(seen.error) is FirstChunkError
            assert seen.closed == [True]

    asyncio.run(main())


@pytest.mark.parametrize("model", ["plain", "linger"])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_is_the_same_as_without(api: str, model: str) -> None:
    """A whole answer is left as it is; a socket that lingers after it is a success.

    Headroom: the socket would linger for ever, the run ends `idle` after the last event.
    """

    async def main() -> None:
        async with World() as world:
            output, tokens = await unguarded(Agent(world.model(api)))
            agent = Agent(world.model(api, model))
            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert seen.error is None
            assert seen.result.output == output == seen.outcome.text
            assert seen.result.usage.output_tokens == tokens
            assert seen.result.all_messages()[-1].state == "complete"
            assert seen.outcome.status is Status.COMPLETED
            assert not {"stream_stalled", "stream_truncated"} & set(seen.names)

    asyncio.run(main())


def test_an_early_end_is_said() -> None:
    """An answer cut short with a proper end of the body ends as ever, and is named."""

    async def main() -> None:
        async with World() as world:
            agent = Agent(world.model("messages", "trunc:8"))
            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert "stream_truncated" in seen.names

    asyncio.run(main())


def test_a_streamed_answer_is_cut_below_the_grouping_of_text() -> None:
    """`run_stream` and its grouped text: what was shown so far is shown, then the cause comes.

    Headroom: `SLACK`.
    """

    async def main() -> None:
        async with World() as world:
            agent, shown = Agent(world.model("responses", "stall:8")), []

            async def body(turn: Turn) -> None:
                async with agent.run_stream("hello", capabilities=[StallCapability(turn)]) as run:
                    async for text in run.stream_text(delta=True):
                        shown.append(text)

            seen = await run_in_turn(world.server, body)

            assert type(seen.error) is StreamIdleError
            assert seen.error.partial.startswith("".join(shown))
            assert seen.closed == [True]

    asyncio.run(main())


def test_tools_have_the_phase_of_tools() -> None:
    """Two tools side by side, one slower than every limit of a stream: nobody calls that a stall.

    Headroom: the slow tool takes twice `idle`.
    """

    async def main() -> None:
        async with World() as world:
            phases, watched = [], []

            async def answer(messages: Any, info: Any) -> Any:
                if len(messages) == 1:
                    yield {0: DeltaToolCall("quick", "{}"), 1: DeltaToolCall("slow", "{}")}
                else:
                    yield "done"

            agent = Agent(FunctionModel(stream_function=answer))

            @agent.tool_plain
            async def quick() -> str:
                phases.append(watched[0].tracker.current().phase)
                return "at once"

            @agent.tool_plain
            async def slow() -> str:
                await asyncio.sleep(2 * IDLE)
                phases.append(watched[0].tracker.current().phase)
                return "at last"

            async def body(turn: Turn) -> Any:
                watched.append(turn)
                return await agent.run("hello", capabilities=[StallCapability(turn)])

            seen = await run_in_turn(world.server, body)

            assert seen.error is None
            assert seen.result.output == "done"
            assert phases == [Phase.EXECUTING_TOOLS] * 2
            assert watched[0].tracker.invalid is False
            assert seen.phases.count("awaiting_llm") == 2

    asyncio.run(main())


def test_an_agent_inside_a_tool_waits_for_its_own_model() -> None:
    """A tool that runs another agent in the same turn: the stall of that one ends the turn."""

    async def main() -> None:
        async with World() as world:
            world.server.play(Scenario(stream="builtin:tool"))
            outer = Agent(world.model("chat", "outer"))
            inner = Agent(world.model("messages", "stall:6"))
            watched = []

            @outer.tool_plain
            async def read_log(path: str, lines: int, follow: bool) -> str:
                run = await inner.run("hello", capabilities=[StallCapability(watched[0])])
                return str(run.output)

            async def body(turn: Turn) -> Any:
                watched.append(turn)
                return await outer.run("hello", capabilities=[StallCapability(turn)])

            seen = await run_in_turn(world.server, body)

            assert type(seen.error) is StreamIdleError
            assert seen.outcome.cause is seen.error
            assert seen.error.name == "stall:6"
            assert seen.error.phase is Phase.AWAITING_LLM
            assert len(seen.requests) == 2

    asyncio.run(main())


def test_an_agent_can_carry_limits_of_its_own() -> None:
    """Without a turn: limits for every run of an agent, and a run's own in their place."""

    async def main() -> None:
        async with World() as world:
            events: list[Any] = []
            own = StallCapability(LIMITS, on_event=events.append)
            agent = Agent(world.model("messages", "stall:6"), capabilities=[own])
            with pytest.raises(StreamIdleError) as caught:
                await agent.run("hello")
            assert cause_of(caught.value) is caught.value
            assert [event.event for event in events][-1] == "stream_stalled"

            longer = StallCapability(Limits(stream_idle=1.5, first_chunk=5))
            with pytest.raises(StreamIdleError) as caught:
                await agent.run("hello", capabilities=[longer])

            assert caught.value.limit == 1.5
            assert len(world.server.requests) == 2

    asyncio.run(main())


def test_a_model_that_cannot_stream_is_asked_as_it_is() -> None:
    """A model without a stream still answers; only the turn's own clocks watch it."""

    async def main() -> None:
        from pydantic_ai.messages import ModelResponse

        async with World() as world:
            agent = Agent(
                FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("at once")]))
            )
            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert seen.error is None
            assert seen.result.output == "at once"

    asyncio.run(main())


def test_something_else_is_refused() -> None:
    """What is watched by is a turn or limits."""
    with pytest.raises(TypeError, match="Turn or Limits"):
        StallCapability(30)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "progress", "text"),
    [
        (PartStartEvent(index=0, part=TextPart("a")), True, "a"),
        (PartStartEvent(index=0, part=TextPart("")), False, ""),
        (PartStartEvent(index=0, part=ThinkingPart("a")), True, ""),
        (PartStartEvent(index=0, part=ToolCallPart("run")), False, ""),
        (PartStartEvent(index=0, part=ToolCallPart("run", "{")), True, ""),
        (PartDeltaEvent(index=0, delta=TextPartDelta("b")), True, "b"),
        (PartDeltaEvent(index=0, delta=TextPartDelta("")), False, ""),
        (PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="a")), True, ""),
        (PartDeltaEvent(index=0, delta=ThinkingPartDelta(signature_delta="a")), True, ""),
        (PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta="}")), True, ""),
        (PartDeltaEvent(index=0, delta=ToolCallPartDelta(tool_name_delta="x")), False, ""),
        (PartEndEvent(index=0, part=TextPart("a")), False, ""),
    ],
    ids=lambda value: getattr(value, "event_kind", None),
)
def test_events_are_read_as_chunks(event: Any, progress: bool, text: str) -> None:
    """What the model makes is progress; names, starts and ends are not."""
    reader = Classifier()

    assert bool(reader.classify(as_chunk(event)) & PROGRESS) is progress
    assert reader.text_of(as_chunk(event)) == text


def test_half_received_arguments_are_kept() -> None:
    """A tool call cut in its arguments: they are on the cause."""

    async def main() -> None:
        async with World() as world:
            world.server.play(Scenario(fault="stall", at=6, stream="builtin:tool"))
            agent = Agent(world.model("messages"))
            seen = await run_in_turn(
                world.server, lambda turn: agent.run("hello", capabilities=[StallCapability(turn)])
            )

            assert type(seen.error) is StreamIdleError
            (call,) = seen.error.tool_args.values()
            assert call["name"] == "read_log"
            assert call["arguments"].startswith("{")

    asyncio.run(main())


def test_the_library_is_imported_at_the_first_use() -> None:
    """Without pydantic-ai the module still imports, and its object says what is missing."""
    assert "pydantic_ai" in import_without("pydantic_ai", "pydantic_ai")
