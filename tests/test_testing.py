"""The manual clock, and the pytest plugin."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stallwatch.testing import ManualClock
from stallwatch.wheel import Deadline, IdleTimer

STARTS = [0, 1, 1e6, 1e9, 1.7e9, time.time()]


@pytest.mark.parametrize("start", STARTS)
def test_wherever_it_starts_timers_fire_on_their_moment(start: float) -> None:
    """A start far from 0 makes seconds coarse, and loses or delays no timer."""
    fired: list[int] = []
    with ManualClock(start=start) as clock:
        for index in range(100):
            IdleTimer(0.1 + index * 1e-6, lambda index=index: fired.append(index))
        clock.advance(0.0999)
        assert fired == []
        clock.advance(0.001)

        assert fired == list(range(100))
        assert clock.time() == pytest.approx(start + 0.1009, abs=1e-6)


@pytest.mark.parametrize("start", STARTS)
def test_wherever_it_starts_loop_timers_fire(start: float) -> None:
    """The same for a loop's own timers, which count in floats."""

    async def main() -> None:
        async with ManualClock(start=start) as clock:
            fired: list[int] = []
            loop = asyncio.get_running_loop()
            for index in range(50):
                loop.call_later(0.1 + index * 0.0137, fired.append, index)
            await clock.advance(1)
            assert fired == list(range(50))

    asyncio.run(main())


def test_one_at_a_time() -> None:
    """A second manual clock is refused while one is in place, and the first stays."""
    with ManualClock() as clock:
        with pytest.raises(RuntimeError, match="already"), ManualClock():
            pass
        fired: list[int] = []
        IdleTimer(1, lambda: fired.append(1))
        clock.advance(1)
        assert fired == [1]
    with ManualClock():
        pass


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan, math.inf, -math.inf])
def test_time_goes_forward(seconds: float) -> None:
    """A move back, to nowhere or for ever is refused, and the clock stays where it is."""
    with ManualClock() as clock:
        before = clock.time()
        with pytest.raises(ValueError, match="time goes forward"):
            clock.advance(seconds)

        assert clock.time() == before


def test_advance_to_an_earlier_moment_stays() -> None:
    """`advance_to` moves to a moment, or not at all if that has passed."""
    with ManualClock() as clock:
        start = clock.time()
        clock.advance_to(start + 5)
        clock.advance_to(start)

        assert clock.time() == clock.monotonic() == start + 5


def test_outside_a_loop_callbacks_run_at_once_each_at_its_moment() -> None:
    """`advance` returns after every callback, and each saw the clock at its own deadline."""
    with ManualClock() as clock:
        start = clock.time()
        seen: list[float] = []
        for delay in (3, 1, 2, 2):
            IdleTimer(delay, lambda: seen.append(clock.time() - start))
        IdleTimer(1, lambda: IdleTimer(1.5, lambda: seen.append(clock.time() - start)))
        clock.advance(10)

        assert seen == [1, 2, 2, 2.5, 3]
        assert clock.time() == start + 10


def test_a_callback_that_raises_outside_a_loop_reaches_the_test() -> None:
    """Outside a loop the exception of a callback leaves `advance`; later timers are not lost."""
    fired: list[int] = []

    def boom() -> None:
        raise ZeroDivisionError

    with ManualClock() as clock:
        IdleTimer(1, boom)
        IdleTimer(1, lambda: fired.append(1))
        IdleTimer(2, lambda: fired.append(2))
        with pytest.raises(ZeroDivisionError):
            clock.advance(5)
        clock.advance(5)

    assert fired == [1, 2]


