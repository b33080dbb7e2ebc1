"""Whole streams: recorded ones in every form, and what the SDKs make of a stream."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic._models import construct_type as construct_anthropic
from anthropic.types.beta import BetaRawMessageStreamEvent
from openai._models import construct_type as construct_openai
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from stallwatch._chunks import ERROR, KEEPALIVE, PROGRESS, TERMINAL, Classifier, Folded

RECORDED = Path(__file__).parents[2] / "shared" / "streams"
NAMES = [
    "anthropic-compaction",
    "anthropic-text",
    "anthropic-tool-call",
    "anthropic-web-search",
    "deepseek-chat-reasoning",
    "google-text",
    "mistral-chat-text",
    "openai-chat-text",
    "openai-responses-error",
    "openai-responses-reasoning-1",
    "openai-responses-reasoning-2",
    "openai-responses-reasoning-3",
    "openai-responses-reasoning-4",
    "openai-responses-web-search",
]

Read = tuple[list[int], Folded]


@pytest.fixture(params=NAMES)
def recorded(request: pytest.FixtureRequest) -> tuple[str, list[dict]]:
    """Name and events of one recorded stream."""
    file = RECORDED / f"{request.param}.jsonl"
    if not file.exists():
        pytest.skip("the recorded provider streams are not beside the repository")
    return request.param, [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def read(chunks: list[Any]) -> Read:
    """Flags of each chunk and what all of them carried."""
    reader = Classifier()
    return [reader.classify(chunk) for chunk in chunks], reader.fold(chunks, final=True)


def as_objects(name: str, events: list[dict]) -> list[Any]:
    """The events as the SDK builds them."""
    if name.startswith("anthropic"):
        return [construct_anthropic(type_=BetaRawMessageStreamEvent, value=e) for e in events]
    if name.startswith("openai-responses"):
        return [construct_openai(type_=ResponseStreamEvent, value=e) for e in events]
    return [construct_openai(type_=ChatCompletionChunk, value=e) for e in events]


def as_sse(events: list[dict], newline: str = "\n") -> list[str]:
    """The events as they are on the wire, one text each."""
    frames = []
    for event in events:
        name = f"event: {event['type']}{newline}" if "type" in event else ""
        frames.append(f"{name}data: {json.dumps(event)}{newline}{newline}")
    return frames


def test_recorded_stream_reads_alike_in_every_form(recorded: tuple[str, list[dict]]) -> None:
    """Dict, SDK object and SSE frame of one event have the same flags and the same content."""
    name, events = recorded
    expected = read(events)

    assert read(as_sse(events)) == expected
    assert read([frame.encode() for frame in as_sse(events, "\r\n")]) == expected
    if not name.startswith("google"):  # its SDK is not installed
        assert read(as_objects(name, events)) == expected


def test_recorded_stream_as_lines_and_as_cut_bytes(recorded: tuple[str, list[dict]]) -> None:
    """One line a chunk, or bytes cut every 61: the content and the number of ends stay."""
    _, events = recorded
    flags, content = read(events)
    text = "".join(as_sse(events))
    data = text.encode()

    line_flags, from_lines = read(text.split("\n"))
    cut_flags, from_cuts = read([data[at : at + 61] for at in range(0, len(data), 61)])

    assert from_lines == from_cuts == content
    said = PROGRESS | TERMINAL | ERROR
    assert [f for f in line_flags if f & said] == [f for f in flags if f & said]
    ends = [f & ~PROGRESS for f in flags if f & TERMINAL]
    assert [f & ~PROGRESS for f in cut_flags if f & TERMINAL] == ends


def test_recorded_stream_ends_once(recorded: tuple[str, list[dict]]) -> None:
    """One end, in the last event; in a chat the usage may follow, and an error is told twice."""
    name, events = recorded
    flags, _ = read(events)
    ends = [at for at, flag in enumerate(flags) if flag & TERMINAL]

    if name == "openai-responses-error":  # `error`, then `response.failed`
        assert [flags[at] for at in ends] == [TERMINAL | ERROR] * 2
        assert ends == [2, 3]
    else:
        assert len(ends) == 1
        assert not flags[ends[0]] & ERROR
        after = events[ends[0] + 1 :]
        assert all(event.get("choices") == [] for event in after)


def plain_text(events: list[dict]) -> str:
    """The answer text by the naive rule of each format, independent of the code under test."""
    out = []
    for event in events:
        if event.get("type") == "content_block_delta":
            out.append(event["delta"].get("text", ""))
        elif event.get("type") == "response.output_text.delta":
            out.append(event["delta"])
        for choice in event.get("choices", []):
            out.append(choice["delta"].get("content") or "")
        for candidate in event.get("candidates", []):
            out += [part["text"] for part in candidate["content"]["parts"]]
    return "".join(out)


def test_recorded_text_is_the_concatenation(recorded: tuple[str, list[dict]]) -> None:
    """The folded text is all text deltas in order; chunk by chunk gives the same."""
    _, events = recorded
    reader = Classifier()

    assert read(events)[1].text == plain_text(events)
    assert "".join(reader.text_of(event) for event in events) == plain_text(events)


def test_recorded_tool_arguments_are_json(recorded: tuple[str, list[dict]]) -> None:
    """The pieces of each call join to JSON, and each call has its name."""
    _, events = recorded
    calls: dict[str, str] = {}
    names: dict[str, str] = {}
    for key, name, piece in read(events)[1].tool_args:
        calls[key] = calls.get(key, "") + piece
        names.setdefault(key, name or "")

    assert all(json.loads(arguments) for arguments in calls.values())
    assert all(names.values())


def test_long_web_search_shows_life() -> None:
    """No run of events that say nothing is longer than one search and one thought."""
    for name in ("anthropic-web-search", "openai-responses-web-search"):
        file = RECORDED / f"{name}.jsonl"
        if not file.exists():
            pytest.skip("the recorded provider streams are not beside the repository")
        flags, _ = read([json.loads(line) for line in file.read_text("utf-8").splitlines()])
        marks = "".join("x" if flag & PROGRESS else "." for flag in flags)

        assert max(len(run) for run in marks.split("x")) <= 4


ANTHROPIC: list[dict] = [
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "x",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Hm"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "s"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " you"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "t", "name": "get", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'},
    },
    {"type": "content_block_stop", "index": 2},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
]


def chat(delta: dict, finish: str | None = None) -> dict:
    """A chat chunk that the SDK accepts."""
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


CHAT = [
    chat({"role": "assistant", "content": ""}),
    chat({"content": "Hi"}),
    chat({"content": " you"}),
    chat(
        {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "get"}}]}
    ),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
    chat({}, "tool_calls"),
]

Serve = Callable[[list[dict], str], httpx2.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes an HTTP client that answers any request with these events."""
    clients = []

    def make(events: list[dict], after: str) -> httpx2.Client:
        body = "".join(as_sse(events)) + after
        headers = {"content-type": "text/event-stream"}
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, headers=headers, content=body.encode())
        )
        clients.append(httpx2.Client(transport=transport))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.mark.sdk
