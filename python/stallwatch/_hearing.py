"""Calling those who listen to events, so that one of them that blocks holds up nothing else.

A callable is called on a thread of ours, and whoever reports waits until it is back: a callable
that is quick has heard of an event before what that tells of goes on. For one that is not back
after `PATIENCE` seconds nobody waits any longer: it keeps its thread, and what is there to hear
meanwhile is kept for it, in order.

As long as somebody waits, the loop of the one who reports is the running loop of that thread too,
so that `get_running_loop().call_soon(...)` in a callable does what it would do there: that loop
stands still meanwhile. A loop in debug mode would refuse it, and is to warn of what blocks it: for
such a one a callable is called right there.

Ground rules. A thread is in the list of idle ones, or has one call: two reports at a time, of two
loops say, take two threads. The lock guards that list and what is kept, and is never held while a
callable runs. What a callable reports itself is called right there: its thread is waited for
already. A forked child has no threads of its parent, and begins with none. Threads are daemons, so
that a callable that hangs never keeps a program from ending, and end when nothing has come for a
while.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["PATIENCE", "Hear", "heard", "name_of"]

Hear = Callable[[Any], object]

PATIENCE: Final = 0.25
"""Seconds that a report waits for a callable."""

_START: Final = 5.0
"""Seconds that its thread may take to get going besides, on a machine that is short of time."""

_KEPT: Final = 10_000
"""How many events are kept for a callable that does not come back. The oldest go first."""

_IDLE: Final = 10.0
"""Seconds without work after which a thread ends."""


def heard(hear: Hear, event: Any) -> BaseException | None:
    """Have an event heard; come back when it was, or after `PATIENCE` seconds.

    Returns:
        What it raised, if that is to end the process. Everything else is logged.
    """
    global _hall
    if _hall.pid != os.getpid():
        _hall = _Hall()
    return _hall.heard(hear, event)


class _Call:
    """A call of a callable, and what became of it."""

    __slots__ = ("begun", "context", "done", "event", "fatal", "hear", "is_done", "is_left", "loop")

    def __init__(self, hear: Hear, event: Any, loop: AbstractEventLoop | None) -> None:
        self.hear = hear
        self.loop = loop
        self.event = event
        self.context = copy_context()
        self.begun: float | None = None
        self.is_done = self.is_left = False
        self.fatal: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def make(self) -> None:
        """Make it; on the thread that has it."""
        self.begun = monotonic()
        if self.loop is None or self.is_left:
            self.fatal = _call(self.hear, self.event, self.context.run)
            return
        from asyncio import _set_running_loop

        _set_running_loop(self.loop)
        try:
            self.fatal = _call(self.hear, self.event, self.context.run)
        finally:
            _set_running_loop(None)
            self.loop = None

    def wait(self) -> None:
        """Wait for it, not for ever."""
        end = monotonic() + _START
        while not self.done.acquire(timeout=PATIENCE):
            begun, now = self.begun, monotonic()
            if now > end or (begun is not None and now > begun + PATIENCE):
                return


class _Thread:
    """Makes one call after the other."""

    __slots__ = ("call", "go")

    def __init__(self, call: _Call) -> None:
        self.call: _Call | None = call
        self.go = threading.Lock()

    def run(self, hall: _Hall) -> None:
        """What the thread does."""
        here = threading.get_ident()
        hall.threads.add(here)
        while self.go.acquire(timeout=_IDLE) or not hall.dismissed(self):
            call, self.call = self.call, None
            while call is not None:
                call.make()
                call = hall.next_after(call, self)
        hall.threads.discard(here)


class _Hall:
    """The threads of one process, and what is kept for callables that are not back."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.threads: set[int] = set()
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._kept: dict[tuple[int, str], deque[_Call]] = {}

    def heard(self, hear: Hear, event: Any) -> BaseException | None:
        """See `heard`."""
        loop = _running_loop()
        if (
            _is_instant(hear)
            or threading.get_ident() in self.threads
            or (loop is not None and loop.get_debug())
            or sys.is_finalizing()
        ):
            return _call(hear, event)
        key, call = _key(hear), _Call(hear, event, loop)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                kept.append(call)
                return None
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _Thread(call)
            try:
                threading.Thread(
                    target=thread.run, args=(self,), name="stallwatch events", daemon=True
                ).start()
            except RuntimeError:  # there are no more threads to be had
                return _call(hear, event)
        else:
            thread.call = call
            thread.go.release()
        call.wait()
        with self._lock:
            call.is_left = not call.is_done
            if call.is_left:
                self._kept.setdefault(key, deque(maxlen=_KEPT))
        if call.is_left:
            _logger().warning(
                "on_event %s is not back from %s after %g s: nobody waits for it any longer",
                name_of(hear),
                getattr(event, "event", event),
                PATIENCE,
            )
        return call.fatal

    def next_after(self, call: _Call, thread: _Thread) -> _Call | None:
        """A thread has made a call. What it is to do next; without that it is idle."""
        key = _key(call.hear)
        with self._lock:
            call.is_done = True
            kept = self._kept.get(key) if call.is_left else None
            if kept:
                following = kept.popleft()
                following.is_left = True
                return following
            if kept is not None:
                del self._kept[key]
            self._idle.append(thread)
        call.done.release()
        return None

    def dismissed(self, thread: _Thread) -> bool:
        """Nothing has come for a while. False if something is on its way."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
                return True
        thread.go.acquire()
        return False


_hall = _Hall()


def name_of(hear: Hear) -> str:
    """What a callable is called, for the log."""
    return getattr(hear, "__qualname__", None) or type(hear).__qualname__


def _running_loop() -> AbstractEventLoop | None:
    asyncio = sys.modules.get("asyncio")  # without it nothing runs
    return None if asyncio is None else asyncio._get_running_loop()


def _is_instant(hear: Hear) -> bool:
    """Whether it appends to a list or a deque: nothing there can block."""
    return isinstance(hear, BuiltinMethodType) and type(hear.__self__) in (list, deque)


def _key(hear: Hear) -> tuple[int, str]:
    """The same for a method that is looked up twice."""
    owner = getattr(hear, "__self__", None)
    return (id(hear), "") if owner is None else (id(owner), getattr(hear, "__name__", ""))


def _call(hear: Hear, event: Any, run: Callable[..., object] | None = None) -> BaseException | None:
    try:
        if run is None:
            hear(event)
        else:
            run(hear, event)
    except (KeyboardInterrupt, SystemExit) as error:
        return error
    except BaseException:  # a CancelledError of a callable is no cancel of the turn
        name = getattr(event, "event", event)
        _logger().exception("on_event %s raised on %s", name_of(hear), name)
    return None


def _logger() -> Any:
    import logging  # only a callable in trouble needs it

    return logging.getLogger("stallwatch")
