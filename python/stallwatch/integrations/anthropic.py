"""Clocks around the streams of `anthropic`: `messages.create(stream=True)` and `messages.stream()`.

    async with guard(client.messages.stream(...), idle=30) as stream:
        async for text in stream.text_stream:
            ...
        message = await stream.get_final_message()

These are `stallwatch.guard` and `stallwatch.guard_sync` with the types of the SDK: what a guarded
stream's helpers give (`text_stream`, `get_final_message()`, `get_final_text()`, `until_done()`) is
known to a type checker. Each of them reads through the guard. anthropic itself is never imported
here, so wrapped clients and every version with these streams work alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import stallwatch
from stallwatch import StreamGuard, SyncStreamGuard
from stallwatch.integrations._options import GuardOptions, SyncGuardOptions

__all__ = [
    "BetaMessageStreamGuard",
    "MessageStreamGuard",
    "SyncBetaMessageStreamGuard",
    "SyncMessageStreamGuard",
    "guard",
    "guard_sync",
]

if TYPE_CHECKING:
    from anthropic import AsyncStream, Stream
    from anthropic.lib.streaming import (
        AsyncMessageStream,
        AsyncMessageStreamManager,
        BetaAsyncMessageStream,
        BetaAsyncMessageStreamManager,
        BetaMessageStream,
        BetaMessageStreamManager,
        MessageStream,
        MessageStreamManager,
        ParsedBetaMessageStreamEvent,
        ParsedMessageStreamEvent,
    )
    from anthropic.types import ParsedMessage
    from anthropic.types.beta.parsed_beta_message import ParsedBetaMessage

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M")

if TYPE_CHECKING:

    class _Guard(StreamGuard[T], Generic[T, M]):
        text_stream: AsyncIterator[str]
        current_message_snapshot: M
        request_id: str | None
        response: Any

        async def until_done(self) -> None: ...
        async def get_final_message(self) -> M: ...
        async def get_final_text(self) -> str: ...

    class _SyncGuard(SyncStreamGuard[T], Generic[T, M]):
        text_stream: Iterator[str]
        current_message_snapshot: M
        request_id: str | None
        response: Any

        def until_done(self) -> None: ...
        def get_final_message(self) -> M: ...
        def get_final_text(self) -> str: ...

    class MessageStreamGuard(_Guard[ParsedMessageStreamEvent[R], ParsedMessage[R]], Generic[R]):
        """What `guard` makes of `messages.stream()`."""

    class BetaMessageStreamGuard(
        _Guard[ParsedBetaMessageStreamEvent[R], ParsedBetaMessage[R]], Generic[R]
    ):
        """What `guard` makes of `beta.messages.stream()`."""

    class SyncMessageStreamGuard(
        _SyncGuard[ParsedMessageStreamEvent[R], ParsedMessage[R]], Generic[R]
    ):
        """What `guard_sync` makes of `messages.stream()`."""

    class SyncBetaMessageStreamGuard(
        _SyncGuard[ParsedBetaMessageStreamEvent[R], ParsedBetaMessage[R]], Generic[R]
    ):
        """What `guard_sync` makes of `beta.messages.stream()`."""

else:
    # The helpers are the stream's own: only type checkers have to be told of them.
    MessageStreamGuard = BetaMessageStreamGuard = StreamGuard
    SyncMessageStreamGuard = SyncBetaMessageStreamGuard = SyncStreamGuard


@overload
def guard(
    stream: AsyncMessageStreamManager[R] | AsyncMessageStream[R],
    **options: Unpack[GuardOptions],
) -> MessageStreamGuard[R]: ...
@overload
def guard(
    stream: BetaAsyncMessageStreamManager[R] | BetaAsyncMessageStream[R],
    **options: Unpack[GuardOptions],
) -> BetaMessageStreamGuard[R]: ...
@overload
def guard(
    stream: AsyncStream[T] | Awaitable[AsyncStream[T]] | Callable[[], Awaitable[AsyncStream[T]]],
    **options: Unpack[GuardOptions],
) -> StreamGuard[T]: ...
def guard(stream: Any, **options: Unpack[GuardOptions]) -> StreamGuard[Any]:
    """Put clocks around a stream of `AsyncAnthropic`: `stallwatch.guard` with the SDK's types.

    Args:
        stream: What `messages.create(stream=True)` gives; the same call without its `await`, or a
            function that makes it, so that `first_chunk` bounds the wait for the response's headers
            and the SDK's own retries too; what `messages.stream()` gives, entered or not.
        **options: The limits and functions of `stallwatch.guard`, with its defaults.

    Raises:
        ValueError: as `stallwatch.guard`.
        TypeError: as `stallwatch.guard`; for a stream of the blocking client use `guard_sync`.
    """
    return stallwatch.guard(stream, **options)


@overload
def guard_sync(
    stream: MessageStreamManager[R] | MessageStream[R], **options: Unpack[SyncGuardOptions]
) -> SyncMessageStreamGuard[R]: ...
@overload
def guard_sync(
    stream: BetaMessageStreamManager[R] | BetaMessageStream[R],
    **options: Unpack[SyncGuardOptions],
) -> SyncBetaMessageStreamGuard[R]: ...
@overload
def guard_sync(stream: Stream[T], **options: Unpack[SyncGuardOptions]) -> SyncStreamGuard[T]: ...
def guard_sync(stream: Any, **options: Unpack[SyncGuardOptions]) -> SyncStreamGuard[Any]:
    """Put clocks around a stream of `Anthropic`: `stallwatch.guard_sync` with the SDK's types.

    The wait for the response's headers lies before a blocking stream, where nothing can be
    released yet: bound it with the client's `timeout` or with `StallTransport`.

    Args:
        stream: What `messages.create(stream=True)` or `messages.stream()` gives, the latter entered
            or not.
        **options: The limits and functions of `stallwatch.guard_sync`, with its defaults.

    Raises:
        ValueError: as `stallwatch.guard_sync`.
        TypeError: as `stallwatch.guard_sync`.
    """
    return stallwatch.guard_sync(stream, **options)
