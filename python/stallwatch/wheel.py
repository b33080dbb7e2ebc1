"""The timers below everything else, and what they have been doing."""

from __future__ import annotations

from dataclasses import dataclass

from stallwatch._stallwatch import Deadline, IdleTimer, raw_stats

__all__ = ["Deadline", "IdleTimer", "Lateness", "WheelStats", "wheel_stats"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late something was, counted in powers of two of a microsecond.

    Attributes:
        buckets: `buckets[i]` counts values below `2**i` µs that fit no smaller bucket; the last one
            counts all others.
        max: The largest value, in seconds.
    """

    buckets: tuple[int, ...]
    max: float

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.buckets)

    def quantile(self, q: float) -> float:
        """An upper bound of the q-quantile in seconds, 0 if nothing was counted.

        Args:
            q: Between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must lie between 0 and 1, not {q!r}")
        seen, total = 0, self.count
        for power, count in enumerate(self.buckets[:-1]):
            seen += count
            if total and seen >= q * total:
                return min(float(2**power) * 1e-6, self.max)
        return self.max


@dataclass(frozen=True, slots=True)
class WheelStats:
    """Counters of all timers of this process since it started (or was forked).

    Attributes:
        armed: Timers that can still fire, now.
        started: Timers ever armed.
        fired: Timers whose callback was called.
        rearmed: Lazy re-filings: the wheel came by a timer that had been touched.
        rescued: Fires taken back on delivery, since the timer had been touched meanwhile.
        cancelled: Timers stopped before they fired.
        dropped: Timers and fires that went with their closed loop.
        wakeups: How often the timer thread woke.
        faults: Passes of the timer thread that ended in a bug of ours; it went on.
        running: Whether the timer thread runs. It starts with the first timer.
        heartbeat: When it last woke, on `time.monotonic()`; 0 before the first time.
        decided: From the deadline to its discovery on the timer thread.
        delivered: From the deadline to the start of the callback.
    """

    armed: int
    started: int
    fired: int
    rearmed: int
    rescued: int
    cancelled: int
    dropped: int
    wakeups: int
    faults: int
    running: bool
    heartbeat: float
    decided: Lateness
    delivered: Lateness


def wheel_stats() -> WheelStats:
    """Read the counters. Timers of closed loops are dropped, and counted, at this moment."""
    raw = raw_stats()
    decided, delivered = (
        Lateness(tuple(buckets), largest)
        for buckets, largest in (raw.pop("decided"), raw.pop("delivered"))
    )
    return WheelStats(decided=decided, delivered=delivered, **raw)


for _public in (Lateness, WheelStats, wheel_stats):
    _public.__module__ = "stallwatch"
del _public
