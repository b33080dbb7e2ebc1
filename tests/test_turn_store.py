"""Turns that are recorded in a store: when what is written, and what a bad store cannot do."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from stallwatch import (
    HardIdleError,
    Limits,
    MemoryStore,
    Outcome,
    Phase,
    SQLiteStore,
    Status,
    Turn,
    Unresponsive,
    UserCancelled,
    run_turn,
)
from stallwatch.testing import ManualClock


class Slow(MemoryStore):
    """Takes its time for every write."""

    seconds = 2.0

    def start(self, turn_id: str, record: Outcome) -> None:
        """Late."""
        time.sleep(self.seconds)
        super().start(turn_id, record)

    def finish(
        self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Late."""
        time.sleep(self.seconds)
        return super().finish(turn_id, outcome, timeline=timeline)


class Hung(MemoryStore):
    """Never comes back from its last write."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def finish(
        self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Waits for the test to end."""
        self.let_go.wait()
        return super().finish(turn_id, outcome, timeline=timeline)


class Broken(MemoryStore):
    """Raises for so many calls."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def _fail(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("the disk is full")

    def start(self, turn_id: str, record: Outcome) -> None:
        """Fails."""
        self._fail()
        super().start(turn_id, record)

    def checkpoint(
        self, turn_id: str, record: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Fails."""
        self._fail()
        return super().checkpoint(turn_id, record, timeline=timeline)

    def finish(
        self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Fails."""
        self._fail()
        return super().finish(turn_id, outcome, timeline=timeline)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def written(ask: Callable[[], bool]) -> None:
    """Wait until the store's thread has done something. Real time, 10 s at most."""
    end = time.monotonic() + 10
    while not ask():
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.002)  # the loop's own timers may stand on a manual clock
        await asyncio.sleep(0)


async def two_then_silence() -> AsyncIterator[str]:
    """Half a sentence."""
    yield "half a "
    yield "sentence"
    await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@in_loop
