"""The tool calls of a turn: each with a clock of its own, all told the same end as the turn."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from stallwatch._causes import ToolDeadlineError
from stallwatch._clock_times import Span
from stallwatch._events import ToolEnded, ToolStarted
from stallwatch._failure import AnyCause
from stallwatch._limits import Limits
from stallwatch._sink import EventSink
from stallwatch._suspend import Sleeps
from stallwatch._tool_call import ToolCall
from stallwatch._tool_record import ToolRecord, ToolState
from stallwatch._turn_budget import TurnBudget

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["Tools"]


class Tools:
    """The tool calls of one turn.

    Args:
        limits: `close_grace`, and `observe_only`.
        sink: Where events go.
        sleeps: Shared with the turn's other clocks.
        now: The turn's clock.
        where: Phase and sequence number, for causes.
        cause: Why the turn is ending; None while it is well.
        left: Seconds that the turn has left to settle; None if it does not settle, or without end.
        before_cut: Awaited before a tool is cancelled because its caller was.
        on_late: Told the name and the future of a tool that ended when it was over already.
    """

    __slots__ = (
        "_before_cut",
        "_calls",
        "_cause",
        "_covered",
        "_left",
        "_limits",
        "_now",
        "_on_late",
        "_open",
        "_sink",
        "_sleeps",
        "_where",
    )

    def __init__(
        self,
        limits: Limits,
        sink: EventSink,
        sleeps: Sleeps,
        *,
        now: Callable[[], float],
        where: Callable[[], Mapping[str, Any]],
        cause: Callable[[], AnyCause | None],
        left: Callable[[], float | None],
        before_cut: Callable[[], Awaitable[object]],
        on_late: Callable[[str, Future[Any]], object],
    ) -> None:
        self._limits = limits
        self._sink = sink
        self._sleeps = sleeps
        self._now = now
        self._where = where
        self._cause = cause
        self._left = left
        self._before_cut = before_cut
        self._on_late = on_late
        self._calls: list[ToolCall[Any] | ToolRecord] = []
        self._open: dict[ToolCall[Any], None] = {}
        self._covered: list[Span] = []

    # --- as the turn has them ---

    @property
    def open(self) -> list[ToolCall[Any]]:
        """The calls that are not over."""
        return list(self._open)

    @property
    def records(self) -> tuple[ToolRecord, ...]:
        """All calls, in the order in which they started."""
        return tuple(one if isinstance(one, ToolRecord) else one.record for one in self._calls)

    @property
    def covered(self) -> list[Span]:
        """When calls ran that have a limit."""
        now = self._now()
        still = [(now - one.elapsed, now) for one in self.open if one.limit is not None]
        return [*self._covered, *still]

    def interrupt(self, cause: AnyCause | None) -> None:
        """Cancel every open call."""
        for one in self.open:
            one.cut(ToolState.INTERRUPTED, cause)

    def give_up(self, cause: AnyCause | None) -> None:
        """Wait for none of them any longer."""
        for one in self.open:
            one.give_up(cause)

    async def over(self) -> CancelledError | None:
        """Wait until none is open. A cancel meanwhile is kept, and returned."""
        from asyncio import wait

        cancelled: CancelledError | None = None
        while self._open:
            try:
                await wait([one._over for one in self._open])
            except CancelledError as error:
                cancelled = error
        return cancelled

    # --- as a call has them ---

    def now(self) -> float:
        """Now, on the turn's clock."""
        return self._now()

    def cause(self) -> AnyCause | None:
        """Why the turn is ending."""
        return self._cause()

    def grace(self) -> float | None:
        """Seconds that a cancelled tool has to let go: half of what settling has left."""
        left = self._left()
        return self._limits.close_grace if left is None else left / 2

    async def before_cut(self) -> None:
        """Streams are closed before tools are cancelled."""
        await self._before_cut()

    def emit(self, event: Any) -> None:
        """Report an event."""
        self._sink.emit(event)

    def add(self, call: ToolCall[Any]) -> int:
        """A call has started. Returns its number."""
        self._open[call] = None
        self._calls.append(call)
        if self._sink.wants(ToolStarted):
            self._sink.emit(ToolStarted(at=self._now(), name=call.name))
        return len(self._calls) - 1

    def clock(self, limit: float, call: ToolCall[Any]) -> TurnBudget:
        """The clock of a call."""
        return TurnBudget(
            limit,
            self._sink,
            self._sleeps,
            call.on_deadline,
            lambda: {"name": call.name, **self._where()},
            owner="tool",
            name=call.name,
            error=ToolDeadlineError,
            observe_only=self._limits.observe_only,
            is_about_to_end=call.is_about_to_end,
        )

    def on_end(self, call: ToolCall[Any], number: int) -> None:
        """A call is over. Only its record is kept."""
        self._open.pop(call, None)
        record = self._calls[number] = call.record
        if call.limit is not None:
            now = self._now()
            self._covered.append((now - record.elapsed, now))
        if self._sink.wants(ToolEnded):
            self._sink.emit(
                ToolEnded(
                    at=self._now(), name=call.name, state=str(call.state), elapsed=record.elapsed
                )
            )

    def on_late(self, name: str, work: Future[Any]) -> None:
        """A tool has ended whose call was over."""
        self._on_late(name, work)
