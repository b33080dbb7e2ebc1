"""Releasing a thread that is blocked in a read: shutting the socket down below it.

Closing a descriptor does not wake a read that is blocked in it (on Linux); shutting the connection
down does, under TLS as well, and the reader then sees an error or an end.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["release_of"]

_DEPTH = 4
"""How many wrappers deep a socket is looked for: SDK stream, response, raw response, file."""


def release_of(source: Any, _depth: int = _DEPTH) -> Callable[[], object] | None:
    """What wakes a reader of `source`, or None if nothing does.

    Knows sockets, SSL sockets and their files, responses of httpx, httpx2, requests, urllib3 and
    http.client, and SDK streams that have a `response` of one of these.
    """
    if source is None or _depth == 0:
        return None
    if isinstance(source, socket.socket):
        return _shutting_down(source)
    # httpx and httpx2: a public extension, which a mock transport does not have.
    extensions = getattr(source, "extensions", None)
    if isinstance(extensions, dict):
        network = extensions.get("network_stream")
        get = getattr(network, "get_extra_info", None)
        found = get("socket") if callable(get) else None
        return _shutting_down(found) if isinstance(found, socket.socket) else None
    # urllib3, from 2.3.
    shutdown = getattr(source, "shutdown", None)
    if callable(shutdown) and hasattr(source, "read"):
        return shutdown  # type: ignore[no-any-return]
    # An SDK's stream; requests; http.client's response and files made of sockets.
    for name in ("response", "raw", "fp", "_sock"):
        found = release_of(getattr(source, name, None), _depth - 1)
        if found is not None:
            return found
    return None


def _shutting_down(connection: socket.socket) -> Callable[[], object]:
    def shut() -> None:
        # The peer may be quicker.
        with suppress(OSError):
            # Not the method of an `SSLSocket`: it would take the TLS state from under the reader.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    return shut