@pytest.mark.parametrize("helper", [False, True])
def test_anthropic_stream_and_its_helper_count_the_same(serve: Serve, helper: bool) -> None:
    """`messages.stream()` adds an event per delta: neither text nor progress is counted twice."""
    client = anthropic.Anthropic(api_key="k", http_client=serve(ANTHROPIC, ""))
    request: dict[str, Any] = {"model": "x", "max_tokens": 9, "messages": []}
    if helper:
        with client.messages.stream(**request) as stream:
            chunks: list[Any] = list(stream)
    else:
        with client.messages.create(**request, stream=True) as stream:
            chunks = list(stream)

    flags, content = read(chunks)

    assert (len(chunks) > len(ANTHROPIC)) is helper
    assert flags.count(PROGRESS) == 5
    assert flags[-1] == TERMINAL
    assert sum(bool(flag & TERMINAL) for flag in flags) == 1
    assert KEEPALIVE not in flags  # the SDK keeps pings to itself
    assert (content.text, content.reasoning) == ("Hi you", "Hm")
    assert content.tool_args == (("2", "get", ""), ("2", None, '{"a": 1}'))


@pytest.mark.sdk
@pytest.mark.parametrize("helper", [False, True])
def test_chat_stream_and_its_helper_count_the_same(serve: Serve, helper: bool) -> None:
    """`chat.completions.stream()` wraps each chunk and adds events: each is counted once."""
    client = openai.OpenAI(api_key="k", http_client=serve(CHAT, "data: [DONE]\n\n"))
    request: dict[str, Any] = {"model": "x", "messages": []}
    if helper:
        with client.chat.completions.stream(**request) as stream:
            chunks: list[Any] = list(stream)
    else:
        with client.chat.completions.create(**request, stream=True) as stream:
            chunks = list(stream)

    flags, content = read(chunks)

    assert (len(chunks) > len(CHAT)) is helper
    assert flags.count(PROGRESS) == 3
    assert sum(bool(flag & TERMINAL) for flag in flags) == 1
    assert content.text == "Hi you"
    assert "".join(piece for _, _, piece in content.tool_args) == '{"a": 1}'


@pytest.mark.sdk
def test_responses_helper_counts_deltas_not_snapshots(serve: Serve) -> None:
    """`responses.stream()` puts a snapshot beside each delta, which is not text again."""
    answer: dict[str, Any] = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "x",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    item = {"type": "message", "id": "i", "role": "assistant", "status": "in_progress"}
    part = {"type": "output_text", "text": "", "annotations": []}
    done = {**item, "status": "completed", "content": [{**part, "text": "Hi you"}]}
    at: dict[str, Any] = {"output_index": 0, "item_id": "i", "content_index": 0}
    events = [
        {"type": "response.created", "response": answer},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **at, "part": part},
        {"type": "response.output_text.delta", **at, "delta": "Hi", "logprobs": []},
        {"type": "response.output_text.delta", **at, "delta": " you", "logprobs": []},
        {"type": "response.output_text.done", **at, "text": "Hi you", "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": {**answer, "status": "completed", "output": [done]},
        },
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    client = openai.OpenAI(api_key="k", http_client=serve(numbered, ""))
    with client.responses.stream(model="x", input="hello") as stream:
        chunks = list(stream)

    flags, content = read(chunks)

    assert flags == [0, 0, 0, PROGRESS, PROGRESS, 0, 0, TERMINAL]
    assert content.text == "Hi you"
