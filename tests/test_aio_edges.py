"""Drop-ins where test suites do not look: after the exit, on equal deadlines, before the start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from stallwatch import aio
from stallwatch.testing import ManualClock
from stallwatch.wheel import Deadline, wheel_stats
from test_aio import LOOPS, fresh, run

# --- after the exit ---


def use_timeout(seconds: float) -> Any:
    """A block with a deadline."""
    return aio.timeout(seconds)


def use_timeout_at(seconds: float) -> Any:
    """The same by the loop's clock."""
    return aio.timeout_at(asyncio.get_running_loop().time() + seconds)


@pytest.mark.parametrize("make", [use_timeout, use_timeout_at])
def test_nothing_is_cancelled_after_the_exit(make: Callable[[float], Any]) -> None:
    """A block left just before its deadline never touches a later await."""

    async def main() -> None:
        with ManualClock() as clock:

            async def body() -> str:
                async with make(1.0):
                    await aio.sleep(0.999)
                await aio.sleep(5)
                return "undisturbed"

            task = asyncio.create_task(body())
            await clock.advance(0.999)
            await clock.advance(1.0)
            assert not task.done()
            assert task.cancelling() == 0
            await clock.advance(4.5)

            assert task.result() == "undisturbed"

    run(main)


def test_wait_for_leaves_nothing_armed() -> None:
    """A wait that has its result just before its deadline never cancels a later await."""

    async def main() -> None:
        with ManualClock() as clock:

            async def body() -> str:
                assert await aio.wait_for(aio.sleep(0.999, "result"), 1.0) == "result"
                await aio.sleep(5)
                return "undisturbed"

            task = asyncio.create_task(body())
            await clock.advance(0.999)
            await clock.advance(1.0)
            assert not task.done()
            await clock.advance(4.5)

            assert task.result() == "undisturbed"

    run(main)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_block_left_on_its_very_deadline_disturbs_nobody(kind: str) -> None:
    """Whatever the order of result and deadline, the count of cancels is balanced afterwards."""

    async def main() -> None:
        for _ in range(50):
            task = asyncio.current_task()
            assert task is not None
            try:
                async with aio.timeout(0.002):
                    await asyncio.sleep(0.002)
            except TimeoutError:
                pass
            assert task.cancelling() == 0
            await asyncio.sleep(0)
        # Real time, but nothing is measured: a stray cancel would end this sleep.
        await asyncio.sleep(0.05)

    run(main, kind)


# --- equal deadlines ---


@pytest.mark.parametrize("kind", LOOPS)
def test_blocks_with_the_same_deadline_have_both_expired(kind: str) -> None:
    """Of nested blocks with one deadline both expire, the outer raises; the count is balanced."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            when = loop.time() + 0.005
            outer, inner = aio.timeout_at(when), aio.timeout_at(when)
            with pytest.raises(TimeoutError):
                async with outer:
                    async with inner:
                        await asyncio.sleep(60)

            task = asyncio.current_task()
            assert task is not None
            assert (outer.expired(), inner.expired(), task.cancelling()) == (True, True, 0)

    run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_hundred_blocks_of_one_deadline_expire_together(kind: str) -> None:
    """Tasks that share a deadline are all told in one turn of the loop, whatever it rounds to."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        async def one(when: float) -> int:
            try:
                async with aio.timeout_at(when):
                    await loop.create_future()
            except TimeoutError:
                return turns
            raise AssertionError("not expired")

        when = loop.time() + 0.05
        tasks = [asyncio.create_task(one(when)) for _ in range(100)]
        await asyncio.sleep(0)
        loop.call_soon(count)
        ends = await asyncio.gather(*tasks)
        aio.uninstall(loop)
        return max(ends) - min(ends)

    # One turn to deliver them, one in which the tasks run.
    assert run(main, kind) <= 1


# --- a cancel before the start ---


@pytest.mark.parametrize("delay", [0, -1, 0.001])
def test_a_cancel_on_its_way_is_not_taken_for_the_deadline(delay: float) -> None:
    """A task that was told to stop before a block that is over at once ends cancelled."""

    async def main() -> None:
        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel("by a user")
            if delay > 0:
                time.sleep(0.01)
            async with aio.timeout(delay):
                await asyncio.sleep(60)

        task = asyncio.create_task(body())
        await asyncio.wait([task])

        assert task.cancelled()

    run(main)


