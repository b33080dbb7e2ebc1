"""The clocks of a blocking stream, carried out. `guard_sync` makes one.

Three threads may be at work: the consumer's, which pulls and is in the source's read most of the
time; the dispatcher, which judges the clocks and cuts; and any other that calls `close`.

Ground rules. What decides is native and one step under the GIL: `_claim` (the dispatcher takes a
pending pull for one to cut), `_hold` (so does `close`), and the slot, which asks at each return of
the source whether its pull was taken. Of these the first wins, and whoever comes second sees it. A
pull that was taken ends in `_back`, in the consumer's thread, and only there is the source closed.
A read is released under `_releasing`, and only while it is still taken: `_back` waits for that, so
that no socket is shut down which the consumer has given back to its pool. The transcript is read
under `_reading`. No lock is held while events are delivered or anything is closed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from stallwatch._abort import release_of
from stallwatch._events import UnboundedWait, Unresponsive
from stallwatch._helpers import SyncTexts, has_texts, is_reader, sync_reader
from stallwatch._limits import StreamLimits
from stallwatch._sink import EventSink
from stallwatch._stallwatch import SyncPull
from stallwatch._text import Transcript
from stallwatch._watched import FIRE, Verdict, Watched, pull_arguments

if TYPE_CHECKING:
    from stallwatch._causes import StallError

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds within which a read that was released has to come back."""


