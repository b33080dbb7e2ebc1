"""The fault server, through raw sockets and through the real SDKs."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stallwatch.cli import main
from stallwatch.faults import Fault, FaultServer, RequestRecord, Scenario
from stallwatch.faults._plan import Cut, Headers, KeepAlives, Send, Silence, Status, plan
from stallwatch.faults._scenario import FORMS, from_model
from stallwatch.faults._scripts import events_of
from stallwatch.faults._wire import Api, keep_alive

STREAMS = Path(__file__).resolve().parents[2] / "shared" / "streams"
RECORDED = [
    *("anthropic-compaction", "anthropic-text", "anthropic-tool-call", "anthropic-web-search"),
    *("openai-chat-text", "deepseek-chat-reasoning", "mistral-chat-text"),
    *("openai-responses-error", "openai-responses-web-search"),
    *(f"openai-responses-reasoning-{n}" for n in range(1, 5)),
]
APIS = list(Api)
PATHS = {
    Api.OPENAI_CHAT: "/v1/chat/completions",
    Api.OPENAI_RESPONSES: "/v1/responses",
    Api.ANTHROPIC: "/v1/messages",
}
# Far above what loopback needs, far below a test's own limit.
SOON = 2.0


def run(coro: Coroutine[Any, Any, Any]) -> Any:
    """Run one async test body on a fresh loop."""
    return asyncio.run(coro)


async def stream_of(
    server: FaultServer, api: Api, model: str = "any", *, retries: int = 0, timeout: Any = 30
) -> AsyncIterator[Any]:
    """The events an unguarded SDK client of this API yields."""
    options: dict[str, Any] = {"api_key": "any", "max_retries": retries, "timeout": timeout}
    messages: Any = [{"role": "user", "content": "hello"}]
    if api is Api.ANTHROPIC:
        anthropic = pytest.importorskip("anthropic")
        async with anthropic.AsyncAnthropic(base_url=server.anthropic_url, **options) as client:
            stream = await client.messages.create(
                model=model, messages=messages, max_tokens=99, stream=True
            )
            async with stream:
                async for event in stream:
                    yield event
        return
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=server.openai_url, **options) as client:
        if api is Api.OPENAI_CHAT:
            stream = await client.chat.completions.create(
                model=model, messages=messages, stream=True
            )
        else:
            stream = await client.responses.create(model=model, input="hello", stream=True)
        async with stream:
            async for event in stream:
                yield event


async def ask(
    server: FaultServer, api: Api, model: str = "any", **kwargs: Any
) -> tuple[list[Any], Exception | None]:
    """All events of one answer, and the error that ended it if one did."""
    events: list[Any] = []
    try:
        async for event in stream_of(server, api, model, **kwargs):
            events.append(event)
    except Exception as error:
        return events, error
    return events, None


async def raw(server: FaultServer, api: Api, model: str, *, limit: float = SOON) -> bytes:
    """The bytes of an answer, as far as they come within `limit` seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
    body = json.dumps({"model": model, "stream": True}).encode()
    head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    received = bytearray()
    try:
        async with asyncio.timeout(limit):
            while data := await reader.read(65536):
                received += data
    except TimeoutError:
        pass
    finally:
        writer.close()
    return bytes(received)


def silent_end(record: RequestRecord) -> bool:
    """Whether the server ended the answer itself, in full."""
    return record.finished and record.closed_by_peer_at is None


# Scenarios and plans: no socket.


def test_fault_prints_its_label() -> None:
    """A fault reads as its label in str, f-strings and format."""
    assert str(Fault.SILENCE) == "stall"
    assert f"{Fault.RESET}" == "rst"
    assert format(Fault.OK, ">4") == "  ok"


