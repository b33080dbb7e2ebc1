"""How events of pydantic-ai are read: as the provider's that they stand for."""

from __future__ import annotations

from typing import Any

__all__ = ["as_chunk"]


def as_chunk(event: Any) -> dict[str, Any]:
    """The provider's event that an event of a model's response stands for, to read progress from.

    Parts are blocks, and their deltas are those of blocks: the names of one provider serve for all.
    """
    if event.event_kind == "part_start":
        part = event.part
        block: dict[str, Any] = {"type": "mcp_tool_result"}  # whatever else comes whole
        if part.part_kind in ("text", "thinking"):
            block = {"type": part.part_kind, part.part_kind: part.content}
        elif part.part_kind.endswith("tool-call"):
            block = {"type": "tool_use", "name": part.tool_name, "input": part.args}
        return {"type": "content_block_start", "index": event.index, "content_block": block}
    if event.event_kind != "part_delta":
        return {"type": "content_block_stop"}
    delta, kind = event.delta, event.delta.part_delta_kind
    if kind == "text":
        inner = {"type": "text_delta", "text": delta.content_delta}
    elif kind == "tool_call":
        inner = {"type": "input_json_delta", "partial_json": delta.args_delta}
    elif delta.content_delta:
        inner = {"type": "thinking_delta", "thinking": delta.content_delta}
    else:
        inner = {"type": "signature_delta", "signature": delta.signature_delta}
    return {"type": "content_block_delta", "index": event.index, "delta": inner}
