"""Soft and hard idle: when they run, what resets them, and what a fire does to the task."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from guard_tools import HANG, Recorder, on_manual_clock, run, script
from stallwatch._causes import (
    HardIdleError,
    PhaseViolationError,
    StreamIdleError,
    UserCancelled,
)
from stallwatch._events import (
    CoverageLost,
    HardIdle,
    HostSuspended,
    ObserverStalled,
    PhaseChanged,
    SoftIdle,
)
from stallwatch._guard import guard
from stallwatch._limits import Limits, PhaseLimits
from stallwatch._phase_clock import Act, judge
from stallwatch._phases import Phase
from stallwatch._retry import cause_of, is_retryable
from stallwatch._tracker import PhaseTracker
from stallwatch._watchdog import Watchdog
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats
from turn_tools import Host, finish, for_ever, host, quiet, start, stubborn

__all__ = ["host"]

IDLE_COUNTED = (Phase.AWAITING_LLM, Phase.FORCE_STOP)
OTHERS = tuple(phase for phase in Phase if phase not in IDLE_COUNTED)


async def watched(
    tracker: PhaseTracker,
    limits: Limits | None = None,
    *,
    phase: Phase | None = Phase.AWAITING_LLM,
    body: Any = None,
    on_event: Any = None,
    name: str | None = None,
    extra: list[Any] | None = None,
) -> Any:
    """A loop under a watchdog: enters a phase and waits for ever, or follows a body."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        with Watchdog(tracker, limits, on_event=on_event or quiet, name=name):
            if phase is not None:
                tracker.enter(phase)
            return await (for_ever() if body is None else body)
    finally:
        if extra is not None:
            extra.append(task.cancelling() - before)


# --- the rule ---


@pytest.mark.parametrize(
    ("idle", "soft", "hard", "soft_done", "act", "again"),
    [
        (0, 90, 540, False, Act.WAIT, 90),
        (89.999, 90, 540, False, Act.WAIT, 0.001),
        (90, 90, 540, False, Act.SOFT, 450),
        (90, 90, 540, True, Act.WAIT, 450),
        (540, 90, 540, True, Act.HARD, None),
        (540, 90, 540, False, Act.SOFT, 0),
        (600, 90, 540, False, Act.SOFT, 0),
        (90, 90, 90, False, Act.SOFT, 0),
        (90, 90, 90, True, Act.HARD, None),
        (1e9, None, None, False, Act.WAIT, None),
        (1e9, 90, None, True, Act.WAIT, None),
        (540, None, 540, False, Act.HARD, None),
    ],
)
def test_judge_is_a_table(
    idle: float, soft: Any, hard: Any, soft_done: bool, act: Act, again: float | None
) -> None:
    """Soft comes before hard, each counts once, and what is off is never waited for."""
    found = judge(idle, PhaseLimits(soft, hard), soft_done=soft_done, hard_done=False)

    assert found.act is act
    assert found.again == (None if again is None else pytest.approx(again))


def test_a_hard_that_is_done_is_not_waited_for() -> None:
    """After the hard fire nothing is left to look for in that phase."""
    assert judge(999, PhaseLimits(90, 540), soft_done=True, hard_done=True) == (Act.WAIT, None)


# --- when it fires ---


@on_manual_clock
async def test_unguarded_loop_waits_on(clock: ManualClock) -> None:
    """The baseline: without a watchdog the same body still waits after three hard limits."""
    tracker = PhaseTracker()
    tracker.enter(Phase.AWAITING_LLM)
    end = start(clock, for_ever())
    await clock.advance(3 * 540)

    assert end.at is None
    await finish(end)


@on_manual_clock
async def test_defaults_are_soft_90_and_hard_540(clock: ManualClock) -> None:
    """With nothing said, silence is reported at 90 s and cut at 540 s."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), on_event=record))
    await clock.advance(10_000)

    assert end.at == 540
    assert [
        round(e.at - end.started) for e in record.events if not isinstance(e, PhaseChanged)
    ] == [
        90,
        540,
    ]


@pytest.mark.parametrize(("soft", "hard"), [(1, 2), (7, 31), (30, 60.5), (200, 500), (89, 91)])
@on_manual_clock
async def test_the_limits_decide_when(clock: ManualClock, soft: float, hard: float) -> None:
    """Other limits, other moments: the firing times move with both of them."""
    record = Recorder()
    limits = Limits(soft_idle=soft, hard_idle=hard)
    end = start(clock, watched(PhaseTracker(), limits, on_event=record))
    await clock.advance(10_000)

    (softly,), (hardly,) = record.of(SoftIdle), record.of(HardIdle)
    assert (softly.at - end.started, hardly.at - end.started) == (soft, hard)
    assert end.at == hard
    assert isinstance(end.error, HardIdleError)
    assert (end.error.idle, end.error.limit) == (hard, hard)


@on_manual_clock
async def test_events_and_cause_say_what_was_measured(clock: ManualClock) -> None:
    """Events and cause carry phase, seq, measured idle, limit, name and moment."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), name="answer", on_event=record))
    await clock.advance(600)

    (soft,), (hard,) = record.of(SoftIdle), record.of(HardIdle)
    for event, idle in ((soft, 90.0), (hard, 540.0)):
        assert (event.phase, event.seq, event.idle, event.limit) == (
            Phase.AWAITING_LLM,
            1,
            idle,
            idle,
        )
        assert (event.turn, event.at, event.lateness) == ("answer", end.started + idle, 0.0)
        assert event.would_have_fired is False
    cause = end.error
    assert isinstance(cause, HardIdleError)
    assert (cause.phase, cause.seq, cause.owner, cause.name) == (
        Phase.AWAITING_LLM,
        1,
        "turn watchdog",
        "answer",
    )
    assert not is_retryable(cause)
    assert not isinstance(cause, TimeoutError)


