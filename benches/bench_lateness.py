"""B16: how late it is noticed that time is up, while Python is busy with other things.

Three ways to be busy: a thread that computes, a blocked event loop, a C call that keeps the GIL.
What counts is when a deadline was *found*: for stallwatch that is the timer thread's own record,
for the peers the moment their code ran, as they have no other. What can be done about it by then
without the loop or the GIL, such as killing a child process, does not wait for either.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from harness import Contest, Figure, Row, Scale, at_most, publish, quantile
from stallwatch import wheel_stats
from stallwatch._stallwatch import Alarm

BUSY = 0.3
"""Seconds of being busy in a turn; all deadlines lie within."""

AFTER = 0.15
"""Seconds for the rest to come in."""


@contextmanager
def _computing() -> Iterator[None]:
    """Another thread computes, in Python."""
    stop = False

    def compute() -> None:
        number = 0
        while not stop:
            number += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


async def _with_thread() -> None:
    with _computing():
        await asyncio.sleep(BUSY)


async def _with_blocked_loop() -> None:
    time.sleep(BUSY)


async def _with_held_gil() -> None:
    # Unlike CDLL, PyDLL does not let go of the GIL around a call.
    ctypes.PyDLL(None).usleep(int(BUSY * 1e6))


CASES: dict[str, Callable[[], Any]] = {
    "a thread that computes": _with_thread,
    "a blocked loop": _with_blocked_loop,
    "a held GIL": _with_held_gil,
}


def _deadlines(count: int) -> list[float]:
    start = monotonic() + 0.02
    return [start + i * (BUSY - 0.04) / count for i in range(count)]


async def _native(busy: Callable[[], Any], count: int) -> tuple[list[float], list[float]]:
    """Lateness of decision and of delivery, in milliseconds."""
    decided, delivered = [], []

    def due(when: float, found: float, _: float) -> None:
        assert found >= when, "early"
        decided.append(1000 * (found - when))
        delivered.append(1000 * (monotonic() - when))

    before = wheel_stats().decided.count
    alarms = [Alarm(due) for _ in range(count)]
    for alarm, when in zip(alarms, _deadlines(count), strict=True):
        alarm.set(when)
    await busy()
    await asyncio.sleep(AFTER)
    assert len(decided) == count
    assert wheel_stats().decided.count - before == count
    return decided, delivered


async def _timeouts(busy: Callable[[], Any], count: int) -> list[float]:
    late: list[float] = []

    async def wait(when: float) -> None:
        try:
            async with asyncio.timeout_at(when):
                await asyncio.Event().wait()
        except TimeoutError:
            late.append(1000 * (monotonic() - when))

    tasks = [asyncio.ensure_future(wait(when)) for when in _deadlines(count)]
    await asyncio.sleep(0)
    await busy()
    await asyncio.sleep(AFTER)
    await asyncio.gather(*tasks)
    return late


async def _threads(busy: Callable[[], Any], count: int) -> list[float]:
    late: list[float] = []
    timers = []
    for when in _deadlines(count):
        timer = threading.Timer(
            when - monotonic(), lambda when=when: late.append(1000 * (monotonic() - when))
        )
        timer.start()
        timers.append(timer)
    await busy()
    await asyncio.sleep(AFTER)
    for timer in timers:
        timer.join()
    return late


def _measures(late: list[float], prefix: str = "") -> Mapping[str, float]:
    late = sorted(late)
    return {f"{prefix}p50": quantile(late, 0.5), f"{prefix}p99": quantile(late, 0.99)}


@pytest.mark.parametrize("case", CASES)
def bench_lateness(benchmark: Any, scale: Scale, case: str) -> None:
    """When a deadline that passes while Python is busy is noticed."""
    busy, count = CASES[case], 100

    def ours() -> Mapping[str, float]:
        decided, delivered = asyncio.run(_native(busy, count))
        return {**_measures(decided), **_measures(delivered, "delivered ")}

    contest = Contest(
        {
            "stallwatch": ours,
            "asyncio.timeout": lambda: _measures(asyncio.run(_timeouts(busy, count))),
            "threading.Timer": lambda: _measures(asyncio.run(_threads(busy, count))),
        }
    )
    contest.play(benchmark, rounds=scale.rounds(9, 2))

    figures = [
        Figure(f"{name}: {what}", contest.spread(name, what), "ms")
        for name, whats in (
            ("stallwatch", ("p50", "p99", "delivered p50", "delivered p99")),
            ("asyncio.timeout", ("p50", "p99")),
            ("threading.Timer", ("p50", "p99")),
        )
        for what in whats
    ]
    publish(
        benchmark,
        Row(
            "B16",
            f"decision lateness with {case}",
            (at_most("p99", contest.spread("stallwatch", "p99"), 1.5, "ms"),),
            tuple(figures),
            contest.rounds,
        ),
    )