async def test_a_turn_is_running_from_its_start_to_its_end(kind: str, tmp_path: Path) -> None:
    """The store has it as running while the body runs, and the outcome when the turn is over."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "turns.db")
    async with Turn(name="answer", store=store) as turn:
        assert turn.store_id is not None
        running = store.get(turn.store_id)
        assert running is not None
        assert (running.status, running.name) == ("running", "answer")
        assert running.record.status is Status.INTERRUPTED

    ended = store.get(turn.store_id)
    assert ended is not None
    assert ended.outcome == turn.outcome
    assert ended.status == "completed"
    assert ended.timeline is not None


@in_loop
async def test_every_end_is_written_before_the_caller_hears_of_it() -> None:
    """A stall, a user's cancel, a cancel from outside and an error are in the store at once."""
    store = MemoryStore()

    async def silent(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await asyncio.Event().wait()

    async def cancelled(turn: Turn) -> None:
        turn.cancel("enough")
        await asyncio.Event().wait()

    async def failing(turn: Turn) -> None:
        raise ValueError("no")

    limits = Limits(soft_idle=None, hard_idle=0.05, cleanup=5)
    for body, status in ((silent, "stalled"), (cancelled, "cancelled"), (failing, "failed")):
        outcome = await run_turn(body, limits, name=status, store=store)

        (kept,) = store.turns(name=status)
        assert (str(outcome.status), kept.status) == (status, status)
        assert kept.outcome == outcome

    task = asyncio.create_task(run_turn(silent, name="outside", store=store))
    await written(lambda: bool(store.turns(name="outside")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.turns(name="outside")[0].status == "cancelled"


@in_loop
async def test_what_has_changed_is_saved_and_only_then_taken() -> None:
    """Phase and text so far are checkpointed; the dirty mark stays until a save has worked."""
    store = Broken(0)
    with ManualClock() as clock:
        async with Turn(Limits(), store=store) as turn:
            store.failures = 1
            turn.enter(Phase.AWAITING_LLM)
            stream = turn.stream(two_then_silence())
            assert await anext(stream) == "half a "
            await clock.advance(1)
            await written(lambda: store.failures == 0)
            assert turn.tracker.is_dirty
            assert turn.store_id is not None
            for _ in range(2_000):  # a tick that comes while a write is under way leaves it be
                await clock.advance(1)
                time.sleep(0.002)
                if not turn.tracker.is_dirty:
                    break
            kept = store.get(turn.store_id)
            assert kept is not None

            assert (kept.status, kept.record.phase) == ("running", Phase.AWAITING_LLM)
            assert kept.record.partial == "half a "


@in_loop
async def test_nothing_new_is_not_written_again() -> None:
    """A turn in which nothing changes leaves its store alone."""
    store = MemoryStore()
    with ManualClock() as clock:
        async with Turn(Limits(), store=store) as turn:
            turn.enter(Phase.AWAITING_APPROVAL)
            await clock.advance(1)
            await written(lambda: not turn.tracker.is_dirty)
            before = store.get(turn.store_id or "")
            await clock.advance(60)
            time.sleep(0.02)

            assert store.get(turn.store_id or "") is before


@pytest.mark.slow
@in_loop
async def test_a_slow_store_holds_up_neither_loop_nor_body() -> None:
    """The body begins after a second at most, the loop goes on, and the record still comes.

    Real time: the store takes 2 s for each write; the loop may be late by 1 s, and all of it by 10.
    """
    store = Slow()
    began = time.monotonic()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)

    async def body(turn: Turn) -> float:
        return time.monotonic() - began

    ticking = asyncio.create_task(tick())
    outcome = await run_turn(body, name="slow", store=store)
    ticking.cancel()

    assert outcome.status is Status.COMPLETED
    assert outcome.result < 2.0
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 1.0
    (kept,) = store.turns()
    assert kept.outcome == outcome
    assert time.monotonic() - began < 14


@pytest.mark.slow
@in_loop
async def test_a_hung_store_is_reported_and_left_behind() -> None:
    """A store that never answers costs a settlement `cleanup`, an event, and nothing else.

    Real time: `cleanup` is 0.5 s; 5 s are allowed.
    """
    store, seen = Hung(), []

    async def body(turn: Turn) -> str:
        return "done"

    began = time.monotonic()
    outcome = await run_turn(body, Limits(cleanup=0.5), on_event=seen.append, store=store)
    took = time.monotonic() - began
    store.let_go.set()

    assert (outcome.status, outcome.result) == (Status.COMPLETED, "done")
    assert 0.4 <= took < 5
    assert [one.what for one in seen if isinstance(one, Unresponsive)] == ["store"]
    await written(lambda: store.turns()[0].status == "completed")


@in_loop
async def test_a_store_that_raises_changes_nothing_for_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its errors are logged, and the turn ends as it would without it."""
    store = Broken(1000)

    async def body(turn: Turn) -> str:
        return "done"

    with caplog.at_level(logging.ERROR, logger="stallwatch"):
        outcome = await run_turn(body, name="answer", store=store)

    assert (outcome.status, outcome.result) == (Status.COMPLETED, "done")
    assert "the disk is full" in caplog.text
    assert "answer" in caplog.text


@in_loop
async def test_a_terminal_record_that_failed_once_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One bad moment of a store, start included, loses no terminal record."""
    store = Broken(0)

    async def body(turn: Turn) -> str:
        store.failures = 1
        return "done"

    with caplog.at_level(logging.CRITICAL, logger="stallwatch"):
        outcome = await run_turn(body, store=store)

    assert store.turns()[0].outcome == outcome


@in_loop
async def test_a_body_that_never_lets_go_is_recorded_as_what_it_is() -> None:
    """The store has the stall when `run_turn` returns, although the body still runs."""
    store, seen = MemoryStore(), []
    let_go = asyncio.Event()

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    limits = Limits(soft_idle=None, hard_idle=0.05, cleanup=0.5)
    outcome = await run_turn(body, limits, on_event=seen.append, store=store)
    (kept,) = store.turns()
    let_go.set()
    await asyncio.sleep(0.05)

    assert isinstance(outcome.cause, HardIdleError)
    assert kept.outcome == outcome
    assert store.turns()[0].status == "stalled"
    assert [one.what for one in seen if isinstance(one, Unresponsive)] == ["body"]


@in_loop
async def test_a_cancel_during_the_last_write_goes_through() -> None:
    """The caller is cancelled once the record is there, and the record says that it completed."""

    class Gated(MemoryStore):
        gate = threading.Event()

        def finish(
            self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
        ) -> bool:
            self.gate.wait()
            return super().finish(turn_id, outcome, timeline=timeline)

    store = Gated()

    async def caller() -> None:
        async with Turn(store=store):
            pass

    task = asyncio.create_task(caller())
    await written(lambda: bool(store.turns()))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert store.turns()[0].status == "completed"
    assert task.cancelled()


@pytest.mark.parametrize("how", ["user", "outside"])
@in_loop
async def test_a_cancel_before_the_start_is_written(how: str) -> None:
    """A turn that was cancelled while its start was being written is recorded as cancelled."""
    gate = threading.Event()

    class Gated(MemoryStore):
        def start(self, turn_id: str, record: Outcome) -> None:
            gate.wait()
            super().start(turn_id, record)

    store = Gated()
    turn = Turn(store=store)

    async def caller() -> None:
        async with turn:
            raise AssertionError("the body never begins")

    task = asyncio.create_task(caller())
    await asyncio.sleep(0.02)
    if how == "user":
        turn.cancel("enough")
    else:
        task.cancel()
    await asyncio.sleep(0.02)
    assert turn.outcome is None or how == "outside"
    gate.set()
    with pytest.raises(UserCancelled if how == "user" else asyncio.CancelledError):
        await task

    await written(lambda: bool(store.turns()) and store.turns()[0].status == "cancelled")
    assert turn.outcome is not None
    assert turn.outcome.status is Status.CANCELLED


@in_loop
async def test_many_turns_share_one_writer() -> None:
    """A hundred turns at once in one store cost one thread, and each has its record."""
    store = MemoryStore()
    threads: list[int] = []
    others = sum(one.name == "stallwatch store" for one in threading.enumerate())

    async def body(turn: Turn) -> None:
        await asyncio.sleep(0)
        threads.append(sum(one.name == "stallwatch store" for one in threading.enumerate()))

    outcomes = await asyncio.gather(
        *(run_turn(body, name=str(index), store=store) for index in range(100))
    )

    assert {one.status for one in outcomes} == {Status.COMPLETED}
    assert len(store.turns(status="completed")) == 100
    # Those of other tests' stores may still be waiting for work.
    assert max(threads) - others <= 1


@in_loop
async def test_events_of_a_recorded_turn_still_reach_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store is no listener: without one of the user's, stalls go to the log as ever."""

    async def silent(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING, logger="stallwatch"):
        await run_turn(
            silent, Limits(soft_idle=None, hard_idle=0.05, cleanup=5), store=MemoryStore()
        )

    assert "hard_idle" in caplog.text.lower() or "HardIdle" in caplog.text