@on_manual_clock
async def test_hard_is_an_event_first_and_a_cancel_then(clock: ManualClock) -> None:
    """When the hard event is heard the task has not been cancelled yet; it comes once."""
    heard: list[Any] = []

    def hear(event: Any) -> None:
        if isinstance(event, HardIdle):
            heard.append(end.task.cancelling())

    end = start(clock, watched(PhaseTracker(), on_event=hear))
    await clock.advance(5_000)

    assert heard == [0]
    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_hard_none_is_visibility_only(clock: ManualClock) -> None:
    """Without a hard limit nothing is ever cancelled, and soft still reports once."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), Limits(hard_idle=None), on_event=record))
    await clock.advance(100_000)

    assert end.at is None
    assert (len(record.of(SoftIdle)), len(record.of(HardIdle))) == (1, 0)
    await finish(end)


@on_manual_clock
async def test_soft_none_is_hard_only(clock: ManualClock) -> None:
    """Without a soft limit the hard one fires as before."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), Limits(soft_idle=None), on_event=record))
    await clock.advance(600)

    assert (end.at, record.of(SoftIdle)) == (540, [])


@on_manual_clock
async def test_both_none_arms_nothing(clock: ManualClock) -> None:
    """With both off there is no timer at all."""
    before = wheel_stats().armed
    limits = Limits(soft_idle=None, hard_idle=None)
    end = start(clock, watched(PhaseTracker(), limits))
    await clock.advance(1)

    assert wheel_stats().armed == before
    await finish(end)


@on_manual_clock
async def test_equal_limits_report_soft_first(clock: ManualClock) -> None:
    """If both are due in one moment, soft is said before hard, and both are said."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), Limits(soft_idle=60, hard_idle=60), on_event=record))
    await clock.advance(60)

    assert [name for name in record.names if name != "phase_changed"] == ["soft_idle", "hard_idle"]
    assert end.at == 60


@pytest.mark.parametrize("phase", IDLE_COUNTED)
@on_manual_clock
async def test_counted_phases_fire(clock: ManualClock, phase: Phase) -> None:
    """Waiting for the model counts, and so does being made to stop."""
    end = start(clock, watched(PhaseTracker(), phase=phase))
    await clock.advance(600)

    assert isinstance(end.error, HardIdleError)
    assert end.error.phase is phase


@pytest.mark.parametrize("phase", OTHERS)
@on_manual_clock
async def test_other_phases_never_fire(clock: ManualClock, phase: Phase) -> None:
    """In every phase that has another owner the watchdog is silent however long it lasts."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), phase=phase, on_event=record))
    await clock.advance(100_000)

    assert end.at is None
    assert set(record.names) == {"phase_changed"}
    await finish(end)


@on_manual_clock
async def test_a_phase_can_have_its_own_limits(clock: ManualClock) -> None:
    """A soft limit for tools reports tools, and cancels nothing."""
    record = Recorder()
    limits = Limits(phases={Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)})
    body = watched(PhaseTracker(), limits, phase=Phase.EXECUTING_TOOLS, on_event=record)
    end = start(clock, body)
    await clock.advance(10_000)

    (soft,) = record.of(SoftIdle)
    assert (soft.phase, soft.limit, soft.at - end.started) == (Phase.EXECUTING_TOOLS, 30, 30)
    assert end.at is None
    await finish(end)


@on_manual_clock
async def test_a_phase_can_have_its_own_hard_limit(clock: ManualClock) -> None:
    """A hard limit of its own cancels in a phase that is not counted otherwise."""
    limits = Limits(phases={Phase.COMPACTING: PhaseLimits(hard=40)})
    end = start(clock, watched(PhaseTracker(), limits, phase=Phase.COMPACTING))
    await clock.advance(600)

    assert end.at == 40
    assert isinstance(end.error, HardIdleError)
    assert (end.error.phase, end.error.limit) == (Phase.COMPACTING, 40)


