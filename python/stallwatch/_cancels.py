"""Our cancels of a task, told apart from everybody else's by counting.

asyncio counts how often a task was asked to stop (`task.cancelling()`), and merges requests of one
moment into one `CancelledError`. So the exception does not say whose it was; what is left of the
count once ours are taken back does.

A count may also be stale: the body has swallowed a cancel, or a task group of Python 3.11 has left
its own on the task (it asks its parent while that waits for it, and never takes that back). So what
was on the count when the body went on to something new is no cancel under way: see `accept`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from stallwatch._limits import Limits

__all__ = ["Cancels", "is_fatal", "patience", "running_loop", "running_task"]


def is_fatal(error: BaseException | None) -> bool:
    """Whether an error ends more than a turn, so that no cause may take its place."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_fatal(one) for one in error.exceptions)
    return isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))


def patience(limits: Limits) -> float:
    """Seconds for which a clock leaves it to somebody else's cancel to end the task."""
    return 30.0 if limits.cleanup is None else limits.cleanup / 2


def running_loop() -> AbstractEventLoop | None:
    """The event loop of this thread, if it is running."""
    from asyncio import get_running_loop

    try:
        return get_running_loop()
    except RuntimeError:
        return None


def running_task() -> Task[Any] | None:
    """The task that is running in this thread."""
    from asyncio import current_task

    return None if running_loop() is None else current_task()


class Cancels:
    """What a turn or a watchdog has asked of a task, and how to take it back.

    All of it belongs on the thread of the task's loop, but for `others` and `accept`.

    Args:
        task: The task. What it had been asked before does not count.
    """

    __slots__ = ("_base", "_sent", "task")

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self._base = task.cancelling()
        self._sent = 0

    @property
    def sent(self) -> bool:
        """Whether a cancel of ours is out."""
        return self._sent > 0

    @property
    def others(self) -> bool:
        """Whether somebody else's cancel is under way: a user's, or that of a clock inside."""
        return self.task.cancelling() - self._sent > self._base

    def accept(self) -> None:
        """The body goes on as if nothing were the matter: so nothing on the count is under way."""
        if not self._sent:
            self._base = self.task.cancelling()

    def send(self) -> None:
        """Ask the task to stop, if it still runs."""
        if not self.task.done():
            self._sent += 1
            self.task.cancel()

    async def absorb(self) -> None:
        """Wait for a cancel of ours that the task has not seen, inside that task.

        Only a task that was cancelled by its own code has one. Left alone, it would strike at
        whatever is awaited next, long after the block it was meant for (up to 3.12, where taking
        back a request does not take back the exception).
        """
        import asyncio

        while self._sent and getattr(self.task, "_must_cancel", False):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue

    def take_back(self) -> bool:
        """Take ours off the task's count. True if somebody else's is left."""
        left = self.task.cancelling()
        # A body may have taken ours back itself: what was there before us is not ours to take.
        for _ in range(min(self._sent, max(0, left - self._base))):
            left = self.task.uncancel()
        self._sent = 0
        return left > self._base
