"""B10: a hundred thousand timers that do expire, spread over one second."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from time import monotonic
from typing import Any

from harness import (
    Contest,
    Figure,
    Row,
    Scale,
    Spread,
    at_most,
    cpu_seconds,
    publish,
    quantile,
    run_loop,
)
from stallwatch import Deadline

LEADS = (0.8, 1.6, 3.2, 6.4)
"""Seconds in which all of them are armed; the next if a busy machine needs more."""

SPAN = 1.0
"""Seconds over which they expire."""

EARLY = ("early by CLOCK_MONOTONIC", "early by its loop's clock")

Arm = Callable[[float, float, Callable[[], None]], Any]
"""Arms one for a moment of `monotonic()`, which is so many seconds from now."""


class Field:
    """Deadlines, and when each was met, by two clocks."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop, lead: float) -> None:
        start = monotonic() + lead
        scatter = Random(10)
        self.due = array("d", (start + SPAN * scatter.random() for _ in range(count)))
        self.due_in_loop = array("d", bytes(8 * count))
        self.met = array("d", bytes(8 * count))
        self.met_in_loop = array("d", bytes(8 * count))
        self._loop_time = loop.time

    def hit(self, i: int) -> None:
        """The callback. It costs everybody the same."""
        self.met[i] = monotonic()
        self.met_in_loop[i] = self._loop_time()

    def arm(self, arm: Arm, *, native: bool) -> list[Any]:
        """Arms all of them, in random order. Returns the handles."""
        handles = []
        for i, due in enumerate(self.due):
            # The loop's clock is read before and after: a peer is given the later sum, and what is
            # armed by the other clock is held against the earlier one, so that a pause between two
            # readings makes nobody look early.
            before = self._loop_time()
            delay = due - monotonic()
            after = self._loop_time()
            self.due_in_loop[i] = (before if native else after) + delay
            handles.append(arm(due, self.due_in_loop[i], partial(self.hit, i)))
        return handles

    async def end(self) -> None:
        """Waits until the last one has come."""
        await asyncio.sleep(max(self.due) - monotonic() + 0.05)
        while 0.0 in self.met:
            await asyncio.sleep(0.05)

    def early(self) -> tuple[int, int]:
        """How many came before their time, by CLOCK_MONOTONIC and by the loop's own clock."""
        return (
            sum(met < due for met, due in zip(self.met, self.due, strict=True)),
            sum(met < due for met, due in zip(self.met_in_loop, self.due_in_loop, strict=True)),
        )

    def lateness(self) -> list[float]:
        """In milliseconds, sorted."""
        pairs = zip(self.met, self.due, strict=True)
        return sorted(1000 * (met - due) for met, due in pairs)


def spread_out(kind: str, count: int, *, native: bool) -> Mapping[str, float]:
    """One turn of one entrant."""

    async def main() -> Mapping[str, float]:
        loop = asyncio.get_running_loop()
        arm = _deadline if native else _call_at(loop)
        for lead in LEADS:
            field = Field(count, loop, lead)
            handles = field.arm(arm, native=native)
            if monotonic() < min(field.due):
                break
            for handle in handles:
                handle.cancel()
        else:
            raise RuntimeError("this machine is too slow to arm them all in time")
        before = cpu_seconds()
        await field.end()
        cpu = cpu_seconds() - before
        assert len(handles) == count
        late = field.lateness()
        by_monotonic, by_loop = field.early()
        return {
            "p50": quantile(late, 0.5),
            "p99": quantile(late, 0.99),
            "max": late[-1],
            EARLY[0]: by_monotonic,
            EARLY[1]: by_loop,
            "CPU": cpu,
        }

    return run_loop(kind, main)


def _deadline(due: float, due_in_loop: float, callback: Callable[[], None]) -> Any:
    return Deadline(due, callback)


def _call_at(loop: asyncio.AbstractEventLoop) -> Arm:
    return lambda due, due_in_loop, callback: loop.call_at(due_in_loop, callback)


def bench_expiry(benchmark: Any, scale: Scale) -> None:
    """Lateness, early fires and CPU of timers that expire all over one second."""
    count = 100_000
    ours, other = "Deadline, on asyncio", "Deadline, on uvloop"
    peers = ("asyncio", "uvloop", "rloop")
    contest = Contest(
        {
            ours: lambda: spread_out("asyncio", count, native=True),
            **{kind: partial(spread_out, kind, count, native=False) for kind in peers},
            other: lambda: spread_out("uvloop", count, native=True),
        }
    )
    contest.play(benchmark, rounds=scale.rounds(7, 2), warmup=scale.pick(1, 0))

    by_both = [contest.spread(ours, what).high for what in EARLY]
    # uvloop's own clock is cut to milliseconds and stands still within a turn: only the first clock
    # can be held against a timer that knows nothing of it.
    assert not any(by_both), "a Deadline came early"
    assert not contest.spread(other, EARLY[0]).high, "a Deadline came early on uvloop"
    best = Spread.of(
        [
            mine / min(others)
            for mine, *others in zip(
                contest.values(ours, "p99"),
                *(contest.values(kind, "p99") for kind in peers),
                strict=True,
            )
        ]
    )
    checks = (
        at_most("lateness p99", contest.spread(ours, "p99"), 2, "ms"),
        at_most("p99 beside the best peer's", best, 0.9),
        at_most("early, by either clock", Spread.of(by_both), 0, "timers"),
        at_most("CPU beside asyncio", contest.ratio(ours, "asyncio", "CPU"), 0.5),
        at_most("CPU beside rloop", contest.ratio(ours, "rloop", "CPU"), 1),
    )
    figures = [
        Figure(f"{name}: {what}", contest.spread(name, what), unit)
        for name in (ours, *peers, other)
        for what, unit in (
            ("p50", "ms"),
            ("p99", "ms"),
            ("max", "ms"),
            (EARLY[0], "timers"),
            (EARLY[1], "timers"),
            ("CPU", "s"),
        )
        if (name, what) != (other, EARLY[1])
    ]
    publish(
        benchmark,
        Row(
            "B10",
            f"{count:,} expiries spread over {SPAN:g} s",
            checks,
            tuple(figures),
            contest.rounds,
        ),
    )
