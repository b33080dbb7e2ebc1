"""Four threads that arm, touch and cancel, while callbacks do the same and the collector runs.

Run as a program for the long form: `python tests/soak_wheel.py --seconds 60`.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stallwatch import IdleTimer
from stallwatch.wheel import wheel_stats

LONGEST = 0.02
"""Seconds: the longest window, so that many of the timers fire."""


@dataclass
class Report:
    """What a storm left behind."""

    operations: int = 0
    armed: int = 0
    fired: int = 0
    cancelled: int = 0
    lost: int = 0
    twice: int = 0
    early: int = 0
    left: int = 0
    longest_standstill: float = 0.0


@dataclass
class Watched:
    """One timer, and what has been seen of it."""

    window: float
    since: float
    fires: int = 0
    cancelled: bool = False
    early: bool = False
    timer: IdleTimer | None = field(default=None, repr=False)

    def fire(self) -> None:
        """Called by the wheel."""
        self.fires += 1
        if time.monotonic() - self.since < self.window:
            self.early = True


class Worker(threading.Thread):
    """Does random things to timers of its own and, from callbacks, to more of them."""

    def __init__(self, seed: int, end: float) -> None:
        super().__init__(name=f"storm {seed}")
        self.dice = random.Random(seed)
        self.end = end
        self.live: list[Watched] = []
        self.all: list[Watched] = []
        self.spawned: list[Watched] = []
        self.operations = 0
        self.standstill = 0.0

    def arm(self, into: list[Watched], after: Callable[[], None] | None = None) -> Watched:
        """A new timer, noted in a list."""
        one = Watched(self.dice.uniform(0.0005, LONGEST), time.monotonic())

        def fire() -> None:
            one.fire()
            if after is not None:
                after()

        one.timer = IdleTimer(one.window, fire)
        into.append(one)
        return one

    def meddle(self) -> None:
        """What a callback does: arms one more, cancels another, drops a handle, makes garbage."""
        self.arm(self.spawned)
        if self.spawned and self.dice.random() < 0.3:
            self.cancel(self.dice.choice(self.spawned))
        ring: list[object] = []
        ring.append(ring)

    def cancel(self, one: Watched) -> None:
        """A cancel that says it was in time makes the fire impossible."""
        if one.timer is not None and not one.cancelled and one.timer.cancel():
            one.cancelled = True

    def run(self) -> None:
        """Until the end."""
        last = time.monotonic()
        while last < self.end:
            for _ in range(50):
                self.operate()
            now = time.monotonic()
            self.standstill = max(self.standstill, now - last)
            last = now
            if len(self.live) > 500:
                del self.live[:250]
            time.sleep(0.001)
            last = time.monotonic()

    def operate(self) -> None:
        """One operation."""
        self.operations += 1
        what = self.dice.random()
        if what < 0.4 or not self.live:
            one = self.arm(self.all, self.meddle if self.dice.random() < 0.2 else None)
            self.live.append(one)
            return
        one = self.dice.choice(self.live)
        assert one.timer is not None
        if what < 0.8:
            # Before the touch: it may fire a window after that, not after this.
            before = time.monotonic()
            one.timer.touch()
            if one.timer.remaining:  # else it came too late to matter
                one.since = before
        else:
            self.cancel(one)


def storm(*, seconds: float, threads: int, seed: int) -> Report:
    """Run it, and wait until every timer has had its time."""
    before = wheel_stats().armed
    end = time.monotonic() + seconds
    workers = [Worker(seed * 1000 + index, end) for index in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        gc.collect()
        time.sleep(0.01)
    for worker in workers:
        worker.join()
    everything = [one for worker in workers for one in (*worker.all, *worker.spawned)]
    patience = time.monotonic() + 30
    while time.monotonic() < patience and not all(one.fires or one.cancelled for one in everything):
        time.sleep(0.01)
        everything = [one for worker in workers for one in (*worker.all, *worker.spawned)]
    return Report(
        operations=sum(worker.operations for worker in workers),
        armed=len(everything),
        fired=sum(one.fires for one in everything),
        cancelled=sum(one.cancelled for one in everything),
        lost=sum(not one.fires and not one.cancelled for one in everything),
        twice=sum(one.fires + one.cancelled > 1 for one in everything),
        early=sum(one.early for one in everything),
        left=wheel_stats().armed - before,
        longest_standstill=max(worker.standstill for worker in workers),
    )


def main() -> int:
    """The long form; status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = storm(seconds=given.seconds, threads=given.threads, seed=given.seed)
    print(report)
    broken = report.lost or report.twice or report.early or report.left
    return int(bool(broken) or report.longest_standstill > 1.0)


if __name__ == "__main__":
    sys.exit(main())
