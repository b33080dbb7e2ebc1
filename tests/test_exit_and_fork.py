"""The ends of a process and of a loop, and what a fork makes of timers."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from stallwatch import Deadline, IdleTimer, guard, wheel_stats

ENDINGS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "error": ("raise ValueError('mine')", 1),
    "os._exit": ("os._exit(4)", 4),
}

EXIT = """
import asyncio, os, random, sys, time
from stallwatch import Deadline, IdleTimer
def arm():
    now = time.monotonic()
    for _ in range(100):
        Deadline(now + random.random() * 0.03, lambda: None)
        IdleTimer(0.001 + random.random() * 0.03, lambda: None)
async def main():
    arm()
    await asyncio.sleep(random.random() * 0.03)
if {loop}:
    asyncio.run(main())
else:
    arm()
    time.sleep(random.random() * 0.03)
{ending}
"""


def run_child(code: str, limit: float = 30.0) -> tuple[int, str, str, float]:
    """Runs code in a fresh interpreter: exit status, output, errors, seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit, check=False
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_with_timers_due_around_it(ending: str) -> None:
    """75 exits a kind with 200 timers due around them: status as without us, silent.

    300 in all. Real time; an exit takes 0.1 s and has 5 s.
    """
    last, status = ENDINGS[ending]
    codes = [EXIT.format(loop=number % 2, ending=last) for number in range(75)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run_child, codes))

    for code, _, errors, seconds in found:
        assert code == status
        assert errors == "" or (ending == "error" and errors.endswith("ValueError: mine\n"))
        assert seconds < 5


@pytest.mark.slow
def test_exit_with_a_hundred_thousand_armed() -> None:
    """Interpreter exit does not wait for what is armed. Real time: 0.05 s aimed at, 1 s given."""
    code, out, errors, _ = run_child("""
import asyncio, sys, time
from stallwatch import IdleTimer
async def main():
    return [IdleTimer(3600, print) for _ in range(100_000)]
kept = asyncio.run(main())
import atexit
began = time.monotonic()
atexit.register(lambda: print("exit", time.monotonic() - began))
""")
    assert (code, errors) == (0, "")
    assert float(out.split()[1]) < 1


BUSY_DAEMON = """
import asyncio, random, threading, time
from stallwatch import guard, IdleTimer
async def source():
    while True:
        sum(range(500))
        if random.random() < 0.05:
            await asyncio.sleep(0)
        yield "x"
async def main():
    IdleTimer(0.01, lambda: None)
    async for chunk in guard(source()):
        pass
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
time.sleep(0.05 + random.random() * 0.05)
"""


@pytest.mark.slow
def test_exit_while_a_daemon_thread_pulls() -> None:
    """The interpreter ends a daemon thread in the middle of a guarded pull, and nothing aborts."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run_child, [BUSY_DAEMON] * 30))

    assert [(code, errors) for code, _, errors, _ in found] == [(0, "")] * 30


def in_fork(work: object) -> int:
    """Runs work in a forked child and returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            status = int(bool(work()))  # type: ignore[operator]
        finally:
            os._exit(status)
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def test_a_forked_child_starts_clean() -> None:
    """P1: what was inherited says so and never fires; new timers work; the parent goes on."""
    fired: list[str] = []
    inherited = IdleTimer(0.3, lambda: fired.append("parent"))

    def work() -> bool:
        seen: list[str] = []
        assert inherited.inherited
        assert not inherited.active
        assert inherited.remaining is None
        inherited.touch()
        inherited.pause()
        inherited.resume()
        assert wheel_stats().armed == 0
        Deadline(time.monotonic() + 0.1, lambda: seen.append("child"))
        time.sleep(0.6)
        inherited.cancel()
        return seen == ["child"] and fired == []

    assert in_fork(work) == 1
    time.sleep(0.6)  # headroom 0.3 s and what the child took
    assert fired == ["parent"]
    assert not inherited.inherited


def test_a_guard_works_in_a_forked_child() -> None:
    """A child forked beside a driver that runs can cut a silent stream of its own."""
    keep = IdleTimer(60, lambda: None)

    async def silent():
        yield "a"
        await asyncio.sleep(60)

    def work() -> bool:
        async def main() -> str:
            try:
                async for _ in guard(silent(), idle=0.2):
                    pass
            except RuntimeError as error:
                return str(error.kind)  # type: ignore[attr-defined]
            return "no"

        return asyncio.run(main()) == "stream_idle"

    assert in_fork(work) == 1
    assert keep.cancel()


def _in_pool(_: int) -> float:
    return asyncio.run(_cut())


async def _cut() -> float:
    began = time.monotonic()
    done = asyncio.get_running_loop().create_future()
    timer = IdleTimer(0.1, lambda: done.set_result(None))
    await done
    del timer
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_multiprocessing_with_the_fork_context() -> None:
    """Workers forked while timers are armed fire their own. Real time, 2 s of headroom."""
    keep = IdleTimer(60, lambda: None)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(_in_pool, range(4))

    assert all(0.1 <= seconds < 2.1 for seconds in found)
    assert keep.cancel()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forks_while_the_driver_is_busy() -> None:
    """A hundred forks beside a busy timer thread: no child finds a lock left locked."""
    stop = threading.Event()

    def rearm() -> None:
        if not stop.is_set():
            timers.append(IdleTimer(0.0005, rearm))
            del timers[:-4]

    timers: list[IdleTimer] = []
    for _ in range(4):
        rearm()

    def work() -> bool:
        fired = threading.Event()
        Deadline(time.monotonic(), fired.set)
        return fired.wait(5)

    try:
        assert [in_fork(work) for _ in range(100)] == [1] * 100
    finally:
        stop.set()


