"""B13 and B14: what a timer weighs, and what is left once it was cancelled.

Each kind is measured in a child process of its own: resident memory before and after. The handles
are kept in a list that exists before; the callback is one function for all.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from harness import (
    LOOPS,
    Contest,
    Figure,
    Row,
    Scale,
    Spread,
    answer,
    at_most,
    publish,
    run_loop,
    spawn,
)
from stallwatch import Deadline, IdleTimer

HOUR = 3600.0
OURS = ("IdleTimer", "Deadline")
PLAIN = "plain object"


class Plain:
    """An object as large as our timers that is nothing else: what the allocator keeps of those."""

    __slots__ = ("a", "b", "c", "d")

    def cancel(self) -> None:
        """Does nothing."""


def nothing() -> None:
    """The callback."""
    raise AssertionError("early")


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _trim() -> None:
    """Gives back what nobody uses, so that what is left is what is held."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _arming(kind: str, loop: asyncio.AbstractEventLoop) -> Callable[[int], Any]:
    if kind == "IdleTimer":
        return lambda i: IdleTimer(HOUR + i * 1e-3, nothing)
    if kind == "Deadline":
        start = monotonic() + HOUR
        return lambda i: Deadline(start + i * 1e-3, nothing)
    if kind == PLAIN:
        return lambda i: Plain()
    return lambda i: loop.call_later(HOUR + i * 1e-3, nothing)


async def _weigh(kind: str, count: int) -> dict[str, float]:
    arm = _arming(kind, asyncio.get_running_loop())
    handles: list[Any] = [None] * count
    # What is made once, and the first page of everything, is no timer's.
    for handle in [arm(i) for i in range(1_000)]:
        handle.cancel()
    await asyncio.sleep(0.01)
    references = sys.getrefcount(nothing)
    _trim()
    before = _resident()
    for i in range(count):
        handles[i] = arm(i)
    gc.collect()
    full = _resident()
    size = sys.getsizeof(handles[0])
    for handle in handles:
        handle.cancel()
    del handle
    handles[:] = [None] * count
    # Some loops clear up only when they turn.
    for _ in range(10):
        await asyncio.sleep(0.01)
    _trim()
    return {
        "bytes": (full - before) / count,
        "getsizeof": size,
        "left": _resident() - before,
        "references": sys.getrefcount(nothing) - references,
    }


def bench_memory(benchmark: Any, scale: Scale) -> None:
    """Memory of timers armed for an hour, then of the same after they were all cancelled."""
    count = scale.pick(1_000_000, 500_000)
    contest = Contest(
        {
            kind: partial(lambda kind: answer(spawn(__file__, kind, count)), kind)
            for kind in (*OURS, *LOOPS, PLAIN)
        }
    )
    # Memory is the same each time but for a page or two: no need of many rounds.
    rounds = scale.pick(3, 1)
    contest.play(benchmark, rounds=rounds, warmup=0)

    weight, left = [], []
    for name in OURS:
        weight.append(at_most(f"`{name}`: asyncio", contest.ratio(name, "asyncio", "bytes"), 0.5))
        left.append(at_most(f"`{name}`: left of it", _share_left(contest, name, count), 1, "%"))
        kept = contest.spread(name, "references")
        left.append(at_most(f"`{name}`: references to callbacks left", kept, 0, "refs"))
    publish(
        benchmark,
        Row(
            "B13",
            f"memory of {count:,} armed native timers, handles included",
            tuple(weight),
            _figures(contest, {"bytes": "B", "getsizeof": "B"}),
            rounds,
        ),
        Row(
            "B14",
            f"{count:,} native timers armed and cancelled, deadlines 1 h",
            tuple(left),
            _figures(contest, {"left": "B", "references": "refs"}),
            rounds,
            "Of what is left, that of as many plain objects of the same size is the allocator's.",
        ),
    )


def _share_left(contest: Contest, name: str, count: int) -> Spread:
    """What is left beyond what the allocator keeps of as many plain objects, in per cent."""
    triples = zip(
        contest.values(name, "left"),
        contest.values(PLAIN, "left"),
        contest.values(name, "bytes"),
        strict=True,
    )
    return Spread.of(
        [100 * max(0.0, left - plain) / (size * count) for left, plain, size in triples]
    )


def _figures(contest: Contest, measures: dict[str, str]) -> tuple[Figure, ...]:
    figures: list[Figure] = []
    for name in (*OURS, *LOOPS, PLAIN):
        for what, unit in measures.items():
            spread: Spread = contest.spread(name, what)
            figures.append(Figure(f"{name}: {what}", spread, unit))
    return tuple(figures)


if __name__ == "__main__":
    kind, count = sys.argv[1], int(sys.argv[2])
    loop_kind = kind if kind in LOOPS else "asyncio"
    print(json.dumps(run_loop(loop_kind, partial(_weigh, kind, count))))
