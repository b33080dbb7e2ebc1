"""How long is left of the `budget(...)` blocks around a piece of code, wherever it runs.

A context variable carries it, so that tasks, `asyncio.to_thread` and libraries in between hand it
down without knowing. Only the time is kept here; what a block does once it is over is its own
(`_budget`).
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Final

from stallwatch._stallwatch import now

__all__ = ["SPENT", "Allowance", "Share", "allowance", "remaining"]

SPENT: Final = 1e-9
"""Seconds that stand for none: limits are above 0."""


class Allowance:
    """The time of the innermost block that has a bound.

    Attributes:
        deadline: The moment it ends, on the clock of `now()`.
        task: The task that the block cancels by itself; None outside of tasks.
        heirs: How many turns inside end by this deadline on their own. The block leaves it to them.
        settled_at: When the last of them did, if one has.
        stream: The stream that was begun last in that task, whose text is the block's `partial`.
    """

    __slots__ = ("deadline", "heirs", "settled_at", "stream", "task")

    def __init__(self, deadline: float, task: Any) -> None:
        self.deadline = deadline
        self.task = task
        self.heirs = 0
        self.settled_at: float | None = None
        self.stream: Any = None

    def left(self) -> float:
        """Seconds left; 0 when it is over."""
        left = self.deadline - now()
        return left if left > 2 * SPENT else 0.0


current: Final[ContextVar[Allowance | None]] = ContextVar("stallwatch_allowance", default=None)


def allowance() -> Allowance | None:
    """The one that is in force here."""
    return current.get()


def remaining() -> float | None:
    """Seconds left of the `budget(...)` blocks around this code; None if there is no bound.

    For handing down to what knows nothing of budgets: `timeout=stallwatch.remaining()`. It is 0.0
    when the time is over, and follows tasks and `asyncio.to_thread` as context variables do.
    """
    found = current.get()
    return None if found is None else found.left()


class Share:
    """What a turn takes of the block it is in, and hands down inside.

    Args:
        limit: The turn's own budget.
        task: The turn's task.
        passive: It only reports: nothing inside is bound by it, and it takes over nothing.

    Attributes:
        limit: Seconds for the turn: its own, or what is left if that is less; None without a bound.
    """

    __slots__ = ("_outer", "_token", "limit")

    def __init__(self, limit: float | None, task: Any, *, passive: bool) -> None:
        outer = current.get()
        if outer is not None:
            left = max(SPENT, outer.left())
            limit = left if limit is None else min(limit, left)
        self.limit = limit
        self._outer = None if passive else outer
        self._token: Token[Allowance | None] | None = None
        if self._outer is not None:
            self._outer.heirs += 1
        if limit is not None and not passive:
            self._token = current.set(Allowance(now() + limit, task))

    def end(self) -> None:
        """The turn has settled; harmless when repeated."""
        outer, token = self._outer, self._token
        self._outer = self._token = None
        if outer is not None:
            outer.heirs -= 1
            outer.settled_at = now()
        if token is not None:
            with suppress(ValueError):  # it settled without its body, in another context
                current.reset(token)


remaining.__module__ = "stallwatch"
