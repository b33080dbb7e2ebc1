"""Events as bytes on the wire, per provider API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ._scenario import KeepAlive

Event = Mapping[str, Any]

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class Api(StrEnum):
    """The three APIs the server speaks."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


PATHS: Mapping[str, Api] = {
    "/v1/chat/completions": Api.OPENAI_CHAT,
    "/v1/responses": Api.OPENAI_RESPONSES,
    "/v1/messages": Api.ANTHROPIC,
}

_ENDS = {
    Api.OPENAI_CHAT: frozenset[str](),
    Api.OPENAI_RESPONSES: frozenset(
        {"response.completed", "response.incomplete", "response.failed"}
    ),
    Api.ANTHROPIC: frozenset({"message_stop"}),
}


def encode(api: Api, event: Event) -> bytes:
    """One SSE event; chat names no event, the other two name it after its `type`."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    if api is Api.OPENAI_CHAT or "type" not in event:
        return f"data: {data}\n\n".encode()
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


def is_end(api: Api, event: Event) -> bool:
    """Whether this event is the API's end marker (chat has none: there `DONE` is)."""
    return event.get("type") in _ENDS[api]


def keep_alive(api: Api, kind: KeepAlive, sequence: int) -> bytes:
    """One keep-alive. `sequence` is the number of events sent, for the APIs that count them."""
    ping = b""
    if kind == "both" or kind == "ping" or (kind == "auto" and api is Api.ANTHROPIC):
        if api is Api.ANTHROPIC:
            ping = encode(api, {"type": "ping"})
        elif api is Api.OPENAI_RESPONSES:
            ping = encode(api, {"type": "keepalive", "sequence_number": sequence})
    comment = COMMENT if kind in ("comment", "both") or not ping else b""
    return comment + ping


def error_event(api: Api, sequence: int) -> bytes:
    """The provider's own error event, as it comes in the middle of a stream."""
    if api is Api.ANTHROPIC:
        return encode(api, error_body(api, 529))
    error = error_body(api, 500)
    if api is Api.OPENAI_RESPONSES:
        error = {"type": "error", "sequence_number": sequence, **error}
    return encode(api, error)


_ANTHROPIC_ERRORS = {
    400: ("invalid_request_error", "Bad request"),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}
_OPENAI_ERRORS = {
    400: ("invalid_request_error", "Bad request"),
    500: ("server_error", "The server had an error while processing your request"),
    529: ("server_error", "The engine is currently overloaded, please try again later"),
}


def error_body(api: Api, status: int, message: str | None = None) -> dict[str, Any]:
    """The JSON body of an HTTP error."""
    if api is Api.ANTHROPIC:
        kind, text = _ANTHROPIC_ERRORS[status]
        return {"type": "error", "error": {"type": kind, "message": message or text}}
    kind, text = _OPENAI_ERRORS[status]
    error = {"message": message or text, "type": kind, "param": None, "code": None}
    return {"error": error}
