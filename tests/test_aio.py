"""The drop-ins for asyncio: meaning, order, handles, errors, and what is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stallwatch import aio
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats

LOOPS = (
    "asyncio",
    "uvloop",
    # It never closes the sockets of its own.
    pytest.param(
        "rloop", marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    ),
)


def fresh(kind: str) -> asyncio.AbstractEventLoop:
    """A loop of one kind."""
    if kind == "asyncio":
        return asyncio.new_event_loop()
    module = pytest.importorskip(kind)
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop


def run(main: Callable[[], Coroutine[Any, Any, Any]], kind: str = "asyncio") -> Any:
    """Run a coroutine on a fresh loop; nothing may be left armed, or complained of."""
    before = wheel_stats().armed
    complaints: list[Any] = []

    async def body() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: complaints.append(seen))
        return await main()

    with asyncio.Runner(loop_factory=lambda: fresh(kind)) as runner:
        result = runner.run(body())
    assert complaints == []
    assert wheel_stats().armed <= before
    return result


# --- timeout ---


def test_a_block_that_is_overdue_raises_timeout_error() -> None:
    """The cancel comes out as `TimeoutError` from it, and the task's cancel count is as before."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(TimeoutError) as caught:
            async with aio.timeout(0.01) as scope:
                await asyncio.sleep(60)

        assert scope.expired()
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert caught.value.__context__ is caught.value.__cause__
        assert task.cancelling() == 0

    run(main)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("delay", [0, -1, -1e300, float("-inf"), True])
def test_what_is_due_at_once_comes_in_the_next_turn(kind: str, delay: Any) -> None:
    """A delay of 0 and less expires once the loop turns; True is a second, as it is for asyncio."""

    async def main() -> None:
        async with aio.timeout(delay) as scope:
            pass
        assert not scope.expired()
        if delay is True:
            return
        with pytest.raises(TimeoutError):
            async with aio.timeout(delay):
                await asyncio.sleep(60)

    run(main, kind)


@pytest.mark.parametrize("value", [float("nan"), "1", decimal.Decimal(1), [], object()])
def test_no_number_is_refused_at_the_call(value: Any) -> None:
    """NaN is a `ValueError`, what is no number a `TypeError`, before anything changes."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        before = wheel_stats().armed
        wrong = (ValueError, TypeError)
        with pytest.raises(wrong):
            aio.timeout(value)
        with pytest.raises(wrong):
            loop.call_later(value, print)
        if not isinstance(value, decimal.Decimal):  # a moment may be anything with a float
            with pytest.raises(wrong):
                loop.call_at(value, print)
            with pytest.raises(wrong):
                aio.timeout_at(value)
        with pytest.raises(wrong):
            await aio.sleep(value)

        assert wheel_stats().armed == before

    run(main)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize(
    "delay", [float("inf"), sys.maxsize, 2.0**55, 1e18, 1e308, 2147483.647, 4294967.297, 68719476.7]
)
def test_huge_delays_never_fire_and_never_raise(kind: str, delay: float) -> None:
    """They saturate; infinity holds no place in the wheel; all can be taken back."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        before = wheel_stats().armed
        async with aio.timeout(delay) as scope:
            inside = wheel_stats().armed
            await asyncio.sleep(0.01)
        handle = loop.call_later(delay, pytest.fail)

        assert not scope.expired()
        assert inside == before + (0 if delay == float("inf") else 1)
        assert handle.when() > loop.time() + 1e6
        handle.cancel()
        assert wheel_stats().armed == before

    run(main, kind)


