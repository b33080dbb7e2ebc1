"""Limits that would have been safe for streams that were seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

HEADROOM: Final = 2.0
FLOOR: Final = 1.0
"""A limit below a second is about the network's bad moments, not about a stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Limits for `guard` in seconds, each None if nothing was seen to go by.

    `str()` of it says where each comes from.

    Attributes:
        first_chunk: The longest wait for the first progress, times the headroom.
        idle: The longest silence that ended by itself, times the headroom.
        progress_idle: The longest wait from one progress to the next, times the headroom; `idle` at
            least.
        budget: The longest life of a stream that came whole, the consumer's time with it, times the
            headroom; at least each of the other limits.
        headroom: What the waits were multiplied with. Limits are rounded up to two digits, and
            are one second at least.
        streams: How many streams were seen.
        stalls: How many clocks fired in them, or would have. What a cut stream would still have
            delivered is in no limit: a suggestion that rests on many of them is too low.
    """

    __module__ = "stallwatch"

    first_chunk: float | None
    idle: float | None
    progress_idle: float | None
    budget: float | None
    headroom: float
    streams: int
    stalls: int
    seen: tuple[float | None, float | None, float | None, float | None]

    def for_guard(self) -> dict[str, float]:
        """Keywords for `guard` and `guard_sync`; without those that nothing is known of."""
        return {name: limit for name in _CLOCKS if (limit := getattr(self, name)) is not None}

    def for_limits(self) -> dict[str, float]:
        """Keywords for `Limits`, where `idle` is `stream_idle` and `budget` is `stream_budget`."""
        names = {"idle": "stream_idle", "budget": "stream_budget"}
        return {names.get(name, name): limit for name, limit in self.for_guard().items()}

    def __str__(self) -> str:
        seen_in = _count(self.streams, "stream")
        if self.stalls:
            seen_in += f" in which {_count(self.stalls, 'clock')} fired or would have"
        lines = [f"limits with a headroom of {self.headroom:g}, from {seen_in}"]
        for name, seen, what in zip(_CLOCKS, self.seen, _WHAT, strict=True):
            limit = getattr(self, name)
            if limit is None:
                lines.append(f"  {name}: nothing seen to go by")
            elif seen is None:
                lines.append(f"  {name} = {limit:g} s")
            else:
                lines.append(f"  {name} = {limit:g} s ({what}: {seen:.3g} s)")
        return "\n".join(lines)


_CLOCKS: Final = ("first_chunk", "idle", "progress_idle", "budget")
_WHAT: Final = (
    "longest wait for the first progress",
    "longest silence",
    "longest wait for further progress",
    "longest whole stream",
)


def suggestion_of(
    *,
    headroom: float,
    streams: int,
    stalls: int,
    first: float | None,
    gap: float | None,
    progress: float | None,
    whole: float | None,
) -> Suggestion:
    """See `StreamStats.suggest`."""
    if not 1 <= headroom < math.inf:
        raise ValueError(
            f"headroom must be 1 or more and finite, not {headroom!r}: below 1 the limits would "
            "have cut what was seen"
        )

    def limit(seen: float | None, *least: float | None) -> float | None:
        if seen is None:
            return None
        floors = [one for one in least if one is not None]
        return max(_round_up(seen * headroom), FLOOR, *floors)

    idle = limit(gap)
    progress_idle = None if idle is None else limit(progress, idle)
    first_chunk = limit(first)
    return Suggestion(
        first_chunk=first_chunk,
        idle=idle,
        progress_idle=progress_idle,
        budget=limit(whole, first_chunk, idle, progress_idle),
        headroom=headroom,
        streams=streams,
        stalls=stalls,
        seen=(first, gap, progress, whole),
    )


def _round_up(seconds: float) -> float:
    """To two digits, up: 2.31 gives 2.4, and 12.04 gives 13."""
    if seconds <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / unit - 1e-9) * unit:.12g}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
