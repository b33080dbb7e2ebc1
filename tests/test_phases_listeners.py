"""Who is told of transitions and violations, and what a listener cannot do."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref

import pytest

from stallwatch._causes import PhaseViolationError
from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._tracker import PhaseTracker


class Log:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[PhaseState | None, PhaseState, str | None]] = []

    def hear(self, previous: PhaseState | None, state: PhaseState, violation: str | None) -> None:
        self.calls.append((previous, state, violation))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def tracker(log: Log) -> PhaseTracker:
    tracker = PhaseTracker(strict=False)
    tracker._watch(log.hear)
    return tracker


def test_each_transition_is_told_once(tracker: PhaseTracker, log: Log) -> None:
    """Enter, transient and restore tell the state that ended and the one that began."""
    tracker.enter(Phase.AWAITING_LLM)
    restore = tracker.enter_transient(Phase.AWAITING_APPROVAL)
    restore()
    restore()

    told = [(before and before[::2], after[::2], text) for before, after, text in log.calls]
    assert told == [
        ((Phase.INIT, 0), (Phase.AWAITING_LLM, 1), None),
        ((Phase.AWAITING_LLM, 1), (Phase.AWAITING_APPROVAL, 2), None),
        ((Phase.AWAITING_APPROVAL, 2), (Phase.AWAITING_LLM, 3), None),
    ]
    assert log.calls[0][1].elapsed == 0.0


def test_first_violation_is_told_with_its_transition(tracker: PhaseTracker, log: Log) -> None:
    """In production the violating enter is one call with both; later ones are transitions only."""
    tracker.enter_transient(Phase.COMPACTING)
    tracker.enter(Phase.DONE)
    tracker.enter_transient(Phase.COMPACTING)
    tracker.enter(Phase.DONE)

    previous, state, violation = log.calls[1]
    assert previous is not None
    assert (previous.phase, state.phase) == (Phase.COMPACTING, Phase.DONE)
    assert violation == tracker.violation
    assert [call[2] for call in log.calls[2:]] == [None, None]


def test_refused_violation_is_told_without_transition(log: Log) -> None:
    """In strict mode listeners hear the first violation before it is raised, and no transition."""
    tracker = PhaseTracker(strict=True)
    tracker.enter_transient(Phase.COMPACTING)
    tracker._watch(log.hear)
    for _ in range(2):
        with pytest.raises(PhaseViolationError):
            tracker.enter(Phase.DONE)

    ((previous, state, violation),) = log.calls
    assert previous is None
    assert state.phase is Phase.COMPACTING
    assert violation == tracker.violation


def test_listener_hears_before_the_log(tracker: PhaseTracker) -> None:
    """Clocks are taken out of service before the warning is written."""
    order: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            order.append("log")

    def hear(previous: PhaseState | None, state: PhaseState, violation: str | None) -> None:
        if violation is not None:
            order.append("listener")

    handler = Handler()
    tracker._watch(hear)
    logging.getLogger("stallwatch").addHandler(handler)
    try:
        tracker.enter_transient(Phase.COMPACTING)
        tracker.assert_clean()
    finally:
        logging.getLogger("stallwatch").removeHandler(handler)

    assert order == ["listener", "log"]


def test_raising_listener_is_logged_and_passed_over(
    tracker: PhaseTracker, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raises disturbs neither the transition nor the next listener."""

    def broken(*call: object) -> None:
        raise RuntimeError("broken listener")

    second = Log()
    tracker._watch(broken)
    tracker._watch(second.hear)
    tracker.enter(Phase.SETUP)

    assert tracker.current().phase is Phase.SETUP
    assert len(second.calls) == 1
    (record,) = caplog.records
    assert record.name == "stallwatch"
    assert "broken listener" in caplog.text


def test_interrupted_listener_leaves_no_transient_open(tracker: PhaseTracker) -> None:
    """Ctrl-C in a listener comes through, and the phase whose `Restore` is lost is given back."""

    def interrupted(*call: object) -> None:
        raise KeyboardInterrupt

    tracker._watch(interrupted)
    with pytest.raises(KeyboardInterrupt):
        tracker.enter_transient(Phase.COMPACTING)

    assert (tracker.current().phase, tracker.depth, tracker.invalid) == (Phase.INIT, 0, False)


def test_unwatched_listener_hears_no_more(tracker: PhaseTracker, log: Log) -> None:
    """A bound method is found again by equality; removing it twice is harmless."""
    tracker._unwatch(log.hear)
    tracker._unwatch(log.hear)
    tracker.enter(Phase.SETUP)

    assert log.calls == []


def test_listener_may_use_the_tracker(tracker: PhaseTracker, log: Log) -> None:
    """No lock is held: a listener can read, enter, and remove itself."""

    def hear(previous: PhaseState | None, state: PhaseState, violation: str | None) -> None:
        tracker._unwatch(hear)
        assert tracker.current().seq == state.seq
        tracker.enter(Phase.AWAITING_LLM)

    tracker._watch(hear)
    tracker.enter(Phase.SETUP)

    assert [call[1].phase for call in log.calls] == [Phase.SETUP, Phase.AWAITING_LLM]


def test_listener_is_called_on_the_thread_of_the_transition(tracker: PhaseTracker) -> None:
    """A transition from another thread tells its listeners there."""
    threads: list[threading.Thread] = []
    tracker._watch(lambda *call: threads.append(threading.current_thread()))
    other = threading.Thread(target=tracker.enter, args=(Phase.SETUP,))
    other.start()
    other.join()

    assert threads == [other]


def test_cycle_through_a_listener_is_collected() -> None:
    """Tracker, listener and `Restore` that hold each other are freed by the garbage collector."""

    class Owner:
        def __init__(self) -> None:
            self.tracker = PhaseTracker(strict=False)
            self.restore = self.tracker.enter_transient(Phase.COMPACTING)
            self.tracker._watch(self.hear)

        def hear(self, *call: object) -> None: ...

    owner = Owner()
    gone: list[weakref.ref[object]] = [
        weakref.ref(owner),
        weakref.ref(owner.tracker),
        weakref.ref(owner.restore),
    ]
    del owner
    gc.collect()

    assert [ref() for ref in gone] == [None, None, None]


@pytest.mark.slow
def test_exit_during_a_listener_is_quiet() -> None:
    """A daemon thread inside a listener does not abort the process when the interpreter exits.

    Prevents: SIGABRT. The interpreter ends such a thread where it runs Python code, by unwinding,
    and aborted when the listener had been called from native code. Real time: 30 s headroom.
    """
    program = """
import sys, threading, time
from stallwatch._tracker import PhaseTracker

inside = threading.Event()

def listener(*call, sleep=time.sleep, inside=inside):
    inside.set()
    while True:
        sleep(0.001)

class Slow:
    # Keeps the interpreter in its last steps for long enough to end the thread.
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

sys.modules["slow"] = Slow()
tracker = PhaseTracker()
tracker._watch(listener)
threading.Thread(target=tracker.enter, args=(2,), daemon=True).start()
inside.wait()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, text=True
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
