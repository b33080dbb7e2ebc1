"""LangChain's message chunks, read as the chat completions chunks that they stand for.

A message chunk comes alone out of a model, inside a generation chunk below one, and in a tuple with
its metadata out of a graph, where one message is not the end of the stream.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MESSAGE_CLASSES", "as_chat", "message_in"]

MESSAGE_CLASSES = ("AIMessageChunk", "ChatGenerationChunk")

_NOT_YET = ("tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call")
"""Blocks that say again what is among the tool calls of the message."""


def message_in(chunk: tuple[Any, ...]) -> Any:
    """The message chunk in what a graph streams: `(message, metadata)`, or that beside a name."""
    for part in chunk:
        if type(part).__name__ in MESSAGE_CLASSES:
            return part
        if isinstance(part, tuple):
            found = message_in(part)
            if found is not None:
                return found
    return None


def as_chat(chunk: Any) -> dict[str, Any]:
    """The chunk as one of chat completions, so that one set of rules serves for both."""
    message = getattr(chunk, "message", chunk)
    told = {**(getattr(chunk, "generation_info", None) or {}), **message.response_metadata}
    last = getattr(message, "chunk_position", None) == "last"
    delta: dict[str, Any] = {"content": "", "reasoning_content": "", "images": []}
    if isinstance(message.content, str):
        delta["content"] = message.content
    else:
        for block in message.content:
            _add(block, delta)
    delta["reasoning_content"] += message.additional_kwargs.get("reasoning_content") or ""
    delta["tool_calls"] = [
        {"index": call.get("index"), "function": {"name": call["name"], "arguments": call["args"]}}
        for call in message.tool_call_chunks
    ]
    reason = told.get("finish_reason") or told.get("stop_reason") or ("stop" if last else None)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _add(block: Any, delta: dict[str, Any]) -> None:
    if isinstance(block, str):
        delta["content"] += block
        return
    kind = block.get("type")
    if kind in ("text", "refusal"):
        delta["content"] += block.get(kind) or ""
        delta["images"] += block.get("citations") or block.get("annotations") or []
    elif kind in ("thinking", "reasoning"):
        delta["reasoning_content"] += block.get(kind) or ""
        for part in block.get("summary") or ():
            delta["reasoning_content"] += part.get("text") or ""
        if block.get("signature") or block.get("encrypted_content"):
            delta["images"].append(kind)
    elif kind not in _NOT_YET and kind != "input_json_delta":
        delta["images"].append(kind)  # whatever else, the model has made it
