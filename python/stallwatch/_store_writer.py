"""One thread for each store: calls that may block are made there, one after the other.

Ground rules: a writer's queue is the only thing that two threads share. The thread is a daemon, so
that a store that hangs never keeps a program from ending; it ends by itself when nothing has come
for a while, and never while something waits. A forked child has no threads of its parent: it
begins with new writers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

__all__ = ["Writer", "writer_of"]

_IDLE: Final = 10.0
"""Seconds without work after which the thread ends."""

_writers: WeakKeyDictionary[Any, Writer] = WeakKeyDictionary()
_lock = threading.Lock()


class Writer:
    """Makes calls in order, in a thread of its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def is_inherited(self) -> bool:
        """Whether it belongs to the parent of this process."""
        return self._pid != os.getpid()

    def submit(self, call: Callable[[], object]) -> None:
        """Have a call made after those before it. It must not raise."""
        with self._changed:
            self._calls.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="stallwatch store", daemon=True
                )
                self._thread.start()
            else:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._changed.wait(_IDLE)
                if not self._calls:
                    self._thread = None
                    return
                call = self._calls.popleft()
            call()
            del call  # not kept while nothing comes


def writer_of(store: Any) -> Writer:
    """The writer of a store; all turns that record in it share one."""
    try:
        with _lock:
            found = _writers.get(store)
            if found is None or found.is_inherited:
                found = _writers[store] = Writer()
            return found
    except TypeError:  # no weak references to it: in order within one turn is all that is needed
        return Writer()
