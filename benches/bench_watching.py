"""B12: what it costs to watch ten thousand streams that are all right.

Every kind of watcher lives in a child process of its own, and they all live at the same time, for
one window: in it every lazy timer comes up once. A round is one child of each kind; the rounds too
live side by side, a little apart, as nobody has ten minutes for them one after the other. The
streams are simulated: a chunk is a call of `touch()`, or a store of the time. One child of a round
feeds and watches nothing; its CPU is taken off that of the others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from time import monotonic
from typing import Any

from harness import Contest, Figure, Row, Scale, answer, at_most, cpu_seconds, publish, spawn
from stallwatch import IdleTimer

POLL = 1.0
"""Seconds between two looks, for those that look."""

ASIDE = 2.0
"""Seconds after the start before anything is counted."""

FEEDS = 4
"""How often a second chunks arrive, spread over all streams."""

OURS = "IdleTimer"
NOBODY = "nobody"
LIMITS = {"one polling task each": 0.01, "one shared scanner": 0.2, "one lazy timer each": 0.2}
KINDS = {NOBODY: "nobody", OURS: "ours"} | dict(zip(LIMITS, ("poll", "scan", "lazy"), strict=True))
"""What each is called here, and the method of `Watch` that makes it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many streams, how long."""

    streams: int
    chunk_every: float
    window: float


def stalled(*_: object) -> None:
    """No stream here is silent."""
    raise AssertionError("early")


Feed = Callable[[int], None]


class Watch:
    """The kinds of watcher. Each gives a function that takes in a chunk of a stream."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last = [monotonic()] * plan.streams
        self._kept: list[Any] = []

    def _stamp(self, i: int) -> None:
        self._last[i] = monotonic()

    def _touch(self, i: int) -> None:
        self._kept[i].touch()

    def nobody(self) -> Feed:
        """For the cost of feeding alone."""
        return self._stamp

    def ours(self) -> Feed:
        """One `IdleTimer` each."""
        self._kept = [IdleTimer(self._plan.window, stalled) for _ in self._last]
        return self._touch

    def poll(self) -> Feed:
        """One task each that looks once a second."""

        async def look(i: int) -> None:
            while True:
                await asyncio.sleep(POLL)
                if monotonic() - self._last[i] >= self._plan.window:
                    stalled(i)

        self._kept = [asyncio.ensure_future(look(i)) for i in range(self._plan.streams)]
        return self._stamp

    def scan(self) -> Feed:
        """One task for all."""

        async def look() -> None:
            while True:
                await asyncio.sleep(POLL)
                limit = monotonic() - self._plan.window
                silent = [i for i, last in enumerate(self._last) if last <= limit]
                for i in silent:
                    stalled(i)

        self._kept = [asyncio.ensure_future(look())]
        return self._stamp

    def lazy(self) -> Feed:
        """One `call_later` each, which is set again only when it comes up."""
        loop = asyncio.get_running_loop()

        def look(i: int) -> None:
            left = self._last[i] + self._plan.window - monotonic()
            if left <= 0:
                stalled(i)
            self._kept[i] = loop.call_later(left, look, i)

        self._kept = [
            loop.call_later(self._plan.window, look, i) for i in range(self._plan.streams)
        ]
        return self._stamp


async def _live(kind: str, plan: Plan, start: float) -> float:
    """The child: feeds and watches. Returns the CPU of one whole window."""
    loop = asyncio.get_running_loop()
    wrong: list[Any] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    # All begin when told, whatever it took each to start.
    await asyncio.sleep(start - monotonic())
    feed = getattr(Watch(plan), kind)()

    async def chunks() -> None:
        turns = int(plan.chunk_every * FEEDS)
        turn = 0
        while True:
            for i in range(turn % turns, plan.streams, turns):
                feed(i)
            turn += 1
            await asyncio.sleep(start + turn / FEEDS - monotonic())

    feeder = asyncio.ensure_future(chunks())
    # Not from the very start: arming is no part of this, and what was armed now comes up one
    # window from now, which has to lie well inside.
    await asyncio.sleep(start + ASIDE - monotonic())
    before = cpu_seconds()
    await asyncio.sleep(start + ASIDE + plan.window - monotonic())
    used = cpu_seconds() - before
    feeder.cancel()
    assert not wrong, wrong[0]
    return used


def _live_all(plan: Plan, rounds: int) -> list[dict[str, float]]:
    """CPU by kind, in each round."""
    # A second for each to start in; then apart, so that those that poll do not do so all at once.
    start = monotonic() + 0.25 * rounds * len(KINDS)
    children = [
        {
            name: spawn(__file__, kind, *astuple(plan), start + POLL * number / rounds)
            for name, kind in KINDS.items()
        }
        for number in range(rounds)
    ]
    return [{name: answer(child) for name, child in each.items()} for each in children]


def bench_watching(benchmark: Any, scale: Scale) -> None:
    """CPU of watching streams on which a chunk comes every few seconds."""
    rounds = scale.rounds(7, 3)
    plan = scale.pick(
        Plan(streams=10_000, chunk_every=10.0, window=90.0),
        Plan(streams=10_000, chunk_every=4.0, window=6.0),
    )
    used = _live_all(plan, rounds)
    # The rounds have been played by the children; here they are only counted.
    contest = Contest(
        {
            name: partial(next, iter([each[name] for each in used]))  # type: ignore[arg-type]
            for name in KINDS
        }
    )
    contest.play(benchmark, rounds=rounds, warmup=0)

    checks = tuple(
        at_most(f"CPU beside {name}", contest.added_ratio(OURS, name, NOBODY), limit)
        for name, limit in LIMITS.items()
    )
    per_second = 1000 / plan.window
    figures = tuple(
        Figure(name, contest.spread(name, times=per_second), "ms a second") for name in KINDS
    )
    publish(
        benchmark,
        Row(
            "B12",
            f"{plan.streams:,} watched healthy streams, a chunk every {plan.chunk_every:g} s",
            checks,
            figures,
            contest.rounds,
            f"CPU less that of feeding alone; window {plan.window:g} s; rounds side by side.",
        ),
    )


if __name__ == "__main__":
    kind, streams, chunk_every, window, start = sys.argv[1:]
    plan = Plan(int(streams), float(chunk_every), float(window))
    print(json.dumps(asyncio.run(_live(kind, plan, float(start)))))
