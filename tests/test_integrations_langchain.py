"""`StallModel` and `StallCallback` in LangChain and LangGraph, against the fault server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from framework_tools import IDLE, LIMITS, import_without, run_in_turn
from stallwatch import (
    FirstChunkError,
    Phase,
    Status,
    StreamIdleError,
    Turn,
    UserCancelled,
    cause_of,
    guard,
    is_retryable,
)
from stallwatch.faults import FaultServer, Scenario
from stallwatch.integrations.langchain import StallCallback, StallModel

pytest.importorskip("langchain_core", reason="langchain-core is not installed")
pytest.importorskip("langgraph", reason="langgraph is not installed")

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import NodeCancelledError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

pytestmark = [pytest.mark.sdk, pytest.mark.slow]


@tool
def read_log(path: str) -> str:
    """Read a log."""
    return path


APIS = ("chat", "responses", "messages")


def model_of(api: str, server: FaultServer, name: str = "plain") -> Any:
    """A model that speaks an API, with the retries that its SDK makes by default."""
    if api == "messages":
        return ChatAnthropic(
            model=name, base_url=server.anthropic_url, api_key="none", max_tokens=100
        )
    return ChatOpenAI(
        model=name,
        base_url=server.openai_url,
        api_key="none",
        use_responses_api=api == "responses",
    )


async def at_once(model: Any, config: Any = None) -> Any:
    """An answer as a whole."""
    return await model.ainvoke("hello", config)


async def streamed(model: Any, config: Any = None) -> Any:
    """An answer put together from its chunks."""
    whole = None
    async for chunk in model.astream("hello", config):
        whole = chunk if whole is None else whole + chunk
    return whole


def graph_of(node: Any, **options: Any) -> Any:
    """A graph of one node."""
    return StateGraph(MessagesState).add_node("one", node, **options).add_edge(START, "one")


async def in_a_graph(model: Any, config: Any = None) -> Any:
    """An answer that a node of a graph asks for."""

    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    state = await graph_of(node).compile().ainvoke({"messages": ["hello"]}, config)
    return state["messages"][-1]


WAYS = [pytest.param(way, id=way.__name__) for way in (at_once, streamed, in_a_graph)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
def test_silence_ends_it_with_the_same_cause(api: str, way: Any) -> None:
    """Half an answer, then silence: one request, its connection closed, the text so far kept.

    Without the wrapper the model still waits after four times `idle`. Headroom: 5 s for the cut.
    """

    async def main() -> None:
        async with FaultServer() as server:
            model = model_of(api, server, "stall:8")
            if way is streamed and api == "messages":
                bare = asyncio.create_task(streamed(model))
                await asyncio.wait([bare], timeout=4 * IDLE)
                assert not bare.done()  # the unsafe baseline
                bare.cancel()
                await asyncio.wait([bare])

            seen = await run_in_turn(server, lambda turn: way(StallModel(model, turn)))

            assert type(seen.error) is StreamIdleError
            assert seen.outcome.cause is seen.error
            assert seen.outcome.phase is Phase.AWAITING_LLM
            assert seen.error.partial
            assert seen.outcome.text == seen.error.partial
            assert seen.error.name == "stall:8"
            assert seen.closed == [True]
            assert seen.names == ["first_chunk", "stream_slow", "stream_stalled"]
            assert seen.phases == ["awaiting_llm", "init"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("api", "model"), [("chat", "stall:0"), ("messages", "stall:0"), ("messages", "nohead")]
)
def test_silence_from_the_start_is_a_first_chunk(api: str, model: str) -> None:
    """No event, or not even headers: cut at `first_chunk`, with one request. Headroom: 5 s."""

    async def main() -> None:
        async with FaultServer() as server:
            seen = await run_in_turn(
                server, lambda turn: at_once(StallModel(model_of(api, server, model), turn))
            )

            assert type(seen.error) is FirstChunkError
            assert seen.closed == [True]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("way", "model"),
    [(at_once, "plain"), (streamed, "plain"), (in_a_graph, "plain"), (at_once, "linger")],
)
@pytest.mark.parametrize("api", APIS)
def test_an_answer_is_the_same_as_without(api: str, way: Any, model: str) -> None:
    """A whole answer and its usage are left as they are; a socket that lingers is a success.

    Headroom: the socket would linger for ever.
    """

    async def main() -> None:
        async with FaultServer() as server:
            bare = await streamed(model_of(api, server))
            seen = await run_in_turn(
                server, lambda turn: way(StallModel(model_of(api, server, model), turn))
            )

            assert seen.error is None
            assert seen.result.text == bare.text == seen.outcome.text
            assert seen.result.usage_metadata == bare.usage_metadata
            assert seen.outcome.status is Status.COMPLETED
            assert seen.names == ["first_chunk"]

    asyncio.run(main())


@pytest.mark.parametrize("retry", [RetryPolicy(), RetryPolicy(retry_on=is_retryable)])
def test_a_graph_does_not_retry_a_stall(retry: RetryPolicy) -> None:
    """By its default policy and by ours: one request."""

    async def main() -> None:
        async with FaultServer() as server:
            model = StallModel(model_of("messages", server, "stall:6"), LIMITS)

            async def node(state: Any) -> Any:
                return {"messages": [await model.ainvoke(state["messages"])]}

            app = graph_of(node, retry_policy=retry).compile()
            with pytest.raises(StreamIdleError):
                await app.ainvoke({"messages": ["hello"]})

            assert len(server.requests) == 1

    asyncio.run(main())


def test_with_retry_takes_the_predicate() -> None:
    """`.with_retry()` would ask three times; with `is_retryable` it asks once."""

    async def main() -> None:
        async with FaultServer() as server:
            model = StallModel(model_of("messages", server, "stall:6"), LIMITS)
            patient = model.with_retry(
                retry_if_exception_type=is_retryable, wait_exponential_jitter=False
            )
            with pytest.raises(StreamIdleError):
                await patient.ainvoke("hello")

            assert len(server.requests) == 1

    asyncio.run(main())


def test_a_users_cancel_in_a_node_keeps_its_cause() -> None:
    """LangGraph wraps a cancel that a node raises; `cause_of` finds it."""

    async def node(state: Any) -> Any:
        raise UserCancelled("enough")

    with pytest.raises(NodeCancelledError) as caught:
        asyncio.run(graph_of(node).compile().ainvoke({"messages": ["hello"]}))

    found = cause_of(caught.value)
    assert type(found) is UserCancelled
    assert found.reason == "enough"


def test_callbacks_show_models_and_tools() -> None:
    """Without a wrapper: the phases follow models and tools.

    Headroom: the slow tool takes twice `idle`.
    """

    async def main() -> None:
        async with FaultServer() as server:
            server.play(Scenario(stream="builtin:tool"), Scenario())
            phases = []

            async def body(turn: Turn) -> Any:
                @tool("read_log")
                async def slow(path: str, lines: int, follow: bool) -> str:
                    """Read a log."""
                    await asyncio.sleep(2 * IDLE)
                    phases.append(turn.tracker.current().phase)
                    return "nothing"

                model = model_of("chat", server)
                streaming = model.model_copy(update={"streaming": True}).bind_tools([slow])

                async def ask(state: Any) -> Any:
                    return {"messages": [await streaming.ainvoke(state["messages"])]}

                graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
                graph.add_node("act", ToolNode([slow])).add_edge("ask", "act")
                app = graph.compile()
                config = {"callbacks": [StallCallback(turn)]}
                await app.ainvoke({"messages": ["hello"]}, config)

            seen = await run_in_turn(server, body)

            assert seen.error is None
            assert phases == [Phase.EXECUTING_TOOLS]
            assert seen.phases == ["awaiting_llm", "init", "executing_tools", "init"]

    asyncio.run(main())


def test_a_cancelled_node_leaves_no_phase_behind() -> None:
    """LangChain tells nothing of what is cancelled: the phase ends with the node's task."""

    async def main() -> None:
        async with FaultServer() as server:

            async def body(turn: Turn) -> None:
                config = {"callbacks": [StallCallback(turn)]}
                model = model_of("messages", server, "stall:2")
                run = asyncio.create_task(in_a_graph(model, config))
                while turn.tracker.current().phase is not Phase.AWAITING_LLM:
                    await asyncio.sleep(0.01)
                run.cancel()
                await asyncio.wait([run])

            seen = await run_in_turn(server, body)

            assert seen.error is None
            assert seen.phases == ["awaiting_llm", "init"]

    asyncio.run(main())


