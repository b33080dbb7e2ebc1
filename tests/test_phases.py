"""The phase tracker. Violations and listeners have files of their own."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator

import pytest

from stallwatch._phase_state import PhaseState
from stallwatch._phases import Phase
from stallwatch._stallwatch import phase_table, set_strict_default
from stallwatch._tracker import PhaseTracker

HEADROOM = 0.3
"""Seconds a shared machine may be late by; sleeps themselves never end early."""


@pytest.fixture
def tracker() -> PhaseTracker:
    return PhaseTracker(strict=True)


def test_core_and_enum_agree() -> None:
    """The phases of the core and the members of `Phase` are the same set, each way."""
    python = [(int(phase), phase.label, phase.idle_counted) for phase in Phase]

    assert phase_table() == python


def test_starts_in_init(tracker: PhaseTracker) -> None:
    """A new tracker is in `INIT`, has seen no transition, and is clean and valid."""
    state = tracker.current()

    assert (state.phase, state.seq) == (Phase.INIT, 0)
    assert (tracker.seq, tracker.depth, tracker.is_dirty) == (0, 0, False)
    assert (tracker.invalid, tracker.violation) == (False, None)


def test_state_is_a_tuple_of_the_enum(tracker: PhaseTracker) -> None:
    """`current()` gives a `PhaseState` that unpacks and holds the very member of `Phase`."""
    tracker.enter(2)

    state = tracker.current()
    phase, elapsed, seq = state

    assert type(state) is PhaseState
    assert phase is Phase.AWAITING_LLM
    assert isinstance(elapsed, float)
    assert seq == tracker.seq == 1


@pytest.mark.parametrize("phase", list(Phase))
def test_enters_member_or_number(tracker: PhaseTracker, phase: Phase) -> None:
    """Every phase can be entered as a member and as its number, and each counts."""
    tracker.enter(phase)
    tracker.enter(int(phase))

    assert tracker.current()[::2] == (phase, 2)


@pytest.mark.parametrize(
    ("phase", "error"),
    [
        (10, ValueError),
        (-1, ValueError),
        (2**80, ValueError),
        ("awaiting_llm", TypeError),
        (2.0, TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_refuses_other_phases(tracker: PhaseTracker, phase: object, error: type[Exception]) -> None:
    """What is no phase is refused at the call, and nothing changes."""
    for operation in (tracker.enter, tracker.enter_transient):
        with pytest.raises(error, match="phase must be"):
            operation(phase)  # type: ignore[arg-type]

    assert (tracker.seq, tracker.depth, tracker.is_dirty) == (0, 0, False)


@pytest.mark.parametrize(("since", "error"), [("paused", ValueError), (1, TypeError)])
def test_refuses_other_since(tracker: PhaseTracker, since: object, error: type[Exception]) -> None:
    """`since` is "pause" or "keep"; anything else is refused before anything changes."""
    with pytest.raises(error, match="since"):
        tracker.enter_transient(Phase.COMPACTING, since=since)  # type: ignore[arg-type]

    assert (tracker.seq, tracker.depth) == (0, 0)


def test_seq_grows_with_every_transition(tracker: PhaseTracker) -> None:
    """`seq` grows by one on enter, on the same phase again, on a transient and on its restore."""
    seen = [tracker.seq]
    tracker.enter(Phase.AWAITING_LLM)
    seen.append(tracker.seq)
    tracker.enter(Phase.AWAITING_LLM)
    seen.append(tracker.seq)
    restore = tracker.enter_transient(Phase.AWAITING_LLM)
    seen.append(tracker.seq)
    restore()
    seen.append(tracker.seq)

    assert seen == [0, 1, 2, 3, 4]


def test_restores_outer_phases_in_turn(tracker: PhaseTracker) -> None:
    """Transients nest: each restore brings back the phase it was borrowed from."""
    tracker.enter(Phase.EXECUTING_TOOLS)
    with tracker.enter_transient(Phase.AWAITING_APPROVAL):
        with tracker.enter_transient(Phase.COMPACTING, since="keep"):
            assert (tracker.current().phase, tracker.depth) == (Phase.COMPACTING, 2)
        assert (tracker.current().phase, tracker.depth) == (Phase.AWAITING_APPROVAL, 1)

    assert (tracker.current().phase, tracker.depth) == (Phase.EXECUTING_TOOLS, 0)


def test_restoring_twice_is_harmless(tracker: PhaseTracker) -> None:
    """A second restore, called or by a `with`, changes nothing, and depth never goes below 0."""
    restore = tracker.enter_transient(Phase.COMPACTING)
    with restore:
        restore()
        tracker.enter(Phase.SETUP)
        restore()
    with restore:
        pass

    assert tracker.current()[::2] == (Phase.SETUP, 3)
    assert (tracker.depth, tracker.invalid) == (0, False)


def test_with_block_never_swallows(tracker: PhaseTracker) -> None:
    """The `with` form restores on an exception and lets that very object through."""
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        with tracker.enter_transient(Phase.COMPACTING):
            raise error

    assert caught.value is error
    assert tracker.current().phase is Phase.INIT


def test_one_of_many_threads_restores(tracker: PhaseTracker) -> None:
    """Of eight threads that restore at once exactly one makes the transition."""
    restore = tracker.enter_transient(Phase.COMPACTING)
    start = threading.Barrier(8)

    def give_back() -> None:
        start.wait()
        restore()

    threads = [threading.Thread(target=give_back) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (tracker.seq, tracker.depth, tracker.invalid) == (2, 0, False)


def test_readers_never_see_a_torn_triple(tracker: PhaseTracker) -> None:
    """Phase, time and seq that one reader call gives belong together, whatever writers do."""
    rounds = 3000
    torn: list[tuple[PhaseState, PhaseState]] = []

    done = threading.Event()

    def read() -> None:
        last = tracker.current()
        while not done.is_set():
            state = tracker.current()
            # The writer enters phase n % 10 as number n.
            whole = state.phase == state.seq % 10 and state.elapsed >= 0
            ordered = state.seq > last.seq or state.elapsed >= last.elapsed
            if not (whole and ordered and state.seq >= last.seq):
                torn.append((last, state))
            last = state

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, rounds + 1):
        tracker.enter(number % 10)
    done.set()
    for reader in readers:
        reader.join()

    assert torn == []


def test_dirty_is_peeked_saved_and_taken(tracker: PhaseTracker) -> None:
    """A peek keeps the mark, so a failed save loses nothing; a take clears it for the next."""
    tracker.enter(Phase.SETUP)
    peeked = [tracker.is_dirty, tracker.is_dirty]
    taken = [tracker.take_dirty(), tracker.take_dirty()]

    assert peeked == [True, True]
    assert taken == [True, False]


def test_every_transition_is_dirty(tracker: PhaseTracker) -> None:
    """Transient, restore and an explicit mark each set the mark; an idle restore does not."""
    marks = []
    restore = tracker.enter_transient(Phase.COMPACTING)
    marks.append(tracker.take_dirty())
    restore()
    marks.append(tracker.take_dirty())
    restore()
    marks.append(tracker.take_dirty())
    tracker.mark_dirty()
    marks.append(tracker.take_dirty())

    assert marks == [True, True, False, True]


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    before = set_strict_default(False)
    monkeypatch.delenv("STALLWATCH_PHASE_STRICT", raising=False)
    yield monkeypatch
    set_strict_default(before)


@pytest.mark.parametrize("word", ["1", "true", "YES", " on "])
def test_environment_makes_strict(default: pytest.MonkeyPatch, word: str) -> None:
    """`STALLWATCH_PHASE_STRICT` makes new trackers strict, unless they say otherwise."""
    default.setenv("STALLWATCH_PHASE_STRICT", word)

    assert PhaseTracker().strict
    assert not PhaseTracker(strict=False).strict


def test_process_default_makes_strict(default: pytest.MonkeyPatch) -> None:
    """The process default counts without the variable; 0 there overrules it, nonsense does not."""
    assert not PhaseTracker().strict
    assert set_strict_default(True) is False
    assert PhaseTracker().strict
    default.setenv("STALLWATCH_PHASE_STRICT", "maybe")
    assert PhaseTracker().strict
    default.setenv("STALLWATCH_PHASE_STRICT", "0")
    assert not PhaseTracker().strict


def test_shows_phase_and_validity() -> None:
    """The repr names phase and seq, and says when the tracker is not to be trusted."""
    tracker = PhaseTracker(strict=False)
    tracker.enter(Phase.FORCE_STOP)

    assert repr(tracker) == "<PhaseTracker force_stop seq=1>"


def test_is_not_copied(tracker: PhaseTracker) -> None:
    """A tracker is one thing: a copy that silently starts anew is refused."""
    with pytest.raises(TypeError):
        copy.copy(tracker)


@pytest.mark.slow
@pytest.mark.parametrize(("since", "charged"), [("pause", 0.0), ("keep", 0.5)])
def test_borrowed_time(tracker: PhaseTracker, since: str, charged: float) -> None:
    """Borrowed time is charged to the outer phase only with "keep". Real time, 0.3 s headroom."""
    tracker.enter(Phase.AWAITING_LLM)
    with tracker.enter_transient(Phase.AWAITING_APPROVAL, since=since):  # type: ignore[arg-type]
        time.sleep(0.5)
        assert 0.5 <= tracker.current().elapsed < 0.5 + HEADROOM
    elapsed = tracker.current().elapsed

    assert charged <= elapsed < charged + HEADROOM


@pytest.mark.slow
def test_same_phase_restarts_its_time(tracker: PhaseTracker) -> None:
    """Entering the current phase again starts its time anew. Real time, 0.3 s headroom."""
    tracker.enter(Phase.AWAITING_LLM)
    time.sleep(0.4)
    before = tracker.current().elapsed
    tracker.enter(Phase.AWAITING_LLM)
    after = tracker.current().elapsed

    assert before >= 0.4
    assert after < HEADROOM
