"""`StallModel` and `StallHooks` in real runs of openai-agents, against the fault server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from framework_tools import IDLE, LIMITS, import_without, run_in_turn
from stallwatch import FirstChunkError, Phase, Status, StreamIdleError, Turn
from stallwatch.faults import FaultServer, Scenario
from stallwatch.integrations.openai_agents import StallHooks, StallModel

pytest.importorskip("agents", reason="openai-agents is not installed")

from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    retry_policies,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

KINDS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    """Nothing is sent to the tracing of the provider."""
    set_tracing_disabled(True)


class World:
    """A fault server, and models that ask it, with the retries that the SDK makes by default."""

    async def __aenter__(self) -> World:
        self.server = await FaultServer().__aenter__()
        self.client = AsyncOpenAI(base_url=self.server.openai_url, api_key="none")
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self.client.close()
        await self.server.stop()

    def model(self, api: str, name: str = "plain") -> Any:
        """A model that speaks an API; its name is the fault."""
        return KINDS[api](name, openai_client=self.client)


async def streamed(agent: Agent, **options: Any) -> Any:
    """The result of a run read as it comes."""
    run = Runner.run_streamed(agent, "hello", **options)
    try:
        async for _ in run.stream_events():
            pass
    finally:
        assert run.is_complete
    return run


async def at_once(agent: Agent, **options: Any) -> Any:
    """The result of a run that nobody streams."""
    return await Runner.run(agent, "hello", **options)


WAYS = [pytest.param(streamed, id="streamed"), pytest.param(at_once, id="at_once")]


@pytest.mark.parametrize("run", WAYS)
@pytest.mark.parametrize("api", KINDS)
def test_silence_ends_the_run_with_the_same_cause(api: str, run: Any) -> None:
    """Half an answer, then silence: one request, its connection closed, the text so far kept.

    Without the wrapper the run still waits after four times `idle`. Headroom: 5 s for the cut.
    """

    async def main() -> None:
        async with World() as world:
            model = world.model(api, "stall:8")
            if run is streamed and api == "chat":
                bare = asyncio.create_task(streamed(Agent("bare", model=model)))
                await asyncio.wait([bare], timeout=4 * IDLE)
                assert not bare.done()  # the unsafe baseline
                bare.cancel()
                await asyncio.wait([bare])

            seen = await run_in_turn(
                world.server,
                lambda turn: run(Agent("one", model=StallModel(model, turn))),
            )

            assert type(seen.error) is StreamIdleError
            assert seen.outcome.cause is seen.error
            assert seen.outcome.phase is Phase.AWAITING_LLM
            assert seen.error.partial
            assert seen.outcome.text == seen.error.partial
            assert seen.closed == [True]
            assert seen.names == ["first_chunk", "stream_slow", "stream_stalled"]
            assert seen.phases == ["awaiting_llm", "init"]

    asyncio.run(main())


@pytest.mark.parametrize("model", ["stall:0", "nohead"])
def test_silence_from_the_start_is_a_first_chunk(model: str) -> None:
    """No event, or not even headers: cut at `first_chunk`, one request. Headroom: 5 s."""

    async def main() -> None:
        async with World() as world:
            seen = await run_in_turn(
                world.server,
                lambda turn: streamed(
                    Agent("one", model=StallModel(world.model("responses", model), turn))
                ),
            )

            assert type(seen.error) is FirstChunkError
            assert seen.closed == [True]

    asyncio.run(main())


@pytest.mark.parametrize("model", ["plain", "linger"])
@pytest.mark.parametrize("run", WAYS)
@pytest.mark.parametrize("api", KINDS)
def test_an_answer_is_the_same_as_without(api: str, run: Any, model: str) -> None:
    """A whole answer and its usage are left as they are; a socket that lingers is a success.

    Headroom: the socket would linger for ever.
    """

    async def main() -> None:
        async with World() as world:
            bare = await streamed(Agent("bare", model=world.model(api)))
            seen = await run_in_turn(
                world.server,
                lambda turn: run(Agent("one", model=StallModel(world.model(api, model), turn))),
            )

            assert seen.error is None
            assert seen.result.final_output == bare.final_output == seen.outcome.text
            assert seen.result.context_wrapper.usage == bare.context_wrapper.usage
            assert seen.outcome.status is Status.COMPLETED
            assert seen.names == ["first_chunk"]

    asyncio.run(main())


def test_the_librarys_own_retries_leave_a_stall_alone() -> None:
    """Retries on network errors, timeouts and 5xx are asked for: one request all the same."""

    async def main() -> None:
        async with World() as world:
            settings = ModelSettings(
                retry=ModelRetrySettings(
                    max_retries=5,
                    policy=retry_policies.any(
                        retry_policies.network_error(),
                        retry_policies.provider_suggested(),
                        retry_policies.http_status([500, 529]),
                    ),
                )
            )
            seen = await run_in_turn(
                world.server,
                lambda turn: at_once(
                    Agent(
                        "one",
                        model=StallModel(world.model("responses", "stall:0"), turn),
                        model_settings=settings,
                    )
                ),
            )

            assert type(seen.error) is FirstChunkError
            assert len(seen.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("run", WAYS)
def test_tools_have_the_phase_of_tools(run: Any) -> None:
    """A tool slower than `idle` is no stall of the model. Headroom: it takes twice `idle`."""

    async def main() -> None:
        async with World() as world:
            world.server.play(Scenario(stream="builtin:tool"), Scenario())
            phases = []

            async def body(turn: Turn) -> Any:
                @function_tool
                async def read_log(path: str, lines: int, follow: bool) -> str:
                    await asyncio.sleep(2 * IDLE)
                    phases.append(turn.tracker.current().phase)
                    return "nothing"

                model = StallModel(world.model("responses"), turn)
                agent = Agent("one", model=model, tools=[read_log])
                return await run(agent, hooks=StallHooks(turn))

            seen = await run_in_turn(world.server, body)

            assert seen.error is None
            assert phases == [Phase.EXECUTING_TOOLS]
            llm = ["awaiting_llm", "init"]
            assert seen.phases == [*llm, "executing_tools", "init", *llm]

    asyncio.run(main())


def test_a_tool_that_raises_borrows_nothing() -> None:
    """The library does not tell of its end, yet the turn can enter a phase, and ends clean."""

    async def main() -> None:
        async with World() as world:
            world.server.play(Scenario(stream="builtin:tool"), Scenario())
            found = []

            async def body(turn: Turn) -> None:
                @function_tool(failure_error_function=None)
                async def read_log(path: str, lines: int, follow: bool) -> str:
                    raise LookupError("no such log")

                model = StallModel(world.model("chat"), turn)
                agent = Agent("one", model=model, tools=[read_log])
                with pytest.raises(Exception, match="no such log"):
                    await Runner.run(agent, "hello", hooks=StallHooks(turn))
                found.append(turn.tracker.current().phase)
                turn.enter(Phase.SETUP)

            seen = await run_in_turn(world.server, body)

            assert seen.error is None
            assert found == [Phase.EXECUTING_TOOLS]
            assert seen.phases[-2:] == ["executing_tools", "setup"]

    asyncio.run(main())


def test_half_received_arguments_are_kept() -> None:
    """A tool call cut in its arguments: they are on the cause."""

    async def main() -> None:
        async with World() as world:
            world.server.play(Scenario(fault="stall", at=6, stream="builtin:tool"))
            seen = await run_in_turn(
                world.server,
                lambda turn: at_once(
                    Agent("one", model=StallModel(world.model("responses"), turn))
                ),
            )

            assert type(seen.error) is StreamIdleError
            (call,) = seen.error.tool_args.values()
            assert call["name"] == "read_log"
            assert call["arguments"].startswith("{")

    asyncio.run(main())


def test_limits_without_a_turn() -> None:
    """A model can carry limits of its own, for every run of it."""

    async def main() -> None:
        async with World() as world:
            events: list[Any] = []
            model = StallModel(world.model("chat", "stall:8"), LIMITS, on_event=events.append)
            with pytest.raises(StreamIdleError):
                await at_once(Agent("one", model=model))

            assert events[-1].event == "stream_stalled"

    asyncio.run(main())


def test_a_model_that_cannot_stream_is_asked_as_it_is() -> None:
    """A model without a stream still answers, in the phase of waiting for it."""

    class Silent(Model):
        """Gives whole answers only."""

        def __init__(self, turn: Turn) -> None:
            self.turn = turn

        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            raise LookupError(str(self.turn.tracker.current().phase))

        def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    async def main() -> None:
        async with World() as world:
            seen = await run_in_turn(
                world.server,
                lambda turn: at_once(Agent("one", model=StallModel(Silent(turn), turn))),
            )

            assert type(seen.error) is LookupError
            assert str(seen.error) == "awaiting_llm"

    asyncio.run(main())


def test_the_library_is_imported_at_the_first_use() -> None:
    """Without openai-agents the module still imports, and its object says what is missing."""
    assert "agents" in import_without("openai_agents", "agents")
