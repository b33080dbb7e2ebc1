"""The turn watchdog for an existing loop: soft and hard idle without a turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from stallwatch._cancels import Cancels, is_fatal, patience, running_loop, running_task
from stallwatch._causes import HardIdleError, UserCancelled
from stallwatch._limits import Limits
from stallwatch._phase_clock import PhaseClock
from stallwatch._retry import record_cause
from stallwatch._sink import EventSink, OnEvent
from stallwatch._tracker import PhaseTracker

if TYPE_CHECKING:
    from asyncio import Task
    from types import TracebackType


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
    out of the block as `HardIdleError`, the task's cancel count as before, whatever the body made
    of it; an error that the body raised instead is its `__cause__`. A cancel by somebody else goes
    through unchanged, and wins if both meet; while one is under way, hard idle holds back its own
    for half of `cleanup`. Where the task is another one, it sees a `CancelledError`, and
    `cause_of(task)` tells the cause.

    Args:
        tracker: Whose phases.
        limits: `Limits`; by default `Limits()`, which is soft 90 s and hard 540 s.
        cancel: The task to cancel, by default the one that enters; or a callable that gets the
            cause, on the loop where the watchdog was entered (without one, on a thread of ours).
        name: Shown in events and the cause, as the name of a turn.
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
        name: str | None = None,
        on_event: OnEvent = None,
    ) -> None:
        if not (cancel is None or callable(cancel) or hasattr(cancel, "cancelling")):
            raise TypeError(f"cancel takes a task or a callable, not {type(cancel).__name__}")
        self._tracker = tracker
        self._limits = Limits() if limits is None else limits
        self._name = name
        self._sink = EventSink(on_event, turn=name)
        self._cancel = cancel
        self._cancels: Cancels | None = None
        self._clock: PhaseClock | None = None
        self._cause: HardIdleError | None = None
        self._over = False

    @property
    def cause(self) -> HardIdleError | None:
        """The cause, once hard idle has fired."""
        return self._cause

    def __enter__(self) -> Self:
        if self._clock is not None:
            raise RuntimeError("a Watchdog can be entered only once")
        if self._cancel is None:
            task = running_task()
            if task is None:
                raise RuntimeError("outside a task a Watchdog needs to be told what to cancel")
            self._cancels = Cancels(task)
        elif not callable(self._cancel):
            self._cancels = Cancels(self._cancel)
        begun = None if self._cancels is None else self._cancels.accept
        self._clock = PhaseClock(
            self._tracker, self._limits, self._sink, self._on_fire, begun=begun
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over = True
        if self._clock is not None:
            self._clock.close()
        cause, cancels = self._cause, self._cancels
        if cause is None or cancels is None or cancels.task is not running_task():
            return
        others = cancels.take_back()
        from asyncio import CancelledError

        if isinstance(error, UserCancelled) or is_fatal(error):
            return
        if others and (error is None or isinstance(error, CancelledError)):
            if error is None:
                raise CancelledError  # it was swallowed together with ours
            return
        raise cause from (None if isinstance(error, CancelledError) else error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _on_fire(self, cause: HardIdleError, waited: float) -> bool:
        cause.annotate(name=self._name)
        if callable(self._cancel):
            self._cause = cause
            self._cancel(cause)
            return True
        cancels = self._cancels
        if cancels is None or cancels.task.done():
            return True
        if cancels.others and waited < patience(self._limits):
            return False
        cancels.accept()
        self._cause = cause
        record_cause(cancels.task, cause)
        loop = cancels.task.get_loop()
        if running_loop() is loop:
            cancels.send()
        else:
            with suppress(RuntimeError):  # its loop is closed, and with it the task is over
                loop.call_soon_threadsafe(self._send)
        return True

    def _send(self) -> None:
        if self._cancels is not None and not self._over:
            self._cancels.send()
