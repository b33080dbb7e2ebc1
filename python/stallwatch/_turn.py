"""`Turn`: one run of an agent loop, its clocks, and its one outcome."""

from __future__ import annotations

import time
from asyncio import CancelledError, current_task, get_running_loop
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stallwatch._causes import HardIdleError, StallError, TurnBudgetError, UserCancelled
from stallwatch._events import BudgetExceeded, LateResult, Settled, Unresponsive
from stallwatch._limits import Limits
from stallwatch._outcome import NO_TEXT, Failure, Outcome, Status
from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._retry import cause_of, record_cause
from stallwatch._seconds import UNSET, Unset
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stallwatch import Alarm
from stallwatch._stream_guard import StreamGuard
from stallwatch._text import Transcript
from stallwatch._tracker import PhaseTracker, Restore
from stallwatch._watchdog import PhaseClock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from types import TracebackType

    from stallwatch._seconds import Given

T = TypeVar("T")
Cause = StallError | UserCancelled


class Turn:
    """One run of an agent loop, from prompt to terminal state: `async with Turn(limits) as turn:`.

    Clocks, all in seconds and all from `limits`:

    - soft and hard idle run while the loop is in a phase that counts as idle; every `enter` resets
      them; soft is one `SoftIdle` event per phase instance, hard a `HardIdle` event and then
      `HardIdleError`.
    - `turn_budget` runs from the start to the end and is reset by nothing; it fires as a
      `BudgetExceeded` event and then `TurnBudgetError`.
    - each `turn.stream(...)` has the clocks of `guard`.

    A clock that fires cancels the task of the body; at its exit the block raises the typed cause in
    place of that cancel, with the task's cancel count as before. A cancel from outside goes through
    unchanged, and beats a clock until settlement. A body that swallows the cancel is told a second
    time after half of `cleanup`; if it returns after all, the turn has stalled nevertheless.

    Args:
        limits: By default `Limits()`.
        name: Shown in events, causes and the outcome.
        on_event: A callable, or a list of them, for the events.
        tracker: A phase tracker to use; by default one of its own.

    Attributes:
        tracker: The phase tracker.
        limits: The limits.
        name: The name.
        outcome: The terminal record; None until the turn has settled.
    """

    __module__ = "stallwatch"

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        name: str | None = None,
        on_event: OnEvent = None,
        tracker: PhaseTracker | None = None,
    ) -> None:
        self.limits: Limits = Limits() if limits is None else limits
        self.name = name
        self.tracker: PhaseTracker = PhaseTracker() if tracker is None else tracker
        self.outcome: Outcome | None = None
        self._sink = EventSink(on_event, turn=name)
        self._streams: list[StreamGuard[Any]] = []
        self._cause: Cause | None = None
        self._also: Cause | None = None
        self._stopped: PhaseState | None = None
        self._cancels = 0
        self._told_again = False
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None
        self._base = 0
        self._clock: PhaseClock | None = None
        self._alarms: list[Alarm] = []
        self._gave_up: Callable[[], object] | None = None
        self._started = self._started_at = 0.0

    # --- phases and spans ---

    def enter(self, phase: Phase | int) -> None:
        """Enter a phase: see `PhaseTracker.enter`."""
        self.tracker.enter(phase)

    def phase(self, phase: Phase | int, *, since: Literal["pause", "keep"] = "pause") -> Restore:
        """Borrow a phase for a `with` block: see `PhaseTracker.enter_transient`."""
        return self.tracker.enter_transient(phase, since=since)

    def stream(
        self,
        stream: AsyncIterable[T] | AbstractAsyncContextManager[AsyncIterable[T]],
        *,
        first_chunk: Given = UNSET,
        idle: Given = UNSET,
        warn: float | Literal[Unset.UNSET] | None = UNSET,
        progress_idle: Given = UNSET,
        budget: Given = UNSET,
        is_progress: Callable[[T], object] | None = None,
        is_terminal: Callable[[T], object] | None = None,
        text_of: Callable[[T], str | None] | None = None,
        on_event: OnEvent = None,
        name: str | None = None,
    ) -> StreamGuard[T]:
        """Guard a stream with the turn's limits: see `guard`. Keywords override the turn's limits.

        The turn closes the stream when it settles, keeps its text for the outcome, and puts its own
        phase on the cause.
        """
        limits = self.limits.stream(
            first_chunk=first_chunk,
            idle=idle,
            warn=warn,
            progress_idle=progress_idle,
            budget=budget,
        )
        guarded: StreamGuard[T] = StreamGuard(
            stream,
            limits,
            sink=EventSink(on_event, turn=self.name, parent=self._sink),
            transcript=Transcript(
                is_progress=is_progress, is_terminal=is_terminal, text_of=text_of
            ),
            name=name,
            close_grace=self.limits.close_grace,
            observe_only=self.limits.observe_only,
            context=self._where,
        )
        self._streams.append(guarded)
        return guarded

    # --- stopping ---

    def cancel(self, reason: str | None = None) -> None:
        """End the turn on behalf of a user, from any thread; after settlement it does nothing.

        The block raises `UserCancelled(reason)`, which is a `CancelledError`; the outcome says
        `cancelled`. It beats a clock that has fired, until the turn has settled.
        """
        cause = UserCancelled(reason)
        if self._loop is None:
            self._cause = self._cause or cause
        elif _is_running(self._loop):
            self._stop(cause)
        else:
            self._loop.call_soon_threadsafe(self._stop, cause)

    @property
    def cause(self) -> Cause | Failure | None:
        """Why the turn is ending or has ended early; None while it is well, or if it completed."""
        return self._cause if self.outcome is None else self.outcome.cause

    def _stallwatch_cause(self) -> Cause | None:
        cause = self.cause
        return None if isinstance(cause, Failure) else cause

    def _where(self) -> dict[str, Any]:
        state = self.tracker.current()
        return {"phase": state.phase, "seq": state.seq}

    def _on_hard(self, state: PhaseState, cause: HardIdleError) -> None:
        self._stop(cause.annotate(name=self.name))

    def _on_budget(self, due: float, decided: float, overslept: float) -> None:
        limit = self.limits.turn_budget or 0.0
        elapsed = self._now() - self._started
        late = max(0.0, elapsed - limit)
        would = self.limits.observe_only
        self._sink.emit(
            BudgetExceeded(
                at=self._now(),
                owner="turn",
                elapsed=elapsed,
                limit=limit,
                lateness=late,
                would_have_fired=would,
            )
        )
        if not would:
            self._stop(
                TurnBudgetError(
                    name=self.name, idle=elapsed, limit=limit, lateness=late, **self._where()
                )
            )

    def _stop(self, cause: Cause) -> None:
        """Notes a cause and cancels the body. The first cause stays, but a user's beats it."""
        task = self._task
        if self.outcome is not None or task is None or task.done():
            return
        known = self._cause
        if known is not None:
            beats = isinstance(cause, UserCancelled) and not isinstance(known, UserCancelled)
            self._also = known if beats else self._also or cause
            if beats:
                self._cause = cause
                record_cause(task, cause)
            return
        if not isinstance(cause, UserCancelled) and task.cancelling() > self._base:
            self._also = cause  # a cancel from outside is under way, and wins
            return
        self._cause = cause
        self._stopped = self.tracker.current()
        record_cause(task, cause)
        self._tell_task()
        if self.limits.cleanup is not None:
            self._set(self._on_half, self.limits.cleanup / 2)
            self._set(self._on_cleanup, self.limits.cleanup)

    def _tell_task(self) -> None:
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def _on_half(self, due: float, decided: float, overslept: float) -> None:
        if self.outcome is None and not self._told_again:
            self._told_again = True
            self._tell_task()

    def _on_cleanup(self, due: float, decided: float, overslept: float) -> None:
        if self.outcome is None and self._gave_up is not None:
            self._gave_up()

    # --- start and end ---

    def _now(self) -> float:
        return self._alarms[0].now() if self._alarms else 0.0

    def _set(self, callback: Callable[[float, float, float], object], after: float | None) -> None:
        alarm = Alarm(callback)
        self._alarms.append(alarm)
        if after is not None:
            alarm.set(alarm.now() + after)

    async def __aenter__(self) -> Turn:
        if self._loop is not None:
            raise RuntimeError("a Turn can be entered only once")
        task = current_task()
        if task is None:
            raise RuntimeError("a Turn needs to run inside a task")
        self._task, self._base = task, task.cancelling()
        self._loop = get_running_loop()
        self._set(self._on_budget, self.limits.turn_budget)
        self._started, self._started_at = self._now(), time.time()
        self._clock = PhaseClock(self.tracker, self.limits, self._sink, self._on_hard)
        early = self._cause
        if early is not None:  # cancelled before it began
            self._cause = None
            self._stop(early)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.outcome is not None:
            self._note_late("body", error)
            return
        others = await self._close_streams(error)
        left = self._balance()
        if self.outcome is not None:  # given up while it closed
            return
        outside = left > self._base or others is not None
        self._end(error, outside=outside)
        cause = self._cause
        if outside:
            if others is not None and error is None:
                raise others
            return
        if isinstance(cause, StallError) and error is not cause:
            quiet = error is None or isinstance(error, CancelledError)
            raise cause from (None if quiet else error)
        if isinstance(cause, UserCancelled) and (error is None or error is not cause):
            raise cause from None
        if error is None:
            self.tracker.assert_clean()

    def _balance(self) -> int:
        """Takes our own cancels off the task's count, and returns what is left."""
        task = self._task
        if task is None:
            return 0
        left = task.cancelling()
        for _ in range(min(self._cancels, left)):
            left = task.uncancel()
        self._cancels = 0
        return left

    async def _close_streams(self, error: BaseException | None) -> CancelledError | None:
        """Closes what is still open, for `cleanup` seconds in total at most."""
        if self._clock is not None:
            self._clock.close()
        self._alarms[0].set(None)  # the budget
        begun, others = self._now(), None
        for one in self._streams:
            if one.is_over or not one.has_begun:
                continue
            if self.limits.cleanup is not None:
                one.bound_close(self.limits.cleanup - (self._now() - begun))
            try:
                await one.aclose()
            except CancelledError as cancelled:
                others = cancelled
            except Exception:
                continue  # the source's own trouble with being closed is not the turn's cause
        # Only what came while closing and was not ours; ours is balanced by the caller.
        return others if others is not None and self._cause is None else None

    def _end(self, error: BaseException | None, *, outside: bool) -> None:
        """Writes the outcome, once."""
        if self._clock is not None:
            self._clock.close()
        for alarm in self._alarms:
            alarm.close()
        status, cause, also = self._verdict(error, outside=outside)
        state = self._stopped or self.tracker.current()
        unfinished = "".join(one.text for one in self._streams if not one.is_complete)
        if isinstance(cause, StallError):
            cause.annotate(partial=unfinished, phase=state.phase, seq=state.seq)
        text = "".join(one.text for one in self._streams)
        done = status is Status.COMPLETED
        if isinstance(cause, StallError) and cause.phase is not None and cause.seq is not None:
            state = PhaseState(cause.phase, state.elapsed, cause.seq)
        self.outcome = Outcome(
            status=status,
            turn=self.name,
            cause=cause,
            also=also,
            phase=Phase.DONE if done else state.phase,
            seq=state.seq,
            text=text,
            partial="" if done else unfinished,
            placeholder=None if text or done else NO_TEXT,
            tool_args=getattr(cause, "tool_args", None),
            elapsed=self._now() - self._started,
            started_at=self._started_at,
            result=None,
        )
        self._sink.emit(
            Settled(
                at=self._now(),
                status=str(status),
                cause=None if cause is None else cause.kind,
                elapsed=self.outcome.elapsed,
            )
        )

    def _verdict(
        self, error: BaseException | None, *, outside: bool
    ) -> tuple[Status, Cause | Failure | None, Cause | Failure | None]:
        cause = self._cause
        if isinstance(cause, UserCancelled):
            return Status.CANCELLED, cause, self._also
        if outside:
            said = Failure("asyncio.CancelledError", "the task was cancelled from outside the turn")
            return Status.CANCELLED, said, cause or self._also
        if cause is not None:
            return Status.STALLED, cause, self._also
        if error is None:
            return Status.COMPLETED, None, self._also
        found = cause_of(error)
        if isinstance(found, StallError):
            return Status.STALLED, found, self._also
        if isinstance(found, UserCancelled):
            return Status.CANCELLED, found, self._also
        if isinstance(error, CancelledError):
            return Status.CANCELLED, Failure.of(error), self._also
        return Status.FAILED, Failure.of(error), self._also

    def _give_up(self, waited: float) -> Outcome:
        """Settles without the body, which would not let go."""
        self._sink.emit(Unresponsive(at=self._now(), what="body", name=self.name, waited=waited))
        self._end(None, outside=False)
        assert self.outcome is not None
        return self.outcome

    def _note_late(self, what: str, error: BaseException | None) -> None:
        self._balance()
        self._sink.emit(LateResult(at=time.monotonic(), what=what, name=self.name))


def _is_running(loop: AbstractEventLoop) -> bool:
    try:
        return get_running_loop() is loop
    except RuntimeError:
        return False
