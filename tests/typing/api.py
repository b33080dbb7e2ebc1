"""What type checkers make of the public API. Checked by `make lint`, never run."""

# pyright: basic

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, assert_type

import stallwatch
from stallwatch import (
    Deadline,
    Event,
    Failure,
    HardIdleError,
    IdleTimer,
    Limits,
    Outcome,
    Phase,
    PhaseLimits,
    PhaseState,
    PhaseTracker,
    Restore,
    StallError,
    Status,
    StreamGuard,
    StreamStats,
    SyncStreamGuard,
    Turn,
    UserCancelled,
    Watchdog,
    WheelStats,
    cause_of,
    guard,
    guard_sync,
    is_retryable,
    run_turn,
    wheel_stats,
)
from stallwatch.testing import ManualClock


class Chunk:
    """A chunk of some SDK."""

    text = ""


async def chunks() -> AsyncIterator[Chunk]:
    yield Chunk()


@asynccontextmanager
async def response() -> AsyncIterator[AsyncIterator[Chunk]]:
    yield chunks()


def on_event(event: Event) -> None:
    assert_type(event.to_dict(), dict[str, Any])


async def guards_keep_the_type_of_chunks() -> None:
    async with guard(chunks(), idle=30, text_of=lambda chunk: chunk.text) as stream:
        assert_type(stream, StreamGuard[Chunk])
        async for chunk in stream:
            assert_type(chunk, Chunk)
    assert_type(stream.stats, StreamStats)
    assert_type(StreamStats.merge([stream.stats]).suggest(headroom=3).for_guard(), dict[str, float])
    assert_type(stream.text, str)
    assert_type(stream.cause, StallError | None)
    async for chunk in guard(response(), budget=timedelta(minutes=5), first_chunk=None):
        assert_type(chunk, Chunk)
    guard([1, 2, 3])  # type: ignore[arg-type]


def blocking_guards_keep_the_type_of_chunks(lines: Iterator[str]) -> None:
    with guard_sync(lines, idle=30) as stream:
        assert_type(stream, SyncStreamGuard[str])
        for line in stream:
            assert_type(line, str)
    assert_type(stream.stats, StreamStats)


async def turns(turn: Turn) -> int:
    turn.enter(Phase.SETUP)
    with turn.phase(Phase.AWAITING_LLM) as restore:
        assert_type(restore, Restore)
        async for chunk in turn.stream(chunks(), name="answer"):
            assert_type(chunk, Chunk)
    return 1


async def outcomes() -> None:
    limits = Limits(hard_idle=300, phases={Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)})
    outcome = await run_turn(turns, limits, on_event=[on_event])
    assert_type(outcome, Outcome)
    assert_type(outcome.status, Status)
    assert_type(outcome.cause, StallError | UserCancelled | Failure | None)
    assert_type(outcome.phase, Phase)
    assert_type(Outcome.from_json(outcome.to_json()), Outcome)
    turn = Turn(limits)
    async with turn:
        turn.cancel("stop")
    assert_type(turn.outcome, Outcome | None)


async def watchdogs(task: asyncio.Task[None]) -> None:
    tracker = PhaseTracker()
    assert_type(tracker.current(), PhaseState)
    with Watchdog(tracker, Limits(), cancel=task, on_event=on_event) as watchdog:
        assert_type(watchdog, Watchdog)
    async with Watchdog(tracker, cancel=lambda cause: assert_type(cause, HardIdleError)):
        pass


def causes(error: Exception) -> None:
    assert_type(is_retryable(error), bool)
    cause = cause_of(error)
    assert_type(cause, StallError | UserCancelled | None)
    if isinstance(cause, StallError):
        assert_type(cause.partial, str)
        assert_type(cause.phase, Phase | None)
        assert_type(cause.limit, float | None)


def timers() -> None:
    timer = IdleTimer(timedelta(seconds=3), print)
    assert_type(timer.remaining, float | None)
    assert_type(timer.cancel(), bool)
    Deadline(12.5, print, loop=asyncio.new_event_loop()).reschedule(None)
    IdleTimer("3", print)  # type: ignore[arg-type]
    assert_type(wheel_stats(), WheelStats)
    assert_type(wheel_stats().decided.quantile(0.99), float)


async def clocks() -> None:
    with ManualClock(start=5) as clock:
        assert_type(clock, ManualClock)
        assert_type(clock.time(), float)
        await clock.advance(3)
    assert_type(stallwatch.testing.ManualClock(), ManualClock)
    assert_type(stallwatch.__version__, str)
