"""The record of a turn, made from what is known of it: when it has ended, and while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stallwatch._outcome import NO_TEXT, Outcome, Status
from stallwatch._phases import Phase
from stallwatch._turn_clocks import attempts_of, progress_of, times_of, uncovered_of

if TYPE_CHECKING:
    from stallwatch._clock_times import ClockTime, Span
    from stallwatch._failure import AnyCause
    from stallwatch._phase_state import PhaseState
    from stallwatch._stream_guard import StreamGuard
    from stallwatch._tool_record import ToolRecord

__all__ = ["outcome_of", "text_of", "unfinished_text_of"]


def text_of(streams: Sequence[StreamGuard[Any]]) -> str:
    """All that came."""
    return "".join(one.text for one in streams)


def unfinished_text_of(streams: Sequence[StreamGuard[Any]]) -> str:
    """What came of answers that did not end."""
    return "".join(one.text for one in streams if not one.is_complete)


def outcome_of(
    status: Status,
    *,
    turn: str | None,
    state: PhaseState,
    streams: Sequence[StreamGuard[Any]],
    tools: tuple[ToolRecord, ...],
    elapsed: float,
    started_at: float,
    now: float,
    clocks: Mapping[str, ClockTime],
    bare: Sequence[Span],
    covered: Sequence[Span],
    cause: AnyCause | None = None,
    also: AnyCause | None = None,
    late: tuple[str, ...] = (),
    result: Any = None,
) -> Outcome:
    """The record of a turn that has this status.

    Args:
        status: How it ended.
        turn: Its name.
        state: The phase in which it ended.
        streams: Its streams.
        tools: Its tool calls.
        elapsed: Seconds since its start.
        started_at: Its start, in seconds since the epoch.
        now: Now, on its clock.
        clocks: What its own clocks measured.
        bare: When none of those ran.
        covered: When tools ran that have a limit.
        cause: Why it ended early.
        also: What else there was.
        late: What arrived after settlement.
        result: What the body returned.
    """
    done = status is Status.COMPLETED
    text = text_of(streams)
    return Outcome(
        status=status,
        turn=turn,
        cause=cause,
        also=None if also is cause else also,
        phase=Phase.DONE if done else state.phase,
        seq=state.seq,
        text=text,
        partial="" if done else unfinished_text_of(streams),
        placeholder=None if text or done else NO_TEXT,
        tool_args=getattr(cause, "tool_args", None),
        tools=tools,
        elapsed=elapsed,
        started_at=started_at,
        attempts=attempts_of(streams),
        last_progress=progress_of(streams, now),
        clocks=times_of(streams, clocks),
        uncovered=uncovered_of(streams, bare, covered),
        late=late,
        result=result if done else None,
    )
