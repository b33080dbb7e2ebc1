"""The turn watchdog: soft and hard idle on a phase tracker."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallwatch._causes import HardIdleError, StallError
from stallwatch._events import CoverageLost, HardIdle, ObserverStalled, PhaseChanged, SoftIdle
from stallwatch._limits import Limits, PhaseLimits
from stallwatch._phase_state import PhaseState
from stallwatch._retry import record_cause
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stallwatch import Alarm
from stallwatch._tracker import PhaseTracker

if TYPE_CHECKING:
    from asyncio import Task
    from types import TracebackType

LATE: Final = 0.05
"""A fire delivered later than this found the loop blocked: what is queued gets `CHANCE` seconds."""

CHANCE: Final = 0.05

_HOPS: Final = 2
"""Turns of the loop between a fire and its cancel: what has arrived may change the phase."""


class Act(Enum):
    """What is to be done about a phase."""

    WAIT = auto()
    SOFT = auto()
    HARD = auto()


class Judgement(NamedTuple):
    """An act, and in how many seconds to look again (None: only when the phase changes)."""

    act: Act
    again: float | None


def judge(idle: float, limits: PhaseLimits, *, soft_done: bool, hard_done: bool) -> Judgement:
    """Judges a phase that has been idle for so many seconds. Soft comes before hard."""
    soft = None if soft_done else limits.soft
    hard = None if hard_done else limits.hard
    if soft is not None and idle >= soft:
        return Judgement(Act.SOFT, None if hard is None else max(0.0, hard - idle))
    if hard is not None and idle >= hard:
        return Judgement(Act.HARD, None)
    open_limits = [limit for limit in (soft, hard) if limit is not None]
    return Judgement(Act.WAIT, min(open_limits) - idle if open_limits else None)


class PhaseClock:
    """Soft and hard idle of one tracker. What a hard fire does is its owner's to say.

    Thread-safe as far as the tracker is: phases may change on any thread, the alarm rings on the
    loop (or, without one, on the dispatcher thread).
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_fire",
        "_forgiven",
        "_given_chance",
        "_hard_seq",
        "_limits",
        "_observe_only",
        "_open",
        "_sink",
        "_soft_seq",
        "_soon",
        "_tracker",
    )

    def __init__(
        self,
        tracker: PhaseTracker,
        limits: Limits,
        sink: EventSink,
        fire: Callable[[PhaseState, HardIdleError], object],
    ) -> None:
        self._tracker = tracker
        self._limits = limits
        self._sink = sink
        self._fire = fire
        self._observe_only = limits.observe_only
        self._soft_seq = self._hard_seq = -1
        self._forgiven: tuple[int, float] = (-1, 0.0)
        self._given_chance = -1
        self._open = True
        self._soon = _call_soon()
        self._alarm = Alarm(self._on_due)
        tracker._watch(self._on_phase)
        if tracker.invalid:
            self._lose(tracker.violation or "the phase tracker is invalid")
        else:
            self._set(tracker.current())

    def close(self) -> None:
        """Ends it: nothing fires any more."""
        self._open = False
        self._tracker._unwatch(self._on_phase)
        self._alarm.close()

    def _on_phase(
        self, previous: PhaseState | None, state: PhaseState, violation: str | None
    ) -> None:
        if not self._open:
            return
        if previous is not None and self._sink.wants(PhaseChanged):
            self._sink.emit(
                PhaseChanged(
                    at=self._alarm.now(),
                    phase=state.phase,
                    seq=state.seq,
                    previous=previous.phase,
                    elapsed=previous.elapsed,
                )
            )
        if violation is not None:
            self._lose(violation)
        elif not self._tracker.invalid:
            self._set(self._tracker.current())

    def _lose(self, reason: str) -> None:
        if self._open:
            self.close()
            self._sink.emit(CoverageLost(at=self._alarm.now(), reason=reason))

    def _idle(self, state: PhaseState) -> float:
        seq, forgiven = self._forgiven
        return state.elapsed - forgiven if seq == state.seq else state.elapsed

    def _judge(self, state: PhaseState) -> Judgement:
        return judge(
            self._idle(state),
            self._limits.for_phase(state.phase),
            soft_done=self._soft_seq == state.seq,
            hard_done=self._hard_seq == state.seq,
        )

    def _set(self, state: PhaseState) -> None:
        again = self._judge(state).again
        if self._judge(state).act is not Act.WAIT:
            again = 0.0
        self._alarm.set(None if again is None else self._alarm.now() + again)

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        if not self._open or self._tracker.invalid:
            return
        state = self._tracker.current()
        act = self._judge(state).act
        late = self._alarm.now() - due
        if act is Act.HARD and overslept and self._forgiven[0] != state.seq:
            # This process did not run; nobody can say that the owner was silent. Counted anew,
            # once.
            self._sink.emit(ObserverStalled(at=self._alarm.now(), lateness=late, clock="hard_idle"))
            self._forgiven = (state.seq, state.elapsed)
        elif act is Act.HARD and late > LATE and self._given_chance != state.seq:
            self._given_chance = state.seq
            self._sink.emit(ObserverStalled(at=self._alarm.now(), lateness=late, clock="hard_idle"))
            self._alarm.set(self._alarm.now() + CHANCE)
            return
        elif act is Act.SOFT:
            self._report_soft(state)
        elif act is Act.HARD:
            self._consider(state.seq, _HOPS)
            return
        self._set(self._tracker.current())

    def _report_soft(self, state: PhaseState) -> None:
        self._soft_seq = state.seq
        limit = self._limits.for_phase(state.phase).soft or 0.0
        idle = self._idle(state)
        self._sink.emit(
            SoftIdle(
                at=self._alarm.now(),
                phase=state.phase,
                seq=state.seq,
                idle=idle,
                limit=limit,
                lateness=max(0.0, idle - limit),
            )
        )

    def _consider(self, seq: int, hops: int) -> None:
        """Lets the loop turn a few times, so that what has arrived may still end the phase."""
        if not self._open or self._tracker.invalid:
            return
        state = self._tracker.current()
        if state.seq != seq or self._judge(state).act is not Act.HARD:
            self._set(state)
        elif hops and self._soon is not None:
            self._soon(self._consider, seq, hops - 1)
        else:
            self._report_hard(state)

    def _report_hard(self, state: PhaseState) -> None:
        self._hard_seq = state.seq
        limit = self._limits.for_phase(state.phase).hard or 0.0
        idle = self._idle(state)
        late = max(0.0, idle - limit)
        self._sink.emit(
            HardIdle(
                at=self._alarm.now(),
                phase=state.phase,
                seq=state.seq,
                idle=idle,
                limit=limit,
                lateness=late,
                would_have_fired=self._observe_only,
            )
        )
        # The callable that just heard of it may have changed the phase, or the tracker may be
        # broken.
        if self._observe_only or not self._open or self._tracker.invalid:
            return
        cause = HardIdleError(
            phase=state.phase, seq=state.seq, idle=idle, limit=limit, lateness=late
        )
        self._fire(state, cause)