def test_every_fault_has_a_form() -> None:
    """Each fault can be asked for by a model name, and the help lists exactly these."""
    assert set(FORMS) == set(Fault)
    for fault in Fault:
        scenario = from_model(str(fault), Scenario())
        assert scenario is not None
        assert scenario.fault is fault


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("stall:5", {"fault": Fault.SILENCE, "at": 5}),
        ("stall:5:0.5", {"fault": Fault.SILENCE, "at": 5, "duration": 0.5}),
        ("ping:2", {"fault": Fault.PINGS, "at": 2}),
        ("slow-first:2.0", {"fault": Fault.SLOW_FIRST, "duration": 2.0}),
        ("drip:0.05", {"fault": Fault.DRIP, "delay": 0.05}),
        ("rst:3@tool", {"fault": Fault.RESET, "at": 3, "stream": "builtin:tool"}),
    ],
)
def test_model_name_names_a_scenario(model: str, changes: dict[str, Any]) -> None:
    """A model name sets the fault and its numbers."""
    assert from_model(model, Scenario()) == Scenario(**changes)


def test_model_name_keeps_the_rest_of_the_default() -> None:
    """What a model name leaves out comes from the server's default scenario."""
    base = Scenario(stream="builtin:tool", delay=0.5, keepalive="both")

    scenario = from_model("trunc:1", base)

    assert scenario == Scenario(
        fault=Fault.TRUNCATE, at=1, stream="builtin:tool", delay=0.5, keepalive="both"
    )


@pytest.mark.parametrize("model", ["stall:x", "ok:3", "rst:-1", "drip:0", "stall:1@nothing"])
def test_mistyped_model_scenario_is_refused(model: str) -> None:
    """A fault with bad numbers is an error, not an ordinary model name."""
    with pytest.raises(ValueError):
        from_model(model, Scenario())


def test_ordinary_model_names_are_no_scenario() -> None:
    """Model names of real providers are left alone."""
    assert from_model("gpt-5-mini", Scenario()) is None
    assert from_model("ft:gpt-5:me", Scenario()) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"at": -1},
        {"delay": -1.0},
        {"every": 0.0},
        {"duration": float("inf")},
        {"fault": Fault.DRIP},
        {"fault": Fault.SLOW_FIRST},
        {"stream": "builtin:nothing"},
        {"keepalive": "sometimes"},
        {"fault": "bogus"},
    ],
)
def test_impossible_scenarios_are_refused(bad: dict[str, Any]) -> None:
    """A scenario that cannot be played fails where it is built."""
    with pytest.raises(ValueError):
        Scenario(**bad)


@pytest.mark.parametrize(
    ("model", "before_end", "special"),
    [
        ("ok", 2, None),
        ("nohead", 2, Silence(None)),
        ("stall:1", 2, Silence(None)),
        ("noend", 2, Silence(None)),
        ("linger", 2, Silence(None)),
        ("ping:1", 2, KeepAlives(None, 0.1)),
        ("slow-first:1", 2, KeepAlives(1.0, 0.1)),
        ("rst:1", 1, Cut(reset=True)),
        ("fin:1", 1, Cut(reset=False)),
        ("trunc:1", 1, None),
        ("http500", 0, Status(500)),
        ("http529", 0, Status(529)),
    ],
)
def test_plan_of_each_fault(model: str, before_end: int, special: object) -> None:
    """Each fault is the whole answer with one step put in or the tail left out."""
    scenario = from_model(model, Scenario())
    assert scenario is not None
    events = [{"type": "message_start"}, {"type": "message_stop"}]

    steps = list(plan(scenario, Api.ANTHROPIC, events))

    assert sum(step.events for step in steps if isinstance(step, Send)) == before_end
    others = [step for step in steps if not isinstance(step, Send | Headers)]
    assert others == ([special] if special else [])


@pytest.mark.parametrize("api", APIS)
def test_position_beyond_the_end_is_before_the_end_marker(api: Api) -> None:
    """A fault at an event the stream does not have strikes before the end marker."""
    events = events_of("builtin:text", api=api, model="m")
    marker = 0 if api is Api.OPENAI_CHAT else 1

    steps = list(plan(Scenario(fault=Fault.TRUNCATE, at=10_000), api, events))

    assert sum(isinstance(step, Send) for step in steps) == len(events) - marker


