"""B5 and B7, native: a timer armed and cancelled."""

from __future__ import annotations

import asyncio
from threading import Timer
from time import monotonic
from typing import Any

import pytest

from harness import Contest, Row, Scale, at_least, nanoseconds, on_loop, publish
from stallwatch import Deadline, IdleTimer


def nothing() -> None:
    """A callback that must not be called."""
    raise AssertionError("early")


@pytest.mark.parametrize("pending", [0, 10_000])
def bench_arm_and_cancel(benchmark: Any, scale: Scale, pending: int) -> None:
    """A timer armed and cancelled, without a turn of the loop in between."""
    calls = scale.pick(100_000, 10_000)

    def call_later(kind: str) -> float:
        def work(loop: asyncio.AbstractEventLoop) -> float:
            kept = [loop.call_later(3600 + i, nothing) for i in range(pending)]
            took = nanoseconds("arm(30, f).cancel()", calls, arm=loop.call_later, f=nothing)
            assert len(kept) == pending
            return took

        return on_loop(kind, work)

    def native(statement: str) -> float:
        def work(loop: asyncio.AbstractEventLoop) -> float:
            # At least one: a loop's first timer makes its bridge, which is no part of this.
            kept = [IdleTimer(3600 + i, nothing) for i in range(max(pending, 1))]
            names = {"IdleTimer": IdleTimer, "Deadline": Deadline, "when": monotonic() + 30}
            took = nanoseconds(statement, calls, f=nothing, **names)
            for timer in kept:
                timer.cancel()
            return took

        return on_loop("asyncio", work)

    def thread() -> float:
        made: list[Timer] = []
        calls = scale.pick(200, 50)
        statement = "t = Timer(30, f); t.start(); t.cancel(); keep(t)"
        took = nanoseconds(statement, calls, Timer=Timer, f=nothing, keep=made.append)
        for timer in made:
            timer.join()
        return took

    contest = Contest(
        {
            "IdleTimer": lambda: native("IdleTimer(30, f).cancel()"),
            "Deadline": lambda: native("Deadline(when, f).cancel()"),
            "asyncio": lambda: call_later("asyncio"),
            "uvloop": lambda: call_later("uvloop"),
            "rloop": lambda: call_later("rloop"),
            "threading.Timer": thread,
        }
    )
    contest.play(benchmark, rounds=scale.rounds())

    checks = []
    for name in ("IdleTimer", "Deadline"):
        checks.append(at_least(f"`{name}`: asyncio", contest.ratio("asyncio", name), 12))
    checks.append(
        at_least(
            "`IdleTimer`: `threading.Timer`", contest.ratio("threading.Timer", "IdleTimer"), 200
        )
    )
    publish(
        benchmark,
        Row(
            "B7",
            f"native arm + cancel, {pending:,} pending",
            tuple(checks),
            contest.figures("ns"),
            contest.rounds,
        ),
    )