def test_a_model_with_tools_bound_is_still_guarded() -> None:
    """Bound before or after: tools stay bound, and half-received arguments are on the cause."""

    async def main() -> None:
        async with FaultServer() as server:
            server.play(Scenario(fault="stall", at=6, stream="builtin:tool"))

            model = model_of("chat", server)
            for bound in (
                StallModel(model.bind_tools([read_log]), LIMITS),
                StallModel(model, LIMITS).bind_tools([read_log]),
            ):
                with pytest.raises(StreamIdleError) as caught:
                    await at_once(bound)

                (call,) = caught.value.tool_args.values()
                assert call["name"] == "read_log"
                assert call["arguments"].startswith("{")
                assert bound.kwargs["tools"][0]["function"]["name"] == "read_log"

    asyncio.run(main())


def test_the_model_itself_is_left_alone() -> None:
    """The copy is of the model's class, and the model is as it was."""
    model = ChatOpenAI(model="plain", api_key="none")
    copy = StallModel(model, LIMITS)

    assert isinstance(copy, ChatOpenAI)
    assert copy is not model
    assert type(model) is ChatOpenAI
    assert (model.streaming, copy.streaming) == (False, True)
    assert copy.get_name() == model.get_name()


def test_a_model_that_cannot_stream_is_asked_as_it_is() -> None:
    """A model without a stream still answers."""
    model = StallModel(FakeMessagesListChatModel(responses=[AIMessage("at once")]), LIMITS)

    assert asyncio.run(model.ainvoke("hello")).content == "at once"


