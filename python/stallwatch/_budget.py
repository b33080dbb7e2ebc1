"""`budget`: seconds for everything inside a block, across retries, tasks and libraries."""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import suppress
from contextvars import Token
from typing import TYPE_CHECKING, Final, Self

from stallwatch._allowance import SPENT, Allowance, current
from stallwatch._cancels import Cancels, is_fatal, patience, running_task
from stallwatch._causes import StallError, TurnBudgetError, UserCancelled
from stallwatch._events import Unresponsive
from stallwatch._limits import Limits
from stallwatch._phase_clock import RETRY
from stallwatch._retry import record_cause
from stallwatch._seconds import seconds
from stallwatch._settle import Settling
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stallwatch import now
from stallwatch._suspend import Sleeps
from stallwatch._turn_budget import TurnBudget

if TYPE_CHECKING:
    from types import TracebackType

    from stallwatch._seconds import Duration

__all__ = ["Budget", "budget"]

_HOPS: Final = 8
"""Turns of the loop before the cancel: twice those of a clock inside, which goes first."""

_LIMITS: Final = Limits()
"""`cleanup` is what a body has to let go, as in a turn."""


class Budget:
    """A block with an absolute bound: see `budget`, which makes it."""

    __module__ = "stallwatch"

    def __init__(self, limit: float | None, *, name: str | None, sink: EventSink) -> None:
        self._limit = limit
        self._name = name
        self._sink = sink
        self._outer: Allowance | None = None
        self._mine: Allowance | None = None
        self._token: Token[Allowance | None] | None = None
        self._entered_at: float | None = None
        self._left_at: float | None = None
        self._cancels: Cancels | None = None
        self._clock: TurnBudget | None = None
        self._settling: Settling | None = None
        self._cause: TurnBudgetError | None = None

    # --- what users see ---

    @property
    def limit(self) -> float | None:
        """The seconds it was made with; None if it has no bound of its own."""
        return self._limit

    @property
    def name(self) -> str | None:
        """The name it was given."""
        return self._name

    @property
    def remaining(self) -> float | None:
        """Seconds left, the blocks around it considered; before it is entered, all of its own."""
        if self._entered_at is None:
            return self._limit
        found = self._mine or self._outer
        return None if found is None else found.left()

    @property
    def elapsed(self) -> float:
        """Seconds since it was entered; it stands still once the block is left."""
        if self._entered_at is None:
            return 0.0
        return (now() if self._left_at is None else self._left_at) - self._entered_at

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self._cause is not None or self.remaining == 0.0

    @property
    def cause(self) -> TurnBudgetError | None:
        """The cause, once it has fired."""
        return self._cause

    def check(self) -> None:
        """Raise the cause if no time is left: for loops that wait for nothing.

        Raises:
            TurnBudgetError: if it is over.
        """
        if self.expired:
            raise self._cause or self._blame()

    def __repr__(self) -> str:
        label = "" if self._name is None else f" {self._name!r}"
        left = self.remaining
        return f"<budget{label} {'unbounded' if left is None else f'{left:.3g} s left'}>"

    # --- the block ---

    def __enter__(self) -> Self:
        if self._entered_at is not None:
            raise RuntimeError("a budget can be entered only once: it cannot be renewed")
        self._entered_at = now()
        outer = self._outer = current.get()
        if outer is not None and outer.left() == 0.0:
            raise self._blame()
        task = running_task()
        deadline = None if self._limit is None else self._entered_at + self._limit
        if outer is not None and (deadline is None or outer.deadline <= deadline):
            # The remainder of the outer block. It looks after its own task by itself.
            if task is outer.task or task is None:
                return self
            deadline = outer.deadline
        if deadline is None:
            return self
        self._mine = Allowance(deadline, task)
        self._token = current.set(self._mine)
        if task is not None:
            self._cancels = Cancels(task)
            self._settling = Settling(_LIMITS.cleanup, self._on_again, self._on_cleanup)
            self._clock = TurnBudget(
                max(SPENT, deadline - now()),
                self._sink,
                Sleeps(self._sink),
                self._on_fire,
                lambda: {"owner": "budget", "name": self._name},
                owner="budget",
                hops=_HOPS,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left_at = now()
        if self._token is not None:
            with suppress(ValueError):  # left in another context than it was entered in
                current.reset(self._token)
        for one in (self._clock, self._settling):
            if one is not None:
                one.close()
        cause, cancels = self._cause, self._cancels
        if cause is None or cancels is None or cancels.task is not running_task():
            return
        others = cancels.take_back()
        if isinstance(error, UserCancelled) or is_fatal(error):
            return
        if others and (error is None or isinstance(error, CancelledError)):
            if error is None:
                raise CancelledError  # it was swallowed together with ours
            return
        stream = None if self._mine is None else self._mine.stream
        if isinstance(error, StallError):
            cause.annotate(partial=error.partial, tool_args=error.tool_args)
        elif stream is not None and not stream.is_complete:
            cause.annotate(partial=stream.text)
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

    # --- the clock ---

    def _blame(self) -> TurnBudgetError:
        """The cause of a block that was over when it was looked at."""
        return TurnBudgetError(
            owner="budget", name=self._name, idle=self.elapsed, limit=self._limit
        )

    def _on_fire(self, cause: TurnBudgetError, waited: float) -> bool:
        cancels, mine = self._cancels, self._mine
        if cancels is None or mine is None or cancels.task.done():
            return True
        # A turn that has just ended by this deadline is about to return its outcome.
        just = mine.settled_at is not None and now() < mine.settled_at + RETRY
        if (mine.heirs or just or cancels.others) and waited < patience(_LIMITS):
            return False
        cancels.accept()
        self._cause = cause
        record_cause(cancels.task, cause)
        cancels.send()
        if self._settling is not None:
            self._settling.start(waited)
        return True

    def _on_again(self) -> None:
        if self._cancels is not None and self._left_at is None:
            self._cancels.send()

    def _on_cleanup(self) -> None:
        waited = _LIMITS.cleanup or 0.0
        self._sink.emit(Unresponsive(at=now(), what="body", name=self._name, waited=waited))


def budget(limit: Duration, /, *, name: str | None = None, on_event: OnEvent = None) -> Budget:
    """Bound everything inside a block: `with budget(30):`, also as `async with`.

    The clock runs from the moment the block is entered until it is left, and is reset by nothing:
    not by chunks, not by a retry, not by a budget inside, which gets the remainder at most. It
    fires as a `BudgetExceeded` event, then cancels the task of the block, which raises
    `TurnBudgetError` at its end, with the text of a stream that was cut as `partial` and the task's
    cancel count as before. A cancel by somebody else goes through unchanged, and wins if both meet.
    A body that swallows the cancel is told again, after 1/2, 3/4 and 7/8 of 60 s, and is then
    reported as `Unresponsive`; if it returns after all, the block raises nevertheless.

    Inside, the remainder is carried by a context variable, so libraries in between need not know:
    turns end by it as by a `turn_budget` of their own, streams in other tasks, and blocking streams
    in any thread, as by a `budget` of their own; blocks that are entered once it is over raise at
    once. `stallwatch.remaining()` tells it to anybody else. Outside of tasks there is nothing to
    cancel: there, `check()` raises once the time is over.

    Args:
        limit: Seconds, or a `timedelta`. None: no bound but that of the blocks around it.
        name: Shown in the cause and the event.
        on_event: A callable, or a list of them, for the events.

    Raises:
        ValueError: for 0 or less, or NaN.
        TurnBudgetError: at the end of the block; on entering, if a block around it is over.
        RuntimeError: if the same budget is entered twice.

    Example:
        >>> async def answer(client, attempts):
        ...     with budget(30):
        ...         for attempt in range(attempts):
        ...             try:
        ...                 return await client.ask()
        ...             except ConnectionError:
        ...                 continue
    """
    return Budget(seconds(limit, name="budget"), name=name, sink=EventSink(on_event))


budget.__module__ = "stallwatch"
