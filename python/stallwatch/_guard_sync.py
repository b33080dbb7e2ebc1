"""`guard_sync`: clocks around a blocking stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stallwatch._allowance import SPENT, allowance
from stallwatch._limits import StreamLimits
from stallwatch._seconds import Default, Unset
from stallwatch._sink import EventSink, OnEvent
from stallwatch._sync_guard import SyncStreamGuard
from stallwatch._text import Transcript

if TYPE_CHECKING:
    from stallwatch._seconds import Given

T = TypeVar("T")

__all__ = ["SyncStreamGuard", "guard_sync"]


def guard_sync(
    stream: Iterable[T] | AbstractContextManager[Iterable[T]],
    *,
    first_chunk: Given = Default(300.0),
    idle: Given = Default(90.0),
    warn: float | Literal[Unset.UNSET] | None = Default(0.5),
    progress_idle: Given = Default(300.0),
    budget: Given = None,
    is_progress: Callable[[T], object] | None = None,
    is_terminal: Callable[[T], object] | None = None,
    text_of: Callable[[T], str | None] | None = None,
    abort: Any = None,
    on_event: OnEvent = None,
    name: str | None = None,
    observe_only: bool = False,
) -> SyncStreamGuard[T]:
    """Put clocks around a blocking stream: `guard` for plain threads, with the same clocks.

    A blocking read cannot be cancelled. When a clock fires, the watcher's thread reports it and
    calls `abort`, which has to make the read return; the consumer's thread then closes the source
    and raises the typed cause in place of whatever the read came back with. If nothing can release
    the read, it is reported `Unresponsive`, and the cause is raised when the source comes back by
    itself. `close()` may be called from any thread.

    Args:
        stream: An iterable, or a context manager that yields one. Entering the latter is not
            bounded.
        first_chunk: As of `guard`, and so are the other limits and functions.
        idle: As of `guard`.
        warn: As of `guard`.
        progress_idle: As of `guard`.
        budget: As of `guard`.
        is_progress: As of `guard`.
        is_terminal: As of `guard`.
        text_of: As of `guard`.
        abort: What releases a blocked read: a callable without arguments, which must not block; or
            an object to find a socket in. By default the stream itself is looked through: files
            of sockets, responses of requests, urllib3 and http.client, streams of SDKs. A generator
            hides what it reads: `guard_sync(response.iter_lines(), abort=response)`.
        on_event: A callable, or a list of them, for the events. One that blocks holds up neither
            the watcher's thread, which serves all blocking streams, nor the other callables.
        name: Shown in events and causes.
        observe_only: As of `guard`: reports, and releases nothing.

    Raises:
        ValueError: for a limit of 0 or less, NaN, or two given limits of which one can never fire.
        TypeError: if `stream` is neither iterable nor a context manager.
    """
    limits = StreamLimits(
        first_chunk=first_chunk, idle=idle, warn=warn, progress_idle=progress_idle, budget=budget
    )
    found = allowance()
    if found is not None:  # nothing else could release a blocking read
        limits = limits.within(max(SPENT, found.left()))
    transcript = Transcript(is_progress=is_progress, is_terminal=is_terminal, text_of=text_of)
    return SyncStreamGuard(
        stream,
        limits,
        sink=EventSink(on_event),
        transcript=transcript,
        name=name,
        abort=abort,
        observe_only=observe_only,
    )


for _public in (SyncStreamGuard, guard_sync):
    _public.__module__ = "stallwatch"
del _public
