"""The thread for callbacks of timers made outside an event loop, and the relay for loops that
cannot watch a descriptor.

The loop is Python, not Rust: an interpreter that ends a thread in the middle of a callback must
find no Rust frame to unwind.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallwatch._stallwatch import Bridge, DispatchQueue

_JOIN = 0.2
"""Seconds that interpreter exit waits for a callback still running. The thread is a daemon."""

_LOOK = 1.0
"""Seconds between two looks of a relay at whether its loop is still there."""

_threads: list[threading.Thread] = []


def _run(queue: DispatchQueue) -> None:
    while queue.wait():
        while (callback := queue.next_callback()) is not None:
            try:
                callback()
            except SystemExit:
                pass  # as in any thread: it ends what raised it, and says nothing
            except BaseException:
                # Nothing may end this thread: there is no other one for the timers still to come.
                import logging

                logging.getLogger("stallwatch").exception("a timer's callback raised")
            # Not kept until the next one comes.
            del callback


def start(queue: DispatchQueue) -> None:
    """Starts the dispatcher of one queue."""
    thread = threading.Thread(target=_run, args=(queue,), name="stallwatch-dispatch", daemon=True)
    thread.start()
    _threads[:] = [known for known in _threads if known.is_alive()] + [thread]


def join() -> None:
    """Waits for the dispatcher at interpreter exit, once its queue is stopped."""
    for thread in _threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN)


def relay(bridge: Bridge, loop: Any, fd: int, drain: Callable[[Bridge, Any], None]) -> None:
    """Has a loop without `add_reader` call `drain`, woken from a thread that reads `fd`."""
    import select
    import weakref

    # The thread must not be what keeps the loop alive.
    known, home = weakref.ref(bridge), weakref.ref(loop)
    own = os.dup(fd)
    poller = select.poll()
    poller.register(own, select.POLLIN)

    def wake_if_alive(readable: bool) -> bool:
        target, loop = known(), home()
        if target is None or loop is None or loop.is_closed():
            return False
        if readable:
            # Until it is drained nothing more is written, so one wake-up makes for one drain.
            with suppress(BlockingIOError):
                os.read(own, 64)
            loop.call_soon_threadsafe(drain, target, loop)
        return True

    def run() -> None:
        try:
            while wake_if_alive(bool(poller.poll(_LOOK * 1000))):
                pass
        except RuntimeError:
            return  # the loop was closed in between
        finally:
            os.close(own)

    threading.Thread(target=run, name="stallwatch-relay", daemon=True).start()