# --- what resets it ---


@on_manual_clock
async def test_entering_starts_anew_also_the_same_phase(clock: ManualClock) -> None:
    """Each enter is a new instance: the time restarts, and soft may be said again."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> None:
        for _ in range(4):
            tracker.enter(Phase.AWAITING_LLM)
            await asyncio.sleep(500)

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(5_000)

    assert (end.at, end.error) == (2_000, None)
    assert [event.seq for event in record.of(SoftIdle)] == [2, 3, 4, 5]


@on_manual_clock
async def test_soft_is_said_once_for_each_instance(clock: ManualClock) -> None:
    """Once for a stay, again after leaving and coming back, again after a transient."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> None:
        await asyncio.sleep(200)
        tracker.enter(Phase.EXECUTING_TOOLS)
        await asyncio.sleep(200)
        tracker.enter(Phase.AWAITING_LLM)
        await asyncio.sleep(100)
        with tracker.enter_transient(Phase.AWAITING_APPROVAL):
            await asyncio.sleep(1_000)
        await asyncio.sleep(50)

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(5_000)

    assert end.error is None
    assert [(event.seq, event.at - end.started) for event in record.of(SoftIdle)] == [
        (1, 90),
        (3, 490),
        (5, 1_500),  # 100 s of silence before the approval are still its own
    ]


@on_manual_clock
async def test_silence_inside_a_transient_is_its_own(clock: ManualClock) -> None:
    """Waiting for the model inside compaction is reported as waiting for the model."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> None:
        with tracker.enter_transient(Phase.AWAITING_LLM):
            await for_ever()

    end = start(clock, watched(tracker, phase=Phase.COMPACTING, body=body(), on_event=record))
    await clock.advance(600)

    assert record.of(HardIdle)[0].phase is Phase.AWAITING_LLM
    assert isinstance(end.error, HardIdleError)
    assert end.error.phase is Phase.AWAITING_LLM
    assert tracker.current().phase is Phase.COMPACTING


@pytest.mark.parametrize("before", [0, 80, 500])
@on_manual_clock
async def test_an_approval_is_not_charged(clock: ManualClock, before: float) -> None:
    """Case 51: three hard limits of approval cause nothing, and a later silence is cut in full.

    Prevents that a person who thinks about a permission prompt has the turn aborted.
    """
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> None:
        await asyncio.sleep(before)
        with tracker.enter_transient(Phase.AWAITING_APPROVAL):
            await asyncio.sleep(3 * 540)
        await asyncio.sleep(0.1)
        tracker.enter(Phase.AWAITING_LLM)  # the model has answered, and is asked again
        await for_ever()

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(before + 3 * 540 + 0.1)
    early = [
        e for e in record.events if isinstance(e, (SoftIdle, HardIdle)) and e.at > end.started + 90
    ]
    assert [type(e) for e in early] == ([SoftIdle] if before == 500 else [])
    assert end.at is None
    await clock.advance(600)

    assert end.at == pytest.approx(before + 3 * 540 + 0.1 + 540)
    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_borrowed_time_can_be_charged(clock: ManualClock) -> None:
    """With since="keep" the outer clock ran on: overdue when the phase comes back, it is cut."""
    tracker = PhaseTracker()

    async def body() -> None:
        with tracker.enter_transient(Phase.AWAITING_APPROVAL, since="keep"):
            await asyncio.sleep(600)
        await for_ever()

    end = start(clock, watched(tracker, body=body()))
    await clock.advance(599)
    assert end.at is None
    await clock.advance(5)

    assert isinstance(end.error, HardIdleError)
    assert end.at is not None
    assert end.at <= 600.1


# --- a tracker that cannot be trusted ---


@on_manual_clock
async def test_an_invalid_tracker_disarms_at_once(clock: ManualClock) -> None:
    """A tracker that is invalid when the watchdog comes says so once, and nothing ever fires."""
    tracker, record = PhaseTracker(strict=False), Recorder()
    tracker.enter_transient(Phase.AWAITING_LLM)
    tracker.enter(Phase.AWAITING_LLM)
    end = start(clock, watched(tracker, on_event=record))
    await clock.advance(10_000)

    assert record.names == ["coverage_lost"]
    assert "still borrowed" in record.of(CoverageLost)[0].reason
    assert end.at is None
    await finish(end)


@on_manual_clock
async def test_a_violation_in_production_disarms(clock: ManualClock) -> None:
    """The first violation is one event; the clocks are off from then on, the loop goes on."""
    tracker, record = PhaseTracker(strict=False), Recorder()

    async def body() -> None:
        await asyncio.sleep(100)
        tracker.enter_transient(Phase.COMPACTING)
        tracker.enter(Phase.AWAITING_LLM)
        tracker.enter_transient(Phase.COMPACTING)
        tracker.enter(Phase.AWAITING_LLM)
        await for_ever()

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(10_000)

    assert end.at is None
    assert len(record.of(CoverageLost)) == 1
    assert record.of(HardIdle) == []
    await finish(end)


@on_manual_clock
async def test_a_strict_violation_raises_in_the_loop_and_disarms(clock: ManualClock) -> None:
    """Strict mode raises where the fault is; if that is swallowed, still nothing may fire."""
    tracker, record = PhaseTracker(strict=True), Recorder()
    raised = []

    async def body() -> None:
        restore = tracker.enter_transient(Phase.AWAITING_APPROVAL)
        try:
            tracker.enter(Phase.AWAITING_LLM)
        except PhaseViolationError as error:
            raised.append(error)
        restore()
        await for_ever()

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(10_000)

    assert len(raised) == 1
    assert len(record.of(CoverageLost)) == 1
    assert end.at is None
    await finish(end)


@on_manual_clock
async def test_a_violation_on_hearing_of_hard_idle_prevents_the_cancel(clock: ManualClock) -> None:
    """Even between the hard event and its cancel an untrustworthy tracker cancels nothing."""
    tracker = PhaseTracker(strict=False)

    def hear(event: Any) -> None:
        if isinstance(event, HardIdle):
            tracker.enter_transient(Phase.COMPACTING)
            tracker.enter(Phase.AWAITING_LLM)

    end = start(clock, watched(tracker, on_event=hear))
    await clock.advance(10_000)

    assert end.at is None
    await finish(end)


# --- observing ---


@on_manual_clock
async def test_observe_only_cancels_nothing(clock: ManualClock) -> None:
    """The hard event says that it would have fired, once for each instance; nobody is cancelled."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> str:
        await asyncio.sleep(2_000)
        tracker.enter(Phase.AWAITING_LLM)
        await asyncio.sleep(2_000)
        return "well"

    limits = Limits(observe_only=True)
    end = start(clock, watched(tracker, limits, body=body(), on_event=record))
    await clock.advance(10_000)

    assert end.task.result() == "well"
    assert [(e.seq, e.would_have_fired) for e in record.of(HardIdle)] == [(1, True), (2, True)]
    assert len(record.of(SoftIdle)) == 2


