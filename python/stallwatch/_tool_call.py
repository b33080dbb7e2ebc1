"""One tool call of a turn: its clock, its end, and what to await for its result."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from stallwatch._causes import StallError, ToolDeadlineError, UserCancelled
from stallwatch._events import Unresponsive
from stallwatch._failure import AnyCause, Failure
from stallwatch._stallwatch import Alarm
from stallwatch._tool_record import ToolRecord, ToolState
from stallwatch._turn_budget import TurnBudget

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["Host", "ToolCall", "lingering"]

T = TypeVar("T")

_lingering: Final[dict[ToolCall[Any], None]] = {}


def lingering() -> list[ToolCall[Any]]:
    """The tool calls of this process that are over for their turn and run nevertheless."""
    return list(_lingering)


class Host(Protocol):
    """What a call needs of the turn that it belongs to."""

    def now(self) -> float:
        """Now, on the turn's clock."""
        ...

    def cause(self) -> AnyCause | None:
        """Why the turn is ending."""
        ...

    def grace(self) -> float | None:
        """Seconds that a cancelled tool has to let go; None for all it wants."""
        ...

    async def before_cut(self) -> None:
        """Awaited before a tool is cancelled because its caller was."""
        ...

    def emit(self, event: Any) -> None:
        """Report an event."""
        ...

    def add(self, call: ToolCall[Any]) -> int:
        """A call has started. Returns its number."""
        ...

    def clock(self, limit: float, call: ToolCall[Any]) -> TurnBudget:
        """The clock of a call."""
        ...

    def on_end(self, call: ToolCall[Any], number: int) -> None:
        """A call is over."""
        ...

    def on_late(self, name: str, work: Future[Any]) -> None:
        """A tool has ended whose call was over."""
        ...


