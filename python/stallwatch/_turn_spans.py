"""The open waits of a turn: its streams and its tools."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stallwatch._causes import StallError, UserCancelled
from stallwatch._failure import AnyCause
from stallwatch._limits import Limits
from stallwatch._opening import Unopened
from stallwatch._seconds import UNSET, Unset, seconds
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stream_guard import StreamGuard
from stallwatch._suspend import Sleeps
from stallwatch._text import Transcript
from stallwatch._tool_call import ToolCall
from stallwatch._tools import Tools

if TYPE_CHECKING:
    from asyncio import Future

    from stallwatch._seconds import Given

__all__ = ["TurnSpans"]

T = TypeVar("T")


class TurnSpans:
    """The half of `Turn` that opens spans.

    Attributes:
        limits: The limits.
        name: The name.
    """

    __module__ = "stallwatch"

    def __init__(self, limits: Limits | None, name: str | None, sink: EventSink) -> None:
        self.limits: Limits = Limits() if limits is None else limits
        self.name = name
        self._sink = sink
        self._sleeps = Sleeps(sink)
        self._streams: list[StreamGuard[Any]] = []
        self._tools = Tools(
            self.limits,
            sink,
            self._sleeps,
            now=self._now,
            where=self._where,
            cause=self._why,
            left=self._left,
            before_cut=self._before_cut,
            on_late=self._on_late_tool,
        )

    def stream(
        self,
        stream: AsyncIterable[T] | AbstractAsyncContextManager[AsyncIterable[T]] | Unopened[T],
        *,
        first_chunk: Given = UNSET,
        idle: Given = UNSET,
        warn: float | Literal[Unset.UNSET] | None = UNSET,
        progress_idle: Given = UNSET,
        budget: Given = UNSET,
        is_progress: Callable[[T], object] | None = None,
        is_terminal: Callable[[T], object] | None = None,
        text_of: Callable[[T], str | None] | None = None,
        on_event: OnEvent = None,
        name: str | None = None,
    ) -> StreamGuard[T]:
        """Guard a stream with the turn's limits: see `guard`. Keywords override the turn's limits.

        The turn closes the stream when it settles, keeps its text for the outcome, and puts its own
        phase on the cause.
        """
        limits = self.limits.stream(
            first_chunk=first_chunk,
            idle=idle,
            warn=warn,
            progress_idle=progress_idle,
            budget=budget,
        )
        guarded: StreamGuard[T] = StreamGuard(
            stream,
            limits,
            sink=EventSink(on_event, turn=self.name, parent=self._sink),
            transcript=Transcript(
                is_progress=is_progress, is_terminal=is_terminal, text_of=text_of
            ),
            name=name,
            close_grace=self.limits.close_grace,
            observe_only=self.limits.observe_only,
            context=self._where,
            sleeps=self._sleeps,
        )
        self._streams.append(guarded)
        return guarded

    async def tool(self, name: str, awaitable: Awaitable[T], *, timeout: Given = UNSET) -> T:
        """Run a tool as a span of its own, and return its result.

        Its clock runs from here until the tool has ended, in whatever phase; nothing resets it, no
        token of the model and no progress of the tool; and nothing the tool does resets a clock of
        the turn or of a stream. It fires as a `BudgetExceeded` event with `owner="tool"`, cancels
        the tool, and raises `ToolDeadlineError` here once that has stopped: an answer to give to
        the model, which does not end the turn. A tool that has its result at that moment keeps it.

        If the turn ends, or the task that waits here is cancelled, the tool is cancelled too. One
        that ignores that is told again, and then left behind as `unresponsive`: after `close_grace`
        seconds, or half of what the turn has left to settle.

        Args:
            name: What the tool is called, in events and in the outcome.
            awaitable: A coroutine, which is run as a task of its own, or a task or future.
            timeout: Seconds; by default `limits.tool_timeout`. None: no clock.

        Raises:
            ToolDeadlineError: its clock fired.
            Exception: whatever the tool raised, as the very same object.
            RuntimeError: the turn does not run, or not any more.
        """
        return await self.start_tool(name, awaitable, timeout=timeout)

    def start_tool(
        self, name: str, awaitable: Awaitable[T], *, timeout: Given = UNSET
    ) -> ToolCall[T]:
        """Start a tool ahead of time, from the deltas of a stream, say; await the result later.

        All is as with `tool`, whose clock begins here. No other clock waits for it: those of the
        stream and of the turn run on. If nobody has awaited it when the turn ends, it is cancelled
        and recorded.

        Returns:
            What to await for the tool's result.
        """
        from asyncio import ensure_future

        limit = self._admit(awaitable, timeout)
        work = ensure_future(awaitable)
        if work is not awaitable and hasattr(work, "set_name"):
            work.set_name(f"stallwatch tool {name}")
        return ToolCall(self._tools, name, work, limit, is_thread=False)

    def _admit(self, awaitable: Any, timeout: Given) -> float | None:
        """The limit of a tool that is about to start; refuses if the turn is over, or about to."""
        try:
            if not self._running():
                raise RuntimeError(f"the turn does not run: no tool can be started in {self!r}")
            cause = self._why()
            if isinstance(cause, (StallError, UserCancelled)):
                raise cause
            if timeout is UNSET:
                return self.limits.tool_timeout
            return seconds(timeout, name="timeout")
        except BaseException:
            close = getattr(awaitable, "close", None)
            if callable(close):
                close()  # nobody will ever await it
            raise

    # --- the turn's ---

    if TYPE_CHECKING:

        def _now(self) -> float:
            """Now, on the turn's clock."""

        def _where(self) -> dict[str, Any]:
            """Phase and sequence number."""

        def _why(self) -> AnyCause | None:
            """Why the turn is ending."""

        def _running(self) -> bool:
            """Whether it has begun, and not ended."""

        def _left(self) -> float | None:
            """Seconds left to settle."""

        async def _before_cut(self) -> CancelledError | None:
            """Closes streams before tools are cancelled."""

        def _on_late_tool(self, name: str, work: Future[Any]) -> None:
            """A tool has ended whose call was over."""
