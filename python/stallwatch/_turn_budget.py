"""The absolute budget of a turn, of a tool call, or of a `budget(...)` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stallwatch._cancels import running_loop
from stallwatch._causes import StallError, TurnBudgetError
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
        fire: As of `PhaseClock`; gets an `error`.
        fields: What the cause says besides, asked when it fires.
        owner: Whose budget it is, for the event.
        observe_only: Report it, and offer nothing.
        name: The name of what has the budget, for the event.
        error: The class of the cause.
        hops: Turns of the loop that a body which is about to end gets to do so.
        is_about_to_end: Whether it needs one more of them.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_awake",
        "_error",
        "_fields",
        "_fire",
        "_given_chance",
        "_hops",
        "_is_about_to_end",
        "_limit",
        "_name",
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
        fire: Callable[[Any, float], bool],
        fields: Callable[[], Mapping[str, Any]],
        *,
        owner: str = "turn",
        name: str | None = None,
        error: type[StallError] = TurnBudgetError,
        observe_only: bool = False,
        hops: int = HOPS,
        is_about_to_end: Callable[[], bool] | None = None,
    ) -> None:
        self._limit = limit
        self._observe_only = observe_only
        self._sink = sink
        self._sleeps = sleeps
        self._fire = fire
        self._fields = fields
        self._owner = owner
        self._name = name
        self._error = error
        self._is_about_to_end = is_about_to_end
        self._hops = hops
        self._given_chance = False
        self._owed: StallError | None = None
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

    @property
    def limit(self) -> float | None:
        """Seconds; None: it only measures."""
        return self._limit

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
            self._sink.emit(ObserverStalled(at=now, lateness=late, clock=self._error.kind))
            return
        self._consider(self._limit, self._hops)

    def _consider(self, limit: float, hops: int) -> None:
        """A turn that is about to end may do so first."""
        loop = running_loop()
        if not self._open or loop is None:
            return
        known = self._is_about_to_end
        if hops > 0 or (known is not None and hops > -HOPS and known()):
            loop.call_soon(self._consider, limit, hops - 1)
            return
        elapsed = self.elapsed()
        late = max(0.0, elapsed - limit)
        self._sink.emit(
            BudgetExceeded(
                at=self.now(),
                owner=self._owner,
                name=self._name,
                elapsed=elapsed,
                limit=limit,
                lateness=late,
                would_have_fired=self._observe_only,
            )
        )
        if not self._observe_only:
            self._offer(self._error(idle=elapsed, limit=limit, lateness=late, **self._fields()))

    def _offer(self, cause: StallError) -> None:
        self._owed = cause
        if not self._fire(cause, self.elapsed() - (cause.idle or 0.0)) and self._open:
            self._alarm.set(self.now() + RETRY)
