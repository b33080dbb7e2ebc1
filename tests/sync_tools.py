"""Blocking sources, their consumers' threads, and the manual clock that drives both."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from guard_tools import HANG, Recorder, Seen, only
from stallwatch._guard_sync import SyncStreamGuard, guard_sync
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats

PATIENCE = 30.0
"""Seconds of real time after which a test has hung."""


class Released(OSError):
    """What a scripted read raises once it is released."""


@dataclass
class _Wait:
    when: float | None
    can_abort: bool
    over: bool = False
    aborted: bool = False


class Stage:
    """Threads that wait for moments of a manual clock, and the clock's moves from one to the next.

    A move is made only while every thread of the stage waits, so each run is the same.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.changed = threading.Condition()
        self.waits: list[_Wait] = []
        self.threads = 0
        self.aborts = 0

    def wait(self, seconds: float | None, *, can_abort: bool = False) -> bool:
        """Block the calling thread so long, or for ever; True if `abort` ended that."""
        when = None if seconds is None else self.clock.time() + seconds
        mine = _Wait(when, can_abort)
        with self.changed:
            self.waits.append(mine)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: mine.over, PATIENCE), "nobody moved the clock"
        return mine.aborted

    def abort(self) -> None:
        """Release the reads that wait: what guards get as `abort=`."""
        self.aborts += 1
        self._wake(lambda wait: wait.can_abort, aborted=True)

    def _wake(self, which: Callable[[_Wait], bool], *, aborted: bool = False) -> None:
        with self.changed:
            for wait in [wait for wait in self.waits if which(wait)]:
                self.waits.remove(wait)
                wait.over, wait.aborted = True, aborted
            self.changed.notify_all()

    def start(self, work: Callable[[], object]) -> threading.Thread:
        """Run something in a thread of the stage."""

        def run() -> None:
            try:
                work()
            finally:
                with self.changed:
                    self.threads -= 1
                    self.changed.notify_all()

        with self.changed:
            self.threads += 1
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def settle(self) -> None:
        """Wait until every thread waits for the clock, or is over."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.waits) == self.threads, PATIENCE)

    def advance(self, seconds: float) -> None:
        """Move the clock on, with a stop wherever a timer or a thread is due."""
        end = self.clock.time() + seconds
        self.settle()
        while self.threads:
            stops = [self.clock._next_stop(), *(wait.when for wait in self.waits)]
            stop = min((stop for stop in stops if stop is not None), default=None)
            if stop is None or stop > end:
                break
            self.clock.advance_to(stop)
            now = self.clock.time() + 1e-9
            self._wake(lambda wait, now=now: wait.when is not None and wait.when <= now)
            self.settle()
        self.clock.advance_to(end)

    def clear(self) -> None:
        """End whatever still waits."""
        while self.threads:
            self._wake(lambda wait: True, aborted=True)
            self.settle()


class Blocking:
    """A blocking iterable that follows a script: see `script` of `guard_tools`.

    A released read raises `Released`, or does what `answer` says: returns a last chunk, or raises.
    """

    def __init__(self, stage: Stage, steps: tuple[Any, ...], *, answer: Any = None) -> None:
        self.stage = stage
        self.steps = steps
        self.answer = answer
        self.given: list[Any] = []
        self.closes = 0
        self.finals = 0
        self.releases = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            for step in self.steps:
                if isinstance(step, (int, float)) or step is HANG:
                    if step != 0 and self.stage.wait(
                        None if step is HANG else step, can_abort=True
                    ):
                        self.releases += 1
                        if self.answer is None:
                            raise Released("the socket was shut down")
                        result = self.answer()
                        if result is not None:
                            yield result
                        return
                elif isinstance(step, BaseException):
                    raise step
                elif callable(step):
                    step()
                else:
                    self.given.append(step)
                    yield step
        except GeneratorExit:
            self.closes += 1
            raise
        finally:
            self.finals += 1


def consume_sync(
    stream: Any,
    seen: Seen,
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[], object] | None = None,
) -> Seen:
    """Read a blocking stream to its end, and note everything."""
    start = now()
    try:
        for chunk in stream:
            seen.chunks.append(chunk)
            seen.times.append(round(now() - start, 6))
            if pause is not None:
                pause()
    except BaseException as error:
        seen.error = error
    seen.ended_at = round(now() - start, 6)
    return seen


def play_sync(stage: Stage, stream: Any, *, upto: float = 10_000.0, pause: float = 0.0) -> Seen:
    """Read a stream in a thread while the manual clock moves on: `play`, for blocking streams."""
    seen = Seen()
    rest = (lambda: stage.wait(pause)) if pause else None
    stage.start(lambda: consume_sync(stream, seen, now=stage.clock.time, pause=rest))
    stage.advance(upto)
    if not stage.threads:
        return seen
    snapshot = Seen(list(seen.chunks), list(seen.times))
    stage.clear()
    return snapshot


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """A stage on a manual clock of its own, on which nothing is left armed."""
    before = wheel_stats().armed
    with ManualClock() as clock:
        stage = Stage(clock)
        try:
            yield stage
        finally:
            stage.clear()
        gc.collect()
        assert wheel_stats().armed <= before, "a timer was left armed"


class Background:
    """A consumer in a thread, in real time."""

    def __init__(self, stream: Any, **more: Any) -> None:
        self.seen = Seen()
        self.thread = threading.Thread(
            target=consume_sync, args=(stream, self.seen), kwargs=more, daemon=True
        )
        self.thread.start()

    def blocks(self, seconds: float) -> bool:
        """Whether it still waits so many seconds later."""
        self.thread.join(seconds)
        return self.thread.is_alive()

    def result(self) -> Seen:
        """What it saw, once it has ended."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the consumer hangs"
        return self.seen


class RawServer:
    """A TCP server on loopback that plays one script per connection, and sees how each ends.

    A script is a function of the connection. After it the connection is left open until the peer
    closes it; when and how is in `closed`, which `wait_closed` waits for.
    """

    def __init__(self, script: Callable[[socket.socket], object], *, context: Any = None) -> None:
        self.script = script
        self.context = context
        self.closed: list[tuple[float, str]] = []
        self.accepted = 0
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port))

    def wait_closed(self, count: int = 1) -> tuple[float, str]:
        """How the last of so many connections was closed by its peer."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.closed) >= count, PATIENCE)
        return self.closed[count - 1]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        how = "nothing"
        try:
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            self.script(connection)
            while connection.recv(4096):
                pass
            how = "end"
        except OSError as error:
            how = type(error).__name__
        finally:
            with contextlib.suppress(OSError):
                connection.close()
        with self._changed:
            self.closed.append((time.monotonic(), how))
            self._changed.notify_all()


__all__ = [
    "HANG",
    "Background",
    "Blocking",
    "RawServer",
    "Recorder",
    "Released",
    "Seen",
    "Stage",
    "SyncStreamGuard",
    "consume_sync",
    "guard_sync",
    "only",
    "play_sync",
    "staged",
]
