"""The clocks of an asynchronous stream, carried out. `guard` makes one.

The hot path is native (`_stallwatch.Pull`); what is here runs at the first pull, when a clock has
run out, and at the end. Judging is the core's (`src/core/stream.rs`): the methods here carry it
out.

A fire goes through these steps, all on the event loop: judge; let what is queued in the loop have
its chance for some turns; judge again; report; cancel the task that pulls. The cancel comes back to
the pull as an exception, which `_cut` takes from there: clean up, close, balance the cancel count,
raise the cause.
"""

from __future__ import annotations

from asyncio.exceptions import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from stallwatch._allowance import allowance
from stallwatch._close import Grace, Outcome, closer_of, run, throw_into
from stallwatch._events import UnboundedWait, Unresponsive
from stallwatch._helpers import Texts, has_texts, is_reader, reader
from stallwatch._limits import StreamLimits
from stallwatch._opening import Opening
from stallwatch._sink import EventSink
from stallwatch._stallwatch import Pull
from stallwatch._suspend import Sleeps
from stallwatch._text import Transcript
from stallwatch._watched import BUDGET, FIRE, LINGER, Verdict, Watched, pull_arguments

T = TypeVar("T")

_GRACE: Final = 10.0
"""Time for a cancel of the user's to arrive, if closing has no bound to take instead."""

_HOPS: Final = 4
"""Turns of the loop between a fire and its cancel. Data read in one wakes the task in the next,
and two turns later if a task stands between (`wait_for` makes one on 3.11)."""


