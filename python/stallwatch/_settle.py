"""Bringing a turn to its end: for how long, and how it is to be called."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterable
from typing import Any, Final

from stallwatch._causes import StallError, UserCancelled
from stallwatch._outcome import Failure, Status
from stallwatch._retry import cause_of
from stallwatch._stallwatch import Alarm
from stallwatch._stream_guard import StreamGuard

__all__ = ["Cause", "Settling", "close_streams", "verdict"]

Cause = StallError | UserCancelled

_TELLINGS: Final = 3
"""How often a body that does not let go is told again, each after half of what is left."""


class Settling:
    """The time that a body has to let go, counted from its cause.

    Args:
        cleanup: That time; None for all the time it wants.
        tell: Tells the body again: after 1/2, 3/4 and 7/8 of it.
        give_up: Called when it is over.
    """

    __slots__ = ("_again", "_begun", "_cleanup", "_end", "_give_up", "_tell", "_told")

    def __init__(
        self,
        cleanup: float | None,
        tell: Callable[[], object],
        give_up: Callable[[], object],
    ) -> None:
        self._cleanup = cleanup
        self._tell = tell
        self._give_up = give_up
        self._begun: float | None = None
        self._told = 0
        self._again = Alarm(self._on_again)
        self._end = Alarm(self._on_end)

    def start(self, spent: float = 0.0) -> None:
        """Start the time, `spent` seconds of which are gone already. Once."""
        if self._begun is None and self._cleanup is not None:
            self._begun = self._end.now() - spent
            self._end.set(self._begun + self._cleanup)
            self._set_again()

    def left(self) -> float | None:
        """Seconds left; None without a bound, or before the start."""
        if self._cleanup is None or self._begun is None:
            return None
        return max(0.0, self._begun + self._cleanup - self._end.now())

    def hush(self) -> None:
        """The body has let go: it is told no more."""
        self._again.close()
        self._told = _TELLINGS

    def close(self) -> None:
        """It is over."""
        self.hush()
        self._end.close()

    def _set_again(self) -> None:
        if self._begun is None or self._cleanup is None:
            return
        while self._told < _TELLINGS:
            self._told += 1
            moment = self._begun + self._cleanup * (1 - 0.5**self._told)
            if moment > self._again.now():
                self._again.set(moment)
                return

    def _on_again(self, due: float, decided: float, overslept: float) -> None:
        self._set_again()
        self._tell()

    def _on_end(self, due: float, decided: float, overslept: float) -> None:
        self.hush()
        self._give_up()


async def close_streams(
    streams: Iterable[StreamGuard[Any]], left: Callable[[], float | None]
) -> CancelledError | None:
    """Close what is still open, one after the other, in the time left for all of them.

    Returns:
        The cancel that came meanwhile, if one did. All streams are closed first.
    """
    cancelled: CancelledError | None = None
    for one in streams:
        if one.is_over or not one.has_begun:
            continue
        seconds = left()
        if seconds is not None:
            one.bound_close(seconds)
        try:
            await one.aclose()
        except CancelledError as error:
            cancelled = error
        except Exception:
            continue  # the source's own trouble with being closed is not the turn's cause
    return cancelled


def verdict(
    cause: Cause | None, error: BaseException | None, *, outside: bool
) -> tuple[Status, Cause | Failure | None]:
    """How a turn ended, and why.

    Args:
        cause: What ended it from inside: a clock, or a user.
        error: What left the body.
        outside: Whether a cancel by somebody else is under way.
    """
    if isinstance(cause, UserCancelled):
        return Status.CANCELLED, cause
    if isinstance(error, UserCancelled):  # of a turn inside this one
        return Status.CANCELLED, error
    if outside:
        said = Failure("asyncio.CancelledError", "the task was cancelled from outside the turn")
        return Status.CANCELLED, said
    if cause is not None:
        return Status.STALLED, cause
    if error is None:
        return Status.COMPLETED, None
    found = cause_of(error)
    if found is not None:
        return (Status.STALLED if isinstance(found, StallError) else Status.CANCELLED), found
    if isinstance(error, CancelledError):
        return Status.CANCELLED, Failure.of(error)
    return Status.FAILED, Failure.of(error)
