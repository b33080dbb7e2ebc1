"""Helper methods of SDK streams that read the stream themselves: behind a guard they read it.

`get_final_message()`, `until_done()` and the like read to the end of the stream and then give what
it came to; `text_stream` gives the text of each chunk. Called on the stream itself they would wait
without a clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

__all__ = ["SyncTexts", "Texts", "has_texts", "is_reader", "reader", "sync_reader"]


def is_reader(name: str) -> bool:
    """Whether a method of this name reads the stream to its end."""
    return name == "until_done" or name.startswith("get_final_")


def has_texts(name: str, stream: Any) -> bool:
    """Whether this is the iterator over the text of an Anthropic message."""
    return name == "text_stream" and hasattr(stream, "get_final_message")


def reader(guard: Any, name: str) -> Callable[..., Awaitable[Any]]:
    """The helper of that name, with its reading done by the guard."""

    async def read(*args: Any, **keywords: Any) -> Any:
        async for _ in guard:
            pass
        if guard.cause is not None:
            raise guard.cause  # it was raised before, and is still why there is no result
        stream = guard._stream
        result = getattr(stream, name)(*args, **keywords)
        if hasattr(type(result), "__await__"):
            result = await result
        return guard if result is stream else result

    read.__name__ = read.__qualname__ = name
    return read


def sync_reader(guard: Any, name: str) -> Callable[..., Any]:
    """As `reader`, for a blocking stream."""

    def read(*args: Any, **keywords: Any) -> Any:
        for _ in guard:
            pass
        if guard.cause is not None:
            raise guard.cause
        stream = guard._stream
        result = getattr(stream, name)(*args, **keywords)
        return guard if result is stream else result

    read.__name__ = read.__qualname__ = name
    return read


def _text(chunk: Any) -> str | None:
    if chunk.type == "content_block_delta" and chunk.delta.type == "text_delta":
        return str(chunk.delta.text)
    return None


class Texts:
    """The pieces of text of an Anthropic message, as its `text_stream`; can be taken up again."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            text = _text(await self._guard.__anext__())
            if text is not None:
                return text


class SyncTexts:
    """As `Texts`, of a blocking stream."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            text = _text(next(self._guard))
            if text is not None:
                return text
