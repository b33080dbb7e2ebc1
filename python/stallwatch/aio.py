"""Drop-ins for asyncio's own timers, on the wheel: same meaning, same errors, less cost.

`timeout`, `timeout_at`, `Timeout`, `wait_for` and `sleep` stand in for asyncio's of the same name.
`install` puts `call_later` and `call_at` of an existing loop on the wheel, so that code which knows
nothing of stallwatch uses it too; `new_event_loop` and `run` begin with such a loop.

Delays are seconds, and as in asyncio 0 and less mean "at once"; NaN is refused with `ValueError`.
A timer is never early by the loop's own clock. Equal deadlines are first in, first out.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import AbstractEventLoop, Future, isfuture
from asyncio.exceptions import CancelledError
from collections.abc import Awaitable, Callable, Coroutine
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from stallwatch._stallwatch import (
    LoopTimers,
    Timeout,
    TimerHandle,
    call_later,
    timeout,
    timeout_at,
)

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")

__all__ = [
    "Timeout",
    "TimerHandle",
    "install",
    "new_event_loop",
    "run",
    "sleep",
    "timeout",
    "timeout_at",
    "uninstall",
    "wait_for",
]

_NAMES: Final = ("call_later", "call_at")

_KEPT: Final = "_stallwatch_timers"
"""The attribute of a loop that holds what was put in its methods' place."""


def install(loop: AbstractEventLoop | None = None) -> None:
    """Put `call_later` and `call_at` of an event loop on the wheel.

    From then on `asyncio.sleep`, `asyncio.timeout`, `wait_for` and every library that asks the loop
    for a timer get the wheel's. What is due at once, and everything while the loop is in debug
    mode, still goes to the loop's own methods. Timers that exist already stay where they are.
    Twice is harmless.

    Args:
        loop: Any loop whose class is written in Python, as asyncio's, uvloop's and rloop's are;
            running or not. By default the one that runs here.

    Raises:
        RuntimeError: without a loop, or for one that is closed.
    """
    loop = asyncio.get_running_loop() if loop is None else loop
    if loop.is_closed():
        raise RuntimeError("Event loop is closed")
    if _KEPT in loop.__dict__:
        return
    timers = LoopTimers(loop, loop.call_later, loop.call_at)
    saved = {name: loop.__dict__[name] for name in _NAMES if name in loop.__dict__}
    loop.__dict__[_KEPT] = saved
    for name in _NAMES:
        loop.__dict__[name] = getattr(timers, name)


def uninstall(loop: AbstractEventLoop | None = None) -> None:
    """Give an event loop its own `call_later` and `call_at` back.

    Timers that were armed meanwhile are kept, and still fire. On a loop that has its own methods
    already it does nothing.

    Args:
        loop: By default the one that runs here.
    """
    loop = asyncio.get_running_loop() if loop is None else loop
    saved = loop.__dict__.pop(_KEPT, None)
    if saved is None:
        return
    for name in _NAMES:
        if name in saved:
            loop.__dict__[name] = saved[name]
        else:
            loop.__dict__.pop(name, None)


def new_event_loop() -> AbstractEventLoop:
    """A loop of the policy's kind with `install` done: for `asyncio.Runner(loop_factory=)`."""
    loop = asyncio.new_event_loop()
    install(loop)
    return loop


def run(
    main: Coroutine[Any, Any, T],
    *,
    debug: bool | None = None,
    loop_factory: Callable[[], AbstractEventLoop] | None = None,
) -> T:
    """As `asyncio.run`, on a loop with `install` done.

    Args:
        main: A coroutine.
        debug: As of `asyncio.run`. In debug mode the loop's own timers are used.
        loop_factory: Makes the loop; by default `asyncio.new_event_loop`.
    """

    def factory() -> AbstractEventLoop:
        loop = asyncio.new_event_loop() if loop_factory is None else loop_factory()
        install(loop)
        return loop

    if asyncio._get_running_loop() is not None:
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main)


async def wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """As `asyncio.wait_for`: what an awaitable gives, or `TimeoutError` after so many seconds.

    As Python 3.12 does it, on every Python: the awaitable is awaited in the caller's own task, so a
    cancel is never lost to a result that came in the same moment. At the deadline it is cancelled,
    and waited for as long as it takes to follow. Up to 3.11 a cancel that the awaitable swallowed
    is raised in the caller all the same; from 3.12 on its value is returned.

    Args:
        fut: A coroutine, a future or any other awaitable.
        timeout: Seconds; None for ever; 0 and less do not wait at all.

    Raises:
        TimeoutError: at the deadline.
    """
    if timeout is None:
        return await fut
    if isfuture(fut) and fut.done():
        return cast(T, fut.result())
    if timeout <= 0:
        future: Future[T] = asyncio.ensure_future(fut)
        if future.done():
            return future.result()
        await _cancel_and_wait(future)
        try:
            return future.result()
        except CancelledError as error:
            raise TimeoutError from error
    if not _RAISES_SWALLOWED:
        async with _timeout(timeout):
            return await fut
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    async with _timeout(timeout) as scope:
        result = await fut
        if task is not None and task.cancelling() - scope.expired() > before:
            raise CancelledError
        return result


_RAISES_SWALLOWED: Final = sys.version_info < (3, 12)

_timeout = timeout  # `wait_for` has a parameter of that name


async def _cancel_and_wait(future: Future[Any]) -> None:
    loop = asyncio.get_running_loop()
    waiter: Future[None] = loop.create_future()

    def release(_: Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(release)
    try:
        future.cancel()
        await waiter
    finally:
        future.remove_done_callback(release)


@coroutine
def _turn() -> Generator[None, None, None]:
    """One turn of the loop."""
    yield


@overload
async def sleep(delay: float) -> None: ...
@overload
async def sleep(delay: float, result: T) -> T: ...
async def sleep(delay: float, result: Any = None) -> Any:
    """As `asyncio.sleep`: so many seconds, then `result`.

    Args:
        delay: Seconds; 0 and less are one turn of the loop.
        result: What it gives.

    Raises:
        ValueError: for NaN.
    """
    if delay <= 0:  # the wheel refuses NaN
        await _turn()
        return result
    loop = asyncio.get_running_loop()
    future: Future[Any] = loop.create_future()
    handle = call_later(loop, delay, _finish, future, result)
    try:
        return await future
    finally:
        handle.cancel()


def _finish(future: Future[Any], result: Any) -> None:
    if not future.cancelled():
        future.set_result(result)