def test_something_else_is_refused() -> None:
    """Only a chat model has a stream to guard."""
    with pytest.raises(TypeError, match="chat model"):
        StallModel(RunnableLambda(str), LIMITS)


@pytest.mark.parametrize("stream", ["text", "reasoning", "tool"])
@pytest.mark.parametrize("api", APIS)
def test_a_plain_guard_reads_messages(api: str, stream: str) -> None:
    """`guard` around `astream`: the text, the end, and what is no progress are known."""

    async def main() -> None:
        async with FaultServer() as server:
            server.play(Scenario(stream=f"builtin:{stream}"))
            model = model_of(api, server).bind_tools([read_log])
            whole = await streamed(model)
            async with guard(model.astream("hello"), idle=5) as chunks:
                async for _ in chunks:
                    pass

            assert chunks.text == whole.text
            assert chunks.stats.terminal
            assert 0 < chunks.stats.progress_chunks < chunks.stats.chunks

    asyncio.run(main())


def test_a_graphs_messages_are_text_but_no_end() -> None:
    """`stream_mode="messages"`: a message's end is not the end of the graph."""

    async def main() -> None:
        async with FaultServer() as server:
            model = model_of("messages", server)
            graph = graph_of(lambda state: {"messages": []})

            async def node(state: Any) -> Any:
                return {"messages": [await model.ainvoke(state["messages"])]}

            graph = graph.add_node("two", node).add_edge("one", "two")
            graph = graph.add_node("three", node).add_edge("two", "three")
            messages = graph.compile().astream({"messages": ["hello"]}, stream_mode="messages")
            async with guard(messages, idle=5) as chunks:
                async for _ in chunks:
                    pass
            whole = await streamed(model)

            assert chunks.text == 2 * whole.text
            assert not chunks.stats.terminal

    asyncio.run(main())


def test_the_library_is_imported_at_the_first_use() -> None:
    """Without LangChain the module still imports, and its object says what is missing."""
    assert "langchain_core" in import_without("langchain", "langchain_core")