@on_manual_clock
async def test_phase_changes_are_events(clock: ManualClock) -> None:
    """Each transition is told with the phase that ended and how long it was."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> None:
        await asyncio.sleep(5)
        with tracker.enter_transient(Phase.COMPACTING):
            await asyncio.sleep(7)

    start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(100)

    assert [(e.previous, e.phase, e.seq, e.elapsed) for e in record.of(PhaseChanged)] == [
        (Phase.INIT, Phase.AWAITING_LLM, 1, 0.0),
        (Phase.AWAITING_LLM, Phase.COMPACTING, 2, 5.0),
        (Phase.COMPACTING, Phase.AWAITING_LLM, 3, 7.0),
    ]


@on_manual_clock
async def test_a_callable_that_raises_stops_nothing(clock: ManualClock) -> None:
    """It is logged; the next callable still hears, and the clocks go on."""
    record = Recorder()

    def broken(event: Any) -> None:
        raise ValueError("a bug of theirs")

    end = start(clock, watched(PhaseTracker(), on_event=[broken, record]))
    logging.getLogger("stallwatch").disabled = True
    try:
        await clock.advance(600)
    finally:
        logging.getLogger("stallwatch").disabled = False

    assert end.at == 540
    assert record.names == ["phase_changed", "soft_idle", "hard_idle"]


def test_without_callables_soft_and_hard_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody must hear of it: the `stallwatch` logger does."""

    async def main() -> None:
        with ManualClock() as clock:
            tracker = PhaseTracker()

            async def body() -> None:
                with Watchdog(tracker):
                    tracker.enter(Phase.AWAITING_LLM)
                    await for_ever()

            end = start(clock, body())
            await clock.advance(600)
            assert end.at == 540

    run(main)
    assert [record.message.split()[0] for record in caplog.records] == ["soft_idle", "hard_idle"]


# --- the cancel and the task ---


@on_manual_clock
async def test_the_cancel_comes_out_as_the_cause_with_the_count_balanced(
    clock: ManualClock,
) -> None:
    """The block raises `HardIdleError`, and `cancelling()` is what it was."""
    counts: list[int] = []
    end = start(clock, watched(PhaseTracker(), extra=counts))
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)
    assert end.error.__cause__ is None
    assert counts == [0]
    assert cause_of(end.task) is end.error


