"""The thread on which callbacks of timers made outside an event loop run, and the relay for loops that
cannot watch a descriptor.

The loop is Python, not Rust: an interpreter that ends a thread in the middle of a callback must find no
Rust frame to unwind.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from stallwatch._bridge import drain as _drain

if TYPE_CHECKING:
    from stallwatch._stallwatch import Bridge, DispatchQueue

_JOIN = 0.2
"""Seconds that interpreter exit waits for a callback that is still running. The thread is a daemon."""

_LOOK = 1.0
"""Seconds between two looks of a relay at whether its loop is still there."""

_threads: list[threading.Thread] = []


def _run(queue: DispatchQueue) -> None:
    while queue.wait():
        while (callback := queue.next_callback()) is not None:
            try:
                callback()
            except Exception:
                import logging

                logging.getLogger("stallwatch").exception("a timer's callback raised")
            # Not kept until the next one comes.
            del callback


def start(queue: DispatchQueue) -> None:
    """Starts the dispatcher of one queue."""
    thread = threading.Thread(target=_run, args=(queue,), name="stallwatch-dispatch", daemon=True)
    thread.start()
    _threads[:] = [thread]


def join() -> None:
    """Waits for the dispatcher at interpreter exit, once its queue is stopped."""
    for thread in _threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN)


def relay(bridge: Bridge, loop: Any, fd: int) -> None:
    """Wakes a loop without `add_reader` by `call_soon_threadsafe`, from a thread that reads `fd`."""
    import select
    import weakref

    known = weakref.ref(bridge)
    own = os.dup(fd)

    def run() -> None:
        try:
            while True:
                readable, _, _ = select.select([own], [], [], _LOOK)
                target = known()
                if target is None or loop.is_closed():
                    return
                if not readable:
                    continue
                done = threading.Event()

                loop.call_soon_threadsafe(_drain_and_tell, target, loop, done)
                del target
                # The drain empties the channel; until then it stays readable.
                done.wait()
        except RuntimeError:
            return  # the loop was closed in between
        finally:
            os.close(own)

    threading.Thread(target=run, name="stallwatch-relay", daemon=True).start()


def _drain_and_tell(bridge: Bridge, loop: Any, done: threading.Event) -> None:
    try:
        _drain(bridge, loop)
    finally:
        done.set()
