"""The clocks of a blocking stream, carried out. `guard_sync` makes one.

The consumer's thread is in the source's read; the clocks are judged on the dispatcher thread. A
fire there is reported, and the read released by shutting its socket down. The consumer then comes
back with an error or an end, which `_cut` replaces by the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stallwatch._abort import release_of
from stallwatch._events import UnboundedWait, Unresponsive
from stallwatch._limits import StreamLimits
from stallwatch._sink import EventSink
from stallwatch._stallwatch import SyncPull
from stallwatch._text import Transcript
from stallwatch._watched import BUDGET, FIRE, FIRST, LINGER, Verdict, Watched, pull_arguments

T = TypeVar("T")


class SyncStreamGuard(Watched, SyncPull, Generic[T]):
    """A blocking stream with clocks: see `guard_sync`, which makes it."""

    if TYPE_CHECKING:

        def __iter__(self) -> SyncStreamGuard[T]: ...

        def __next__(self) -> T: ...

    def __new__(cls, stream: Any, limits: StreamLimits, **_: Any) -> SyncStreamGuard[T]:
        """Makes the native half."""
        return SyncPull.__new__(cls, *pull_arguments(limits))

    def __init__(
        self,
        stream: Any,
        limits: StreamLimits,
        *,
        sink: EventSink,
        transcript: Transcript,
        name: str | None = None,
        abort: Any = None,
        observe_only: bool = False,
    ) -> None:
        self._watch(
            stream,
            limits,
            sink=sink,
            transcript=transcript,
            name=name,
            close_grace=None,
            observe_only=observe_only,
            context=None,
            sleeps=None,
        )
        self._abort = abort
        self._manager: Any = None
        self._entered = False
        if not hasattr(type(stream), "__iter__"):
            if not hasattr(type(stream), "__enter__"):
                raise TypeError(
                    "guard_sync() takes an iterable, or a context manager that yields one, "
                    f"not {type(stream).__name__!r}"
                )
            self._manager = stream

    # --- what users see ---

    def close(self) -> None:
        """Closes the source, whatever it calls that, in the calling thread."""
        self._finish()
        self._close((None, None, None))

    def __enter__(self) -> SyncStreamGuard[T]:
        if self._manager is not None and not self._entered:
            self._enter()
        return self

    def __exit__(self, *details: Any) -> bool | None:
        self._finish()
        return self._close(details)

    # --- called by the native half ---

    def _begin(self) -> None:
        self._start_blocking()
        self._awake = self._sleeps.total()
        if self._limits.budget is not None:
            self._rearm()
        if self._limits.first_chunk is None and self._limits.budget is None:
            self._sink.emit(UnboundedWait(at=self._now(), stream=self._name))
        if self._manager is not None and not self._entered:
            self._enter()
        if self._source is None:
            self._set_iterator(iter(self._stream))

    def _refuse(self) -> None:
        verdict = self._doom
        self._finish()
        self._close((None, None, None))
        if verdict is not None:
            raise self._blame(verdict)

    def _cut(self, error: BaseException | None) -> None:
        """The read that was released has come back."""
        verdict = self._doom
        self._finish()
        self._close((None, None, None))
        if verdict is not None and verdict.clock != LINGER:
            # The reader's error is our own doing, and says nothing.
            raise self._blame(verdict) from None

    # --- on the dispatcher thread ---

    def _consider(self) -> None:
        what, clock, measured, limit = self._judge()
        if self._ended or what != FIRE:
            self._rearm()
            return
        verdict = Verdict(clock, measured, limit)
        if self._observe_only and clock != LINGER:
            self._report(verdict, would=True)
            self._switch_off(clock) if clock in (FIRST, BUDGET) else self._forgive()
            self._rearm()
            return
        self._doom = verdict
        self._cutting = True
        if not self._pending:
            # The chunk came first; only a budget outlives that.
            self._cutting = False
            if clock == BUDGET:
                self._report(verdict)
                self._refuse_next()
            else:
                self._doom = None
                self._rearm()
            return
        self._report(verdict)
        if not self._release():
            self._sink.emit(
                Unresponsive(at=self._now(), what="stream", name=self._name, waited=measured)
            )

    def _on_deaf(self) -> None:
        """Nothing is set to look again once a read was released."""

    def _release(self) -> bool:
        abort = self._abort
        if not callable(abort):
            found = release_of(abort)
            for source in (self._stream, self._source):
                found = found or release_of(source)
            abort = found
        if abort is None:
            return False
        try:
            abort()
        except Exception:
            return False
        return True

    # --- opening and closing ---

    def _enter(self) -> None:
        self._entered = True
        self._stream = self._manager.__enter__()
        self._set_iterator(iter(self._stream))

    def _close(self, details: Any) -> bool | None:
        if self._closed:
            return None
        self._closed = True
        for one in (self._source, self._stream if self._stream is not self._source else None):
            close: Callable[[], object] | None = getattr(one, "close", None)
            if callable(close):
                try:
                    close()
                except ValueError:
                    # A generator that another thread is in: it is not ours to close.
                    continue
        if self._entered:
            return bool(self._manager.__exit__(*details))
        return None