def test_keep_alives_are_what_the_provider_sends() -> None:
    """By default Anthropic pings and OpenAI comments; chat has no ping event at all."""
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    assert keep_alive(Api.ANTHROPIC, "auto", 0) == ping
    assert keep_alive(Api.OPENAI_CHAT, "auto", 0).startswith(b":")
    assert keep_alive(Api.OPENAI_CHAT, "ping", 0).startswith(b":")
    assert keep_alive(Api.ANTHROPIC, "both", 0).endswith(ping)
    assert b"keepalive" in keep_alive(Api.OPENAI_RESPONSES, "ping", 7)


def test_stream_file_with_a_bad_line_is_named(tmp_path: Path) -> None:
    """A broken stream file is refused by `play`, with the line that is at fault."""
    path = tmp_path / "stream.jsonl"
    path.write_text('{"type":"ping"}\n\nnot json\n')

    with pytest.raises(ValueError, match=r"stream\.jsonl:3"):
        FaultServer().play(Scenario(stream=path))


# The wire, without an SDK.


@pytest.mark.parametrize("api", APIS)
def test_wire_form(api: Api) -> None:
    """Chat sends bare data lines and `[DONE]`; the other two name each event after its type."""

    async def body() -> None:
        async with FaultServer() as server:
            data = await raw(server, api, "ok")
            record = server.requests[-1]

        assert b"text/event-stream" in data
        assert (b"data: [DONE]\n\n" in data) is (api is Api.OPENAI_CHAT)
        assert (b"event: " in data) is (api is not Api.OPENAI_CHAT)
        assert silent_end(record)
        assert record.events_sent == data.count(b"data: {") >= 12

    run(body())


def test_queue_then_default() -> None:
    """`play` gives one scenario to each next request and leaves the last in place."""

    async def body() -> list[Fault]:
        async with FaultServer() as server:
            server.play(Scenario(fault=Fault.HTTP_500), Scenario(fault=Fault.TRUNCATE), Scenario())
            for model in ("a", "rst:0", "b", "c", "d"):
                with contextlib.suppress(ConnectionResetError):
                    await raw(server, Api.ANTHROPIC, model)
            return [record.scenario.fault for record in server.requests]

    assert run(body()) == [Fault.HTTP_500, Fault.RESET, Fault.TRUNCATE, Fault.OK, Fault.OK]


@pytest.mark.slow
def test_silence_is_silence_and_close_is_seen() -> None:
    """A stalled answer sends nothing more, and the client's close is noticed while it is silent."""

    async def body() -> None:
        async with FaultServer() as server:
            data = await raw(server, Api.OPENAI_CHAT, "stall:2", limit=0.3)
            left = time.monotonic()
            closed = await server.requests[-1].wait_closed(SOON)

        assert data.count(b"data: ") == 2
        assert closed is not None
        assert closed - left < 0.5

    run(body())


def test_no_headers_means_no_byte() -> None:
    """Silence before the headers does not send even a status line."""

    async def body() -> bytes:
        async with FaultServer() as server:
            return await raw(server, Api.ANTHROPIC, "nohead", limit=0.3)

    assert run(body()) == b""


def test_pings_go_on_after_the_event() -> None:
    """After event k only keep-alives come, again and again."""

    async def body() -> None:
        async with FaultServer() as server:
            data = await raw(server, Api.ANTHROPIC, "ping:2:0.02", limit=0.4)
            record = server.requests[-1]
            await record.wait_closed(SOON)

        assert record.events_sent == 2
        assert data.count(b"event: ping") >= 3
        assert data.count(b"event: ") == 2 + data.count(b"event: ping")

    run(body())


def test_silence_with_a_duration_ends_in_the_answer() -> None:
    """A silence or a row of keep-alives with a duration is followed by the rest."""

    async def body() -> None:
        async with FaultServer() as server:
            for model in ("stall:2:0.1", "slow-first:0.1:0.02", "noend:0.1", "nohead:0.1"):
                data = await raw(server, Api.OPENAI_CHAT, model)
                record = server.requests[-1]

                assert b"[DONE]" in data
                assert silent_end(record)
                assert record.ended_at is not None
                assert record.ended_at - record.opened_at >= 0.09

    run(body())