def test_none_means_no_deadline() -> None:
    """`timeout(None)` never expires, until it is rescheduled."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with aio.timeout(None) as scope:
                assert scope.when() is None
                await asyncio.sleep(0.01)
                scope.reschedule(loop.time() + 0.01)
                await asyncio.sleep(60)

    run(main)


def test_misuse_raises_as_asyncio_does() -> None:
    """Entering twice, outside a task, and changing what is over are errors of the same kind."""

    async def main() -> None:
        scope = aio.timeout(60)
        with pytest.raises(RuntimeError, match="has not been entered"):
            scope.reschedule(1)
        async with scope:
            with pytest.raises(RuntimeError, match="already been entered"):
                await scope.__aenter__()
        with pytest.raises(RuntimeError, match="finished"):
            scope.reschedule(None)
        assert repr(scope) == "<Timeout [finished]>"

    run(main)
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.timeout(1)


def test_nested_blocks_name_the_one_that_expired() -> None:
    """An inner block's deadline leaves the outer one alone, and the other way round."""

    async def main() -> tuple[bool, ...]:
        async with aio.timeout(60) as outer:
            with pytest.raises(TimeoutError):
                async with aio.timeout(0.01) as inner:
                    await asyncio.sleep(60)
        first = (outer.expired(), inner.expired())
        with pytest.raises(TimeoutError):
            async with aio.timeout(0.01) as outer:
                async with aio.timeout(60) as inner:
                    await asyncio.sleep(60)
        return (*first, outer.expired(), inner.expired())

    assert run(main) == (False, True, True, False)


def test_an_error_of_the_body_is_the_same_object() -> None:
    """A `TimeoutError` that the body raises by itself passes through, and nothing has expired."""

    async def main() -> None:
        error = TimeoutError("the body's own")
        with pytest.raises(TimeoutError) as caught:
            async with aio.timeout(60) as scope:
                raise error

        assert caught.value is error
        assert not scope.expired()

    run(main)


def test_a_users_cancel_is_not_converted() -> None:
    """A cancel by somebody else leaves the block as it is."""

    async def main() -> None:
        async def body() -> None:
            async with aio.timeout(60):
                await asyncio.sleep(60)

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()

    run(main)


@pytest.mark.parametrize("offset", range(-3, 6))
@pytest.mark.parametrize("how", ["task", "future"])
def test_no_cancel_is_lost_to_a_result(offset: int, how: str) -> None:
    """However near a cancel is to the result, the task ends cancelled then or at its next await."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def body() -> None:
            future = loop.create_future()

            def tick(left: int) -> None:
                if left:
                    loop.call_soon(tick, left - 1)
                elif not future.done():
                    future.set_result(None)

            tick(5)
            if how == "task":

                async def inner() -> None:
                    await future

                await aio.wait_for(inner(), 60)
            else:
                await aio.wait_for(future, 60)
            await asyncio.sleep(0.2)

        task = asyncio.create_task(body())
        for _ in range(5 + offset):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()

    run(main)


# --- sleep, run ---


def test_sleep_gives_its_result_and_is_cancelled_cleanly() -> None:
    """As `asyncio.sleep`, and a cancel leaves no timer."""

    async def main() -> None:
        started = time.monotonic()
        assert await aio.sleep(0.01, "result") == "result"
        assert time.monotonic() - started >= 0.01
        assert await aio.sleep(0, 1) == 1
        before = wheel_stats().armed
        task = asyncio.create_task(aio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert wheel_stats().armed == before

    run(main)


@pytest.mark.parametrize("kind", LOOPS)
def test_run_puts_the_loop_on_the_wheel(kind: str) -> None:
    """`aio.run` and `aio.new_event_loop` give loops whose timers are ours."""

    async def main() -> bool:
        handle = asyncio.get_running_loop().call_later(60, print)
        handle.cancel()
        return type(handle) is aio.TimerHandle

    assert aio.run(main(), loop_factory=lambda: fresh(kind))
    with asyncio.Runner(loop_factory=aio.new_event_loop) as runner:
        assert runner.run(main())


def test_run_inside_a_loop_is_refused() -> None:
    """As for `asyncio.run`."""

    async def main() -> None:
        coroutine = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="running event loop"):
            aio.run(coroutine)
        coroutine.close()

    run(main)


# --- install ---


@pytest.mark.parametrize("kind", LOOPS)
def test_handles_answer_as_asyncios(kind: str) -> None:
    """`when`, `cancel`, `cancelled`, `isinstance`, order and weak references."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        before = loop.time()
        first = loop.call_later(60, print)
        second = loop.call_at(loop.time() + 120, print)

        assert isinstance(first, asyncio.TimerHandle)
        assert isinstance(first, asyncio.Handle)
        assert first.when() >= before + 60
        assert first < second
        assert second >= first
        assert first == first
        assert first != second
        assert len({first, second}) == 2
        assert weakref.ref(first)() is first
        assert not first.cancelled()
        first.cancel()
        first.cancel()
        second.cancel()
        assert first.cancelled()
        assert "cancelled" in repr(first)

    run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_never_early_by_either_clock(kind: str) -> None:
    """2 000 random delays up to 20 ms: neither `loop.time()` nor `time.monotonic()` says early."""

    async def main() -> tuple[int, int]:
        import random

        loop = asyncio.get_running_loop()
        aio.install(loop)
        rng = random.Random(7)
        early, done = [0, 0], asyncio.Event()
        left = 2000

        def check(when: float, real: float) -> None:
            nonlocal left
            early[0] += loop.time() < when
            early[1] += time.monotonic() < real
            left -= 1
            if not left:
                done.set()

        for _ in range(1000):
            delay = rng.uniform(1e-6, 0.02)
            # The clock of a loop may move on between two looks at it.
            when, real = loop.time() + delay, time.monotonic() + delay - 0.001
            loop.call_later(delay, check, when, real)
            loop.call_at(when, check, when, real)
        await asyncio.wait_for(done.wait(), 30)
        return early[0], early[1]

    assert run(main, kind) == (0, 0)


