"""The streams an answer is made of: built-in ones in each API's form, and files.

Built-in streams are complete enough for the SDKs' accumulating helpers (`messages.stream()` and the
like). The ping of the Anthropic ones comes late, so that the first events of every built-in stream
reach an SDK's consumer one for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._scenario import Stream
from ._wire import Api

_TEXT = (
    "A stall ", "is a promise ", "of progress ", "that nobody ", "kept. ", "The clock ",
    "that notices ", "it must ", "belong to ", "whoever ", "made ", "the promise.",
)  # fmt: skip
_THOUGHT = (
    "Who is ", "being waited ", "for? ", "The tool ", "has its ", "own clock, ", "so the ",
    "model ", "must be ", "the silent ", "one.",
)  # fmt: skip
_TOOL = "read_log"
_ARGUMENTS = (
    '{"pa', 'th": "', "/var/", "log/", "agent", '.log"', ', "li', 'nes"', ": 2", "0, ",
    '"follow"', ": fal", "se}",
)  # fmt: skip
_ID = "stallwatch-1"
_CREATED = 1_700_000_000
_PROMPT_TOKENS = 12

_Events = Iterator[dict[str, Any]]


def events_of(stream: Stream, *, api: Api, model: str) -> list[dict[str, Any]]:
    """The events of a stream; files and lists are played as they are, whatever the API."""
    if isinstance(stream, str) and stream.startswith("builtin:"):
        return list(_BUILTIN[api](stream.removeprefix("builtin:"), model))
    if isinstance(stream, str | Path):
        return read_file(Path(stream))
    return [dict(event) for event in stream]


def read_file(path: Path) -> list[dict[str, Any]]:
    """Read a stream file: one JSON object a line, empty lines skipped."""
    events = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(event, dict):
            raise ValueError(f"{path}:{number}: an event is a JSON object")
        events.append(event)
    return events


def _chat(name: str, model: str) -> _Events:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{_ID}",
            "object": "chat.completion.chunk",
            "created": _CREATED,
            "model": model,
            "choices": [
                {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            ],
        }  # fmt: skip

    def call(**fields: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": 0, **fields}]})

    yield chunk({"role": "assistant", "content": None if name == "tool" else ""})
    if name == "tool":
        function = {"name": _TOOL, "arguments": ""}
        yield call(id=f"call_{_ID}", type="function", function=function)
        for piece in _ARGUMENTS:
            yield call(function={"arguments": piece})
        yield chunk({}, "tool_calls")
        return
    if name == "reasoning":
        # No official field: this is the one DeepSeek and its followers use.
        for piece in _THOUGHT:
            yield chunk({"reasoning_content": piece})
    for piece in _TEXT:
        yield chunk({"content": piece})
    yield chunk({}, "stop")


def _anthropic(name: str, model: str) -> _Events:
    def usage(output: int) -> dict[str, int]:
        return {"input_tokens": _PROMPT_TOKENS, "output_tokens": output}

    def block(index: int, start: dict[str, Any], deltas: list[dict[str, Any]]) -> _Events:
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for number, delta in enumerate(deltas):
            if number == 4:
                yield {"type": "ping"}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    message: dict[str, Any] = {
        "id": f"msg_{_ID}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(1),
    }
    yield {"type": "message_start", "message": message}
    index = 0
    start: dict[str, Any]
    if name == "reasoning":
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in _THOUGHT]
        signature = {"type": "signature_delta", "signature": "c3RhbGx3YXRjaA=="}
        start = {"type": "thinking", "thinking": "", "signature": ""}
        yield from block(index, start, [*thought, signature])
        index += 1
    if name == "tool":
        start = {"type": "tool_use", "id": f"toolu_{_ID}", "name": _TOOL, "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _ARGUMENTS]
        yield from block(index, start, pieces)
    else:
        pieces = [{"type": "text_delta", "text": piece} for piece in _TEXT]
        yield from block(index, {"type": "text", "text": ""}, pieces)
    delta = {"stop_reason": "tool_use" if name == "tool" else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": usage(len(_TEXT))}
    yield {"type": "message_stop"}


def _responses(name: str, model: str) -> _Events:
    for number, event in enumerate(_responses_unnumbered(name, model)):
        yield {"type": event.pop("type"), "sequence_number": number, **event}


def _responses_unnumbered(name: str, model: str) -> _Events:
    output: list[dict[str, Any]] = []

    def response(kind: str, status: str) -> dict[str, Any]:
        details: dict[str, Any] = {"usage": None}
        if status == "completed":
            count = len(_TEXT)
            details["usage"] = {
                "input_tokens": _PROMPT_TOKENS,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": count,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": _PROMPT_TOKENS + count,
            }
        body = {
            "id": f"resp_{_ID}",
            "object": "response",
            "created_at": _CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": model,
            "output": list(output),
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            **details,
        }
        return {"type": f"response.{kind}", "response": body}

    def item(kind: str, value: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": f"response.output_item.{kind}",
            "output_index": len(output),
            "item": value,
        }

    def at(kind: str, item_id: str, **fields: Any) -> dict[str, Any]:
        return {
            "type": f"response.{kind}",
            "item_id": item_id,
            "output_index": len(output),
            **fields,
        }

    empty: dict[str, Any]
    yield response("created", "in_progress")
    yield response("in_progress", "in_progress")

    if name == "reasoning":
        key, thought = f"rs_{_ID}", "".join(_THOUGHT)
        yield item("added", {"id": key, "type": "reasoning", "summary": []})
        empty = {"type": "summary_text", "text": ""}
        full = {"type": "summary_text", "text": thought}
        part = "reasoning_summary_part"
        yield at(f"{part}.added", key, summary_index=0, part=empty)
        for piece in _THOUGHT:
            yield at("reasoning_summary_text.delta", key, summary_index=0, delta=piece)
        yield at("reasoning_summary_text.done", key, summary_index=0, text=thought)
        yield at(f"{part}.done", key, summary_index=0, part=full)
        done = {"id": key, "type": "reasoning", "summary": [full]}
        yield item("done", done)
        output.append(done)

    if name == "tool":
        key, arguments = f"fc_{_ID}", "".join(_ARGUMENTS)
        call = {"id": key, "type": "function_call", "call_id": f"call_{_ID}", "name": _TOOL}
        yield item("added", {**call, "status": "in_progress", "arguments": ""})
        for piece in _ARGUMENTS:
            yield at("function_call_arguments.delta", key, delta=piece)
        yield at("function_call_arguments.done", key, name=_TOOL, arguments=arguments)
        done = {**call, "status": "completed", "arguments": arguments}
    else:
        key, text = f"msg_{_ID}", "".join(_TEXT)
        message = {"id": key, "type": "message", "role": "assistant"}
        yield item("added", {**message, "status": "in_progress", "content": []})
        place: dict[str, Any] = {"content_index": 0}
        empty = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        full = {**empty, "text": text}
        yield at("content_part.added", key, **place, part=empty)
        for piece in _TEXT:
            yield at("output_text.delta", key, **place, delta=piece, logprobs=[])
        yield at("output_text.done", key, **place, text=text, logprobs=[])
        yield at("content_part.done", key, **place, part=full)
        done = {**message, "status": "completed", "content": [full]}
    yield item("done", done)
    output.append(done)
    yield response("completed", "completed")


_BUILTIN = {
    Api.OPENAI_CHAT: _chat,
    Api.OPENAI_RESPONSES: _responses,
    Api.ANTHROPIC: _anthropic,
}