def test_loop_timers_and_ours_run_in_one_order() -> None:
    """`asyncio.sleep`, `call_later`, `asyncio.timeout` and timers share one time."""

    async def main() -> list[tuple[str, float]]:
        async with ManualClock() as clock:
            log: list[tuple[str, float]] = []
            start = clock.time()

            def note(name: str) -> None:
                log.append((name, round(clock.time() - start, 6)))

            async def sleeper() -> None:
                await asyncio.sleep(2)
                note("sleep")
                try:
                    async with asyncio.timeout(3):
                        await asyncio.sleep(100)
                except TimeoutError:
                    note("timeout")

            task = asyncio.create_task(sleeper())
            asyncio.get_running_loop().call_later(4, note, "later")
            IdleTimer(3, lambda: note("ours"))
            Deadline(start + 1, lambda: note("first"))
            await clock.advance(10)
            assert task.done()
            return log

    assert asyncio.run(main()) == [
        ("first", 1),
        ("sleep", 2),
        ("ours", 3),
        ("later", 4),
        ("timeout", 5),
    ]


def test_years_pass_at_once() -> None:
    """However far the clock moves, it takes no real time."""
    real = time.monotonic()

    async def main() -> None:
        async with ManualClock() as clock:
            fired: list[float] = []
            for years in (1, 5, 20):
                IdleTimer(years * 31_536_000, lambda years=years: fired.append(years))
            await clock.advance(30 * 31_536_000)
            assert fired == [1, 5, 20]

    asyncio.run(main())

    assert time.monotonic() - real < 5


def test_the_loop_gets_its_own_time_back() -> None:
    """After the clock is gone the loop's time is real, also for timers that are still waiting."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = loop.time()
        waiting = asyncio.create_task(asyncio.sleep(0.05))
        async with ManualClock() as clock:
            inside = asyncio.create_task(asyncio.sleep(0.05))
            await clock.settle()
            assert loop.time() == clock.time()
        assert real <= loop.time() < real + 5
        async with asyncio.timeout(5):
            await asyncio.gather(waiting, inside)
        assert real + 0.05 <= loop.time() < real + 5

    asyncio.run(main())


def test_a_loop_that_is_not_to_be_patched_keeps_its_time() -> None:
    """With `patch_loop=False` only stallwatch runs on the manual clock."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with ManualClock(patch_loop=False) as clock:
            real = loop.time()
            fired: list[int] = []
            IdleTimer(1000, lambda: fired.append(1))
            await clock.advance(1000)
            assert fired == [1]
            assert loop.time() < real + 5

    asyncio.run(main())


