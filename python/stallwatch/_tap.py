"""The byte tap below the streams of SDKs: how `idle` hears what an SDK hides.

An SDK's stream gives events and drops the keep-alives between them: Anthropic's `ping` events,
SSE comments. Its response is public, and so is the byte stream of that, which is httpx's or
httpx2's. Before the first pull that byte stream is replaced by one that hands on each chunk of
bytes as it came, and tells the guard that it came. Nothing is counted, copied or held back.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Protocol

__all__ = ["class_with_base", "tap"]

_RESPONSES: Final = ("response", "_response")
"""Where an SDK's stream has its response; OpenAI's `stream()` has no public name for it."""

_ASYNC, _SYNC = "AsyncByteStream", "SyncByteStream"


class Listener(Protocol):
    """A guard, as far as a tap knows it."""

    @property
    def _pending(self) -> bool: ...

    def touch(self) -> None:
        """Something was heard."""


def tap(stream: object, guard: Listener) -> Callable[[], None] | None:
    """Has `guard` touched for each chunk of bytes that arrives below `stream`.

    The result takes that back; None if there is nothing to listen to: no response of httpx or
    httpx2, or one whose bytes are being read, or are all there. Never raises. The guard is not
    kept alive.
    """
    for name in _RESPONSES:
        response = _get(stream, name)
        if response is not None and _get(response, "is_stream_consumed") is False:
            below = _get(response, "stream")
            tapped = below if isinstance(below, _Tap) else _put_in(response, below)
            if tapped is not None:
                return tapped.listen(guard)
    return None


def _put_in(response: Any, below: Any) -> _Tap | None:
    bases = _bases_of(type(below))
    if not bases:
        return None
    with contextlib.suppress(Exception):
        tapped: _Tap = _class_of(bases)(response, below)
        response.stream = tapped
        return tapped
    return None


def _get(source: Any, name: str) -> Any:
    # A stranger's property may raise anything.
    with contextlib.suppress(Exception):
        return getattr(source, name, None)
    return None


class _Tap:
    """A byte stream above another. A base class of the client's own kind is mixed in."""

    def __init__(self, response: Any, below: Any) -> None:
        # The response has the tap: a circle would keep the connection until it is collected.
        self._response = weakref.ref(response)
        self._below = below
        self._listeners: tuple[weakref.ref[Any], ...] = ()

    def listen(self, guard: Listener) -> Callable[[], None]:
        """Adds a listener; the result takes it away, and with the last one the tap itself."""
        listener = weakref.ref(guard)
        self._listeners = (*self._listeners, listener)
        tapped = weakref.ref(self)

        def leave() -> None:
            self = tapped()
            if self is not None:
                self._leave(listener)

        return leave

    def _leave(self, listener: weakref.ref[Any]) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        # Whoever has put something else in its place since then has it as it is.
        response: Any = self._response()
        if not self._listeners and _get(response, "stream") is self:
            response.stream = self._below

    def _heard(self) -> None:
        for listener in self._listeners:
            guard = listener()
            if guard is not None and guard._pending:
                guard.touch()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._below, name)


class _AsyncTap(_Tap):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._below.__aiter__()
        try:
            async for chunk in chunks:
                self._heard()
                yield chunk
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def aclose(self) -> None:
        """As the stream below."""
        await self._below.aclose()


class _SyncTap(_Tap):
    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._below)
        try:
            for chunk in chunks:
                self._heard()
                yield chunk
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def close(self) -> None:
        """As the stream below."""
        self._below.close()


def _bases_of(kind: type) -> tuple[type, ...]:
    """The client library's own kind of byte stream, which it insists on; none if it is both.

    A body that is all there is one of both kinds, and there is nothing to hear about it.
    """
    found = tuple(base for base in kind.__mro__ if base.__name__ in (_ASYNC, _SYNC))
    return found if len({base.__name__ for base in found}) == 1 else ()


def _class_of(bases: tuple[type, ...]) -> Any:
    return _mixed(_AsyncTap if bases[0].__name__ == _ASYNC else _SyncTap, bases)


def class_with_base(mine: type, name: str, stream: object) -> Any:
    """`mine`, made a byte stream of the kind `name` in the library that made `stream`.

    None if `stream` is of no such kind.
    """
    bases = tuple(base for base in type(stream).__mro__ if base.__name__ == name)
    return _mixed(mine, bases) if bases else None


@functools.cache
def _mixed(mine: type, bases: tuple[type, ...]) -> Any:
    return type(mine.__name__, (mine, *bases), {"__module__": mine.__module__})
