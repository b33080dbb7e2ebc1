"""What a misused tracker does (fault W1), in production and in strict mode."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stallwatch._causes import PhaseViolationError
from stallwatch._phases import Phase
from stallwatch._tracker import PhaseTracker, Restore

Misuse = Callable[[PhaseTracker], object]


def enter_inside(tracker: PhaseTracker) -> None:
    tracker.enter_transient(Phase.COMPACTING)
    tracker.enter(Phase.DONE)


def out_of_order(tracker: PhaseTracker) -> None:
    outer = tracker.enter_transient(Phase.COMPACTING)
    tracker.enter_transient(Phase.AWAITING_APPROVAL)
    outer()


def forgotten(tracker: PhaseTracker) -> None:
    tracker.enter_transient(Phase.COMPACTING)
    tracker.assert_clean()


def wrong_thread(tracker: PhaseTracker) -> None:
    """A tool's thread borrows, its turn's own thread goes on without knowing."""
    thread = threading.Thread(target=tracker.enter_transient, args=(Phase.COMPACTING,))
    thread.start()
    thread.join()
    tracker.enter(Phase.DONE)


MISUSES = [enter_inside, out_of_order, forgotten, wrong_thread]


@pytest.mark.parametrize("misuse", MISUSES)
def test_strict_raises_and_invalidates(misuse: Misuse) -> None:
    """Each misuse raises in strict mode, with the text that the tracker keeps."""
    tracker = PhaseTracker(strict=True)
    with pytest.raises(PhaseViolationError) as caught:
        misuse(tracker)

    assert tracker.invalid
    assert tracker.violation == str(caught.value)


@pytest.mark.parametrize("misuse", MISUSES)
def test_production_warns_once(misuse: Misuse, caplog: pytest.LogCaptureFixture) -> None:
    """Each misuse is one warning in production, however many more follow, and the first is kept."""
    tracker = PhaseTracker(strict=False)
    misuse(tracker)
    first = tracker.violation
    enter_inside(tracker)

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("stallwatch", logging.WARNING)
    assert first is not None
    assert first in record.getMessage()
    assert tracker.violation == first
    assert repr(tracker).endswith(" invalid>")


def test_production_enter_is_applied() -> None:
    """An enter inside a transient counts in production; the abandoned restores do no harm."""
    tracker = PhaseTracker(strict=False)
    restores = [tracker.enter_transient(Phase.COMPACTING) for _ in range(2)]
    tracker.enter(Phase.DONE)
    for restore in restores:
        restore()

    assert tracker.current()[::2] == (Phase.DONE, 3)
    assert tracker.depth == 0


def test_production_restores_the_outer_phase() -> None:
    """An outer restore that comes first brings its phase back and ends what was inside it."""
    tracker = PhaseTracker(strict=False)
    tracker.enter(Phase.AWAITING_LLM)
    outer = tracker.enter_transient(Phase.COMPACTING)
    inner = tracker.enter_transient(Phase.AWAITING_APPROVAL)
    outer()
    inner()

    assert tracker.current()[::2] == (Phase.AWAITING_LLM, 4)
    assert (tracker.depth, tracker.invalid) == (0, True)


def test_strict_changes_nothing() -> None:
    """A refused operation leaves phase, seq, depth, time and the dirty mark as they were."""
    tracker = PhaseTracker(strict=True)
    tracker.enter(Phase.AWAITING_LLM)
    outer = tracker.enter_transient(Phase.COMPACTING)
    inner = tracker.enter_transient(Phase.AWAITING_APPROVAL)
    tracker.take_dirty()
    before = tracker.current()
    for operation in (outer, tracker.assert_clean, lambda: tracker.enter(Phase.DONE)):
        with pytest.raises(PhaseViolationError):
            operation()

    after = tracker.current()
    assert after[::2] == before[::2] == (Phase.AWAITING_APPROVAL, 3)
    assert after.elapsed >= before.elapsed
    assert (tracker.depth, tracker.is_dirty) == (2, False)
    inner()
    outer()
    assert (tracker.current().phase, tracker.depth) == (Phase.AWAITING_LLM, 0)


def test_assert_clean_passes_after_a_proper_run() -> None:
    """A run that gave everything back is clean, also when its state was not saved yet."""
    tracker = PhaseTracker(strict=True)
    with tracker.enter_transient(Phase.COMPACTING):
        pass
    tracker.assert_clean()

    assert not tracker.invalid
    assert tracker.is_dirty


def test_assert_clean_shows_a_swallowed_violation() -> None:
    """In strict mode a violation that somebody caught is raised again at the end of the run."""
    tracker = PhaseTracker(strict=True)
    with tracker.enter_transient(Phase.COMPACTING):
        with pytest.raises(PhaseViolationError):
            tracker.enter(Phase.DONE)

    with pytest.raises(PhaseViolationError, match="phase done entered while compacting"):
        tracker.assert_clean()


def test_a_violation_never_swallows_a_cancel(caplog: pytest.LogCaptureFixture) -> None:
    """A cancel leaves a `with` block though the restore is refused; the refusal is logged."""
    tracker = PhaseTracker(strict=True)
    with pytest.raises(asyncio.CancelledError):
        with tracker.enter_transient(Phase.COMPACTING):
            tracker.enter_transient(Phase.AWAITING_APPROVAL)
            raise asyncio.CancelledError

    assert tracker.invalid
    assert "given back" in caplog.text


class Misused(RuleBasedStateMachine):
    """Any operations in any order, on this thread or on another, beside a plain model."""

    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = ThreadPoolExecutor(1)
        self.tracker = PhaseTracker(strict=self.strict)
        self.pile: list[tuple[Phase, Restore | None]] = [(Phase.INIT, None)]
        self.restores: list[Restore] = []
        self.seq = 0
        self.violation: str | None = None
        self.dirty = False

    def teardown(self) -> None:
        self.elsewhere.shutdown()

    def perform(self, operation: Callable[[], object], *, fault: bool, elsewhere: bool) -> bool:
        """Run it; whether the model has to follow."""
        refused = None
        try:
            if elsewhere:
                self.elsewhere.submit(operation).result()
            else:
                operation()
        except PhaseViolationError as error:
            refused = str(error)
        assert (refused is not None) == (fault and self.strict)
        if fault and self.violation is None:
            self.violation = refused or self.tracker.violation
            assert self.violation
        return refused is None

    def moved(self) -> None:
        self.seq += 1
        self.dirty = True

    @rule(phase=st.sampled_from(Phase), elsewhere=st.booleans())
    def enter(self, phase: Phase, elsewhere: bool) -> None:
        fault = len(self.pile) > 1
        if self.perform(lambda: self.tracker.enter(phase), fault=fault, elsewhere=elsewhere):
            self.pile = [(phase, None)]
            self.moved()

    @rule(phase=st.sampled_from(Phase), since=st.sampled_from(["pause", "keep"]))
    def borrow(self, phase: Phase, since: str) -> None:
        restore = self.tracker.enter_transient(phase, since=since)  # type: ignore[arg-type]
        self.restores.append(restore)
        self.pile.append((phase, restore))
        self.moved()

    def give_back(self, restore: Restore, elsewhere: bool) -> None:
        levels = [at for at, level in enumerate(self.pile) if level[1] is restore]
        fault = levels != [] and levels[0] < len(self.pile) - 1
        if self.perform(restore, fault=fault, elsewhere=elsewhere) and levels:
            del self.pile[levels[0] :]
            self.moved()

    @rule(elsewhere=st.booleans())
    def restore_innermost(self, elsewhere: bool) -> None:
        restore = self.pile[-1][1]
        if restore is not None:
            self.give_back(restore, elsewhere)

    @rule(data=st.data(), elsewhere=st.booleans())
    def restore_any(self, data: st.DataObject, elsewhere: bool) -> None:
        if self.restores:
            self.give_back(data.draw(st.sampled_from(self.restores)), elsewhere)

    @rule()
    def assert_clean(self) -> None:
        if self.strict and len(self.pile) == 1 and self.violation is not None:
            with pytest.raises(PhaseViolationError) as caught:
                self.tracker.assert_clean()
            assert str(caught.value) == self.violation
        else:
            self.perform(self.tracker.assert_clean, fault=len(self.pile) > 1, elsewhere=False)

    @rule(mark=st.booleans())
    def checkpoint(self, mark: bool) -> None:
        if mark:
            self.tracker.mark_dirty()
        assert self.tracker.take_dirty() == (self.dirty or mark)
        self.dirty = False

    @invariant()
    def same_as_model(self) -> None:
        tracker = self.tracker
        state = tracker.current()
        assert state[::2] == (self.pile[-1][0], self.seq)
        assert state.elapsed >= 0
        assert (tracker.seq, tracker.depth) == (self.seq, len(self.pile) - 1)
        assert tracker.is_dirty == self.dirty
        assert tracker.violation == self.violation
        assert tracker.invalid == (self.violation is not None)


class MisusedStrict(Misused):
    """The same in strict mode."""

    strict = True


_SETTINGS = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMisused = Misused.TestCase
TestMisused.settings = _SETTINGS
TestMisusedStrict = MisusedStrict.TestCase
TestMisusedStrict.settings = _SETTINGS
