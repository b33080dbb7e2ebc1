"""A stream that has yet to be asked for, as a context manager: entering it makes the request."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

__all__ = ["Opening", "Unopened"]

T = TypeVar("T")

Unopened = (
    Awaitable[AsyncIterable[T]]
    | Callable[[], Awaitable[AsyncIterable[T]] | AbstractAsyncContextManager[AsyncIterable[T]]]
)
"""An awaitable that gives a stream, or a function that makes one (or a manager of a stream)."""


class Opening:
    """Enters into the stream that an awaitable gives, or a function makes.

    Args:
        made: The awaitable; or a function without arguments that gives one, a stream, or an
            asynchronous context manager of a stream. It is called when this is entered.
    """

    def __init__(self, made: Any) -> None:
        self._made = made
        self._manager: Any = None

    @staticmethod
    def fits(made: Any) -> bool:
        """Whether there is something to await or to call."""
        return hasattr(type(made), "__await__") or callable(made)

    async def __aenter__(self) -> Any:
        made, self._made = self._made, None
        stream = made if hasattr(type(made), "__await__") else made()
        if hasattr(type(stream), "__await__"):
            stream = await stream
        kind = type(stream)
        if not hasattr(kind, "__aiter__") and hasattr(kind, "__aenter__"):
            self._manager = stream
            stream = await stream.__aenter__()
        if not hasattr(type(stream), "__aiter__"):
            raise TypeError(f"a stream was asked for and {kind.__name__!r} given: is stream= set?")
        return stream

    async def __aexit__(self, *details: Any) -> bool | None:
        if self._manager is None:
            return None
        return bool(await self._manager.__aexit__(*details))

    def close(self) -> None:
        """Gives up a coroutine that was never begun."""
        made, self._made = self._made, None
        close = getattr(made, "close", None)
        if close is not None and hasattr(type(made), "__await__"):
            close()

    def __repr__(self) -> str:
        return f"<opening of {self._made!r}>"
