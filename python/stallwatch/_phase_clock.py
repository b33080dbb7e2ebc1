"""Soft and hard idle on a phase tracker: the rule, and the clock that follows it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from stallwatch._cancels import running_loop
from stallwatch._causes import HardIdleError
from stallwatch._clock_times import ClockTime, Span
from stallwatch._events import CoverageLost, HardIdle, ObserverStalled, PhaseChanged, SoftIdle
from stallwatch._limits import Limits, PhaseLimits
from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._sink import EventSink
from stallwatch._stallwatch import Alarm, frozen_until
from stallwatch._suspend import Sleeps
from stallwatch._tracker import PhaseTracker

LATE: Final = 0.05
"""A fire delivered later than this found the loop blocked: what is queued gets `CHANCE` seconds."""

CHANCE: Final = 0.05

RETRY: Final = 0.05
"""Seconds until a cause is offered again that met with a cancel of somebody else's."""

HOPS: Final = 4
"""Turns of the loop between a fire and its cancel: what has arrived may change the phase."""

_STOPPING: Final = (Phase.FORCE_STOP, Phase.DONE)


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

    Phases may change on any thread; the alarm rings on the loop where the clock was made (without
    one, on the dispatcher thread). Each step sets the alarm first and reports afterwards, so that a
    callable that is slow, or raises, holds up no clock.

    Args:
        tracker: Whose phases.
        limits: Soft and hard idle, own limits of phases, `observe_only`.
        sink: Where events go.
        fire: Gets the cause, and the seconds for which it has been offered already. False: not
            now, somebody else is ending the turn. It is offered again as long as the phase lasts.
        sleeps: Shared with other clocks of the same turn; by default its own.
        begun: Called when the body goes on to a phase that is not about stopping.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_awake",
        "_bare",
        "_bare_since",
        "_begun",
        "_chance_seq",
        "_depth",
        "_excused_seq",
        "_fire",
        "_forgiven",
        "_hard_seq",
        "_limits",
        "_longest",
        "_observe_only",
        "_open",
        "_owed",
        "_owed_at",
        "_sink",
        "_sleeps",
        "_soft_seq",
        "_soon",
        "_tracker",
    )

    def __init__(
        self,
        tracker: PhaseTracker,
        limits: Limits,
        sink: EventSink,
        fire: Callable[[HardIdleError, float], bool],
        sleeps: Sleeps | None = None,
        begun: Callable[[], object] | None = None,
    ) -> None:
        self._tracker = tracker
        self._limits = limits
        self._sink = sink
        self._fire = fire
        self._begun = begun
        self._observe_only = limits.observe_only
        # Numbers of the phase instances in which each thing was done.
        self._soft_seq = self._hard_seq = self._excused_seq = self._chance_seq = -1
        # Seconds that do not count, of the phase at each depth of borrowing.
        self._forgiven: dict[int, float] = {}
        self._depth = tracker.depth
        self._owed: HardIdleError | None = None
        self._owed_at = 0.0
        self._longest = (0.0, limits.for_phase(tracker.current().phase))
        self._bare: list[Span] = []
        self._bare_since: float | None = None
        self._open = True
        self._soon = _call_soon()
        self._sleeps = Sleeps(sink) if sleeps is None else sleeps
        self._awake = self._sleeps.total()
        self._alarm = Alarm(self._on_due)
        tracker._watch(self._on_phase)
        self._note_cover(tracker.current().phase)
        if tracker.invalid:
            self._lose(tracker.violation or "the phase tracker is invalid")
        else:
            self._set()

    @property
    def owed(self) -> HardIdleError | None:
        """The cause of a hard fire that has not got through, in the present phase."""
        owed = self._owed
        return owed if owed is not None and owed.seq == self._tracker.seq else None

    def times(self) -> dict[str, ClockTime]:
        """The longest silence so far in phases that count as idle, beside both limits there."""
        lost = self._tracker.invalid
        state, depth = self._tracker.current(), self._tracker.depth
        idle, limits = self._longest if lost else self._longest_with(state, depth)
        return {
            "soft_idle": ClockTime(limits.soft, idle),
            "hard_idle": ClockTime(limits.hard, idle),
        }

    def bare(self) -> list[Span]:
        """When no hard idle ran: which phases, and after coverage was lost."""
        since = self._bare_since
        return [*self._bare] if since is None else [*self._bare, (since, self._alarm.now())]

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
        if violation is not None:
            self._lose(violation)
        elif previous is not None:
            self._awake = self._sleeps.total()
            self._longest = self._longest_with(previous, self._depth)
            self._note_cover(state.phase)
            depth = self._tracker.depth
            if depth >= self._depth:  # begun anew; one that is given back goes on where it was
                self._forgiven.pop(depth, None)
                if self._begun is not None and state.phase not in _STOPPING:
                    self._begun()
            self._depth = depth
            self._set()
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

    def _lose(self, reason: str) -> None:
        if self._open:
            self.close()
            self._longest = self._longest_with(self._tracker.current(), self._depth)
            self._note_cover(None)
            self._sink.emit(CoverageLost(at=self._alarm.now(), reason=reason))

    def _longest_with(self, state: PhaseState, depth: int) -> tuple[float, PhaseLimits]:
        limits = self._limits.for_phase(state.phase)
        idle = max(0.0, state.elapsed - self._forgiven.get(depth, 0.0))
        counts = limits.soft is not None or limits.hard is not None
        return (idle, limits) if counts and idle > self._longest[0] else self._longest

    def _note_cover(self, phase: Phase | None) -> None:
        """From now on hard idle runs in this phase, or none does."""
        is_bare = phase is None or self._limits.for_phase(phase).hard is None
        since = self._bare_since
        if is_bare and since is None:
            self._bare_since = self._alarm.now()
        elif not is_bare and since is not None:
            self._bare_since = None
            self._bare.append((since, self._alarm.now()))

    def _idle(self, state: PhaseState) -> float:
        return max(0.0, state.elapsed - self._forgiven.get(self._tracker.depth, 0.0))

    def _judge(self, state: PhaseState) -> Judgement:
        return judge(
            self._idle(state),
            self._limits.for_phase(state.phase),
            soft_done=self._soft_seq == state.seq,
            hard_done=self._hard_seq == state.seq,
        )

    def _set(self) -> None:
        """Sets the alarm for the present phase."""
        while self._open and not self._tracker.invalid:
            state = self._tracker.current()
            act, again = self._judge(state)
            if act is not Act.WAIT:
                again = 0.0
            self._alarm.set(None if again is None else self._alarm.now() + again)
            # Two threads may set it, and the one with the older phase last: so it looks again.
            if self._tracker.seq == state.seq:
                break
        if not self._open:
            self._alarm.set(None)

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        if not self._open or self._tracker.invalid:
            return
        state, owed = self._tracker.current(), self._owed
        if owed is not None and owed.seq == state.seq:
            self._offer(owed)
            return
        act = self._judge(state).act
        if act is not Act.WAIT and self._excuse(state, overslept):
            return
        if act is Act.SOFT:
            self._report_soft(state)
        elif act is Act.HARD:
            self._consider(state.seq, HOPS)
        else:
            self._set()

    def _excuse(self, state: PhaseState, overslept: float) -> bool:
        """Whether the silence may not be the owner's, as nobody was there to hear it end.

        After a sleep of the host, or if this process did not run (once for a phase instance),
        silence counts from now. If only the loop was held up, what is queued gets its chance.
        """
        now = self._alarm.now()
        if slept := self._sleeps.since(self._awake, now):
            self._awake += slept
            self._forgive(state)
            return True
        # The timer thread overslept by now, or at an earlier look within this silence.
        unseen = overslept > 0 or frozen_until() > now - self._idle(state)
        if unseen and self._excused_seq != state.seq:
            self._excused_seq = state.seq
            self._forgive(state)
            self._sink.emit(ObserverStalled(at=now, lateness=overslept, clock="hard_idle"))
            return True
        hard = None if self._hard_seq == state.seq else self._limits.for_phase(state.phase).hard
        late = 0.0 if hard is None else self._idle(state) - hard
        if late > LATE and self._chance_seq != state.seq:
            self._chance_seq = state.seq
            self._alarm.set(now + CHANCE)
            self._sink.emit(ObserverStalled(at=now, lateness=late, clock="hard_idle"))
            return True
        return False

    def _forgive(self, state: PhaseState) -> None:
        self._forgiven[self._tracker.depth] = state.elapsed
        self._set()

    def _report_soft(self, state: PhaseState) -> None:
        self._soft_seq = state.seq
        limit = self._limits.for_phase(state.phase).soft or 0.0
        idle = self._idle(state)
        self._set()
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
            self._set()
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
        # The callable that just heard of it may have closed this clock, or broken the tracker.
        if self._observe_only or not self._open or self._tracker.invalid:
            return
        self._owed_at = self._alarm.now()
        self._offer(
            HardIdleError(phase=state.phase, seq=state.seq, idle=idle, limit=limit, lateness=late)
        )

    def _offer(self, cause: HardIdleError) -> None:
        now = self._alarm.now()
        self._owed = cause
        if self._fire(cause, now - self._owed_at):
            self._owed = None
        elif self._open:
            self._alarm.set(now + RETRY)


def _call_soon() -> Callable[..., Any] | None:
    loop = running_loop()
    return None if loop is None else loop.call_soon
