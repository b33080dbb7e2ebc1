"""What a turn leaves behind: its record, in memory and in a store, and what came too late."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stallwatch._clock_times import ClockTime
from stallwatch._events import LateResult, Unresponsive
from stallwatch._outcome import Outcome, Status
from stallwatch._recording import Recording, reserve
from stallwatch._turn_outcome import outcome_of
from stallwatch._turn_spans import TurnSpans

if TYPE_CHECKING:
    from asyncio import Future

    from stallwatch._clock_times import Span
    from stallwatch._limits import Limits
    from stallwatch._phase_clock import PhaseClock
    from stallwatch._phase_state import PhaseState
    from stallwatch._sink import EventSink
    from stallwatch._store import OutcomeStore
    from stallwatch._tracker import PhaseTracker
    from stallwatch._turn_budget import TurnBudget

__all__ = ["TurnRecord"]


class TurnRecord(TurnSpans):
    """The part of `Turn` that keeps its record.

    Attributes:
        tracker: The phase tracker.
        outcome: The terminal record; None until the turn has settled.
        store_id: The turn's id in the store; None without one, and before the turn has begun.
    """

    __module__ = "stallwatch"

    def __init__(
        self,
        limits: Limits | None,
        name: str | None,
        sink: EventSink,
        tracker: PhaseTracker,
        store: OutcomeStore | None,
    ) -> None:
        self.tracker = tracker
        self.outcome: Outcome | None = None
        self.store_id: str | None = None
        self._store = store
        self._recording: Recording | None = None
        self._given_up = False
        self._late: list[str] = []
        self._budget: TurnBudget | None = None
        self._clock: PhaseClock | None = None
        self._started_at = 0.0
        super().__init__(limits, name, sink)

    def _cleanup(self) -> float | None:
        """Seconds that all but the store have to let go."""
        cleanup = self.limits.cleanup
        if cleanup is None or self._store is None:
            return cleanup
        return cleanup - reserve(cleanup)

    async def _begin_record(self, store: OutcomeStore) -> None:
        self._recording = Recording(
            store, self.tracker, self._streams, self._tools, self._record_now, self.name
        )
        self.store_id = self._recording.turn_id
        self._sink.tap(self._recording.timeline)
        try:
            await self._recording.start()
        except BaseException as error:
            self._end(error, outside=isinstance(error, CancelledError))
            await self._end_record()
            raise

    async def _end_record(self) -> CancelledError | None:
        recording, left = self._recording, self._left()
        if recording is None:
            return None
        seconds = (
            None if self.limits.cleanup is None else (left or 0.0) + reserve(self.limits.cleanup)
        )
        cancelled = await recording.finished(seconds)
        if not recording.is_finished and not self._given_up:
            self._given_up = True
            self._sink.emit(
                Unresponsive(at=self._now(), what="store", name=self.name, waited=seconds or 0.0)
            )
        return cancelled

    def _times(self) -> dict[str, ClockTime]:
        """What the turn's own clocks measured."""
        if self._clock is None or self._budget is None:
            return {}
        budget = ClockTime(self._budget.limit, self._budget.elapsed())
        return {**self._clock.times(), "turn_budget": budget}

    def _bare(self) -> list[Span]:
        """When none of them ran that would have ended a silence."""
        bounded = self._budget is not None and self._budget.limit is not None
        return [] if bounded or self._clock is None else self._clock.bare()

    def _record(self, status: Status, state: PhaseState, **more: Any) -> Outcome:
        return outcome_of(
            status,
            turn=self.name,
            state=state,
            streams=self._streams,
            tools=self._tools.records,
            elapsed=0.0 if self._budget is None else self._budget.elapsed(),
            started_at=self._started_at,
            now=self._now(),
            clocks=self._times(),
            bare=self._bare(),
            covered=self._tools.covered,
            **more,
        )

    def _record_now(self) -> Outcome:
        """What is true if the process ends at this moment."""
        return self._record(Status.INTERRUPTED, self.tracker.current())

    def _seal(self, status: Status, state: PhaseState, **more: Any) -> Outcome:
        """Writes the terminal record."""
        outcome = self._record(status, state, late=tuple(self._late), **more)
        self.outcome = outcome
        if self._recording is not None:
            self._recording.finish(outcome)
        return outcome

    def _note_late(self, error: BaseException | None) -> None:
        """The body let go after all. The record says so and is otherwise what it was."""
        if error is None:
            what = "the body returned"
        elif isinstance(error, CancelledError):
            what = "the body followed its cancel"
        else:
            what = f"the body raised {type(error).__qualname__}: {error}"[:500]
        self._keep_aside(what, "body", self.name)

    def _on_late_tool(self, name: str, work: Future[Any]) -> None:
        if work.cancelled():
            what = f"tool {name!r} followed its cancel"
        elif error := work.exception():
            what = f"tool {name!r} raised {type(error).__qualname__}: {error}"[:500]
        else:
            what = f"tool {name!r} returned"
        self._keep_aside(what, "tool", name)

    def _keep_aside(self, text: str, what: str, name: str | None) -> None:
        if self.outcome is None:
            self._late.append(text)
        else:
            self.outcome = replace(self.outcome, late=(*self.outcome.late, text))
        self._sink.emit(LateResult(at=self._now(), what=what, name=name))

    # --- the turn's ---

    if TYPE_CHECKING:

        def _end(self, error: BaseException | None, *, outside: bool) -> None:
            """Writes the outcome, once."""
