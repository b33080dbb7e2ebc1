"""How long each clock of a turn ran at the longest, and how long none of them did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["ClockTime", "Span", "longest", "uncovered"]

Span = tuple[float, float]
"""From one moment to another, on one clock."""


@dataclass(frozen=True, slots=True)
class ClockTime:
    """One clock of a turn, in `Outcome.clocks`.

    Attributes:
        limit: Its limit in seconds where it ran longest; None if it was off there.
        elapsed: The most seconds that it ran without being reset.
    """

    __module__ = "stallwatch"

    limit: float | None
    elapsed: float

    def to_dict(self) -> dict[str, float | None]:
        """Both as plain values."""
        return {"limit": self.limit, "elapsed": self.elapsed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild it from `to_dict()`."""
        return cls(limit=data["limit"], elapsed=data["elapsed"])


def longest(times: Iterable[ClockTime]) -> ClockTime | None:
    """The one that ran longest; None if there is none."""
    return max(times, key=lambda one: one.elapsed, default=None)


def uncovered(bare: Iterable[Span], covers: Iterable[Span]) -> float:
    """Seconds of the spans `bare` that no span of `covers` lies over.

    Args:
        bare: Spans that do not overlap.
        covers: Any spans.
    """
    total = 0.0
    over = _joined(covers)
    for start, end in bare:
        total += max(0.0, end - start)
        total -= sum(max(0.0, min(end, high) - max(start, low)) for low, high in over)
    return max(0.0, total)


def _joined(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found