LEAKS_ITS_PIPE = pytest.mark.filterwarnings(
    # rloop 0.5 itself leaves the two ends of its wake-up socket to the collector.
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize("name", ["uvloop", pytest.param("rloop", marks=LEAKS_ITS_PIPE)])
def test_other_loops_run_our_timers(name: str) -> None:
    """On loops whose own time cannot be set, stallwatch's timers still follow the manual clock."""
    module = pytest.importorskip(name)

    async def main() -> None:
        async with ManualClock() as clock:
            fired: list[float] = []
            IdleTimer(90, lambda: fired.append(clock.time()))
            await clock.advance(89)
            assert fired == []
            await clock.advance(1)
            assert fired == [clock.time()]

    loop = module.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_what_was_made_before_stays_on_real_time() -> None:
    """A timer from before the clock was put in place fires in real time, during it and after."""

    async def main() -> None:
        fired: list[int] = []
        IdleTimer(0.02, lambda: fired.append(1))
        IdleTimer(0.2, lambda: fired.append(2))
        async with ManualClock(patch_loop=False) as clock:
            IdleTimer(0.02, lambda: fired.append(3))
            await clock.advance(0.01)
            await asyncio.sleep(0.1)
            assert fired == [1]
        await asyncio.sleep(0.3)
        assert fired == [1, 2]
        IdleTimer(0.01, lambda: fired.append(4))
        await asyncio.sleep(0.1)
        assert fired == [1, 2, 4]

    asyncio.run(main())


def test_many_clocks_in_one_loop_leave_no_descriptors() -> None:
    """A loop that lives through many tests does not collect what their clocks needed."""

    async def main() -> int:
        counts = []
        for _ in range(30):
            async with ManualClock() as clock:
                IdleTimer(5, print)
                await clock.advance(1)
            IdleTimer(5, print).cancel()
            counts.append(len(os.listdir("/proc/self/fd")))
        return counts[-1] - counts[2]

    assert asyncio.run(main()) <= 2


def test_advance_without_await_moves_in_the_next_turn() -> None:
    """In a loop, an `advance` that nobody awaits happens at the loop's next turn."""

    async def main() -> None:
        async with ManualClock() as clock:
            start = clock.time()
            fired: list[int] = []
            IdleTimer(5, lambda: fired.append(1))
            clock.advance(10)
            assert clock.time() == start
            for _ in range(5):
                await asyncio.sleep(0)
            await clock.settle()
            assert clock.time() == start + 10
            assert fired == [1]

    asyncio.run(main())


def test_settle_gives_others_their_turns() -> None:
    """`settle` returns once tasks that are ready have gone as far as they can."""

    async def main() -> None:
        async with ManualClock() as clock:
            steps: list[int] = []

            async def worker() -> None:
                for index in range(20):
                    await asyncio.sleep(0)
                    steps.append(index)

            task = asyncio.create_task(worker())
            await clock.settle()
            assert task.done()

    asyncio.run(main())


def test_settle_ends_beside_a_task_that_never_waits() -> None:
    """A task that is always ready does not keep the clock from going on."""

    async def main() -> None:
        async with ManualClock() as clock:

            async def spin() -> None:
                while True:
                    await asyncio.sleep(0)

            task = asyncio.create_task(spin())
            async with asyncio.timeout(1000):
                await clock.advance(5)
            task.cancel()

    asyncio.run(main())


def test_timers_from_other_threads_use_it_too() -> None:
    """The clock is one for the process: a thread's loopless timers run when it is moved."""
    fired: list[str] = []
    with ManualClock() as clock:
        made = threading.Thread(target=lambda: IdleTimer(5, lambda: fired.append("thread")))
        made.start()
        made.join()
        clock.advance(5)

    assert fired == ["thread"]


# --- the plugin ---


def run_pytest(tmp_path: Path, code: str, **environ: str) -> str:
    """Runs pytest on a file of its own in a child process; returns what it printed."""
    (tmp_path / "test_it.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_fixture(stallwatch_clock: ManualClock) -> None:
    """`stallwatch_clock` is a manual clock that is in place."""
    fired: list[int] = []
    IdleTimer(90, lambda: fired.append(1))
    stallwatch_clock.advance(90)

    assert fired == [1]


def test_the_fixture_serves_a_loop(stallwatch_clock: ManualClock) -> None:
    """The fixture, made outside the loop, drives the loop that the test runs."""

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(90, "slept"))
        await stallwatch_clock.advance(90)
        assert task.result() == "slept"

    asyncio.run(main())


PHASES = """
import pytest
from stallwatch._causes import PhaseViolationError
from stallwatch._phases import Phase
from stallwatch._tracker import PhaseTracker

def violate():
    tracker = PhaseTracker()
    tracker.enter_transient(Phase.COMPACTING)
    tracker.enter(Phase.DONE)

def test_strict():
    with pytest.raises(PhaseViolationError):
        violate()

def test_lax():
    violate()
"""


@pytest.mark.slow
def test_the_plugin_is_strict_about_phases(tmp_path: Path) -> None:
    """Under pytest with the plugin a violation raises, unless the environment says otherwise."""
    strict = run_pytest(tmp_path, PHASES, STALLWATCH_PHASE_STRICT="")
    assert "1 failed, 1 passed" in strict
    assert "FAILED test_it.py::test_lax" in strict
    lax = run_pytest(tmp_path, PHASES, STALLWATCH_PHASE_STRICT="0")

    assert "FAILED test_it.py::test_strict" in lax


@pytest.mark.slow
def test_the_plugin_costs_those_who_do_not_use_it_next_to_nothing(tmp_path: Path) -> None:
    """A run that does not use stallwatch gets the native module from it, and little else."""
    code = """
import sys
def test_modules():
    ours = sorted(name for name in sys.modules if name.startswith("stallwatch"))
    assert "stallwatch._stallwatch" in ours
    assert len(ours) <= 5, ours
    assert not {"stallwatch.testing", "stallwatch._turn", "stallwatch._guard"} & set(ours)
"""
    assert "1 passed" in run_pytest(tmp_path, code)