@pytest.mark.parametrize("swallows", [1, 5])
@on_manual_clock
async def test_a_swallowed_cancel_is_no_success(clock: ManualClock, swallows: int) -> None:
    """A body that swallows the cancel and returns has stalled all the same.

    The watchdog tells once; a body that goes on waiting is for `Turn` to deal with.
    """
    counts: list[int] = []
    tracker = PhaseTracker()
    end = start(clock, watched(tracker, body=stubborn(swallows), extra=counts))
    await clock.advance(540)

    if swallows == 1:
        assert isinstance(end.error, HardIdleError)
        assert counts == [0]
    else:
        assert end.at is None
        await finish(end)


@pytest.mark.parametrize("kind", [ValueError, OSError, TimeoutError, StreamIdleError])
@on_manual_clock
async def test_an_error_raised_on_the_cancel_does_not_hide_the_cause(
    clock: ManualClock, kind: type[Exception]
) -> None:
    """What the body makes of the cancel becomes the `__cause__` of the stall.

    Prevents that a read error raised from the cancel is retried into the same silence.
    """

    async def body() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise kind("the connection is gone") from None

    counts: list[int] = []
    end = start(clock, watched(PhaseTracker(), body=body(), extra=counts))
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)
    assert isinstance(end.error.__cause__, kind)
    assert counts == [0]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_error_that_ends_the_process_is_not_replaced(kind: type[BaseException]) -> None:
    """A fatal error that meets the fire goes through."""

    async def main() -> None:
        with ManualClock() as clock:
            tracker = PhaseTracker()

            async def body() -> None:
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    raise kind("now") from None

            start(clock, watched(tracker, body=body()))
            await clock.advance(540)

    with pytest.raises(kind):
        asyncio.run(main())


@pytest.mark.parametrize("order", ["cancel first", "fire first", "while it is considered"])
@on_manual_clock
async def test_a_cancel_of_the_same_moment_wins(clock: ManualClock, order: str) -> None:
    """X3: if somebody else cancels in the tick of the fire, a plain `CancelledError` comes out."""
    counts: list[int] = []

    def hear(event: Any) -> None:
        if not isinstance(event, HardIdle):
            return
        if order == "while it is considered":
            end.task.cancel("from outside")
        elif order == "fire first":  # after our cancel, and before the task has seen it
            asyncio.get_running_loop().call_soon(end.task.cancel, "from outside")

    end = start(clock, watched(PhaseTracker(), on_event=hear, extra=counts))
    await clock.settle()
    if order == "cancel first":
        loop = asyncio.get_running_loop()
        loop.call_at(clock.time() + 540, end.task.cancel, "from outside")
    await clock.advance(1_000)

    assert end.at == 540
    assert type(end.error) is asyncio.CancelledError
    assert end.task.cancelled()
    assert counts == [1]  # the other's request stays on the count, as with any block of asyncio


@on_manual_clock
async def test_a_cancel_that_was_swallowed_long_ago_does_not_protect(clock: ManualClock) -> None:
    """A body that swallowed somebody's cancel is cut all the same, half of `cleanup` later.

    Prevents that one swallowed cancel switches hard idle off for the rest of the turn.
    """
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), body=stubborn(2), on_event=record))
    await clock.advance(10)
    end.task.cancel()
    await clock.advance(10_000)

    assert end.at == 540 + 30
    assert len(record.of(HardIdle)) == 1
    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_a_body_that_goes_on_after_a_cancel_is_cut_on_time(clock: ManualClock) -> None:
    """A new phase says that nothing on the cancel count is under way.

    Prevents that a count which Python 3.11's task groups leave behind delays hard idle.
    """
    tracker = PhaseTracker()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def body() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        tracker.enter(Phase.AWAITING_LLM)
        await for_ever()

    end = start(clock, watched(tracker, body=body()))
    await clock.advance(1_000)

    assert end.at == 541
    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_hard_idle_leaves_a_cleanup_alone_that_somebody_else_asked_for(
    clock: ManualClock,
) -> None:
    """While another's cancel is being carried out, the fire waits; if that ends it, all is well."""
    cleaned = []

    async def body() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(20)
            cleaned.append(True)

    end = start(clock, watched(PhaseTracker(), body=body()))
    await clock.advance(530)
    end.task.cancel()
    await clock.advance(1_000)

    assert (end.at, cleaned) == (550, [True])
    assert type(end.error) is asyncio.CancelledError