class ToolCall(Generic[T]):
    """A tool call of a turn, as `turn.start_tool` gives it: await it for the tool's result.

    Awaiting raises what the tool raised; `ToolDeadlineError` if its clock fired; and the cause of
    the turn if that ended first. Cancelling a task that awaits it cancels the tool.
    """

    __module__ = "stallwatch"

    __slots__ = (
        "__weakref__",
        "_again",
        "_cause",
        "_clock",
        "_cut",
        "_due",
        "_ended_at",
        "_is_thread",
        "_limit",
        "_name",
        "_number",
        "_over",
        "_started_at",
        "_state",
        "_told_again",
        "_tools",
        "_work",
    )

    def __init__(
        self, tools: Host, name: str, work: Future[T], limit: float | None, *, is_thread: bool
    ) -> None:
        self._tools = tools
        self._name = name
        self._work = work
        self._limit = limit
        self._is_thread = is_thread
        self._over: Future[None] = work.get_loop().create_future()
        self._state = ToolState.RUNNING
        self._cause: AnyCause | None = None
        self._cut: tuple[ToolState, AnyCause | None] | None = None
        self._due: float | None = None
        self._told_again = False
        self._ended_at: float | None = None
        self._again: Alarm | None = None
        self._started_at = tools.now()
        self._number = tools.add(self)
        work.add_done_callback(self._on_done)
        self._clock = None if limit is None else tools.clock(limit, self)

    # --- what users see ---

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    @property
    def state(self) -> ToolState:
        """How it stands."""
        return self._state

    @property
    def elapsed(self) -> float:
        """Seconds since its start; it stands still once the call is over."""
        return (self._tools.now() if self._ended_at is None else self._ended_at) - self._started_at

    @property
    def limit(self) -> float | None:
        """Seconds it is allowed; None without a clock."""
        return self._limit

    @property
    def is_live(self) -> bool:
        """Whether the tool really runs still, whatever the state of the call."""
        return not self._work.done()

    @property
    def record(self) -> ToolRecord:
        """How it stands, as an outcome has it."""
        return ToolRecord(
            name=self._name,
            state=self._state,
            elapsed=self.elapsed,
            limit=self._limit,
            cause=self._cause,
        )

    def cancel(self) -> None:
        """Cancel the tool, as its caller: it is `interrupted` once it has stopped."""
        self.cut(ToolState.INTERRUPTED, None)

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    def __repr__(self) -> str:
        return f"<tool {self._name!r} {self._state}>"

    # --- waiting ---

    async def _result(self) -> T:
        from asyncio import wait

        cancelled: CancelledError | None = None
        while not self._over.done():
            try:
                await wait((self._over,))
            except CancelledError as error:
                cancelled = error
                await self._tools.before_cut()
                if self._cut is None:
                    self.cut(ToolState.INTERRUPTED, self._tools.cause())
                elif not self._over.done():
                    self._work.cancel()  # whoever waits insists
        if cancelled is not None:
            raise cancelled
        if self._state in (ToolState.COMPLETED, ToolState.FAILED, ToolState.CANCELLED):
            return self._work.result()
        if isinstance(self._cause, (StallError, UserCancelled)):
            raise self._cause
        raise CancelledError

    # --- stopping ---

    def cut(self, state: ToolState, cause: AnyCause | None) -> None:
        """Cancel it; `state` is what it has then been. The first reason stays.

        It gets `grace` seconds to let go, is told again after half of them, and is then left
        behind: `unresponsive`. A thread is left behind at once: `abandoned`.
        """
        if self._over.done():
            return
        if self._cut is None:
            self._cut = (state, cause)
            if self._is_thread:
                self._end(ToolState.ABANDONED, cause)
                return
            self._again = Alarm(self._on_again)
            self._work.cancel()
        self._look_again()

    def give_up(self, cause: AnyCause | None) -> None:
        """All the time there was to let go is over."""
        if self._over.done():
            return
        if self._is_thread:
            self._end(ToolState.ABANDONED, cause)
            return
        if self._cut is None:
            self._cut = (ToolState.INTERRUPTED, cause)
            self._work.cancel()
        if not self._work.done():
            self._leave_behind()

    def _look_again(self) -> None:
        """After half of the time there is; a turn that begins to settle has less of it."""
        again, grace = self._again, self._tools.grace()
        if again is None or grace is None:
            return
        moment = again.now() + grace / 2
        if self._due is None or moment < self._due:
            self._due = moment
            again.set(moment)

    def _on_again(self, due: float, decided: float, overslept: float) -> None:
        if self._over.done():
            return
        if self._told_again:
            self._leave_behind()
            return
        self._told_again, self._due = True, None
        self._work.cancel()
        self._look_again()

    def _leave_behind(self) -> None:
        cause = None if self._cut is None else self._cut[1]
        waited = self.elapsed
        self._end(ToolState.UNRESPONSIVE, cause)
        self._tools.emit(
            Unresponsive(at=self._tools.now(), what="tool", name=self._name, waited=waited)
        )

    def on_deadline(self, cause: ToolDeadlineError, waited: float) -> bool:
        """Its clock has fired."""
        self.cut(ToolState.DEADLINE, cause)
        return True

    def is_about_to_end(self) -> bool:
        """Whether what it waits for is there already: it runs in a moment, and may end."""
        waiting = getattr(self._work, "_fut_waiter", None)
        return waiting is not None and bool(waiting.done())

    # --- ending ---

    def _on_done(self, work: Future[T]) -> None:
        error = None if work.cancelled() else work.exception()
        if self._over.done():
            _lingering.pop(self, None)
            self._tools.on_late(self._name, work)
            return
        if self._cut is not None:
            self._end(*self._cut)
            if not work.cancelled():
                self._tools.on_late(self._name, work)
        elif work.cancelled():
            self._end(ToolState.CANCELLED, None)
        elif error is not None:
            own = error if isinstance(error, (StallError, UserCancelled)) else Failure.of(error)
            self._end(ToolState.FAILED, own)
        else:
            self._end(ToolState.COMPLETED, None)

    def _end(self, state: ToolState, cause: AnyCause | None) -> None:
        self._state, self._cause = state, cause
        self._ended_at = self._tools.now()
        if self._clock is not None:
            self._clock.close()
        if self._again is not None:
            self._again.close()
        self._over.set_result(None)
        if not self._work.done():
            _lingering[self] = None
        self._tools.on_end(self, self._number)
