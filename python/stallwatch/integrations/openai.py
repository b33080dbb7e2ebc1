"""Clocks around the streams of `openai`: chat completions and responses, raw and with helpers.

    async with guard(client.chat.completions.create(..., stream=True), idle=30) as chunks:
        async for chunk in chunks:
            ...

These are `stallwatch.guard` and `stallwatch.guard_sync` with the types of the SDK: what a guarded
stream's helpers give (`get_final_completion()`, `get_final_response()`, `until_done()`) is known to
a type checker. Each of them reads through the guard. openai itself is never imported here, so
wrapped clients and every version with these streams work alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import stallwatch
from stallwatch import StreamGuard, SyncStreamGuard
from stallwatch.integrations._options import GuardOptions, SyncGuardOptions

__all__ = [
    "ChatStreamGuard",
    "ResponseStreamGuard",
    "SyncChatStreamGuard",
    "SyncResponseStreamGuard",
    "guard",
    "guard_sync",
]

if TYPE_CHECKING:
    from openai import AsyncStream, Stream
    from openai.lib.streaming.chat import (
        AsyncChatCompletionStream,
        AsyncChatCompletionStreamManager,
        ChatCompletionStream,
        ChatCompletionStreamEvent,
        ChatCompletionStreamManager,
        ParsedChatCompletionSnapshot,
    )
    from openai.lib.streaming.responses import (
        AsyncResponseStream,
        AsyncResponseStreamManager,
        ResponseStream,
        ResponseStreamEvent,
        ResponseStreamManager,
    )
    from openai.types.chat import ParsedChatCompletion
    from openai.types.responses import ParsedResponse

T = TypeVar("T")
R = TypeVar("R")

if TYPE_CHECKING:

    class ChatStreamGuard(StreamGuard[ChatCompletionStreamEvent[R]], Generic[R]):
        """What `guard` makes of `chat.completions.stream()`."""

        current_completion_snapshot: ParsedChatCompletionSnapshot

        async def until_done(self) -> ChatStreamGuard[R]: ...
        async def get_final_completion(self) -> ParsedChatCompletion[R]: ...

    class ResponseStreamGuard(StreamGuard[ResponseStreamEvent[R]], Generic[R]):
        """What `guard` makes of `responses.stream()`."""

        async def until_done(self) -> ResponseStreamGuard[R]: ...
        async def get_final_response(self) -> ParsedResponse[R]: ...

    class SyncChatStreamGuard(SyncStreamGuard[ChatCompletionStreamEvent[R]], Generic[R]):
        """What `guard_sync` makes of `chat.completions.stream()`."""

        current_completion_snapshot: ParsedChatCompletionSnapshot

        def until_done(self) -> SyncChatStreamGuard[R]: ...
        def get_final_completion(self) -> ParsedChatCompletion[R]: ...

    class SyncResponseStreamGuard(SyncStreamGuard[ResponseStreamEvent[R]], Generic[R]):
        """What `guard_sync` makes of `responses.stream()`."""

        def until_done(self) -> SyncResponseStreamGuard[R]: ...
        def get_final_response(self) -> ParsedResponse[R]: ...

else:
    # The helpers are the stream's own: only type checkers have to be told of them.
    ChatStreamGuard = ResponseStreamGuard = StreamGuard
    SyncChatStreamGuard = SyncResponseStreamGuard = SyncStreamGuard


@overload
def guard(
    stream: AsyncChatCompletionStreamManager[R] | AsyncChatCompletionStream[R],
    **options: Unpack[GuardOptions],
) -> ChatStreamGuard[R]: ...
@overload
def guard(
    stream: AsyncResponseStreamManager[R] | AsyncResponseStream[R],
    **options: Unpack[GuardOptions],
) -> ResponseStreamGuard[R]: ...
@overload
def guard(
    stream: AsyncStream[T] | Awaitable[AsyncStream[T]] | Callable[[], Awaitable[AsyncStream[T]]],
    **options: Unpack[GuardOptions],
) -> StreamGuard[T]: ...
def guard(stream: Any, **options: Unpack[GuardOptions]) -> StreamGuard[Any]:
    """Put clocks around a stream of `AsyncOpenAI`: `stallwatch.guard` with the SDK's types.

    Args:
        stream: What `create(stream=True)` gives; the same call without its `await`, or a function
            that makes it, so that `first_chunk` bounds the wait for the response's headers and the
            SDK's own retries too; what `.stream()` gives, entered or not.
        **options: The limits and functions of `stallwatch.guard`, with its defaults.

    Raises:
        ValueError: as `stallwatch.guard`.
        TypeError: as `stallwatch.guard`; for a stream of the blocking client use `guard_sync`.
    """
    return stallwatch.guard(stream, **options)


@overload
def guard_sync(
    stream: ChatCompletionStreamManager[R] | ChatCompletionStream[R],
    **options: Unpack[SyncGuardOptions],
) -> SyncChatStreamGuard[R]: ...
@overload
def guard_sync(
    stream: ResponseStreamManager[R] | ResponseStream[R],
    **options: Unpack[SyncGuardOptions],
) -> SyncResponseStreamGuard[R]: ...
@overload
def guard_sync(stream: Stream[T], **options: Unpack[SyncGuardOptions]) -> SyncStreamGuard[T]: ...
def guard_sync(stream: Any, **options: Unpack[SyncGuardOptions]) -> SyncStreamGuard[Any]:
    """Put clocks around a stream of `OpenAI`: `stallwatch.guard_sync` with the SDK's types.

    The wait for the response's headers lies before a blocking stream, where nothing can be
    released yet: bound it with the client's `timeout` or with `StallTransport`.

    Args:
        stream: What `create(stream=True)` or `.stream()` gives, the latter entered or not.
        **options: The limits and functions of `stallwatch.guard_sync`, with its defaults.

    Raises:
        ValueError: as `stallwatch.guard_sync`.
        TypeError: as `stallwatch.guard_sync`.
    """
    return stallwatch.guard_sync(stream, **options)
