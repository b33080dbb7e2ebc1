"""The wait for a response's headers, as a stream of one chunk."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, Final

from stallwatch._abort import release_of

__all__ = ["Asking", "SyncAsking", "library_of"]

_WAITS: Final = ("connect", "pool", "write", "read")

_PATIENCE: Final = 5.0
"""Seconds for the watcher to say that its clock has run out too: a thread that hangs loses."""


def library_of(request: Any) -> str:
    """`httpx` or `httpx2`, or whatever calls itself like that: where its requests come from."""
    return type(request).__module__.partition(".")[0]


class Asking:
    """Asks the transport when it is pulled from."""

    def __init__(self, transport: Any, request: Any) -> None:
        self._transport = transport
        self._request = request
        self._response: Any = None

    def __aiter__(self) -> Asking:
        return self

    async def __anext__(self) -> Any:
        self._response = await self._transport.handle_async_request(self._request)
        return self._response

    def take(self) -> None:
        """The response has arrived where it was wanted."""
        self._response = None

    async def aclose(self) -> None:
        """Closes a response that came too late to be wanted."""
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()


class SyncAsking:
    """Asks the transport when it is pulled from, and can be hurried.

    There is no response yet in which to find a socket. A connection that is made for this request
    is known from the client's trace and is shut down; one that is used again is not, and so every
    wait of the client is given what is left of the limit.

    Args:
        transport: The transport.
        request: The request.
        limit: Seconds; None for no hurry.
    """

    def __init__(self, transport: Any, request: Any, limit: float | None) -> None:
        self._transport = transport
        self._request = request
        self._limit = limit
        self._network: Any = None
        self._begun = 0.0
        self._fired = threading.Event()
        self._response: Any = None

    def __iter__(self) -> SyncAsking:
        return self

    def __next__(self) -> Any:
        request = self._request
        extensions, waits = request.extensions, dict(request.extensions.get("timeout") or {})
        if self._limit is None:
            self._response = self._transport.handle_request(request)
            return self._response
        self._begun = time.monotonic()
        hurried = dict(waits)
        self._hurry(waits, hurried)
        others = extensions.get("trace")

        def trace(event: str, info: Any) -> Any:
            if request.extensions is extensions:
                pass  # the client keeps ours for the body, which is none of our business here
            elif event.endswith(".started"):
                self._hurry(waits, hurried)
            elif hasattr(made := info.get("return_value"), "get_extra_info"):
                self._network = made
            return None if others is None else others(event, info)

        request.extensions = {**extensions, "timeout": hurried, "trace": trace}
        try:
            self._response = self._transport.handle_request(request)
        except Exception as error:
            if self._is_ours(error):
                # Not to be seen by anybody: the watcher is about to give the cause.
                self._fired.wait(_PATIENCE)
            raise
        finally:
            request.extensions = extensions
            # The body is read under the same mapping.
            hurried.clear()
            hurried.update(waits)
            self._network = None
        return self._response

    def abort(self) -> None:
        """Makes the request return; called by the watcher."""
        self._fired.set()
        network = self._network
        if network is not None:
            found = release_of(SimpleNamespace(extensions={"network_stream": network}))
            if found is not None:
                found()

    def take(self) -> None:
        """The response has arrived where it was wanted."""
        self._response = None

    def close(self) -> None:
        """Closes a response that came too late to be wanted."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _left(self) -> float:
        return max((self._limit or 0.0) - (time.monotonic() - self._begun), 0.001)

    def _hurry(self, waits: dict[str, Any], hurried: dict[str, Any]) -> None:
        left = self._left()
        for name in _WAITS:
            own = waits.get(name)
            hurried[name] = left if own is None else min(own, left)

    def _is_ours(self, error: Exception) -> bool:
        library = sys.modules.get(library_of(self._request))
        kind = getattr(library, "TimeoutException", ())
        return isinstance(error, kind) and self._left() <= 0.01
