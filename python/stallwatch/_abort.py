"""Releasing a thread that is blocked in a read: shutting the socket down below it.

Closing a descriptor does not wake a read that is blocked in it (on Linux); shutting the connection
down does, under TLS as well, and the reader then sees an error or an end.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

__all__ = ["release_of"]

_BELOW: Final = ("response", "_response", "raw", "fp", "_fp", "buffer", "_sock", "sock")
"""Where wrappers keep what they wrap: an SDK's stream its response (OpenAI's `stream()` has no
public name for it); requests what is urllib3's; urllib3 and http.client a file; a text file its
buffer; a file a raw one; and that the socket."""

_MOST: Final = 32
"""How many objects are looked at: a mock has every attribute there is."""


def release_of(source: Any) -> Callable[[], object] | None:
    """What wakes a reader of `source`, or None if nothing does. Never raises.

    Knows sockets, SSL sockets and their files, responses of httpx, httpx2, requests, urllib3 and
    http.client, and SDK streams that have a `response` of one of these.
    """
    found = [source]
    for one in found:
        if isinstance(one, socket.socket):
            return _shutting_down(one)
        # httpx and httpx2: a public extension, which a mock transport does not have.
        extensions = _get(one, "extensions")
        if isinstance(extensions, dict):
            below = [_socket_of(extensions.get("network_stream"))]
        else:
            below = [_get(one, name) for name in _BELOW]
        found += [each for each in below if each is not None][: _MOST - len(found)]
    return None


def _socket_of(network: Any) -> Any:
    with suppress(Exception):
        return network.get_extra_info("socket")
    return None


def _get(source: Any, name: str) -> Any:
    # A stranger's property may raise anything, and this is the dispatcher thread.
    with suppress(Exception):
        return getattr(source, name, None)
    return None


def _shutting_down(connection: socket.socket) -> Callable[[], object]:
    def shut() -> None:
        # The peer may be quicker.
        with suppress(OSError):
            # Not the method of an `SSLSocket`: it would take the TLS state from under the reader.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    return shut
