"""What the clocks of a turn measured: for how long each of them ran, and for how long none did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stallwatch._clock_times import ClockTime, Span, longest, uncovered
from stallwatch._watched import CAUSES

if TYPE_CHECKING:
    from stallwatch._stream_guard import StreamGuard

__all__ = ["attempts_of", "progress_of", "times_of", "uncovered_of"]

_LIMITS: Final = {
    "first_chunk": "first_chunk",
    "stream_idle": "idle",
    "progress_idle": "progress_idle",
    "stream_budget": "budget",
}
"""The clocks of a stream as `Limits` calls them, and as a stream does."""


def attempts_of(streams: Sequence[StreamGuard[Any]]) -> int:
    """How many streams were begun."""
    return sum(one.has_begun for one in streams)


def progress_of(streams: Sequence[StreamGuard[Any]], now: float) -> float | None:
    """Seconds since the last progress of any of them; None if none came."""
    moments = [at for one in streams if (at := one._numbers()[5]) is not None]
    return max(0.0, now - max(moments)) if moments else None


def times_of(
    streams: Sequence[StreamGuard[Any]], own: Mapping[str, ClockTime]
) -> dict[str, ClockTime]:
    """The longest run of each clock, by its name in `Limits`.

    Args:
        streams: The streams of the turn.
        own: The clocks of the turn itself.
    """
    found = dict(own)
    begun = [_stream_times(one) for one in streams if one.has_begun]
    for clock in _LIMITS:
        most = longest(times[clock] for times in begun)
        if most is not None:
            found[clock] = most
    return found


def uncovered_of(
    streams: Sequence[StreamGuard[Any]], bare: Iterable[Span], tools: Iterable[Span]
) -> float:
    """Seconds in which no clock ran that could have ended a silence.

    Args:
        streams: The streams of the turn.
        bare: When no clock of the turn itself ran.
        tools: When tools ran that have a limit.
    """
    covered = [span for one in streams if (span := _covered(one)) is not None]
    return uncovered(bare, [*covered, *tools])


def _stream_times(guard: StreamGuard[Any]) -> dict[str, ClockTime]:
    stats, limits, cause = guard.stats, guard._limits, guard.cause
    # Before any progress it is told from the first pull.
    first = stats.elapsed if stats.first_wait is None else stats.first_wait
    gap, progress = stats.largest_gap, stats.largest_progress_gap
    measured = dict(zip(_LIMITS, (first, gap, progress, stats.elapsed), strict=True))
    if cause is not None and cause.idle is not None and type(cause) in CAUSES:
        clock = tuple(_LIMITS)[CAUSES.index(type(cause))]
        measured[clock] = max(measured[clock], cause.idle)
    return {
        clock: ClockTime(getattr(limits, _LIMITS[clock]), took) for clock, took in measured.items()
    }


def _covered(guard: StreamGuard[Any]) -> Span | None:
    """From the first pull to the end, if one of its clocks can cut it while nothing comes."""
    started, limits = guard._numbers()[2], guard._limits
    if started is None or limits.first_chunk is limits.idle is limits.budget is None:
        return None
    return started, guard._now() if guard._ended_at is None else guard._ended_at