@on_manual_clock
async def test_a_stream_cut_in_the_same_moment_does_not_disarm(clock: ManualClock) -> None:
    """A body that handles a stall of its stream and goes on waiting is cut by hard idle too.

    Prevents that the stream's own cancel is taken for a user's, and hard idle lost for good.
    """
    handled = []
    limits = Limits(hard_idle=100)

    async def body() -> None:
        try:
            async for _ in guard(script("a", HANG), idle=100, on_event=quiet):
                pass
        except StreamIdleError as stall:
            handled.append(stall)
        await for_ever()

    end = start(clock, watched(PhaseTracker(), limits, body=body()))
    await clock.advance(1_000)

    assert len(handled) <= 1
    assert isinstance(end.error, HardIdleError)
    assert end.at is not None
    assert end.at <= 100.2


@on_manual_clock
async def test_two_watchdogs_of_one_task_and_one_moment(clock: ManualClock) -> None:
    """X5: the outer cause comes out, the inner has fired too, and no cancel is left over."""
    inner, outer, counts = PhaseTracker(), PhaseTracker(), []
    dogs: list[Watchdog] = []

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            with Watchdog(outer, name="outer", on_event=quiet) as one:
                outer.enter(Phase.AWAITING_LLM)
                with Watchdog(inner, name="inner", on_event=quiet) as two:
                    dogs.extend((one, two))
                    inner.enter(Phase.AWAITING_LLM)
                    await for_ever()
        finally:
            counts.append(task.cancelling())

    end = start(clock, body())
    await clock.advance(1_000)

    assert end.at == 540
    assert isinstance(end.error, HardIdleError)
    assert end.error.name == "outer"
    assert counts == [0]


@on_manual_clock
async def test_the_users_cancel_of_a_turn_inside_goes_through(clock: ManualClock) -> None:
    """A `UserCancelled` that meets the fire is not replaced."""

    async def body() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise UserCancelled("enough") from None

    end = start(clock, watched(PhaseTracker(), body=body()))
    await clock.advance(540)

    assert end.task.cancelled()
    assert isinstance(end.error, (UserCancelled, asyncio.CancelledError))
    assert cause_of(end.task) is not None


@on_manual_clock
async def test_nothing_is_left_armed_after_the_block(clock: ManualClock) -> None:
    """X7: a body that ends just before the deadline is not cancelled at a later wait."""
    tracker = PhaseTracker()

    async def body() -> str:
        with Watchdog(tracker, on_event=quiet):
            tracker.enter(Phase.AWAITING_LLM)
            await asyncio.sleep(539.999)
        await asyncio.sleep(5_000)
        return "well"

    end = start(clock, body())
    await clock.advance(10_000)

    assert end.task.result() == "well"


@on_manual_clock
async def test_a_phase_that_ends_in_the_same_moment_is_not_cut(clock: ManualClock) -> None:
    """If the answer comes in the tick of the deadline, the answer wins."""
    tracker, record = PhaseTracker(), Recorder()

    async def body() -> str:
        await asyncio.sleep(540)
        tracker.enter(Phase.EXECUTING_TOOLS)
        await asyncio.sleep(1_000)
        return "well"

    end = start(clock, watched(tracker, body=body(), on_event=record))
    await clock.advance(2_000)

    assert end.task.result() == "well"
    assert record.of(HardIdle) == []


# --- where it stands ---


@on_manual_clock
async def test_async_with_works_alike(clock: ManualClock) -> None:
    """`async with` is the same block."""
    tracker = PhaseTracker()

    async def body() -> None:
        async with Watchdog(tracker, on_event=quiet) as dog:
            assert dog.cause is None
            tracker.enter(Phase.AWAITING_LLM)
            await for_ever()

    end = start(clock, body())
    await clock.advance(540)

    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_another_task_is_cancelled_and_told_why(clock: ManualClock) -> None:
    """A watchdog beside the loop cancels that task; `cause_of` tells the cause."""
    tracker = PhaseTracker()
    end = start(clock, for_ever())
    with Watchdog(tracker, cancel=end.task, on_event=quiet) as dog:
        tracker.enter(Phase.AWAITING_LLM)
        await clock.advance(1_000)

    assert end.at == 540
    assert type(end.error) is asyncio.CancelledError
    assert isinstance(dog.cause, HardIdleError)
    assert cause_of(end.task) is dog.cause


@on_manual_clock
async def test_another_task_that_is_done_is_left_alone(clock: ManualClock) -> None:
    """A fire that finds the task over does nothing."""
    tracker = PhaseTracker()
    end = start(clock, asyncio.sleep(1, "well"))
    with Watchdog(tracker, cancel=end.task, on_event=quiet) as dog:
        tracker.enter(Phase.AWAITING_LLM)
        await clock.advance(1_000)

    assert end.task.result() == "well"
    assert dog.cause is None


@on_manual_clock
async def test_a_callable_gets_the_cause(clock: ManualClock) -> None:
    """With a callable nobody is cancelled but by it, and the block raises nothing."""
    tracker, causes = PhaseTracker(), []
    with Watchdog(tracker, cancel=causes.append, on_event=quiet) as dog:
        tracker.enter(Phase.AWAITING_LLM)
        await clock.advance(1_000)

    assert causes == [dog.cause]
    assert isinstance(causes[0], HardIdleError)