def test_equal_deadlines_are_first_in_first_out() -> None:
    """100 timers of one moment are called in the order in which they were made."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        order: list[int] = []
        when = loop.time() + 0.02
        for index in range(100):
            loop.call_at(when, order.append, index)
        await asyncio.sleep(0.1)

        assert order == list(range(100))

    run(main)


@pytest.mark.parametrize("kind", LOOPS)
def test_context_and_arguments_are_kept(kind: str) -> None:
    """A callback runs in the context it was made in, or in the one that was given."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
        seen: list[Any] = []

        def note(*args: Any) -> None:
            seen.append((variable.get(), *args))

        variable.set("made in")
        own = contextvars.Context()
        own.run(variable.set, "given")
        loop.call_later(0.001, note, 1, 2, 3)
        loop.call_at(loop.time() + 0.002, note, context=own)
        variable.set("later")
        await asyncio.sleep(0.05)

        assert seen == [("made in", 1, 2, 3), ("given",)]

    run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_errors_go_to_the_loops_handler(kind: str) -> None:
    """With message, exception and handle, as asyncio reports its own; the loop goes on."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        seen: list[Any] = []
        loop.set_exception_handler(lambda *seen_by: seen.append(seen_by[-1]))
        after: list[int] = []

        def fail() -> None:
            raise ZeroDivisionError("on purpose")

        handle = loop.call_later(0.001, fail)
        loop.call_later(0.001, after.append, 1)
        await asyncio.sleep(0.05)

        assert after == [1]
        assert [type(one["exception"]) for one in seen] == [ZeroDivisionError]
        assert seen[0]["handle"] is handle
        assert "fail" in seen[0]["message"]

    run(main, kind)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_the_loop(error: type[BaseException]) -> None:
    """`KeyboardInterrupt` and `SystemExit` leave `run_forever`, and the other timers are kept."""
    loop = aio.new_event_loop()
    seen: list[int] = []

    def fail() -> None:
        raise error

    try:
        loop.call_later(0.001, fail)
        loop.call_later(0.002, seen.append, 1)
        with pytest.raises(error):
            loop.run_forever()
        loop.call_later(0.02, loop.stop)
        loop.run_forever()
    finally:
        loop.close()

    assert seen == [1]


@pytest.mark.parametrize("kind", LOOPS)
def test_uninstall_puts_everything_back(kind: str) -> None:
    """The loop has its own methods again, timers armed meanwhile still fire, twice is harmless."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        own = (loop.call_later, loop.call_at)
        fired: list[str] = []
        loop.call_later(0.02, fired.append, "before")
        aio.install(loop)
        aio.install(loop)
        loop.call_later(0.02, fired.append, "inside")
        kept = loop.call_later(60, print)
        aio.uninstall(loop)
        aio.uninstall(loop)

        assert (loop.call_later, loop.call_at) == own
        assert not any(name.startswith("call_") for name in loop.__dict__)
        await asyncio.sleep(0.1)
        assert sorted(fired) == ["before", "inside"]
        kept.cancel()

    run(main, kind)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_closed_loop_is_clean(kind: str) -> None:
    """Closing drops what was armed, and the loop refuses new timers as it always did."""
    loop = fresh(kind)
    aio.install(loop)
    callback = type("Callback", (), {"__call__": lambda self: None})()
    alive = weakref.ref(callback)
    loop.call_later(60, callback)
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    del callback
    gc.collect()
    armed = wheel_stats().armed

    assert armed == 0 or alive() is None
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)
    with pytest.raises(RuntimeError, match="closed"):
        aio.install(loop)
    aio.uninstall(loop)