def test_byte_drip_splits_events() -> None:
    """The byte drip sends each byte in a chunk of its own."""

    async def body() -> bytes:
        async with FaultServer() as server:
            stream = [{"type": "message_stop"}]
            server.play(Scenario(fault=Fault.DRIP_BYTES, delay=0.001, stream=stream))
            return await raw(server, Api.ANTHROPIC, "any")

    data = run(body())
    assert b"1\r\ne\r\n1\r\nv\r\n1\r\ne\r\n" in data


def test_reset_and_fin_differ() -> None:
    """A reset is an error of the socket; a bare FIN is an end inside the body."""

    async def body() -> None:
        async with FaultServer() as server:
            with pytest.raises(ConnectionResetError):
                await raw(server, Api.ANTHROPIC, "rst:2")
            cut = await raw(server, Api.ANTHROPIC, "fin:2")
            ended = await raw(server, Api.ANTHROPIC, "trunc:2")

        assert not cut.endswith(b"0\r\n\r\n")
        assert ended.endswith(b"0\r\n\r\n")
        assert cut.count(b"data: ") == ended.count(b"data: ") == 2

    run(body())


def test_impossible_request_is_a_400() -> None:
    """A mistyped scenario is answered with 400, which no SDK retries, and says what is wrong."""

    async def body() -> bytes:
        async with FaultServer() as server:
            return await raw(server, Api.ANTHROPIC, "stall:x")

    data = run(body())
    assert data.startswith(b"HTTP/1.1 400")
    assert b"stall[:AT[:DURATION]]" in data


def test_stop_drops_open_requests() -> None:
    """Stopping ends a stalled request at once and does not call it the client's close."""

    async def body() -> None:
        async with FaultServer() as server:
            pull = asyncio.create_task(raw(server, Api.ANTHROPIC, "stall:1", limit=30))
            while not server.requests or server.requests[-1].events_sent < 1:
                await asyncio.sleep(0.01)
            began = time.monotonic()
        data = await pull
        record = server.requests[-1]

        assert time.monotonic() - began < SOON
        assert not data.endswith(b"0\r\n\r\n"), "an orderly end would be a lie"
        assert not record.finished
        assert record.closed_by_peer_at is None
        assert await record.wait_closed(SOON) is None
        with pytest.raises(RuntimeError, match="not running"):
            _ = server.url

    run(body())


def test_wait_closed_gives_up() -> None:
    """Waiting for the close of an answer that stays open raises `TimeoutError`."""

    async def body() -> None:
        async with FaultServer() as server:
            pull = asyncio.create_task(raw(server, Api.ANTHROPIC, "stall:0", limit=30))
            while not server.requests:
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                await server.requests[-1].wait_closed(0.05)
            pull.cancel()
            assert await server.requests[-1].wait_closed(SOON) is not None

    run(body())


def test_port_in_use_is_an_error() -> None:
    """A port that is taken fails the start, in the thread form too, and leaves no thread."""

    async def body() -> None:
        async with FaultServer() as server:
            port = int(server.url.split(":")[-1])
            with pytest.raises(OSError):
                async with FaultServer(port=port):
                    pass
            with pytest.raises(OSError):
                with FaultServer.serve_in_thread(port=port):
                    pass

    run(body())
    assert "stallwatch-faults" not in {thread.name for thread in threading.enumerate()}


def test_missing_aiohttp_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without aiohttp the server says which extra to install."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install stallwatch\[faults\]"):
        run(FaultServer().start())


# What unguarded SDK clients make of each fault.


