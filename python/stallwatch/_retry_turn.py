"""`retry_turn`: the bounded retry of a stalled turn, for those who ask for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallwatch._allowance import remaining
from stallwatch._limits import Limits
from stallwatch._outcome import Outcome, Status
from stallwatch._run_turn import run_turn
from stallwatch._seconds import seconds
from stallwatch._sink import OnEvent
from stallwatch._store import OutcomeStore
from stallwatch._turn import Turn
from stallwatch._verdict import RetryVerdict

if TYPE_CHECKING:
    from stallwatch._seconds import Duration

__all__ = ["retry_turn"]

_FACTOR: Final = 2.0


async def retry_turn(
    body: Callable[[Turn], Awaitable[Any]],
    limits: Limits | None = None,
    *,
    attempts: int = 1,
    delay: Duration = 1.0,
    max_delay: Duration = 30.0,
    name: str | None = None,
    on_event: OnEvent = None,
    store: OutcomeStore | None = None,
) -> Outcome:
    """`run_turn` again, while a turn has stalled before anything of an answer had come.

    By default a stall is not retried: `attempts` is how often the body may be run in all. Only a
    turn whose `Outcome.retry` says `before_output` is run again: never one of which a part had
    come, or that had started a tool, and never after a cancel, a failure or a spent budget.

    Nothing here renews a clock that was made outside: a `budget(...)` around it bounds all attempts
    and the waits between them. A wait that would outlast what is left is not begun, nor is an
    attempt when nothing is left; the outcome is then that of the last attempt that was made.

    Args:
        body: Called with a new turn for each attempt.
        limits: Of each attempt. By default `Limits()`.
        attempts: 1 or more; by default 1, which is no retry.
        delay: Seconds before the second attempt; each later wait is twice the one before it. By
            default 1, about what providers ask for first.
        max_delay: The longest wait in seconds. By default 30.
        name: Shown in events, causes and the outcome.
        on_event: A callable, or a list of them, for the events of all attempts.
        store: Where each attempt is recorded, as a turn of its own.

    Returns:
        The outcome of the last attempt; `attempts` in it counts those of all of them.

    Raises:
        ValueError: for `attempts` below 1 or not an int, or a wait that is not above 0 and finite.
        asyncio.CancelledError: if the caller is cancelled, in an attempt or in a wait.
        KeyboardInterrupt, SystemExit: if the body raised them.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"attempts must be an int of 1 or more, not {attempts!r}")
    wait = _finite(delay, "delay")
    longest = _finite(max_delay, "max_delay")
    opened = 0
    for left in range(attempts - 1, -1, -1):
        outcome = await run_turn(body, limits, name=name, on_event=on_event, store=store)
        opened += outcome.attempts
        if left == 0 or not _may_go_on(outcome):
            break
        pause = min(wait, longest)
        wait *= _FACTOR
        rest = remaining()
        if rest is not None and pause >= rest:
            break
        await asyncio.sleep(pause)
        if remaining() == 0.0:
            break
    return replace(outcome, attempts=opened)


def _may_go_on(outcome: Outcome) -> bool:
    return outcome.status is Status.STALLED and outcome.retry.verdict is RetryVerdict.BEFORE_OUTPUT


def _finite(value: Duration, name: str) -> float:
    found = seconds(value, name=name)
    if found is None or not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return found


retry_turn.__module__ = "stallwatch"
