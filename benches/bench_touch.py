"""B1 and B8: a sign of life, and a deadline pushed back."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from harness import Contest, Row, Scale, at_least, at_most, nanoseconds, on_loop, publish
from stallwatch import Deadline, IdleTimer

WINDOW = 90


def nothing() -> None:
    """A callback that must not be called."""
    raise AssertionError("early")


class Stamp:
    """What people write by hand: the time of the last sign of life, for a timer to look at."""

    __slots__ = ("last",)

    def touch(self) -> None:
        self.last = monotonic()


def bench_touch(benchmark: Any, scale: Scale) -> None:
    """One touch, beside a call that does nothing, a stored timestamp and a new timer."""
    calls = scale.pick(1_000_000, 100_000)
    few = calls // 20
    stamp = Stamp()

    def ours(statement: str) -> float:
        def work(loop: asyncio.AbstractEventLoop) -> float:
            timer = IdleTimer(WINDOW, nothing)
            names = {"timer": timer, "touch": timer.touch, "resume": timer.resume}
            took = nanoseconds(statement, calls, **names)
            timer.cancel()
            return took

        return on_loop("asyncio", work)

    def rearm(loop: asyncio.AbstractEventLoop) -> float:
        names = {"handle": loop.call_later(WINDOW, nothing), "call_later": loop.call_later}
        names["f"] = nothing
        return nanoseconds(f"handle.cancel(); handle = call_later({WINDOW}, f)", few, **names)

    contest = Contest(
        {
            "touch(), bound": lambda: ours("touch()"),
            "timer.touch()": lambda: ours("timer.touch()"),
            "resume() of a running timer, bound": lambda: ours("resume()"),
            "timer.resume() of a running timer": lambda: ours("timer.resume()"),
            "[].reverse(), bound": lambda: nanoseconds("f()", calls, f=[].reverse),
            "stamp.last = monotonic()": lambda: nanoseconds(
                "stamp.last = monotonic()", calls, stamp=stamp, monotonic=monotonic
            ),
            "Python method that does the same": lambda: nanoseconds(
                "stamp.touch()", calls, stamp=stamp
            ),
            "monotonic()": lambda: nanoseconds("monotonic()", calls, monotonic=monotonic),
            "cancel() and call_later(), asyncio": lambda: on_loop("asyncio", rearm),
        }
    )
    contest.play(benchmark, rounds=scale.rounds())

    no_op, bound, through = "resume() of a running timer, bound", "touch(), bound", "timer.touch()"
    publish(
        benchmark,
        Row(
            "B1",
            "`touch()`",
            (
                at_most("bound no-op of the same class", contest.ratio(bound, no_op), 2),
                at_most(
                    "the same through the attribute",
                    contest.ratio(through, "timer.resume() of a running timer"),
                    2,
                ),
                at_most("`x.t = monotonic()`", contest.ratio(bound, "stamp.last = monotonic()"), 1),
            ),
            contest.figures("ns"),
            contest.rounds,
            "The no-op is `resume()` of a timer that is not paused: same class, same call.",
        ),
    )


def bench_push_back(benchmark: Any, scale: Scale) -> None:
    """One deadline, pushed back again and again, without a turn of the loop."""
    calls = scale.pick(100_000, 10_000)

    def push(kind: str) -> float:
        def work(loop: asyncio.AbstractEventLoop) -> float:
            return nanoseconds(
                "handle.cancel(); when += 1e-6; handle = call_at(when, f)",
                calls,
                when=loop.time() + WINDOW,
                handle=loop.call_later(WINDOW, nothing),
                call_at=loop.call_at,
                f=nothing,
            )

        return on_loop(kind, work)

    def reschedule(loop: asyncio.AbstractEventLoop) -> float:
        when = monotonic() + WINDOW
        deadline = Deadline(when, nothing)
        took = nanoseconds("when += 1e-6; move(when)", calls, when=when, move=deadline.reschedule)
        assert (deadline.when or 0) > when
        deadline.cancel()
        return took

    def touch(loop: asyncio.AbstractEventLoop) -> float:
        timer = IdleTimer(WINDOW, nothing)
        took = nanoseconds("touch()", calls, touch=timer.touch)
        timer.cancel()
        return took

    async def timeout() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WINDOW) as guarded:
            return nanoseconds(
                "when += 1e-6; move(when)",
                calls // 5,
                when=loop.time() + WINDOW,
                move=guarded.reschedule,
            )

    contest = Contest(
        {
            "Deadline.reschedule": lambda: on_loop("asyncio", reschedule),
            "IdleTimer.touch": lambda: on_loop("asyncio", touch),
            "asyncio": lambda: push("asyncio"),
            "uvloop": lambda: push("uvloop"),
            "rloop": lambda: push("rloop"),
            "Timeout.reschedule": lambda: asyncio.run(timeout()),
        }
    )
    contest.play(benchmark, rounds=scale.rounds())

    checks = [
        at_least(f"`{name}`: asyncio's cancel + `call_at`", contest.ratio("asyncio", name), 25)
        for name in ("IdleTimer.touch", "Deadline.reschedule")
    ]
    publish(
        benchmark,
        Row("B8", "a deadline pushed back", tuple(checks), contest.figures("ns"), contest.rounds),
    )