@pytest.mark.sdk
@pytest.mark.parametrize("script", ["text", "reasoning", "tool"])
@pytest.mark.parametrize("api", APIS)
def test_builtin_stream_arrives_whole(api: Api, script: str) -> None:
    """Every built-in stream passes the SDK whole; Anthropic's SDK keeps pings to itself."""

    async def body() -> None:
        async with FaultServer() as server:
            events, error = await ask(server, api, f"ok@{script}")
            record = server.requests[-1]
        sent = events_of(f"builtin:{script}", api=api, model="m")

        assert error is None
        assert len(events) == len([event for event in sent if event.get("type") != "ping"])
        assert record.events_sent == len(sent) >= 12
        assert silent_end(record)

    run(body())


@pytest.mark.sdk
def test_builtin_streams_satisfy_the_accumulating_helpers() -> None:
    """The SDKs' own stream helpers rebuild text and tool call from the built-in streams."""
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")

    async def body() -> None:
        ask_with: Any = [{"role": "user", "content": "hello"}]
        async with (
            FaultServer() as server,
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="k") as gpt,
            anthropic.AsyncAnthropic(base_url=server.anthropic_url, api_key="k") as claude,
        ):
            async with claude.messages.stream(
                model="ok", messages=ask_with, max_tokens=99
            ) as messages:
                text = await messages.get_final_text()
            async with claude.messages.stream(
                model="ok@tool", messages=ask_with, max_tokens=99
            ) as messages:
                tool = (await messages.get_final_message()).content[0]
            async with gpt.chat.completions.stream(model="ok", messages=ask_with) as chat:
                completion = await chat.get_final_completion()
            async with gpt.responses.stream(model="ok", input="hello") as responses:
                response = await responses.get_final_response()

        assert text.startswith("A stall is a promise")
        assert completion.choices[0].message.content == text
        assert response.output_text == text
        assert tool.input == {"path": "/var/log/agent.log", "lines": 20, "follow": False}

    run(body())


@pytest.mark.sdk
@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_unguarded_client_waits_on(api: Api) -> None:
    """An unguarded client is still waiting after three small limits; its cancel is seen at once.

    Real time: the close must be seen within 0.5 s, where loopback needs a few milliseconds.
    """
    small_limit = 0.3
    models = ("nohead", "stall:0", "stall:3", "noend", "ping:3:0.05")

    async def body() -> None:
        async with FaultServer() as server:
            tasks = {asyncio.create_task(ask(server, api, model)) for model in models}
            _, waiting = await asyncio.wait(tasks, timeout=3 * small_limit)
            assert waiting == tasks
            assert {record.model for record in server.requests} == set(models)
            assert not any(record.closed_by_peer_at for record in server.requests)

            cancelled = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
            closed = [await record.wait_closed(SOON) for record in server.requests]

        assert all(at is not None and at - cancelled < 0.5 for at in closed)
        assert len(server.requests) == len(models)

    run(body())


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize("api", [Api.OPENAI_RESPONSES, Api.ANTHROPIC])
def test_lingering_socket_keeps_the_client(api: Api) -> None:
    """After the terminal event the client still waits for the end of the body."""

    async def body() -> None:
        async with FaultServer() as server:
            task = asyncio.create_task(ask(server, api, "linger"))
            _, waiting = await asyncio.wait({task}, timeout=0.9)
            assert task in waiting
            total = len(events_of("builtin:text", api=api, model="m"))
            assert server.requests[-1].events_sent == total
            task.cancel()
            assert await server.requests[-1].wait_closed(SOON) is not None

    run(body())


@pytest.mark.sdk
def test_chat_ends_at_done_though_the_socket_lingers() -> None:
    """The chat client ends at `[DONE]` by itself and closes the lingering connection."""

    async def body() -> None:
        async with FaultServer() as server:
            events, error = await ask(server, Api.OPENAI_CHAT, "linger")
            closed = await server.requests[-1].wait_closed(SOON)

        assert error is None
        assert len(events) == 14
        assert closed is not None

    run(body())


