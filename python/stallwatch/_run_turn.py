"""`run_turn`: a body as a task of its own, and an outcome whatever it does."""

from __future__ import annotations

import dataclasses
from asyncio import CancelledError, Future, Task, get_running_loop
from collections.abc import Awaitable, Callable
from typing import Any

from stallwatch._causes import UserCancelled
from stallwatch._limits import Limits
from stallwatch._outcome import Outcome
from stallwatch._sink import OnEvent
from stallwatch._turn import Turn

_live: set[Task[Any]] = set()
"""Bodies that would not let go. Kept, since they are still running."""


async def run_turn(
    body: Callable[[Turn], Awaitable[Any]],
    limits: Limits | None = None,
    *,
    name: str | None = None,
    on_event: OnEvent = None,
    turn: Turn | None = None,
) -> Outcome:
    """Run an agent body as its own task and return how it ended. Never hangs, never lies.

    Returns within hard idle + `cleanup` of a silence, even if the body swallows every cancel: it is
    then reported `Unresponsive` and left running, and what it gives later is a `LateResult`. What
    the body raises is part of the outcome, not raised here.

    Args:
        body: Gets the turn, returns the result (`outcome.result`).
        limits: By default `Limits()`.
        name: Shown in events, causes and the outcome.
        on_event: A callable, or a list of them, for the events.
        turn: A turn to use in place of a new one, for a caller who wants to `cancel()` it.

    Raises:
        asyncio.CancelledError: if the caller itself is cancelled; the turn has settled by then.
        KeyboardInterrupt, SystemExit: if the body raised them.
    """
    if turn is None:
        turn = Turn(limits, name=name, on_event=on_event)
    elif limits is not None or name is not None or on_event is not None:
        raise TypeError("run_turn() takes either a turn or what a new one is made of")
    loop = get_running_loop()
    task = loop.create_task(_run(turn, body), name=f"stallwatch turn {turn.name or ''}".rstrip())
    over: Future[None] = loop.create_future()
    end = _setter(over)
    task.add_done_callback(end)
    turn._gave_up = end
    cancelled: CancelledError | None = None
    while not over.done():
        waiter: Future[None] = loop.create_future()
        over.add_done_callback(_setter(waiter))
        try:
            await waiter
        except CancelledError as error:
            cancelled = error
            if turn.outcome is None:
                turn.cancel("the caller of run_turn was cancelled")
            if task.done():
                break
    if not task.done():
        _live.add(task)
        task.add_done_callback(_live.discard)
        task.add_done_callback(_retrieve)
        outcome = turn._give_up(turn.limits.cleanup or 0.0)
    else:
        outcome = _outcome_of(turn, task)
    if cancelled is not None:
        raise cancelled
    return outcome


def _setter(future: Future[None]) -> Callable[..., None]:
    def end(_: object = None) -> None:
        if not future.done():
            future.set_result(None)

    return end


async def _run(turn: Turn, body: Callable[[Turn], Awaitable[Any]]) -> Any:
    async with turn:
        return await body(turn)


def _outcome_of(turn: Turn, task: Task[Any]) -> Outcome:
    error = None
    if not task.cancelled():
        error = task.exception()
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    outcome = turn.outcome
    if outcome is None:
        # The task ended before the turn began: cancelled at once, or entered twice.
        if error is not None:
            raise error
        turn._cause = turn._cause or UserCancelled("cancelled before it began")
        turn._end(None, outside=False)
        outcome = turn.outcome
        assert outcome is not None
    if error is None and not task.cancelled():
        outcome = dataclasses.replace(outcome, result=task.result())
        turn.outcome = outcome
    return outcome


def _retrieve(task: Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


run_turn.__module__ = "stallwatch"
