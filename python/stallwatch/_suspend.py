"""Whether the host slept while a clock ran.

Two system clocks tell: one that stands still while the host sleeps, and one that runs on. What the
second has gained on the first is the time slept since boot.

| system | stands still | runs on |
|---|---|---|
| Linux | `CLOCK_MONOTONIC` | `CLOCK_BOOTTIME` |
| macOS | `mach_absolute_time` | `CLOCK_MONOTONIC` |
| others | - | -, so nothing is noticed |

All limits are counted on the first, which is `time.monotonic()`. So no budget counts the time
slept: a budget is for work, and nothing worked. Silence, though, is counted anew after a sleep:
the connections of before are most likely dead, but nobody can say that their peer was silent.

A sleep is noticed when a clock that ran through it runs out, and told once for each turn, or for
each stream and watchdog outside one.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from stallwatch._events import HostSuspended

if TYPE_CHECKING:
    from stallwatch._sink import EventSink

__all__ = ["Sleeps", "read_clocks"]

NOTABLE: Final = 0.5
"""Seconds below which a sleep is none: two clocks cannot be read in one moment."""

_APART: Final = 0.001

_RUNS_ON: Final[int | None] = getattr(
    time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None
)


def read_clocks() -> tuple[float, float]:
    """Now, in seconds: without and with the time that the host slept."""
    if _RUNS_ON is None:
        now = time.monotonic()
        return now, now
    best = (float("inf"), 0.0, 0.0)
    for _ in range(5):
        before, boot, after = time.monotonic(), time.clock_gettime(_RUNS_ON), time.monotonic()
        best = min(best, (after - before, before, boot))
        # A thread put aside between the readings would take its break for a sleep.
        if best[0] < _APART:
            break
    return best[1], best[2]


class Sleeps:
    """The host's sleeps, as one turn (or one stream outside of any) has noticed them.

    Args:
        sink: Where each is reported, once.
    """

    __slots__ = ("_sink", "_told")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._told = self.total()

    def total(self) -> float:
        """Seconds slept since boot: a clock reads it when it starts."""
        monotonic, boot = read_clocks()
        return boot - monotonic

    def since(self, total: float, at: float) -> float:
        """Seconds slept since `total` was read; 0 if it is next to nothing. Reports a new sleep.

        Args:
            total: What a clock read from `total()` at its start, plus what it was told since.
            at: Now, for the event.
        """
        now = self.total()
        fresh = now - self._told
        if fresh >= NOTABLE:
            self._told = now
            self._sink.emit(HostSuspended(at=at, slept=fresh))
        slept = now - total
        return slept if slept >= NOTABLE else 0.0
