"""Causes as real clocks make them, on the ways on which causes get lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import multiprocessing
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import backoff
import pytest
import stamina
import tenacity

from guard_tools import HANG, on_manual_clock, script
from stallwatch._causes import (
    FirstChunkError,
    HardIdleError,
    StallError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
    TurnBudgetError,
)
from stallwatch._guard import guard
from stallwatch._limits import Limits
from stallwatch._outcome import Outcome, Status
from stallwatch._phases import Phase
from stallwatch._retry import cause_of, giveup_if_stalled, is_retryable, retry_unless_stalled
from stallwatch._run_turn import run_turn
from stallwatch._turn import Turn
from stallwatch.testing import ManualClock
from turn_tools import for_ever, quiet, start


async def pull(turn: Turn, source: Any, **limits: Any) -> None:
    """Read a stream of the turn to its end."""
    async for _ in turn.stream(source, **limits):
        pass


async def silent(turn: Turn) -> None:
    """The model says nothing."""
    await for_ever()


def lively() -> Any:
    """A source that never ends."""
    return script(*([1, "x"] * 500))


CLOCKS: dict[type[StallError], tuple[Limits, Callable[[Turn], Awaitable[None]]]] = {
    HardIdleError: (Limits(hard_idle=30), silent),
    TurnBudgetError: (Limits(turn_budget=30), lambda turn: pull(turn, lively())),
    FirstChunkError: (Limits(first_chunk=30), lambda turn: pull(turn, script(HANG))),
    StreamIdleError: (Limits(stream_idle=30), lambda turn: pull(turn, script("a", HANG))),
    StreamBudgetError: (Limits(stream_budget=30), lambda turn: pull(turn, lively())),
    StreamProgressError: (
        Limits(progress_idle=30),
        lambda turn: pull(
            turn,
            script("a", *([1, "ping"] * 100)),
            is_progress=lambda chunk: chunk != "ping",
        ),
    ),
}


async def real_outcome(clock: ManualClock, kind: type[StallError]) -> Outcome:
    """An outcome whose cause was made by the clock of that kind, 30 s after the start."""
    limits, wait = CLOCKS[kind]

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await wait(turn)

    end = start(clock, run_turn(body, limits, name="answer", on_event=quiet))
    await clock.advance(100)
    assert end.at is not None
    assert end.at == pytest.approx(30, abs=1)
    outcome: Outcome = end.task.result()
    return outcome


@pytest.mark.parametrize("kind", CLOCKS)
@on_manual_clock
async def test_each_clock_of_a_turn_has_its_cause(clock: ManualClock, kind: type) -> None:
    """Every clock that runs out is told apart by its type, and says the phase it fired in."""
    outcome = await real_outcome(clock, kind)

    assert outcome.status is Status.STALLED
    assert type(outcome.cause) is kind
    assert (outcome.cause.phase, outcome.cause.seq) == (Phase.AWAITING_LLM, 1)
    assert outcome.cause.limit == 30
    assert not isinstance(outcome.cause, (TimeoutError, OSError))


@pytest.mark.parametrize("kind", CLOCKS)
@on_manual_clock
async def test_a_cause_travels_whole(clock: ManualClock, kind: type) -> None:
    """X8: after pickle, copy, its own args, JSON and the outcome's pickle it says the same."""
    outcome = await real_outcome(clock, kind)
    cause = outcome.cause
    assert isinstance(cause, StallError)
    ways = [
        pickle.loads(pickle.dumps(cause)),
        copy.copy(cause),
        copy.deepcopy(cause),
        type(cause)(*cause.args),
        pickle.loads(pickle.dumps(outcome)).cause,
        Outcome.from_json(outcome.to_json()).cause,
    ]

    for again in ways:
        assert type(again) is kind
        assert again.to_dict() == cause.to_dict()
        assert not again.retryable
        assert not is_retryable(again)


@on_manual_clock
async def test_a_cause_comes_out_of_another_process(clock: ManualClock) -> None:
    """X8: raised in a worker process, it is the same typed cause for the parent."""
    outcome = await real_outcome(clock, StreamIdleError)
    cause = outcome.cause
    assert isinstance(cause, StallError)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(_raise, cause).exception(timeout=60)

    assert isinstance(error, StreamIdleError)
    assert error.to_dict() == cause.to_dict()
    assert cause_of(error) is error
    assert not is_retryable(error)


def _raise(error: BaseException) -> None:
    raise error