def test_a_closed_loop_drops_and_counts() -> None:
    """L3: a loop that is closed before the fire drops its timers, silently, and counts them."""
    before = wheel_stats().dropped
    fired: list[int] = []

    async def main() -> None:
        for _ in range(10):
            IdleTimer(0.01, lambda: fired.append(1))

    for _ in range(100):
        asyncio.run(main())
    time.sleep(0.05)

    assert fired == []
    assert wheel_stats().dropped - before == 1000
    assert wheel_stats().armed == 0


def test_a_collected_loop_takes_its_timers_along() -> None:
    """L4: once a loop is gone, so are the callbacks of its timers and its descriptors."""

    class Callback:
        def __call__(self) -> None: ...

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    alive: list[weakref.ref[Callback]] = []

    async def main() -> None:
        callback = Callback()
        alive.append(weakref.ref(callback))
        IdleTimer(3600, callback)

    asyncio.run(main())
    gc.collect()
    before = descriptors()
    for _ in range(200):
        asyncio.run(main())
    gc.collect()

    assert [ref for ref in alive if ref() is not None] == []
    assert descriptors() <= before


def test_callbacks_that_raise_leave_the_others_alone() -> None:
    """C1: an exception goes to the loop's handler once; all other timers fire."""
    heard: list[dict[str, object]] = []
    fired: list[int] = []

    def bad() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: heard.append(context)
        )
        now = time.monotonic()
        for number in range(20):
            Deadline(now + 0.01, bad if number == 7 else lambda n=number: fired.append(n))
        await asyncio.sleep(0.4)

    asyncio.run(main())
    assert fired == [number for number in range(20) if number != 7]
    assert [type(context["exception"]) for context in heard] == [ZeroDivisionError]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_callbacks_that_end_the_loop(kind: type[BaseException]) -> None:
    """C2: `SystemExit` and `KeyboardInterrupt` leave the loop; the other fires are not lost."""
    fired: list[int] = []
    loop = asyncio.new_event_loop()

    def bad() -> None:
        raise kind

    async def arm() -> None:
        # Due once the loop runs for the second time, and not while it still makes them.
        now = time.monotonic() + 0.1
        for number in range(5):
            Deadline(now, bad if number == 2 else lambda n=number: fired.append(n))

    async def rest() -> None:
        await asyncio.sleep(0.4)

    loop.run_until_complete(arm())
    with pytest.raises(kind):
        loop.run_until_complete(rest())
    assert fired == [0, 1]
    loop.run_until_complete(rest())
    assert fired == [0, 1, 3, 4]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_callback_that_blocks_delays_the_others_and_loses_none() -> None:
    """C3: after a callback of 0.3 s the rest fire once each, and the lateness shows it."""
    fired: list[int] = []

    async def main() -> None:
        now = time.monotonic()
        Deadline(now + 0.01, lambda: time.sleep(0.3))
        for number in range(50):
            Deadline(now + 0.02 + number / 1000, lambda n=number: fired.append(n))
        await asyncio.sleep(0.8)

    asyncio.run(main())
    assert fired == list(range(50))
    assert wheel_stats().delivered.max >= 0.2


def test_callbacks_that_touch_other_timers() -> None:
    """C4: a callback may arm anew, cancel others and itself, and drop the last handle."""
    fired: list[str] = []

    async def main() -> None:
        now = time.monotonic()
        handles: dict[str, Deadline] = {}

        def first() -> None:
            fired.append("first")
            assert handles["second"].cancel()
            assert not handles["first"].cancel()
            handles.clear()
            handles["third"] = Deadline(time.monotonic(), lambda: fired.append("third"))

        handles["first"] = Deadline(now + 0.01, first)
        handles["second"] = Deadline(now + 0.01, lambda: fired.append("second"))
        await asyncio.sleep(0.4)

    asyncio.run(main())
    assert fired == ["first", "third"]


def test_loops_in_threads_do_not_wake_each_other() -> None:
    """L6: eight loops in eight threads, a thousand timers each; each in its own thread."""
    wrong: list[int] = []
    counts: list[int] = []

    async def main() -> None:
        own, fired = threading.get_ident(), []

        def fire() -> None:
            fired.append(1)
            if threading.get_ident() != own:
                wrong.append(1)

        now = time.monotonic()
        for number in range(1000):
            Deadline(now + number / 5000, fire)
        limit = now + 10
        while len(fired) < 1000 and time.monotonic() < limit:
            await asyncio.sleep(0.02)
        counts.append(len(fired))

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counts == [1000] * 8
    assert wrong == []


def test_arming_for_a_loop_from_another_thread() -> None:
    """L5: `loop=` names the loop whose thread runs the callback; it works from any thread."""
    where: list[int] = []

    async def main() -> int:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def fire() -> None:
            where.append(threading.get_ident())
            done.set()

        thread = threading.Thread(target=lambda: IdleTimer(0.01, fire, loop=loop))
        thread.start()
        await asyncio.wait_for(done.wait(), 5)
        thread.join()
        return threading.get_ident()

    assert [asyncio.run(main())] == where
