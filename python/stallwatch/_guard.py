"""`guard`: clocks around an asynchronous stream."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, TypeVar

from stallwatch._allowance import SPENT, allowance
from stallwatch._cancels import running_task
from stallwatch._limits import StreamLimits
from stallwatch._opening import Unopened
from stallwatch._seconds import Default, Unset
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stream_guard import StreamGuard
from stallwatch._text import Transcript

if TYPE_CHECKING:
    from stallwatch._seconds import Given

T = TypeVar("T")

__all__ = ["StreamGuard", "guard"]


def guard(
    stream: AsyncIterable[T] | AbstractAsyncContextManager[AsyncIterable[T]] | Unopened[T],
    *,
    first_chunk: Given = Default(300.0),
    idle: Given = Default(90.0),
    warn: float | Literal[Unset.UNSET] | None = Default(0.5),
    progress_idle: Given = Default(300.0),
    budget: Given = None,
    is_progress: Callable[[T], object] | None = None,
    is_terminal: Callable[[T], object] | None = None,
    text_of: Callable[[T], str | None] | None = None,
    on_event: OnEvent = None,
    name: str | None = None,
    observe_only: bool = False,
) -> StreamGuard[T]:
    """Put clocks around an asynchronous stream.

    The result is iterated in place of the stream, and is best entered too: `async with
    guard(stream) as chunks:` closes the source however the loop is left. Attributes it does not
    have itself are those of the stream.

    Every clock but `budget` runs only while a pull is pending: what the consumer does with a chunk
    is never counted. Each fires as a `StreamStalled` event, then its cause is raised in the
    consumer, with the text received so far as `partial`; the pull is cancelled in the consumer's
    own task, the source closed, and the task's cancel count left as it was. None of them is
    affected by an exception of the source, which leaves as the very same object. If data and
    deadline meet, data wins; if a cancel by the user and a deadline meet, the user wins. After the
    terminal chunk no stall is reported any more: the source gets `min(idle, 1 s)` to end by itself.

    Limits are seconds or a `timedelta`; None switches a clock off; the defaults are those of
    `Limits`.

    Args:
        stream: An asynchronous iterable, or an asynchronous context manager that yields one; or an
            awaitable that gives one, such as the call of an SDK without its `await`, or a function
            that makes one of these when the guard is entered or first pulled from. Waiting to
            enter, or for the awaitable, is bounded by `first_chunk` too.
        first_chunk: Runs from the first pull until the first chunk that counts as progress, which
            disarms it for good. Fires as `FirstChunkError`. Not affected by chunks that are no
            progress. Until it is disarmed, `idle` and `progress_idle` do not run.
        idle: Runs after that first chunk. Reset by every chunk, by `touch()`, and by every byte
            below an SDK's stream, so that keep-alives count which the SDK hides. Fires as
            `StreamIdleError`.
        warn: At this fraction of `idle` one `StreamSlow` event a silence, and likewise of
            `progress_idle` while only chunks without progress come. Never touches the pull.
        progress_idle: Like `idle`, but reset only by chunks that count as progress. Fires as
            `StreamProgressError`.
        budget: Runs from the first pull to the end, also while no pull is pending; reset by
            nothing. Fires as `StreamBudgetError`; with no pull pending, at the next one.
        is_progress: Whether a chunk counts as progress. By default the known providers' chunks are
            read, and any other chunk counts.
        is_terminal: Whether a chunk says that the stream is over. By default the provider's own end
            and error events.
        text_of: The text of a chunk, for `partial`. By default that of the known kinds, and a `str`
            is its own text.
        on_event: A callable, or a list of them, for the events.
        name: Shown in events and causes.
        observe_only: Cancels and raises nothing: every clock that would have fired says so in its
            event (`would_have_fired`), and `stats.suggest()` gives the limits that would have been
            safe. A source that lingers after its terminal chunk is waited for, too.

    Raises:
        ValueError: for a limit of 0 or less, NaN, or two given limits of which one can never fire.
        TypeError: if `stream` is none of these.

    Example:
        >>> async def answer(chunks):
        ...     async with guard(chunks, idle=30) as stream:
        ...         return [chunk async for chunk in stream]
    """
    limits = StreamLimits(
        first_chunk=first_chunk, idle=idle, warn=warn, progress_idle=progress_idle, budget=budget
    )
    found = allowance()
    if found is not None and found.task is not running_task():
        # The block that has the budget cannot reach this task: the stream looks after it by itself.
        limits = limits.within(max(SPENT, found.left()))
    transcript = Transcript(is_progress=is_progress, is_terminal=is_terminal, text_of=text_of)
    return StreamGuard(
        stream,
        limits,
        sink=EventSink(on_event),
        transcript=transcript,
        name=name,
        observe_only=observe_only,
    )


guard.__module__ = "stallwatch"