class StreamGuard(Watched, Pull, Generic[T]):
    """An asynchronous stream with clocks: see `guard`, which makes it."""

    __module__ = "stallwatch"

    _entered: Any
    _doom: Verdict | None

    if TYPE_CHECKING:

        def __anext__(self) -> Awaitable[T]: ...

    def __new__(cls, stream: Any, limits: StreamLimits, **_: Any) -> StreamGuard[T]:
        """Makes the native half."""
        return Pull.__new__(cls, *pull_arguments(limits))

    def __init__(
        self,
        stream: Any,
        limits: StreamLimits,
        *,
        sink: EventSink,
        transcript: Transcript,
        name: str | None = None,
        close_grace: float | None = 10.0,
        observe_only: bool = False,
        context: Callable[[], Mapping[str, Any]] | None = None,
        sleeps: Sleeps | None = None,
    ) -> None:
        self._watch(
            stream,
            limits,
            sink=sink,
            transcript=transcript,
            name=name,
            close_grace=close_grace,
            observe_only=observe_only,
            context=context,
            sleeps=sleeps,
        )
        self._manager: Any = None
        self._gave_way = False
        if not hasattr(type(stream), "__aiter__"):
            if not hasattr(type(stream), "__aenter__"):
                if not Opening.fits(stream):
                    raise TypeError(
                        "guard() takes an asynchronous iterable, an asynchronous context manager "
                        "that yields one, or an awaitable or a function that gives one of these, "
                        f"not {type(stream).__name__!r}"
                    )
                stream = self._stream = Opening(stream)
            self._manager = stream

    # --- what users see ---

    def __getattr__(self, name: str) -> Any:
        unopened = is_reader(name) and self._manager is not None and not self._has_entered
        value = None if unopened else super().__getattr__(name)
        if unopened or (is_reader(name) and callable(value)):
            return reader(self, name)
        return Texts(self) if has_texts(name, self._stream) else value

    @property
    def has_begun(self) -> bool:
        """Whether it was pulled from, or entered."""
        return self._numbers()[2] is not None or self._has_entered

    @property
    def is_over(self) -> bool:
        """Whether there will be no further chunk, and the source is closed or has ended."""
        return self._ended and (self._closed or self._ended_by_source)

    async def aclose(self) -> None:
        """Closes the source, whatever it calls that, and waits for it `close_grace` seconds."""
        self._finish()
        await self._close((None, None, None))

    async def close(self) -> None:
        """As `aclose`."""
        await self.aclose()

    async def __aenter__(self) -> StreamGuard[T]:
        if self._manager is not None and not self._has_entered:
            await self._enter()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        self._finish()
        return await self._close(details)

    # --- called by the native half ---

    def _begin(self) -> Any:
        self._start()
        self._awake = self._sleeps.total()
        found = allowance()
        if found is not None:
            found.stream = self  # whose text is that of a cut block
        if self._limits.budget is not None:
            self._rearm()  # it runs even if no pull ever has to wait
        if self._limits.first_chunk is None and self._limits.budget is None:
            self._sink.emit(UnboundedWait(at=self._now(), stream=self._name))
        if self._manager is not None and not self._has_entered:
            return self._enter_and_pull()
        if self._source is None:
            self._listen()
            self._set_source(aiter(self._stream))
        return None

    def _overdue(self) -> Any:
        """A pull begins while a fire is on its way that the busy loop could not deliver."""
        what, clock, measured, limit = self._judge()
        if what == FIRE and clock == BUDGET and not self._observe_only:
            self._doom = self._report(Verdict(clock, measured, limit))
            return self._refuse()
        return None

    async def _refuse(self) -> Any:
        verdict = self._doom
        if verdict is None:
            raise StopAsyncIteration
        self._finish()
        await self._close(None)
        raise self._blame(verdict)

    async def _cut(self, pull: Any, error: BaseException) -> Any:
        """Takes over from the pending pull that our own cancel has just reached."""
        verdict = self._doom
        if verdict is None:
            raise error
        self._finish()
        grace = Grace(_current_task(), self._close_grace, base=self._base, cancels=1)
        grace.start()
        thrown = await throw_into(pull, error, grace)
        self._note(thrown)
        if thrown.error is None and not thrown.gave_up and thrown.value is not None:
            # It answered the cancel with a chunk: too late to deliver, but its text is not lost.
            self._transcript.fold([*self._take_kept(), thrown.value])
        await self._close(None, grace)
        if grace.settle():
            raise error  # somebody else cancels the task too, and the user wins
        if verdict.clock == LINGER:
            raise StopAsyncIteration
        cause = self._blame(verdict)
        # The cancel that was thrown in is no context of the cause: `is the user` must not be read
        # there.
        cause.__suppress_context__ = True
        raise cause

    # --- between a fire and its cancel ---

    def _consider(self, hops: int = _HOPS) -> None:
        if self._ended:
            return
        what, clock, measured, limit = self._judge()
        if what != FIRE:
            self._rearm()
            return
        if hops and self._pending:
            _soon(self._consider, hops - 1)
            return
        verdict = Verdict(clock, measured, limit)
        if self._pending and self._waiting_is_done():
            # Data wins, and so does a cancel of the user's: the task is about to see it.
            return
        if clock != BUDGET and self._transcript.is_over:
            verdict = Verdict(LINGER, measured, limit)
        if self._observe_only:
            self._only_report(verdict)
            return
        self._carry_out(verdict)

    def _carry_out(self, verdict: Verdict) -> None:
        task = self._task
        if not self._pending:
            self._doom = self._report(verdict)
            self._refuse_next()
        elif task is not None:
            reached = self._interrupted and task.cancelling() > 0
            users = reached or _is_being_cancelled(task, self._waiting)
            if users and not self._gave_way:
                # A cancel of the user's is on its way down: it gets its chance alone.
                self._gave_way = True
                self._look_again(_GRACE if self._close_grace is None else self._close_grace)
                return
            self._doom = self._report(verdict)
            self._base = task.cancelling() - users
            self._cutting = True
            task.cancel()
            self._look_again(_GRACE if self._close_grace is None else self._close_grace)

    def _take_back(self) -> None:
        # What the task waited for has swallowed our cancel, and the pull came back after all.
        self._doom = None
        _current_task().uncancel()

    def _on_deaf(self) -> None:
        # The task waits for something that ignores being cancelled: another task, or a shield.
        self._sink.emit(
            Unresponsive(
                at=self._now(),
                what="stream",
                name=self._name,
                waited=_GRACE if self._close_grace is None else self._close_grace,
            )
        )

    def _waiting_is_done(self) -> bool:
        done = getattr(self._waiting, "done", None)
        return bool(done()) if callable(done) else False

    # --- opening and closing ---

    @property
    def _has_entered(self) -> bool:
        return "_entered" in self.__dict__

    async def _enter(self) -> None:
        """Enters the context manager that yields the stream, within `first_chunk` seconds."""
        limit, entered_at = self._limits.first_chunk, self._now()
        if self._observe_only:
            self._adopt(await self._manager.__aenter__())
            self._entering = took = self._now() - entered_at
            if limit is not None and took >= limit:
                self._report(Verdict(0, took, limit), would=True)
            return

        def late() -> None:
            self._doom = self._report(Verdict(0, self._now() - entered_at, limit or 0.0))

        grace = Grace(_current_task(), limit, then=self._close_grace, on_up=late)
        grace.start()
        outcome = await run(self._manager.__aenter__(), grace)
        others = grace.settle()
        self._note(outcome)
        if (outcome.error is not None or outcome.gave_up) and self._doom and not others:
            self._finish()
            raise self._blame(self._doom) from None
        if outcome.error is not None:
            raise outcome.error
        if outcome.gave_up:
            raise CancelledError
        self._entering = self._now() - entered_at
        self._adopt(outcome.value)

    def _adopt(self, stream: Any) -> None:
        self._entered = self._stream = stream
        self._listen()
        self._set_source(aiter(stream))

    async def _enter_and_pull(self) -> Any:
        # Inside a pull the clocks run already, so entering needs no bound of its own.
        self._adopt(await self._manager.__aenter__())
        return await cast(Any, self._source).__anext__()

    async def _close(self, details: Any, grace: Grace | None = None) -> bool | None:
        """Closes whatever is there to close, once, for `close_grace` seconds at most."""
        if self._closed:
            return None
        self._closed = True
        own = grace is None
        if grace is None:
            grace = Grace(_current_task(), self._close_grace)
        result: Outcome | None = None
        for close in self._closers(details):
            grace.start()
            awaitable = close()
            if hasattr(type(awaitable), "__await__"):
                result = await run(awaitable, grace)
                self._note(result)
        if own and grace.settle() and result is not None and result.error is not None:
            raise result.error
        if own and result is not None and details is not None:
            if result.error is not None and not grace.up:
                raise result.error
            return bool(result.value) if self._has_entered else None
        return None

    def _closers(self, details: Any) -> list[Callable[[], Any]]:
        found: list[Callable[[], Any]] = []
        source = self._source
        for one in (source, self._stream if self._stream is not source else None):
            closer = None if one is None else closer_of(one)
            if closer is not None:
                found.append(closer)
        if self._has_entered:
            manager, info = self._manager, details or (None, None, None)
            found.append(lambda: manager.__aexit__(*info))
        return found

    def _note(self, outcome: Outcome) -> None:
        if outcome.gave_up:
            waited = self._close_grace or 0.0
            self._sink.emit(
                Unresponsive(at=self._now(), what="stream", name=self._name, waited=waited)
            )


def _is_being_cancelled(task: Any, waiting: Any) -> bool:
    """Whether a cancel that somebody has asked for has not reached the task yet.

    A task that waits for another task, or for several, is told once those have ended.
    """
    if not task.cancelling():
        return False
    below = getattr(waiting, "cancelling", None)
    return bool(
        getattr(task, "_must_cancel", False)
        or (callable(below) and below())
        or getattr(waiting, "_cancel_requested", False)
    )


def _current_task() -> Any:
    from asyncio import current_task

    return current_task()


def _soon(callback: Callable[..., None], *args: Any) -> None:
    from asyncio import get_running_loop

    get_running_loop().call_soon(callback, *args)
