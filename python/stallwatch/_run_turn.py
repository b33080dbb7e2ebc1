"""`run_turn`: a body as a task of its own, and an outcome whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stallwatch._allowance import remaining
from stallwatch._cancels import is_fatal
from stallwatch._limits import Limits
from stallwatch._outcome import Outcome
from stallwatch._sink import OnEvent
from stallwatch._store import OutcomeStore
from stallwatch._turn import Turn

_live: set[asyncio.Task[None]] = set()
"""Bodies that would not let go. Kept, since they are still running."""


async def run_turn(
    body: Callable[[Turn], Awaitable[Any]],
    limits: Limits | None = None,
    *,
    name: str | None = None,
    on_event: OnEvent = None,
    turn: Turn | None = None,
    store: OutcomeStore | None = None,
) -> Outcome:
    """Run an agent body as its own task and return how it ended. Never hangs, never lies.

    Returns within hard idle + `cleanup` of a silence, even if the body swallows every cancel: it is
    then reported `Unresponsive` and left running, and what it gives later is a `LateResult`. What
    the body raises is part of the outcome, not raised here. Where a budget around it is spent
    already, the body is not called.

    Args:
        body: Gets the turn, returns the result (`outcome.result`).
        limits: By default `Limits()`.
        name: Shown in events, causes and the outcome.
        on_event: A callable, or a list of them, for the events.
        turn: A turn to use in place of a new one, for a caller who wants to `cancel()` it.
        store: Where it is recorded: see `Turn`.

    Raises:
        asyncio.CancelledError: if the caller itself is cancelled; the turn has settled by then.
        KeyboardInterrupt, SystemExit: if the body raised them.
    """
    if turn is None:
        turn = Turn(limits, name=name, on_event=on_event, store=store)
    elif any(given is not None for given in (limits, name, on_event, store)):
        raise TypeError("run_turn() takes either a turn or what a new one is made of")
    if turn._loop is not None:
        raise RuntimeError("a Turn can be entered only once")
    task = asyncio.create_task(_run(turn, body), name=f"stallwatch turn {turn.name or ''}".rstrip())
    over = asyncio.get_running_loop().create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    turn._gave_up = end
    cancelled: asyncio.CancelledError | None = None
    while not over.done():
        try:
            await asyncio.wait((over,))
        except asyncio.CancelledError as error:
            cancelled = error
            turn.cancel("the caller of run_turn was cancelled")
    if not task.done():
        cancelled = await turn._end_record() or cancelled
    if not task.done():
        _live.add(task)
        task.add_done_callback(_let_go)
    failed = task.exception() if task.done() and not task.cancelled() else None
    if cancelled is not None:
        raise cancelled
    if failed is not None and (is_fatal(failed) or turn.outcome is None):
        raise failed  # not the turn's to keep, or the turn could not begin
    if turn.outcome is None:  # its task was cancelled before it began
        turn._end(asyncio.CancelledError(), outside=True)
    assert turn.outcome is not None
    return turn.outcome


async def _run(turn: Turn, body: Callable[[Turn], Awaitable[Any]]) -> None:
    async with turn:
        if remaining() == 0.0:
            await asyncio.get_running_loop().create_future()  # until the turn is cut, at once
        turn._result = await body(turn)


def _let_go(task: asyncio.Task[None]) -> None:
    _live.discard(task)
    if not task.cancelled():
        task.exception()  # it is part of the outcome: nobody else has to hear of it


run_turn.__module__ = "stallwatch"