@pytest.mark.sdk
@pytest.mark.parametrize(
    ("model", "chat", "responses", "anthropic"),
    [
        ("rst:3", "APIConnectionError", "APIConnectionError", "ReadError"),
        ("fin:3", "APIConnectionError", "APIConnectionError", "RemoteProtocolError"),
        ("error:3", "APIError", "APIError", "APIStatusError"),
        ("trunc:3", None, None, None),
    ],
)
@pytest.mark.parametrize("api", APIS)
def test_fault_in_the_middle(
    api: Api, model: str, chat: str | None, responses: str | None, anthropic: str | None
) -> None:
    """A fault after event 3 lets three events through, then ends as the SDK has it."""
    wanted = dict(zip(APIS, (chat, responses, anthropic), strict=True))[api]

    async def body() -> None:
        async with FaultServer() as server:
            events, error = await ask(server, api, model, retries=2)
            assert silent_end(server.requests[-1])

        assert len(events) == 3
        assert (type(error).__name__ if error else None) == wanted
        assert len(server.requests) == 1, "the SDKs never retry a stream that has begun"

    run(body())


@pytest.mark.sdk
@pytest.mark.parametrize(
    ("model", "status", "anthropic"),
    [("http500", 500, "InternalServerError"), ("http529", 529, "OverloadedError")],
)
@pytest.mark.parametrize("api", APIS)
def test_http_errors(api: Api, model: str, status: int, anthropic: str) -> None:
    """HTTP errors come as the SDK's own class, and the SDK retries them when allowed to."""

    async def body() -> None:
        async with FaultServer() as server:
            events, error = await ask(server, api, model, retries=1)
            attempts = len(server.requests)

        assert events == []
        assert getattr(error, "status_code", None) == status
        wanted = anthropic if api is Api.ANTHROPIC else "InternalServerError"
        assert type(error).__name__ == wanted
        assert attempts == 2

    run(body())


@pytest.mark.sdk
@pytest.mark.parametrize(
    ("model", "wanted"),
    [("stall:3", {"APITimeoutError", "ReadTimeout"}), ("nohead", {"APITimeoutError"})],
)
@pytest.mark.parametrize("api", APIS)
def test_read_timeout(api: Api, model: str, wanted: set[str]) -> None:
    """A read timeout of the client's own ends a silent stream with one request made."""

    async def body() -> None:
        async with FaultServer() as server:
            _, error = await ask(server, api, model, timeout=0.3)
            assert await server.requests[-1].wait_closed(SOON) is not None

        assert type(error).__name__ in wanted
        assert len(server.requests) == 1

    run(body())


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize("api", APIS)
def test_pings_defeat_a_read_timeout(api: Api) -> None:
    """Keep-alives reset a read timeout forever and never reach the client's consumer."""

    async def body() -> None:
        async with FaultServer() as server:
            task = asyncio.create_task(ask(server, api, "ping:3:0.05", timeout=0.6))
            _, waiting = await asyncio.wait({task}, timeout=1.5)
            assert task in waiting
            record = server.requests[-1]
            task.cancel()
            assert await record.wait_closed(SOON) is not None

        assert record.events_sent == 3
        assert record.keepalives_sent >= 5

    run(body())


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("model", ["drip:0.01", "slow-first:0.2:0.05"])
def test_slow_answers_arrive_whole(api: Api, model: str) -> None:
    """A slow answer is late, not broken."""

    async def body() -> None:
        async with FaultServer() as server:
            events, error = await ask(server, api, model)
            record = server.requests[-1]

        assert error is None
        assert len(events) >= 12
        assert record.ended_at is not None
        assert record.ended_at - record.opened_at >= 0.12

    run(body())


@pytest.mark.sdk
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream_arrives_whole(name: str) -> None:
    """A recorded stream reaches the SDK's consumer event for event, up to an error in it."""
    path = STREAMS / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"recorded streams are not here: no {path.name} beside the repository")
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    api = Api.ANTHROPIC if name.startswith("anthropic") else Api.OPENAI_CHAT
    if name.startswith("openai-responses"):
        api = Api.OPENAI_RESPONSES
    kinds = [line.get("type") for line in lines]
    seen = kinds[: kinds.index("error")] if "error" in kinds else kinds

    async def body() -> None:
        async with FaultServer(Scenario(stream=path)) as server:
            events, error = await ask(server, api)
            record = server.requests[-1]

        assert len(events) == len([kind for kind in seen if kind != "ping"])
        if "error" in kinds:
            assert type(error).__name__ == "APIError"
        else:
            assert error is None
            assert record.events_sent == len(lines)
            assert silent_end(record)

    run(body())


