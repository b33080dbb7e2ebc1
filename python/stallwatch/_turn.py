"""`Turn`: one run of an agent loop, its clocks, and its one outcome."""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from stallwatch._active import enrol, enrol_body, strike_off, strike_off_body
from stallwatch._allowance import Share
from stallwatch._cancels import Cancels, is_fatal, patience, running_loop, running_task
from stallwatch._causes import PhaseViolationError, StallError, UserCancelled
from stallwatch._events import Settled, Unresponsive
from stallwatch._limits import Limits
from stallwatch._outcome import Failure
from stallwatch._phase_clock import PhaseClock
from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._retry import record_cause
from stallwatch._settle import Cause, Settling, verdict
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stallwatch import now
from stallwatch._store import OutcomeStore
from stallwatch._tracker import PhaseTracker, Restore
from stallwatch._turn_budget import TurnBudget
from stallwatch._turn_outcome import unfinished_text_of
from stallwatch._turn_record import TurnRecord

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import TracebackType


class Turn(TurnRecord):
    """One run of an agent loop, from prompt to terminal state: `async with Turn(limits) as turn:`.

    Clocks, all in seconds and all from `limits`:

    - soft and hard idle run while the loop is in a phase that counts as idle; every `enter` resets
      them; soft is one `SoftIdle` event per phase instance, hard a `HardIdle` event and then
      `HardIdleError`.
    - `turn_budget`, or what is left of a `budget(...)` around it, runs from the start to the end
      and is reset by nothing; it fires as a `BudgetExceeded` event and then `TurnBudgetError`.
    - each `turn.stream(...)` has the clocks of `guard`, and each `turn.tool(...)` a clock of its
      own, whose fire does not end the turn.

    A clock that fires cancels the task of the body; at its exit the block raises the typed cause in
    place of that cancel, with the task's cancel count as before. A cancel from outside goes through
    unchanged, and beats a clock until settlement; while one is under way, a clock holds back its
    own for half of `cleanup`. A body that swallows the cancel is told again after 1/2, 3/4 and 7/8
    of `cleanup`; at the end of it the turn settles without the body, which is reported
    `Unresponsive`. If that returns after all, the turn has stalled nevertheless.

    Args:
        limits: By default `Limits()`.
        name: Shown in events, causes and the outcome.
        on_event: A callable, or a list of them, for the events.
        tracker: A phase tracker to use; by default one of its own.
        store: Where it is recorded: as running before the body begins (or while it does, if the
            store takes longer than a second), then whenever something has changed, and once at the
            end. The store is called in a thread of its own. One that fails is logged, one that does
            not answer within `cleanup` is reported `Unresponsive`; neither changes how a turn ends.

    Attributes:
        store_id: The turn's id in the store; None without one, and before the turn has begun.
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
        store: OutcomeStore | None = None,
    ) -> None:
        super().__init__(
            limits,
            name,
            EventSink(on_event, turn=name),
            PhaseTracker() if tracker is None else tracker,
            store,
        )
        self._early: UserCancelled | None = None
        self._cause: Cause | None = None
        self._also: Cause | None = None
        self._stopped: PhaseState | None = None
        self._loop: AbstractEventLoop | None = None
        self._cancels: Cancels | None = None
        self._settling: Settling | None = None
        self._share: Share | None = None
        self._ending = False
        self._gave_up: Callable[[], object] | None = None
        self._borrowed = 0
        self._result: Any = None

    # --- phases ---

    def enter(self, phase: Phase | int) -> None:
        """Enter a phase: see `PhaseTracker.enter`."""
        self.tracker.enter(phase)

    def phase(self, phase: Phase | int, *, since: Literal["pause", "keep"] = "pause") -> Restore:
        """Borrow a phase for a `with` block: see `PhaseTracker.enter_transient`."""
        return self.tracker.enter_transient(phase, since=since)

    # --- stopping ---

    def cancel(self, reason: str | None = None) -> None:
        """End the turn on behalf of a user, from any thread; after settlement it does nothing.

        The block raises `UserCancelled(reason)`, which is a `CancelledError`; the outcome says
        `cancelled`. It beats a clock that has fired, until the turn has settled. A turn that has
        not begun never will: its block raises at once.
        """
        if self.outcome is not None:
            return
        cause = UserCancelled(reason)
        # First the note, then the look: a turn that begins meanwhile does it the other way round.
        if self._early is None:
            self._early = cause
        loop = self._loop
        if loop is None:
            return
        if running_loop() is loop:
            self._stop(cause)
        else:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to cancel
                loop.call_soon_threadsafe(self._stop, cause)

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

    def _running(self) -> bool:
        return self._cancels is not None and self.outcome is None and not self._ending

    def _why(self) -> Cause | Failure | None:
        return self.cause

    def _left(self) -> float | None:
        return None if self._settling is None else self._settling.left()

    async def _before_cut(self) -> None:
        # Only in its own task: a stream may be closed in no other.
        settling, cancels = self._settling, self._cancels
        if self._cause is None or settling is None or cancels is None:
            return
        if running_task() is cancels.task:
            await settling.close_streams()

    def _named(self) -> dict[str, Any]:
        return {"name": self.name, **self._where()}

    def _stop(self, cause: Cause, waited: float = 0.0) -> bool:
        """Notes a cause and cancels the body. The first cause stays, but a user's beats it.

        Args:
            cause: Why.
            waited: For how long a clock has been offering it.

        Returns:
            False if somebody else's cancel is under way: a clock leaves it to that for a while.
        """
        cancels, known = self._cancels, self._cause
        if cancels is None or self.outcome is not None:
            return True
        if known is not None:
            if isinstance(cause, UserCancelled) and not isinstance(known, UserCancelled):
                self._cause, self._also = cause, known
                record_cause(cancels.task, cause)
            elif self._also is None and not isinstance(cause, UserCancelled):
                self._also = cause
            return True
        if isinstance(cause, StallError):
            cause.annotate(name=self.name)
            if cancels.others and waited < patience(self.limits):
                self._also = cause
                return False
        cancels.accept()
        self._cause = cause
        self._also = None if self._also is cause else self._also
        self._stopped = self.tracker.current()
        record_cause(cancels.task, cause)
        cancels.send()
        if self._settling is not None:
            self._settling.start(waited)
            self._settling.pursue()
        return True

    def _on_again(self) -> None:
        if self._cancels is not None and self.outcome is None:
            self._cancels.send()

    def _on_cleanup(self) -> None:
        """All the time for settling is over: the record is written now, whatever the body does."""
        if self.outcome is None:
            if not self._ending:
                waited = self.limits.cleanup or 0.0
                event = Unresponsive(at=self._now(), what="body", name=self.name, waited=waited)
                self._sink.emit(event)
                if self._cancels is not None:
                    enrol_body(self, self._cancels.task)
            outside = self._cancels is not None and self._cancels.others
            self._tools.give_up(self._cause)
            self._end(None, outside=outside)
        if self._gave_up is not None:
            self._gave_up()

    # --- start and end ---

    def _now(self) -> float:
        return now() if self._budget is None else self._budget.now()

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("a Turn can be entered only once")
        task = running_task()
        if task is None:
            raise RuntimeError("a Turn needs to run inside a task")
        self._started_at = time.time()
        self._loop = task.get_loop()
        if self._store is not None:
            await self._begin_record(self._store)
        if self._early is not None:
            self._cause = self._early
            self._end(None, outside=False)
            await self._end_record()
            raise self._early
        self._cancels = Cancels(task)
        self._settling = Settling(
            self._cleanup(),
            self._on_again,
            self._on_cleanup,
            cause=self._why,
            streams=self._streams,
            tools=self._tools,
        )
        self._borrowed = self.tracker.depth
        passive = self.limits.observe_only
        self._share = Share(self.limits.turn_budget, task, passive=passive)
        self._budget = TurnBudget(
            self._share.limit,
            self._sink,
            self._sleeps,
            self._stop,
            self._named,
            observe_only=passive,
        )
        self._clock = PhaseClock(
            self.tracker,
            self.limits,
            self._sink,
            self._stop,
            self._sleeps,
            self._cancels.accept,
        )
        enrol(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cancels, settling = self._cancels, self._settling
        if cancels is None or settling is None:
            raise RuntimeError("this Turn was not entered")
        strike_off_body(self)
        if self.outcome is not None:
            self._note_late(error)
        violation = self._check_phases() if error is None else None
        self._ending = True
        settling.hush()
        settling.start()
        if self._clock is not None:
            self._also = self._also or self._clock.owed
        self._stop_clocks()
        interrupted: CancelledError | None = None
        if not isinstance(error, GeneratorExit):  # nothing can be awaited after that
            await cancels.absorb()
            interrupted = await settling.settle()
        ours = cancels.sent
        # What is left of the count is somebody else's cancel, if it is on its way out of here, was
        # swallowed together with ours, or came after the body had let go.
        outside = cancels.take_back() and (
            isinstance(error, CancelledError)
            or (error is None and (ours or interrupted is not None))
        )
        if self.outcome is None:
            self._end(error or violation, outside=outside)
        settling.close()
        if not isinstance(error, GeneratorExit):
            late = await self._end_record()
            interrupted, outside = late or interrupted, outside or late is not None
        cause = self._cause
        if is_fatal(error) or isinstance(error, UserCancelled):
            return
        if outside and error is None:
            raise interrupted or CancelledError
        if cause is not None and error is not cause and not outside:
            raise cause from (None if isinstance(error, CancelledError) else error)
        if violation is not None:
            raise violation

    def _check_phases(self) -> PhaseViolationError | None:
        """What strict mode has to say about phases that were borrowed and not given back."""
        if self._cause is not None or self._borrowed:
            return None
        try:
            self.tracker.assert_clean()
        except PhaseViolationError as violation:
            return violation
        return None

    def _stop_clocks(self) -> None:
        if self._clock is not None:
            self._clock.close()
        if self._budget is not None:
            self._budget.close()
        if self._share is not None:
            self._share.end()

    def _end(self, error: BaseException | None, *, outside: bool) -> None:
        """Writes the outcome, once."""
        strike_off(self)
        self._stop_clocks()
        status, cause = verdict(self._cause, error, outside=outside)
        state = self._stopped or self.tracker.current()
        if isinstance(cause, StallError):
            partial = unfinished_text_of(self._streams)
            cause.annotate(partial=partial, phase=state.phase, seq=state.seq)
            if cause is self._cause and self._cancels is not None:
                record_cause(self._cancels.task, cause)
            phase = state.phase if cause.phase is None else cause.phase
            state = PhaseState(phase, state.elapsed, state.seq if cause.seq is None else cause.seq)
        also = self._also if cause is self._cause else self._cause or self._also
        outcome = self._seal(status, state, cause=cause, also=also, result=self._result)
        self._sink.emit(
            Settled(
                at=self._now(),
                status=str(status),
                cause=None if cause is None else cause.kind,
                elapsed=outcome.elapsed,
            )
        )