class SyncStreamGuard(Watched, SyncPull, Generic[T]):
    """A blocking stream with clocks: see `guard_sync`, which makes it."""

    _doom: Verdict | None

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
        context: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._watch(
            stream,
            limits,
            sink=sink,
            transcript=transcript,
            name=name,
            close_grace=None,
            observe_only=observe_only,
            context=context,
            sleeps=None,
        )
        self._abort = abort
        self._manager: Any = None
        self._entered = False
        self._released = False
        self._releasing = threading.Lock()
        self._reading = threading.RLock()
        self._shutting = threading.Lock()
        if not hasattr(type(stream), "__iter__"):
            if not hasattr(type(stream), "__enter__"):
                raise TypeError(
                    "guard_sync() takes an iterable, or a context manager that yields one, "
                    f"not {type(stream).__name__!r}"
                )
            self._manager = stream

    # --- what users see ---

    def __getattr__(self, name: str) -> Any:
        unopened = is_reader(name) and self._manager is not None and not self._entered
        value = None if unopened else super().__getattr__(name)
        if unopened or (is_reader(name) and callable(value)):
            return sync_reader(self, name)
        return SyncTexts(self) if has_texts(name, self._stream) else value

    @property
    def text(self) -> str:
        """The text received so far."""
        with self._reading:
            return super().text

    def close(self) -> None:
        """Ends the iteration and closes the source, whatever it calls that.

        From another thread, while a pull waits, closing would block or go unheard. Then the read is
        released instead, and the thread that waits closes the source as it comes back; a read that
        nothing can release is reported `Unresponsive`.
        """
        self._leave((None, None, None))

    def __enter__(self) -> SyncStreamGuard[T]:
        if self._manager is not None and not self._entered:
            self._enter()
        return self

    def __exit__(self, *details: Any) -> bool | None:
        return self._leave(details)

    # --- called by the native half, in the consumer's thread ---

    def _begin(self) -> None:
        self._start_blocking()
        self._awake = self._sleeps.total()
        if self._limits.budget is not None:
            self._rearm()
        try:
            if self._limits.first_chunk is None and self._limits.budget is None:
                self._sink.emit(UnboundedWait(at=self._now(), stream=self._name))
            if self._manager is None:
                self._listen()
                self._set_iterator(iter(self._stream))
            elif not self._entered:
                self._enter()
        except BaseException:
            self._finish()
            raise

    def _refuse(self) -> None:
        verdict = self._doom
        self._finish()
        self._shut_quietly()
        if verdict is not None and not self._terminal:
            raise self._blame(verdict) from None

    def _back(self, error: BaseException | None, came: bool) -> bool:
        """The source has come back from a pull that was taken; says whether to deliver its chunk.

        A chunk that was on its way is delivered, and the next pull refused. What a released read
        gives may be a fragment, and is only kept as text; unless it is the end.
        """
        if self._releasing.acquire(timeout=_GRACE):
            self._releasing.release()
        verdict = self._doom
        if came and verdict is not None and (self._terminal or not self._released):
            self._refuse_next()
            return True
        self._finish()
        self._shut_quietly()
        if error is not None and not (isinstance(error, Exception) and (verdict or self._released)):
            raise error  # an interrupt of the user's; or the source's own, and nobody has fired
        if verdict is not None and not self._terminal:
            # The reader's error is our own doing, and says nothing.
            raise self._blame(verdict) from None
        return False

    def _classify(self, chunk: object) -> int:
        with self._reading:
            return super()._classify(chunk)

    def _fold(self, chunks: list[object]) -> None:
        with self._reading:
            super()._fold(chunks)

    def _blame(self, verdict: Verdict) -> StallError:
        with self._reading:
            return super()._blame(verdict)

    # --- on the dispatcher thread ---

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        try:
            super()._on_due(due, decided, overslept)
        except BaseException:
            # An `on_event` that ends its thread does not end this one, so the clock goes on.
            if not self._cutting:
                self._rearm()
            raise

    def _consider(self) -> None:
        what, clock, measured, limit = self._judge()
        if what != FIRE:
            self._rearm()
            return
        verdict = Verdict(clock, measured, limit)
        if self._observe_only:
            self._only_report(verdict)
            return
        if not self._claim(clock, verdict):
            # The chunk came first.
            self._rearm()
            return
        try:
            self._report(verdict)
        finally:
            if self._cutting and not self._release():
                self._unresponsive(measured)

    def _on_deaf(self) -> None:
        self._unresponsive(_GRACE)

    # --- releasing ---

    def _release(self) -> bool:
        """Releases the pending read. False if nothing does; if it works is seen later."""
        abort = self._find_abort()
        if abort is None:
            return False
        with self._releasing:
            if not self._cutting:
                return True  # it has come back by itself
            self._released = True
            try:
                abort()
            except Exception:
                import logging

                logging.getLogger("stallwatch").exception("the abort of a blocking stream raised")
                self._released = False
                return False
        self._look_again(_GRACE)
        return True

    def _find_abort(self) -> Callable[[], object] | None:
        if callable(self._abort):
            return self._abort  # type: ignore[no-any-return]
        for source in (self._abort, self._stream, self._source):
            found = release_of(source)
            if found is not None:
                return found
        return None

    def _unresponsive(self, waited: float) -> None:
        self._sink.emit(Unresponsive(at=self._now(), what="stream", name=self._name, waited=waited))

    # --- opening and closing ---

    def _leave(self, details: Any) -> bool | None:
        pending = self._hold()
        self._finish()
        if not pending:
            return self._shut(details)
        if not self._release():
            self._unresponsive(self._numbers()[8])
        return None

    def _enter(self) -> None:
        entered_at = self._now()
        stream = self._manager.__enter__()
        self._entering = self._now() - entered_at
        with self._shutting:
            self._entered, closed = True, self._closed
        if closed:
            # By another thread, which has found nothing to leave yet.
            self._manager.__exit__(None, None, None)
            return
        try:
            if not hasattr(type(stream), "__iter__"):
                raise TypeError(
                    f"{type(self._manager).__name__!r} yielded {type(stream).__name__!r}, which is "
                    "not iterable: enter it yourself, and guard what iterates over it, with "
                    "abort= for the rest"
                )
            self._stream = stream
            self._listen()
            self._set_iterator(iter(stream))
        except BaseException:
            self._finish()
            with self._shutting:
                closed, self._closed = self._closed, True
            if not closed:
                self._manager.__exit__(*sys.exc_info())
            raise

    def _shut(self, details: Any) -> bool | None:
        """Closes whatever is there to close, once. Raises what went wrong after the last of it."""
        with self._shutting:
            if self._closed:
                return None
            self._closed, entered = True, self._entered
        trouble: Exception | None = None
        for one in (self._source, self._stream if self._stream is not self._source else None):
            close: Callable[[], object] | None = getattr(one, "close", None)
            if callable(close):
                try:
                    close()
                except Exception as error:
                    trouble = error
        result = bool(self._manager.__exit__(*details)) if entered else None
        if trouble is not None:
            raise trouble
        return result

    def _shut_quietly(self) -> None:
        """As `_shut`, for a source that we have cut: what it says to that does not matter."""
        try:
            self._shut((None, None, None))
        except Exception:
            return
