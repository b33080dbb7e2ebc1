"""Waiting for a supervised child: in a loop, or by blocking a thread."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import Future

    from stallwatch._child_outcome import ChildOutcome
    from stallwatch._child_watch import WatchedChild

__all__ = ["wait_blocking", "wait_in_loop"]

_BATCH: Final = 64
"""Notes that are handled in one turn of the loop."""


class _Reader:
    """Takes a child's notes whenever its bell rings, until there is an outcome."""

    def __init__(self, watched: WatchedChild, loop: Any) -> None:
        self._watched = watched
        self._loop = loop
        self._bell = watched.handle.bell
        self._over: Future[None] | None = None
        self.outcome: ChildOutcome | None = None
        self.error: BaseException | None = None
        loop.add_reader(self._bell, self._on_bell)

    def _on_bell(self) -> None:
        if self._bell < 0:
            return
        try:
            self._watched.handle.hush()
            if self._watched.take(_BATCH):
                # The bell may not ring again: what is left waits for the loop's next turn.
                self._loop.call_soon(self._on_bell)
                return
            self.outcome = self._watched.outcome()
        except BaseException as error:  # an interrupt, or the exit of a program, in a callback
            self.error = error
        if self.outcome is not None or self.error is not None:
            self.close()

    def close(self) -> None:
        """Stops. Harmless when repeated."""
        if self._bell >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._bell)
            self._bell = -1
            self._watched.handle.close()
        over = self._over
        if over is not None and not over.done():
            over.set_result(None)

    async def wait(self) -> None:
        """Until there is an outcome."""
        while self.outcome is None:
            if self.error is not None:
                raise self.error
            self._over = self._loop.create_future()
            await self._over


async def wait_in_loop(watched: WatchedChild) -> ChildOutcome:
    """Wait for a child in the running loop. A cancel ends the child, and is raised after that."""
    try:
        reader = _Reader(watched, get_running_loop())
    except BaseException:
        watched.handle.end()
        raise
    cancelled: CancelledError | None = None
    try:
        while reader.outcome is None:
            try:
                await reader.wait()
            except CancelledError as error:
                # Whoever cancels twice is in a hurry.
                watched.handle.end(at_once=cancelled is not None)
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return reader.outcome
    except BaseException:
        watched.handle.end()
        raise
    finally:
        reader.close()


def wait_blocking(watched: WatchedChild) -> ChildOutcome:
    """Block until a child is over. What a signal handler raises ends the child first."""
    handle = watched.handle
    interrupted: BaseException | None = None
    outcome: ChildOutcome | None = None
    while outcome is None:
        try:
            handle.hush()
            watched.take()
            outcome = watched.outcome()
            if outcome is None:
                handle.wait()
        except BaseException as error:
            handle.end(at_once=interrupted is not None)
            interrupted = interrupted or error
    handle.close()
    if interrupted is not None:
        raise interrupted
    return outcome