# --- several loops ---


def test_a_timer_made_for_one_loop_does_not_wake_another() -> None:
    """Deadlines of a loop in one thread never run in another thread's loop."""
    ran: list[tuple[str, str]] = []

    async def main(name: str) -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def fire(index: int) -> None:
            ran.append((name, threading.current_thread().name))
            if index == 999 and not over.done():
                over.set_result(None)

        for index in range(1000):
            loop.call_later(0.0001 * index, fire, index)
        await over
        await asyncio.sleep(0)

    threads = [
        threading.Thread(target=lambda n=str(i): aio.run(main(n)), name=str(i)) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ran) == 8000
    assert all(made == ran_in for made, ran_in in ran)


def test_runs_inside_other_threads_of_a_running_loop() -> None:
    """A loop run in a worker of a running loop keeps its own deadlines, and so does the outer."""

    async def inner() -> str:
        try:
            async with aio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "inner"
        return "never"

    async def main() -> tuple[str, str]:
        async with aio.timeout(60):
            found = await asyncio.to_thread(aio.run, inner())
            return found, await inner()

    assert run(main) == ("inner", "inner")


def test_a_closed_loops_deadlines_are_dropped_and_counted() -> None:
    """What was armed on a loop that is closed never runs, and nothing is said about it."""
    ran: list[int] = []

    async def arm() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        for index in range(100):
            loop.call_later(0.001 * index, ran.append, index)

    before = wheel_stats()
    loop = fresh("asyncio")
    loop.run_until_complete(arm())
    loop.close()
    time.sleep(0.15)
    seen = len(ran)

    assert wheel_stats().armed <= before.armed
    assert seen < 100
    time.sleep(0.02)
    assert len(ran) == seen


# --- other interpreters ---

INNER = """
import sys
try:
    import stallwatch
    from stallwatch import IdleTimer
except ImportError as error:
    said = f"{type(error).__name__}: {error}"
else:
    said = "imported"
"""

OUTER = """
import sys
import {module} as interpreters
told = []
for _ in range(2):
    inner = interpreters.create()
    try:
        interpreters.run_string(inner, {script!r} + '''
open({path!r}, "a").write(said + chr(10))
''')
    finally:
        interpreters.destroy(inner)
import asyncio
from stallwatch import aio
async def main():
    try:
        async with aio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        return "main works"
print(asyncio.run(main()))
print(open({path!r}).read(), end="")
"""


def test_another_interpreter_gets_one_clear_answer(tmp_path: Any) -> None:
    """In a fresh subinterpreter the import says twice the same, and the main one is unharmed."""
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    path = str(tmp_path / "said")
    program = OUTER.format(module=module, script=textwrap.dedent(INNER), path=path)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    main, *said = done.stdout.splitlines()
    assert main == "main works"
    assert len(said) == 2
    assert said[0] == said[1]
    assert said[0] == "imported" or said[0].startswith("ImportError: ")


# --- many at once ---


@pytest.mark.slow
def test_four_threads_and_their_callbacks_never_stand_still() -> None:
    """Arming, touching and cancelling from four threads, callbacks and collector: none is lost.

    Real time: 3 s of work. No thread may stand still for 5 s, which leaves a noisy machine 4 s more
    than the promise; `make soak` runs the long form against the promise.
    """
    from soak_wheel import storm

    report = storm(seconds=3.0, threads=4, seed=1)

    assert report.lost == 0
    assert report.twice == 0
    assert report.early == 0
    assert report.longest_standstill < 5.0
    assert report.operations > 1000


def test_a_deadline_from_another_thread_is_for_its_own_loop() -> None:
    """A timer made where no loop runs calls back on the dispatcher, never on somebody's loop."""
    seen: list[str] = []

    async def main() -> None:
        done = threading.Event()

        def fire() -> None:
            seen.append(threading.current_thread().name)
            done.set()

        made: list[Deadline] = []
        maker = threading.Thread(
            target=lambda: made.append(Deadline(time.monotonic() + 0.01, fire)), name="maker"
        )
        maker.start()
        maker.join()
        assert await asyncio.to_thread(done.wait, 30)

    run(main)

    assert len(seen) == 1
    assert seen[0] not in ("maker", threading.main_thread().name)