@pytest.mark.sdk
def test_blocking_clients_use_the_server_in_a_thread() -> None:
    """A blocking SDK client is served by a thread, and its close is seen from the caller's."""
    openai = pytest.importorskip("openai")
    anthropic = pytest.importorskip("anthropic")
    messages: Any = [{"role": "user", "content": "hello"}]

    with FaultServer.serve_in_thread() as server:
        server.play(Scenario(fault=Fault.TRUNCATE, at=5))
        with openai.OpenAI(base_url=server.openai_url, api_key="k", max_retries=0) as client:
            with client.chat.completions.create(
                model="any", messages=messages, stream=True
            ) as stream:
                chunks = list(stream)
        client = anthropic.Anthropic(base_url=server.anthropic_url, api_key="k", max_retries=0)
        with client:
            stream = client.messages.create(
                model="stall:4", messages=messages, max_tokens=9, stream=True
            )
            first = [next(stream) for _ in range(4)]
        # Closing the client closes its connection, and with it the stalled answer.
        closed = server.requests[-1].wait_closed_sync(SOON)
        stream.close()

    assert len(chunks) == 5
    assert len(first) == 4
    assert closed is not None
    assert "stallwatch-faults" not in {thread.name for thread in threading.enumerate()}


# The command.


def test_command_serves_until_interrupted(tmp_path: Path) -> None:
    """`stallwatch faults` prints its URL, a line per request, and exits 0 on Ctrl-C."""
    path = tmp_path / "stream.jsonl"
    path.write_text('{"type":"message_start"}\n{"type":"message_stop"}\n')
    command = [sys.executable, "-m", "stallwatch", "faults", "--port", "0", "--stream", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        url = child.stdout.readline().strip()
        server: Any = type("Remote", (), {"url": url})
        data = run(raw(server, Api.ANTHROPIC, "any"))
        stalled = run(raw(server, Api.ANTHROPIC, "stall:1", limit=0.3))
        lines = [child.stdout.readline(), child.stdout.readline()]
        child.send_signal(signal.SIGINT)
        status = child.wait(10)
        rest = child.stdout.read() + child.stderr.read()

    assert url.startswith("http://127.0.0.1:")
    assert data.count(b"data: ") == 2
    assert stalled.count(b"data: ") == 1
    assert lines[0].startswith("anthropic ok: 2 events, finished")
    assert lines[1].startswith("anthropic stall:1: 1 events, closed by the client")
    assert (status, rest) == (0, "")


def test_command_help_lists_the_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every scenario that a model name can ask for, and the exit status."""
    with pytest.raises(SystemExit) as exit_:
        main(["faults", "--help"])
    text = capsys.readouterr().out

    assert exit_.value.code == 0
    for fault in Fault:
        assert f"\n  {fault}" in text
    assert "exit status 0" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fault", "slow-first"], "slow-first needs a duration"),
        (["--stream", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["--at", "-1"], "at must be 0 or more"),
    ],
)
def test_command_refuses_what_it_cannot_play(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scenario that cannot be played ends the command with 1 and one line of complaint."""
    assert main(["faults", *arguments]) == 1
    assert complaint in capsys.readouterr().err


def test_command_version_and_missing_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the version; no command at all is a usage error."""
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == "stallwatch 0.1.0\n"

    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2


def test_command_import_is_light() -> None:
    """Importing the command loads neither asyncio nor aiohttp nor the server."""
    code = (
        "import sys, stallwatch.cli\n"
        "print([m for m in ('asyncio', 'aiohttp', 'stallwatch.faults') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
