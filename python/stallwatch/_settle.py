"""Bringing a turn to its end: in which order, for how long, and how it is to be called."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Any, Final

from stallwatch._cancels import running_loop
from stallwatch._causes import StallError, UserCancelled
from stallwatch._failure import AnyCause, Failure
from stallwatch._outcome import Status
from stallwatch._phase_clock import HOPS, RETRY
from stallwatch._retry import cause_of
from stallwatch._stallwatch import Alarm
from stallwatch._stream_guard import StreamGuard
from stallwatch._tools import Tools

__all__ = ["Cause", "Settling", "verdict"]

Cause = StallError | UserCancelled

_TELLINGS: Final = 3
"""How often a body that does not let go is told again, each after half of what is left."""

_SHARE: Final = 0.25
"""Share of the time that streams have to be closed before tools are cancelled nevertheless."""


class Settling:
    """The time that everything together has to let go, counted from the cause.

    Its seams, in the order in which they are settled: streams are closed, tools are cancelled.

    Args:
        cleanup: That time; None for all the time they want.
        tell: Tells the body again: after 1/2, 3/4 and 7/8 of it.
        give_up: Called when it is over.
        cause: What it is settled for; None for a turn that is well.
        streams: Those of the turn.
        tools: Those of the turn.
    """

    __slots__ = (
        "_again",
        "_begun",
        "_cause",
        "_cleanup",
        "_end",
        "_give_up",
        "_look",
        "_streams",
        "_tell",
        "_told",
        "_tools",
    )

    def __init__(
        self,
        cleanup: float | None,
        tell: Callable[[], object],
        give_up: Callable[[], object],
        *,
        cause: Callable[[], AnyCause | None] = lambda: None,
        streams: Sequence[StreamGuard[Any]] = (),
        tools: Tools | None = None,
    ) -> None:
        self._cleanup = cleanup
        self._tell = tell
        self._give_up = give_up
        self._cause = cause
        self._streams = streams
        self._tools = tools
        self._begun: float | None = None
        self._told = 0
        self._again = Alarm(self._on_again)
        self._end = Alarm(self._on_end)
        self._look: Alarm | None = None

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
        if self._look is not None:
            self._look.close()
        self._told = _TELLINGS

    def close(self) -> None:
        """It is over."""
        self.hush()
        self._end.close()

    async def settle(self) -> CancelledError | None:
        """Settle streams and tools, in the task of the body, which has let go.

        Returns:
            The cancel that came meanwhile, if one did. Everything is settled first.
        """
        cancelled = await self.close_streams()
        if self._tools is not None:
            self._tools.interrupt(self._cause())
            cancelled = await self._tools.over() or cancelled
        return cancelled

    async def close_streams(self) -> CancelledError | None:
        """Close what is still open, one after the other, in the time left for all of them.

        Returns:
            The cancel that came meanwhile, if one did. All streams are closed first.
        """
        cancelled: CancelledError | None = None
        for one in self._streams:
            if not one.has_begun or one.is_over:
                continue
            seconds = self.left()
            if seconds is not None:
                one.bound_close(seconds)
            try:
                await one.aclose()
            except CancelledError as error:
                cancelled = error
            except Exception:
                continue  # the source's own trouble with being closed is not the turn's cause
        return cancelled

    def pursue(self, hops: int = HOPS) -> None:
        """Have the tools cancelled, whatever the body does, once the streams are closed.

        They are closed where they are read, in the body's own task, and have a quarter of the time
        for it.
        """
        loop, tools = running_loop(), self._tools
        if tools is None or loop is None or self._told >= _TELLINGS or not tools.open:
            return
        if hops:
            loop.call_soon(self.pursue, hops - 1)
            return
        if self._look is None:
            self._look = Alarm(self._on_look)
        self._on_look(0.0, 0.0, 0.0)

    def _on_look(self, due: float, decided: float, overslept: float) -> None:
        tools, look, left, cleanup = self._tools, self._look, self.left(), self._cleanup
        if tools is None or look is None or not tools.open:
            return
        spent = 0.0 if left is None or cleanup is None else 1 - left / cleanup
        if spent < _SHARE and any(one.has_begun and not one.is_over for one in self._streams):
            look.set(look.now() + RETRY)
        else:
            tools.interrupt(self._cause())

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
