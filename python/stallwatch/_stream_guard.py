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

from stallwatch._causes import (
    FirstChunkError,
    StallError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._close import Grace, Outcome, closer_of, run, throw_into
from stallwatch._events import (
    FirstChunk,
    ObserverStalled,
    StreamSlow,
    StreamStalled,
    StreamTruncated,
    UnboundedWait,
    Unresponsive,
)
from stallwatch._limits import StreamLimits
from stallwatch._sink import EventSink
from stallwatch._stallwatch import Pull
from stallwatch._stream_stats import StreamStats
from stallwatch._suspend import Sleeps
from stallwatch._text import Transcript

T = TypeVar("T")

_WAIT, _WARN, _FIRE = range(3)
_CLOCKS: Final = ("first_chunk", "idle", "progress_idle", "budget", "linger")
_BUDGET, _LINGER = 3, 4
_CAUSES: Final[tuple[type[StallError], ...]] = (
    FirstChunkError,
    StreamIdleError,
    StreamProgressError,
    StreamBudgetError,
)

_LATE: Final = 0.05
"""A fire delivered later than this found the loop blocked: queued data gets `_CHANCE` seconds."""

_CHANCE: Final = 0.05

_GRACE: Final = 10.0
"""Time for a cancel of the user's to arrive, if closing has no bound to take instead."""

_HOPS: Final = 4
"""Turns of the loop between a fire and its cancel. Data read in one wakes the task in the next,
and two turns later if a task stands between (`wait_for` makes one on 3.11)."""


class _Verdict:
    """A clock that has run out."""

    __slots__ = ("clock", "lateness", "limit", "measured")

    def __init__(self, clock: int, measured: float, limit: float) -> None:
        self.clock = clock
        self.measured = measured
        self.limit = limit
        self.lateness = max(0.0, measured - limit)


class StreamGuard(Pull, Generic[T]):
    """An asynchronous stream with clocks: see `guard`, which makes it."""

    __module__ = "stallwatch"

    _entered: Any
    _doom: _Verdict | None

    if TYPE_CHECKING:

        def __anext__(self) -> Awaitable[T]: ...

    def __new__(cls, stream: Any, limits: StreamLimits, **_: Any) -> StreamGuard[T]:
        """Makes the native half."""
        warn, idle, progress = limits.warn, limits.idle, limits.progress_idle
        return Pull.__new__(
            cls,
            limits.first_chunk,
            idle,
            None if warn is None or idle is None else warn * idle,
            progress,
            None if warn is None or progress is None else warn * progress,
            limits.budget,
        )

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
        self._stream = stream
        self._manager: Any = None
        self._limits = limits
        self._sink = sink
        self._transcript = transcript
        self._name = name
        self._close_grace = close_grace
        self._observe_only = observe_only
        self._context = context
        self._sleeps = Sleeps(sink) if sleeps is None else sleeps
        self._awake = 0.0
        self._doom = None
        self._cause: StallError | None = None
        self._closed = False
        self._ended_by_source = False
        self._given_chance = False
        self._gave_way = False
        self._ended_at: float | None = None
        if not hasattr(type(stream), "__aiter__"):
            if not hasattr(type(stream), "__aenter__"):
                raise TypeError(
                    "guard() takes an asynchronous iterable, or an asynchronous context manager "
                    f"that yields one, not {type(stream).__name__!r}"
                )
            self._manager = stream

    # --- what users see ---

    @property
    def stats(self) -> StreamStats:
        """What was measured so far."""
        (chunks, progress, started, first, heard, progressed, gap, _, _, now) = self._numbers()
        end = now if self._ended_at is None else self._ended_at
        return StreamStats(
            chunks=chunks,
            progress_chunks=progress,
            time_to_first_chunk=None if first is None or started is None else first - started,
            largest_gap=gap,
            elapsed=0.0 if started is None else end - started,
            last_chunk=_since(heard, end),
            last_progress=_since(progressed, end),
            terminal=self._terminal,
            ended=self._ended,
            text=len(self.text),
        )

    @property
    def text(self) -> str:
        """The text received so far."""
        self._transcript.fold(self._take_kept())
        return self._transcript.text

    @property
    def name(self) -> str | None:
        """The name it was given."""
        return self._name

    @property
    def cause(self) -> StallError | None:
        """Why it was cut, if it was."""
        return self._cause

    @property
    def has_begun(self) -> bool:
        """Whether it was pulled from, or entered."""
        return self._numbers()[2] is not None or self._has_entered

    @property
    def is_over(self) -> bool:
        """Whether there will be no further chunk, and the source is closed or has ended."""
        return self._ended and (self._closed or self._ended_by_source)

    @property
    def is_complete(self) -> bool:
        """Whether the answer came whole: with its terminal event, or the source ended by itself."""
        return self._terminal or (self._ended_by_source and not self._transcript.expects_end)

    def bound_close(self, seconds: float) -> None:
        """Lowers `close_grace` to what a turn has left."""
        known = self._close_grace
        self._close_grace = max(seconds if known is None else min(known, seconds), 0.0)

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

    def __getattr__(self, name: str) -> Any:
        # Only for what the guard itself does not have.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        label = "" if self._name is None else f" {self._name!r}"
        state = "ended" if self._ended else "pending" if self._pending else "open"
        return f"<guard{label} {state} of {self._stream!r}>"

    # --- called by the native half ---

    def _begin(self) -> Any:
        self._start()
        self._awake = self._sleeps.total()
        if self._limits.budget is not None:
            self._rearm()  # it runs even if no pull ever has to wait
        if self._limits.first_chunk is None and self._limits.budget is None:
            self._sink.emit(UnboundedWait(at=self._now(), stream=self._name))
        if self._manager is not None and not self._has_entered:
            return self._enter_and_pull()
        if self._source is None:
            self._set_source(aiter(self._stream))
        return None

    def _classify(self, chunk: object) -> int:
        flags = self._transcript.classify(chunk)
        if self._transcript.is_plain:
            self._set_plain()
        return flags

    def _first(self, now: float) -> None:
        if self._sink.wants(FirstChunk):
            started = self._numbers()[2]
            elapsed = 0.0 if started is None else now - started
            self._sink.emit(FirstChunk(at=now, stream=self._name, elapsed=elapsed))

    def _fold(self, chunks: list[object]) -> None:
        self._transcript.fold(chunks)

    def _on_end(self) -> None:
        if not self._ended:
            self._finish()
            self._ended_by_source = True
            if not self._terminal and self._transcript.expects_end:
                chunks = self._numbers()[0]
                self._sink.emit(StreamTruncated(at=self._now(), stream=self._name, chunks=chunks))

    def _on_error(self, error: BaseException) -> None:
        """The source raised. Its exception is its own business; there is nothing to time now."""

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        if self._ended:
            return
        late = self._now() - due
        if slept := self._sleeps.since(self._awake, self._now()):
            # The host slept while it ran: see `_suspend`.
            self._awake += slept
            self._forgive()
            self._rearm()
            return
        if overslept:
            self._sink.emit(ObserverStalled(at=self._now(), lateness=late, clock="stream"))
            self._forgive()
            self._rearm()
            return
        what, clock, measured, limit = self._judge()
        if what == _FIRE and late > _LATE and not self._given_chance and clock != _BUDGET:
            self._given_chance = True
            self._sink.emit(ObserverStalled(at=self._now(), lateness=late, clock=_CLOCKS[clock]))
            self._look_again(_CHANCE)
            return
        if what == _FIRE:
            self._consider(_HOPS)
            return
        if what == _WARN:
            self._warned(clock)
            self._sink.emit(
                StreamSlow(
                    at=self._now(),
                    stream=self._name,
                    clock=_CLOCKS[clock],
                    idle=measured,
                    limit=limit,
                )
            )
        self._given_chance = False
        self._rearm()

    def _overdue(self) -> Any:
        """A pull begins while a fire is on its way that the busy loop could not deliver."""
        what, clock, measured, limit = self._judge()
        if what == _FIRE and clock == _BUDGET and not self._observe_only:
            self._doom = self._report(_Verdict(clock, measured, limit))
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
        if verdict.clock == _LINGER:
            raise StopAsyncIteration
        cause = self._blame(verdict)
        # The cancel that was thrown in is no context of the cause: `is the user` must not be read
        # there.
        cause.__suppress_context__ = True
        raise cause

    # --- between a fire and its cancel ---

    def _consider(self, hops: int) -> None:
        if self._ended:
            return
        what, clock, measured, limit = self._judge()
        if what != _FIRE:
            self._rearm()
            return
        if hops and self._pending:
            _soon(self._consider, hops - 1)
            return
        verdict = _Verdict(clock, measured, limit)
        if self._pending and self._waiting_is_done():
            # Data wins, and so does a cancel of the user's: the task is about to see it.
            return
        if self._observe_only and clock != _LINGER:
            self._report(verdict, would=True)
            self._switch_off(clock) if clock in (0, _BUDGET) else self._forgive()
            self._rearm()
            return
        self._carry_out(verdict)

    def _carry_out(self, verdict: _Verdict) -> None:
        task = self._task
        if not self._pending:
            self._doom = self._report(verdict)
            self._refuse_next()
        elif task is not None:
            users = _is_being_cancelled(task, self._waiting)
            if users and not self._gave_way:
                # A cancel of the user's is on its way down: it gets its chance alone.
                self._gave_way = True
                self._look_again(_GRACE if self._close_grace is None else self._close_grace)
                return
            self._doom = self._report(verdict)
            self._base = task.cancelling() - users
            self._cutting = True
            task.cancel()

    def _waiting_is_done(self) -> bool:
        done = getattr(self._waiting, "done", None)
        return bool(done()) if callable(done) else False

    def _report(self, verdict: _Verdict, *, would: bool = False) -> _Verdict:
        if verdict.clock != _LINGER:
            numbers = self._numbers()
            self._sink.emit(
                StreamStalled(
                    at=numbers[9],
                    stream=self._name,
                    clock=_CLOCKS[verdict.clock],
                    idle=verdict.measured,
                    limit=verdict.limit,
                    since_chunk=_since(numbers[4], numbers[9]),
                    since_progress=_since(numbers[5], numbers[9]),
                    lateness=verdict.lateness,
                    would_have_fired=would,
                    cause=_CAUSES[verdict.clock].kind,
                )
            )
        return verdict

    def _blame(self, verdict: _Verdict) -> StallError:
        numbers = self._numbers()
        self._transcript.fold(self._take_kept(), final=True)
        cause = _CAUSES[verdict.clock](
            owner="stream",
            name=self._name,
            idle=verdict.measured,
            limit=verdict.limit,
            lateness=verdict.lateness,
            since_chunk=_since(numbers[4], numbers[9]),
            since_progress=_since(numbers[5], numbers[9]),
            partial=self._transcript.text,
            tool_args=self._transcript.tool_args,
        )
        if self._context is not None:
            cause.annotate(**self._context())
        self._cause = cause
        return cause

    # --- opening and closing ---

    @property
    def _has_entered(self) -> bool:
        return "_entered" in self.__dict__

    async def _enter(self) -> None:
        """Enters the context manager that yields the stream, within `first_chunk` seconds."""
        limit, entered_at = self._limits.first_chunk, self._now()

        def late() -> None:
            self._doom = self._report(_Verdict(0, self._now() - entered_at, limit or 0.0))

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
        self._adopt(outcome.value)

    def _adopt(self, stream: Any) -> None:
        self._entered = self._stream = stream
        self._set_source(aiter(stream))

    async def _enter_and_pull(self) -> Any:
        # Inside a pull the clocks run already, so entering needs no bound of its own.
        self._adopt(await self._manager.__aenter__())
        return await cast(Any, self._source).__anext__()

    def _finish(self) -> None:
        if self._ended_at is None:
            self._ended_at = self._now()
        self._end()

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


def _since(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


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