RETRIES: dict[str, Callable[[Any], Any]] = {
    "tenacity": tenacity.retry(
        retry=retry_unless_stalled, stop=tenacity.stop_after_attempt(5), reraise=True
    ),
    "tenacity, wrapped": tenacity.retry(
        retry=retry_unless_stalled, stop=tenacity.stop_after_attempt(5)
    ),
    "stamina": stamina.retry(on=is_retryable, attempts=5, wait_initial=0.01),
    "backoff": backoff.on_exception(
        backoff.constant, Exception, giveup=giveup_if_stalled, max_tries=5, interval=0.01
    ),
}


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("name", RETRIES)
@on_manual_clock
async def test_retry_libraries_leave_a_stall_alone(
    clock: ManualClock, name: str, where: str
) -> None:
    """Case 13: a retried function that stalls is called once, in the turn and around one."""
    opened = []

    async def attempt(turn: Turn) -> None:
        opened.append(clock.time())
        await pull(turn, script("a", HANG), idle=30)

    async def inside(turn: Turn) -> None:
        await RETRIES[name](attempt)(turn)

    async def one_turn() -> None:
        async with Turn(on_event=quiet) as turn:
            await attempt(turn)

    if where == "inside":
        end = start(clock, run_turn(inside, on_event=quiet))
    else:
        end = start(clock, RETRIES[name](one_turn)())
    await clock.advance(1_000)

    assert len(opened) == 1
    assert end.at == 30
    cause = end.task.result().cause if where == "inside" else cause_of(end.task)
    assert isinstance(cause, StreamIdleError)
    assert cause.partial == "a"


@pytest.mark.parametrize("name", RETRIES)
@on_manual_clock
async def test_retry_libraries_leave_hard_idle_alone(clock: ManualClock, name: str) -> None:
    """A whole turn that is retried, and whose body says nothing, runs once."""
    began = []

    async def one_turn() -> None:
        began.append(clock.time())
        async with Turn(Limits(hard_idle=30), on_event=quiet) as turn:
            turn.enter(Phase.AWAITING_LLM)
            await for_ever()

    end = start(clock, RETRIES[name](one_turn)())
    await clock.advance(1_000)

    assert len(began) == 1
    assert isinstance(cause_of(end.task), HardIdleError)


@on_manual_clock
async def test_a_body_that_retries_everything_still_stalls(clock: ManualClock) -> None:
    """`except Exception: continue` around the wait: hard idle goes through as a cancel."""
    caught: list[Exception] = []

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        while True:
            try:
                await pull(turn, script("a", HANG), idle=300)
            except Exception as error:
                caught.append(error)
            if len(caught) > 20:
                return

    end = start(clock, run_turn(body, on_event=quiet))
    await clock.advance(10_000)

    assert [type(error) for error in caught] == [StreamIdleError]
    assert end.at == 540
    outcome = end.task.result()
    assert isinstance(outcome.cause, HardIdleError)
    assert outcome.text == "aa"


@pytest.mark.parametrize("how", ["gather", "gather, collected", "wait_for", "timeout", "shield"])
@on_manual_clock
async def test_a_cause_gets_through_asyncio(clock: ManualClock, how: str) -> None:
    """Whatever of asyncio lies between turn and caller, the cause is found at the top."""

    async def one_turn() -> None:
        async with Turn(Limits(hard_idle=30), on_event=quiet) as turn:
            turn.enter(Phase.AWAITING_LLM)
            await for_ever()

    async def whole() -> Any:
        if how == "gather":
            return await asyncio.gather(one_turn(), asyncio.sleep(1))
        if how == "gather, collected":
            (error, _) = await asyncio.gather(one_turn(), asyncio.sleep(1), return_exceptions=True)
            assert isinstance(error, BaseException)
            raise error
        if how == "wait_for":
            return await asyncio.wait_for(one_turn(), 1_000)
        if how == "shield":
            return await asyncio.shield(asyncio.ensure_future(one_turn()))
        async with asyncio.timeout(1_000):
            return await one_turn()

    end = start(clock, whole())
    await clock.advance(100)

    assert end.at == 30
    assert isinstance(cause_of(end.task), HardIdleError)


@on_manual_clock
async def test_a_guard_without_a_turn_says_nothing_of_phases(clock: ManualClock) -> None:
    """Outside a turn there is no phase to name."""

    async def body() -> None:
        async for _ in guard(script("a", HANG), idle=30, on_event=quiet):
            pass

    end = start(clock, body())
    await clock.advance(100)

    assert isinstance(end.error, StreamIdleError)
    assert (end.error.phase, end.error.seq) == (None, None)
