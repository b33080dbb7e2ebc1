"""The absolute budget of a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stallwatch._cancels import running_loop
from stallwatch._causes import TurnBudgetError
from stallwatch._events import BudgetExceeded, ObserverStalled
from stallwatch._phase_clock import CHANCE, HOPS, LATE, RETRY
from stallwatch._sink import EventSink
from stallwatch._stallwatch import Alarm
from stallwatch._suspend import Sleeps

__all__ = ["TurnBudget"]


class TurnBudget:
    """Runs from the start of a turn to its end, and is reset by nothing.

    It fires once, as a `BudgetExceeded` event, and then offers its cause as `PhaseClock` does. Time
    in which the host slept does not count (see `_suspend`); time in which the loop or this process
    was held up does, but what is queued then gets its chance first.

    Args:
        limit: Seconds; None: it only measures.
        sink: Where events go.
        sleeps: Shared with the turn's other clocks.
        fire: As of `PhaseClock`.
        fields: What the cause says besides, asked when it fires.
        owner: Whose budget it is, for the event.
        observe_only: Report it, and offer nothing.
        hops: Turns of the loop that a body which is about to end gets to do so.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_awake",
        "_fields",
        "_fire",
        "_given_chance",
        "_hops",
        "_limit",
        "_observe_only",
        "_open",
        "_owed",
        "_owner",
        "_sink",
        "_sleeps",
        "_started",
    )

    def __init__(
        self,
        limit: float | None,
        sink: EventSink,
        sleeps: Sleeps,
        fire: Callable[[TurnBudgetError, float], bool],
        fields: Callable[[], Mapping[str, Any]],
        *,
        owner: str = "turn",
        observe_only: bool = False,
        hops: int = HOPS,
    ) -> None:
        self._limit = limit
        self._observe_only = observe_only
        self._sink = sink
        self._sleeps = sleeps
        self._fire = fire
        self._fields = fields
        self._owner = owner
        self._hops = hops
        self._given_chance = False
        self._owed: TurnBudgetError | None = None
        self._open = True
        self._awake = sleeps.total()
        self._alarm = Alarm(self._on_due)
        self._started = self._alarm.now()
        if self._limit is not None:
            self._alarm.set(self._started + self._limit)

    def now(self) -> float:
        """Now, on the turn's clock."""
        return self._alarm.now()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._alarm.now() - self._started

    def close(self) -> None:
        """Ends it: it does not fire any more."""
        self._open = False
        self._alarm.close()

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        if not self._open or self._limit is None:
            return
        if self._owed is not None:
            self._offer(self._owed)
            return
        now, late = self.now(), max(0.0, self.elapsed() - self._limit)
        self._sleeps.since(self._awake, now)
        if late > LATE and not self._given_chance:
            self._given_chance = True
            self._alarm.set(now + CHANCE)
            self._sink.emit(ObserverStalled(at=now, lateness=late, clock="turn_budget"))
            return
        self._consider(self._limit, self._hops)

    def _consider(self, limit: float, hops: int) -> None:
        """A turn that is about to end may do so first."""
        loop = running_loop()
        if not self._open or loop is None:
            return
        if hops:
            loop.call_soon(self._consider, limit, hops - 1)
            return
        elapsed = self.elapsed()
        late = max(0.0, elapsed - limit)
        self._sink.emit(
            BudgetExceeded(
                at=self.now(),
                owner=self._owner,
                elapsed=elapsed,
                limit=limit,
                lateness=late,
                would_have_fired=self._observe_only,
            )
        )
        if not self._observe_only:
            self._offer(TurnBudgetError(idle=elapsed, limit=limit, lateness=late, **self._fields()))

    def _offer(self, cause: TurnBudgetError) -> None:
        self._owed = cause
        if not self._fire(cause, self.elapsed() - (cause.idle or 0.0)) and self._open:
            self._alarm.set(self.now() + RETRY)
