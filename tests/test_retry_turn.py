"""`Outcome.retry` and `retry_turn`: who may be run again, how often, and within whose time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from guard_tools import Recorder, on_manual_clock
from stallwatch import (
    Limits,
    MemoryStore,
    Outcome,
    Phase,
    RetryVerdict,
    Status,
    Turn,
    TurnBudgetError,
    budget,
    retry_turn,
    run_turn,
)
from stallwatch._causes import CAUSE_KINDS, HardIdleError, UserCancelled
from stallwatch._events import Settled
from stallwatch._failure import Failure
from stallwatch._tool_record import ToolRecord, ToolState
from stallwatch._verdict import retry_verdict
from stallwatch.testing import ManualClock

SILENT = Limits(hard_idle=10, soft_idle=None)


class Provider:
    """Says `words` and falls silent; from the `good`-th call on it answers whole."""

    def __init__(self, *words: str, good: int = 1_000) -> None:
        self.words = words
        self.good = good
        self.opened = 0

    async def stream(self) -> AsyncIterator[str]:
        """The answer."""
        self.opened += 1
        if self.opened >= self.good:
            yield "whole"
            return
        for word in self.words:
            yield word
        await asyncio.Event().wait()

    async def body(self, turn: Turn) -> str:
        """An agent body that does no more than ask."""
        turn.enter(Phase.AWAITING_LLM)
        stream = turn.stream(self.stream(), first_chunk=5, idle=5)
        return "".join([chunk async for chunk in stream])


async def finish(clock: ManualClock, work: Any, *, step: float = 0.5, most: float = 500) -> Any:
    """Let the clock run until `work` has returned; also how long that took."""
    task = asyncio.ensure_future(work)
    spent = 0.0
    while not task.done():
        assert spent < most, "it did not return"
        await clock.advance(step)
        spent += step
    return await task, spent


# --- the verdict ---


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("has_output", [False, True])
@pytest.mark.parametrize("kind", [*sorted(CAUSE_KINDS), None])
@pytest.mark.parametrize("status", list(Status))
def test_the_verdict(status: Status, kind: str | None, has_output: bool, has_tools: bool) -> None:
    """Every combination, against the words of the table in the documentation."""
    found = retry_verdict(status=status, kind=kind, has_output=has_output, has_tools=has_tools)

    if status in (Status.COMPLETED, Status.CANCELLED, Status.FAILED) or kind == "turn_budget":
        expected = RetryVerdict.NEVER
    elif has_output or has_tools:
        expected = RetryVerdict.RESUME
    else:
        expected = RetryVerdict.BEFORE_OUTPUT
    assert found.verdict is expected
    assert found.reason
    assert found.to_dict() == {"verdict": str(expected), "reason": found.reason}


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ({"status": Status.COMPLETED}, "never"),
        ({"status": Status.CANCELLED, "cause": UserCancelled("stop")}, "never"),
        ({"status": Status.FAILED, "cause": Failure(type="ValueError", message="no")}, "never"),
        ({"status": Status.STALLED, "cause": HardIdleError()}, "before_output"),
        ({"status": Status.STALLED, "cause": TurnBudgetError()}, "never"),
        ({"status": Status.STALLED, "cause": HardIdleError(), "text": "half"}, "resume"),
        ({"status": Status.STALLED, "cause": HardIdleError(), "tool_args": '{"pa'}, "resume"),
        ({"status": Status.STALLED, "cause": HardIdleError(), "last_progress": 3.0}, "resume"),
        (
            {
                "status": Status.STALLED,
                "cause": HardIdleError(),
                "tools": (ToolRecord(name="bash", state=ToolState.INTERRUPTED, elapsed=1.0),),
            },
            "resume",
        ),
        ({"status": Status.INTERRUPTED}, "before_output"),
        ({"status": Status.INTERRUPTED, "text": "half"}, "resume"),
    ],
)
def test_an_outcome_tells_its_verdict(what: dict[str, Any], verdict: str) -> None:
    """From its own fields, so that a stored one tells the same."""
    outcome = Outcome(**what)

    assert outcome.retry.verdict == verdict
    assert outcome.to_dict()["retry"] == outcome.retry.to_dict()
    assert Outcome.from_json(outcome.to_json()).retry == outcome.retry


def test_a_record_of_schema_2_is_read() -> None:
    """It knew neither attempts nor the last progress."""
    old = Outcome(status=Status.STALLED, cause=HardIdleError(), text="half").to_dict()
    for key in ("retry", "attempts", "last_progress"):
        del old[key]
    old["schema"] = 2

    read = Outcome.from_dict(old)

    assert (read.attempts, read.last_progress, read.retry.verdict) == (0, None, "resume")


@on_manual_clock
async def test_a_turn_counts_its_streams(clock: ManualClock) -> None:
    """Only those that were begun; the last progress of any of them."""

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        turn.stream(Provider("never read").stream())
        async for _ in turn.stream(Provider(good=1).stream()):
            pass
        await asyncio.sleep(3)
        async for _ in turn.stream(Provider().stream(), first_chunk=4):
            pass

    outcome, _ = await finish(clock, run_turn(body, SILENT))

    assert outcome.status is Status.STALLED
    assert outcome.attempts == 2
    assert outcome.last_progress == pytest.approx(7, abs=0.6)
    assert outcome.retry.verdict is RetryVerdict.RESUME


# --- running again ---


@on_manual_clock
async def test_by_default_nothing_is_retried(clock: ManualClock) -> None:
    """One request; the verdict says what might be done."""
    provider = Provider()

    outcome, _ = await finish(clock, retry_turn(provider.body, SILENT))

    assert provider.opened == outcome.attempts == 1
    assert outcome.status is Status.STALLED
    assert outcome.retry.verdict is RetryVerdict.BEFORE_OUTPUT


@on_manual_clock
async def test_a_silent_provider_is_asked_as_often_as_was_allowed(clock: ManualClock) -> None:
    """Three attempts of 5 s with waits of 1 and 2 s."""
    provider = Provider()

    outcome, spent = await finish(clock, retry_turn(provider.body, SILENT, attempts=3))

    assert provider.opened == outcome.attempts == 3
    assert outcome.cause.kind == "first_chunk"
    assert spent == pytest.approx(3 * 5 + 1 + 2, abs=3)


@on_manual_clock
async def test_a_later_attempt_that_answers_is_the_outcome(clock: ManualClock) -> None:
    """And no other is made."""
    provider = Provider(good=2)

    outcome, _ = await finish(clock, retry_turn(provider.body, SILENT, attempts=5))

    assert (outcome.status, outcome.result, outcome.attempts) == (Status.COMPLETED, "whole", 2)
    assert provider.opened == 2


@on_manual_clock
async def test_nothing_is_asked_twice_once_text_has_come(clock: ManualClock) -> None:
    """The half answer is kept for those who resume."""
    provider = Provider("half")

    outcome, _ = await finish(clock, retry_turn(provider.body, SILENT, attempts=5))

    assert provider.opened == 1
    assert (outcome.partial, outcome.retry.verdict) == ("half", RetryVerdict.RESUME)


@on_manual_clock
async def test_nothing_is_done_twice_once_a_tool_was_started(clock: ManualClock) -> None:
    """Even if that tool has ended long ago."""
    calls: list[int] = []

    async def body(turn: Turn) -> None:
        async def work() -> None:
            calls.append(1)

        turn.enter(Phase.EXECUTING_TOOLS)
        await turn.tool("send_mail", work())
        turn.enter(Phase.AWAITING_LLM)
        await asyncio.Event().wait()

    outcome, _ = await finish(clock, retry_turn(body, SILENT, attempts=5))

    assert calls == [1]
    assert outcome.retry.verdict is RetryVerdict.RESUME


@on_manual_clock
async def test_a_user_ends_it_for_good(clock: ManualClock) -> None:
    """A cancel of the turn is never followed by another attempt."""
    seen: list[Turn] = []

    async def body(turn: Turn) -> None:
        seen.append(turn)
        turn.enter(Phase.AWAITING_LLM)
        turn.cancel("enough")
        await asyncio.Event().wait()

    outcome, _ = await finish(clock, retry_turn(body, SILENT, attempts=5))

    assert len(seen) == 1
    assert outcome.status is Status.CANCELLED


@on_manual_clock
async def test_an_error_of_the_body_is_not_retried(clock: ManualClock) -> None:
    """It is for those who know its kind."""
    calls: list[int] = []

    async def body(turn: Turn) -> None:
        calls.append(1)
        raise OSError("no route")

    outcome, _ = await finish(clock, retry_turn(body, SILENT, attempts=5))

    assert calls == [1]
    assert outcome.status is Status.FAILED


@on_manual_clock
async def test_the_caller_can_be_cancelled_in_a_wait(clock: ManualClock) -> None:
    """The cancel goes through, and nothing is opened after it."""
    provider = Provider()
    task = asyncio.ensure_future(retry_turn(provider.body, SILENT, attempts=5, delay=20))
    for _ in range(12):
        await clock.advance(0.5)
    assert provider.opened == 1

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(60):
        await clock.advance(1)

    assert provider.opened == 1


# --- within somebody's budget ---


@on_manual_clock
async def test_a_budget_around_it_bounds_attempts_and_waits(clock: ManualClock) -> None:
    """12 s are enough for 5 + 1 + 5 s, and not for a wait of 2 s more."""
    provider = Provider()

    async def work() -> Outcome:
        with budget(12):
            return await retry_turn(provider.body, SILENT, attempts=9)

    outcome, spent = await finish(clock, work(), step=0.1)

    assert provider.opened == outcome.attempts == 2
    assert outcome.cause.kind == "first_chunk"
    assert spent <= 12


@on_manual_clock
async def test_an_attempt_that_meets_the_budget_is_the_last(clock: ManualClock) -> None:
    """Its cause is the budget, which nobody may renew."""
    provider = Provider()
    outcomes: list[Outcome] = []

    async def work() -> None:
        with budget(8):
            outcomes.append(await retry_turn(provider.body, SILENT, attempts=9))

    await finish(clock, work(), step=0.1)

    assert provider.opened == 2
    assert [one.cause.kind for one in outcomes if one.cause] == ["turn_budget"]
    assert outcomes[0].clocks["turn_budget"].limit == pytest.approx(2, abs=0.5)


@on_manual_clock
async def test_a_spent_budget_opens_nothing(clock: ManualClock) -> None:
    """The outcome says why, and the body was never called."""
    provider = Provider()
    outcomes: list[Outcome] = []

    async def work() -> None:
        with budget(1):
            try:
                await asyncio.Event().wait()
            finally:
                outcomes.append(await retry_turn(provider.body, SILENT, attempts=9))

    with pytest.raises(TurnBudgetError):
        await finish(clock, work(), step=0.1)

    assert provider.opened == 0
    assert [(one.status, one.cause.kind) for one in outcomes if one.cause] == [
        (Status.STALLED, "turn_budget")
    ]


@on_manual_clock
async def test_nested_retries_share_one_budget(clock: ManualClock) -> None:
    """Each layer tries five times, as stacks of them do; all of it fits into 30 s."""
    provider = Provider()

    async def work() -> None:
        with budget(30):
            for _ in range(5):
                await retry_turn(provider.body, SILENT, attempts=5)

    _, spent = await finish(clock, work(), step=0.1)

    assert spent <= 31
    assert 4 <= provider.opened <= 6


# --- events, records, arguments ---


@on_manual_clock
async def test_each_attempt_is_a_turn_of_its_own(clock: ManualClock) -> None:
    """Each settles, and each has a record in the store."""
    provider, events, store = Provider(good=3), Recorder(), MemoryStore()

    outcome, _ = await finish(
        clock,
        retry_turn(provider.body, SILENT, attempts=3, name="answer", on_event=events, store=store),
    )

    assert [event.status for event in events.of(Settled)] == ["stalled", "stalled", "completed"]
    stored = [store.get(one.id) for one in store.turns()]
    assert sorted(one.status for one in stored if one is not None) == [
        "completed",
        "stalled",
        "stalled",
    ]
    assert {one.record.turn for one in stored if one is not None} == {"answer"}
    assert outcome.attempts == 3


@on_manual_clock
async def test_waits_double_up_to_the_longest(clock: ManualClock) -> None:
    """1.5, 3, 4, 4 s between five attempts of 5 s."""
    provider = Provider()

    _, spent = await finish(
        clock,
        retry_turn(provider.body, SILENT, attempts=5, delay=timedelta(seconds=1.5), max_delay=4),
        step=0.1,
    )

    assert spent == pytest.approx(25 + 1.5 + 3 + 4 + 4, abs=1.5)


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5, "2", None])
def test_a_wrong_number_of_attempts_is_refused(attempts: Any) -> None:
    """Before anything is begun."""
    with pytest.raises(ValueError, match="attempts must be an int"):
        asyncio.run(retry_turn(Provider().body, attempts=attempts))


@pytest.mark.parametrize("name", ["delay", "max_delay"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, None])
def test_a_wrong_wait_is_refused(name: str, value: Any) -> None:
    """A wait is a finite number of seconds above 0."""
    with pytest.raises(ValueError, match=name):
        asyncio.run(retry_turn(Provider().body, attempts=2, **{name: value}))