def test_outside_a_task_a_callable_works() -> None:
    """Without an event loop the callable is called on a thread of ours, or by the manual clock."""
    causes: list[HardIdleError] = []
    with ManualClock() as clock:
        tracker = PhaseTracker()
        with Watchdog(tracker, cancel=causes.append, on_event=quiet):
            tracker.enter(Phase.AWAITING_LLM)
            clock.advance(540)

    assert [cause.limit for cause in causes] == [540]


def test_outside_a_task_it_must_be_told_what_to_cancel() -> None:
    """There is no current task to fall back on."""
    with pytest.raises(RuntimeError, match="what to cancel"):
        Watchdog(PhaseTracker()).__enter__()


@pytest.mark.parametrize("cancel", [5, "task", object()])
def test_what_is_neither_task_nor_callable_is_refused(cancel: Any) -> None:
    """Refused when it is built, not at the first fire."""
    with pytest.raises(TypeError, match="a task or a callable"):
        Watchdog(PhaseTracker(), cancel=cancel)


@on_manual_clock
async def test_it_can_be_entered_only_once(clock: ManualClock) -> None:
    """A second entry is an error, not a second pair of clocks."""
    dog = Watchdog(PhaseTracker())
    with dog, pytest.raises(RuntimeError, match="only once"):
        dog.__enter__()


@pytest.mark.slow
def test_a_task_of_another_threads_loop_is_cancelled_on_its_own_thread() -> None:
    """A watchdog without a loop reaches the task through its loop (0.3 s; headroom 5 s)."""
    tracker = PhaseTracker()
    seen: dict[str, Any] = {}
    ready = threading.Event()

    async def body() -> None:
        seen["task"] = asyncio.current_task()
        ready.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen["thread"] = threading.current_thread()
            raise

    def other() -> None:
        try:
            asyncio.run(body())
        except asyncio.CancelledError:
            seen["cancelled"] = True

    thread = threading.Thread(target=other)
    thread.start()
    assert ready.wait(5)
    with Watchdog(tracker, Limits(hard_idle=0.3), cancel=seen["task"], on_event=quiet) as dog:
        tracker.enter(Phase.AWAITING_LLM)
        thread.join(5)

    assert not thread.is_alive()
    assert seen["cancelled"]
    assert seen["thread"] is thread
    assert cause_of(seen["task"]) is dog.cause


@on_manual_clock
async def test_phases_may_change_on_other_threads(clock: ManualClock) -> None:
    """A phase entered on a worker thread moves the clocks of the loop."""
    tracker = PhaseTracker()
    end = start(clock, watched(tracker, phase=None))
    await clock.settle()
    worker = threading.Thread(target=tracker.enter, args=(Phase.AWAITING_LLM,))
    worker.start()
    worker.join()
    await clock.advance(539)
    assert end.at is None
    await clock.advance(1)

    assert isinstance(end.error, HardIdleError)


@on_manual_clock
async def test_racing_threads_never_lose_the_alarm(clock: ManualClock) -> None:
    """Whatever the order in which two threads enter phases, the last one has its clock.

    Prevents that the thread with the older phase sets the alarm last, and takes it back.
    """
    import sys

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            tracker, causes = PhaseTracker(), []
            with Watchdog(tracker, cancel=causes.append, on_event=quiet):
                barrier = threading.Barrier(2)

                def enter(phases: tuple[Phase, Phase], *shared: Any) -> None:
                    tracker, barrier = shared
                    barrier.wait()
                    for _ in range(50):
                        for phase in phases:
                            tracker.enter(phase)

                workers = [
                    threading.Thread(target=enter, args=(phases, tracker, barrier))
                    for phases in (
                        (Phase.AWAITING_LLM, Phase.EXECUTING_TOOLS),
                        (Phase.EXECUTING_TOOLS, Phase.AWAITING_LLM),
                    )
                ]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                last = tracker.current().phase
                await clock.advance(540)
                assert len(causes) == (last is Phase.AWAITING_LLM)
    finally:
        sys.setswitchinterval(interval)


# --- when nobody was there to hear ---