def _call_soon() -> Callable[..., Any] | None:
    from asyncio import get_running_loop

    try:
        return get_running_loop().call_soon
    except RuntimeError:
        return None


class Watchdog:
    """Soft and hard idle for a loop that does not want a whole `Turn`.

    A context manager, async or not.

    Both clocks run while the tracker is in a phase that counts as idle (or in one that
    `limits.phases` names); entering any phase resets them, entering the same one again too;
    borrowed time is not charged. Soft fires as one `SoftIdle` event per phase instance and never
    cancels. Hard fires as a `HardIdle` event, then cancels. Neither is affected by chunks, tools or
    anything else but the tracker, and an invalid tracker takes both out of service with one
    `CoverageLost` event.

    Around the code it watches (`with Watchdog(tracker, limits):` inside the task) the cancel comes
    out of the block as `HardIdleError`, the task's cancel count as before; a cancel by somebody
    else goes through unchanged, and wins if both meet. Where the task is another one, it sees a
    `CancelledError`, and `cause_of(task)` tells the cause.

    Args:
        tracker: Whose phases.
        limits: `Limits`; by default `Limits()`, which is soft 90 s and hard 540 s.
        cancel: The task to cancel, by default the one that enters; or a callable that gets the
            cause.
        on_event: A callable, or a list of them, for the events.

    Example:
        >>> async def loop(tracker):
        ...     with Watchdog(tracker, Limits(hard_idle=300)):
        ...         tracker.enter(Phase.AWAITING_LLM)
    """

    __module__ = "stallwatch"

    def __init__(
        self,
        tracker: PhaseTracker,
        limits: Limits | None = None,
        *,
        cancel: Task[Any] | Callable[[HardIdleError], object] | None = None,
        on_event: OnEvent = None,
    ) -> None:
        self._tracker = tracker
        self._limits = Limits() if limits is None else limits
        self._sink = on_event if isinstance(on_event, EventSink) else EventSink(on_event)
        self._cancel = cancel
        self._clock: PhaseClock | None = None
        self._task: Any = None
        self._base = 0
        self._cause: HardIdleError | None = None

    @property
    def cause(self) -> StallError | None:
        """The cause, once hard idle has fired."""
        return self._cause

    def __enter__(self) -> Watchdog:
        if self._clock is not None:
            raise RuntimeError("a Watchdog can be entered only once")
        self._task = self._cancel if hasattr(self._cancel, "cancel") else None
        if self._cancel is None:
            self._task = _running_task()
            if self._task is None:
                raise RuntimeError("outside a task a Watchdog needs to be told what to cancel")
        if self._task is not None:
            self._base = self._task.cancelling()
        self._clock = PhaseClock(self._tracker, self._limits, self._sink, self._on_fire)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._clock is not None:
            self._clock.close()
        if self._cause is None or self._task is None or self._task is not _running_task():
            return
        left = self._task.uncancel() if self._task.cancelling() else 0
        from asyncio import CancelledError

        if kind is not None and not issubclass(kind, CancelledError):
            return  # what the body raised on its way out is its own
        if left > self._base:
            if error is None:
                raise CancelledError  # it was swallowed together with ours
            return
        raise self._cause from None

    async def __aenter__(self) -> Watchdog:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _on_fire(self, state: PhaseState, cause: HardIdleError) -> None:
        if self._task is None:
            if callable(self._cancel):
                self._cause = cause
                self._cancel(cause)
        elif self._task.cancelling() <= self._base and not self._task.done():
            self._cause = cause
            record_cause(self._task, cause)
            self._task.cancel()


def _running_task() -> Any:
    from asyncio import current_task

    try:
        return current_task()
    except RuntimeError:
        return None