def test_debug_mode_uses_the_loops_own() -> None:
    """In debug mode asyncio's checks and records are wanted, so its own handles are made."""

    async def main() -> type:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        loop.set_debug(True)
        handle = loop.call_later(60, print)
        handle.cancel()
        return type(handle)

    assert run(main) is asyncio.TimerHandle


def test_nothing_is_kept_of_what_has_ended() -> None:
    """Arguments, results and callbacks of ended waits are free at once, without a collection."""

    class Thing:
        pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        aio.install(loop)
        refs: list[weakref.ref[Any]] = []
        before = wheel_stats().armed
        gc.disable()
        try:
            for _ in range(2000):
                future: asyncio.Future[Thing] = loop.create_future()
                thing = Thing()
                future.set_result(thing)
                await aio.wait_for(future, 3600)
                handle = loop.call_later(3600, print, thing)
                handle.cancel()
                refs += [weakref.ref(thing), weakref.ref(future), weakref.ref(handle)]
                del thing, future, handle

            assert sum(ref() is not None for ref in refs) == 0
            assert wheel_stats().armed == before
        finally:
            gc.enable()

    run(main)


def test_a_blocked_loop_is_told_as_soon_as_it_is_back() -> None:
    """A deadline that passed while the loop was blocked takes effect in its next turns."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with aio.timeout(0.01):
                time.sleep(0.05)
                await asyncio.sleep(60)

    run(main)


def test_it_runs_on_the_manual_clock() -> None:
    """Timers of an installed loop follow a test's clock, and nothing waits in real time."""

    async def main() -> None:
        with ManualClock() as clock:
            loop = asyncio.get_running_loop()
            aio.install(loop)
            seen: list[float] = []
            start = loop.time()
            loop.call_later(3600, lambda: seen.append(loop.time() - start))
            task = asyncio.create_task(aio.sleep(7200, "slept"))
            await clock.advance(3600)
            assert seen == [pytest.approx(3600)]
            await clock.advance(3600)

            assert task.result() == "slept"
            aio.uninstall(loop)

    run(main)


@pytest.mark.slow
def test_loops_in_many_threads() -> None:
    """Four threads with a loop each arm, cancel and sleep side by side. Real time: 30 s each."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        done = 0

        async def one(index: int) -> None:
            nonlocal done
            try:
                async with aio.timeout(0.001 * (index % 7)):
                    await asyncio.sleep(0.003)
            except TimeoutError:
                pass
            handle = loop.call_later(60, print)
            handle.cancel()
            done += 1

        async with aio.timeout(30):
            await asyncio.gather(*(one(index) for index in range(300)))
        return done

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(aio.run(main()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [300] * 4