@on_manual_clock
async def test_a_sleep_of_the_host_starts_silence_anew(clock: ManualClock, host: Host) -> None:
    """Case 37: after a resume the silence counts from the moment the sleep is noticed."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), Limits(soft_idle=None), on_event=record))
    await clock.advance(300)
    host.sleep(3_600)
    await clock.advance(10_000)

    assert [event.slept for event in record.of(HostSuspended)] == [3_600]
    assert end.at == 540 + 540


@on_manual_clock
async def test_each_sleep_is_told_once(clock: ManualClock, host: Host) -> None:
    """Two sleeps, two events; a nap below half a second is none."""
    record = Recorder()
    end = start(clock, watched(PhaseTracker(), Limits(soft_idle=None), on_event=record))
    await clock.advance(300)
    host.sleep(3_600)
    await clock.advance(300)
    host.sleep(60)
    await clock.advance(600)
    host.sleep(0.2)
    await clock.advance(10_000)

    assert [round(event.slept) for event in record.of(HostSuspended)] == [3_600, 60]
    assert end.at == 540 * 3


@on_manual_clock
async def test_a_sleep_before_the_phase_is_no_excuse(clock: ManualClock, host: Host) -> None:
    """What was slept through in another phase does not prolong this one."""
    tracker = PhaseTracker()

    async def body() -> None:
        host.sleep(3_600)
        await asyncio.sleep(50)
        tracker.enter(Phase.AWAITING_LLM)
        await for_ever()

    end = start(clock, watched(tracker, body=body()))
    await clock.advance(10_000)

    assert end.at == 50 + 540


@on_manual_clock
async def test_what_was_forgiven_stays_forgiven_across_a_transient(
    clock: ManualClock, host: Host
) -> None:
    """Silence that a sleep has excused is not charged when a borrowed phase is given back."""
    tracker = PhaseTracker()

    async def body() -> None:
        await asyncio.sleep(500)
        host.sleep(3_600)
        await asyncio.sleep(100)  # noticed at 540
        with tracker.enter_transient(Phase.AWAITING_APPROVAL):
            await asyncio.sleep(10)
        await for_ever()

    limits = Limits(soft_idle=None)
    end = start(clock, watched(tracker, limits, body=body()))
    await clock.advance(10_000)

    assert end.at == 540 + 10 + 540


@on_manual_clock
async def test_the_wall_clock_does_not_matter(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 36: an hour forth or back on the wall clock changes nothing."""
    real = time.time
    end = start(clock, watched(PhaseTracker()))
    for step in (3_600, -3_600, 1e9):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        await clock.advance(100)
    assert end.at is None
    await clock.advance(1_000)

    assert end.at == 540


@pytest.mark.slow
@pytest.mark.parametrize("what", ["soft", "hard", "everything"])
def test_a_callable_that_blocks_past_hard_does_not_prevent_it(what: str) -> None:
    """W2: a callable that sleeps at the soft or hard event, or at all, does not hold up the cancel.

    Soft 0.2 s, hard 1 s, blocked for 20 s; headroom 1.5 s, of which a hard event takes 0.25.
    """
    record, let_go = Recorder(), threading.Event()
    kinds = {"soft": SoftIdle, "hard": HardIdle, "everything": object}

    def hear(event: Any) -> None:
        if isinstance(event, kinds[what]):
            let_go.wait(20)

    async def main() -> float:
        started = time.monotonic()
        with pytest.raises(HardIdleError):
            limits = Limits(soft_idle=0.2, hard_idle=1)
            await watched(PhaseTracker(), limits, on_event=[hear, record])
        return time.monotonic() - started

    took = run(main)
    let_go.set()
    assert 1 <= took < 2.5
    names = [name for name in record.names if name not in ("phase_changed", "observer_stalled")]
    assert names == ["soft_idle", "hard_idle"]


@pytest.mark.slow
def test_a_loop_that_is_blocked_past_hard_is_told_when_it_is_back() -> None:
    """Hard idle is decided on time meanwhile, and carried out once the loop is back.

    Soft 0.2 s, hard 0.5 s, blocked for 1 s; headroom 1 s.
    """
    record = Recorder()
    decided: list[float] = []

    def block(loop: asyncio.AbstractEventLoop) -> None:
        before = sum(wheel_stats().decided.buckets)
        time.sleep(0.7)
        decided.append(sum(wheel_stats().decided.buckets) - before)
        time.sleep(0.3)

    def hear(event: Any) -> None:
        if isinstance(event, SoftIdle):
            loop = asyncio.get_running_loop()
            loop.call_soon(block, loop)

    async def main() -> float:
        started = time.monotonic()
        with pytest.raises(HardIdleError) as caught:
            limits = Limits(soft_idle=0.2, hard_idle=0.5)
            await watched(PhaseTracker(), limits, on_event=[hear, record])
        assert caught.value.lateness > 0.5
        return time.monotonic() - started

    took = run(main)
    assert 1.2 <= took < 2.3
    assert [name for name in record.names if name != "phase_changed"] == [
        "soft_idle",
        "observer_stalled",
        "hard_idle",
    ]
    assert record.of(ObserverStalled)[0].lateness == pytest.approx(0.7, abs=0.3)
    assert decided[0] >= 1
