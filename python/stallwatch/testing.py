"""Deterministic time for tests: clocks that run out when told, at once, and in order.

With the fixture of the pytest plugin:

    async def test_silence(stallwatch_clock):
        task = asyncio.create_task(consume(guard(source, idle=90)))
        await stallwatch_clock.advance(90)
        assert isinstance(task.exception(), StreamIdleError)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from stallwatch import _stallwatch

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ManualClock"]

_START: Final = 1_000_000.0
"""Where a manual clock stands at first: far from 0, so that nothing works by accident."""

_LOOK: Final = 0.005
"""Seconds of real time that loops other than asyncio's own get to see what is due."""

_SETTLE: Final = 64
"""Turns an event loop gets at most, at each moment at which something was due."""


def _shift(loop: Any, seconds: float) -> None:
    """Has the timers that a loop has already keep their distance from now."""
    for handle in loop._scheduled:
        handle._when += seconds


class ManualClock:
    """A clock that moves when told. A context manager: inside, all of stallwatch runs on it.

    Whatever is made inside it (guards, turns, watchdogs, trackers, timers) belongs to it for good.
    With `patch_loop=True` (the default) the running loop's own timers do as well (`asyncio.sleep`,
    `call_later`, `asyncio.timeout`), as long as the loop is one of asyncio's own and was entered
    from inside it.

    Args:
        start: The moment it stands at first, in seconds.
        patch_loop: Whether the running event loop's `time()` is this clock's too.
    """

    def __init__(self, *, start: float = _START, patch_loop: bool = True) -> None:
        self._core = _stallwatch.ManualClock(start)
        self._patch_loop = patch_loop
        self._loops: list[Any] = []
        self._entered = 0

    # --- in and out of place ---

    def install(self) -> None:
        """Puts it in place.

        Raises:
            RuntimeError: if another manual clock is in place.
        """
        self._core.install()
        self._adopt_running_loop()

    def uninstall(self) -> None:
        """Takes it out of place, and gives patched loops their own time back."""
        self._core.uninstall()
        for loop in self._loops:
            loop.__dict__.pop("time", None)
            _shift(loop, loop.time() - self.time())
        self._loops.clear()

    def __enter__(self) -> ManualClock:
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.uninstall()

    async def __aenter__(self) -> ManualClock:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _adopt_running_loop(self) -> Any:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if self._patch_loop and loop not in self._loops and hasattr(loop, "_scheduled"):
            _shift(loop, self.time() - loop.time())
            loop.time = self.time  # type: ignore[method-assign]
            self._loops.append(loop)
        return loop

    # --- time ---

    def time(self) -> float:
        """The moment it stands at, in seconds."""
        return self._core.now()

    monotonic = time

    def advance(self, seconds: float) -> _Advance:
        """Move on by so many seconds, stopping wherever something is due.

        Outside an event loop that happens at once, and callbacks run before it returns. Inside one,
        `await` it: the loop gets its turns at each stop, and has settled at the end. If the result
        is not awaited, the clock moves in the loop's next turn, without stops in between.

        Args:
            seconds: 0 or more.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time goes forward, and not for ever: {seconds!r}")
        return _Advance(self, self.time() + seconds)

    def advance_to(self, moment: float) -> _Advance:
        """Move on to a moment of `time()`: see `advance`."""
        return self.advance(max(0.0, moment - self.time()))

    async def settle(self) -> None:
        """Give the running loop its turns until nothing is ready in it any more."""
        loop = self._adopt_running_loop()
        ready = getattr(loop, "_ready", None)
        for _ in range(_SETTLE):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return
        if ready is None:
            # A loop that does not say what is ready, nor when it looks at its descriptors: in real
            # time it surely does.
            await asyncio.sleep(_LOOK)

    def _next_stop(self) -> float | None:
        stops = [self._core.next_stop()]
        for loop in self._loops:
            live = [handle._when for handle in loop._scheduled if not handle._cancelled]
            stops.append(min(live, default=None))
        return min((stop for stop in stops if stop is not None), default=None)

    def _step(self, limit: float) -> bool:
        """Moves to the next stop; False if there is none up to the limit: then it stands there."""
        stop = self._next_stop()
        found = stop is not None and stop <= limit
        target = stop if stop is not None and found else limit
        self._core.step(target)
        # Seconds far from 0 are coarser than nanoseconds, and the way there may have rounded down.
        # A loop, moreover, takes its timers only once they lie before now and a nanosecond.
        moment, beyond = target, 1e-9 if found and self._loops else 0.0
        while self._core.now() < target or (beyond and self._core.now() + beyond <= target):
            moment = math.nextafter(moment, math.inf)
            self._core.step(moment)
        while (callback := self._core.next_callback()) is not None:
            callback()
        return found


class _Advance:
    """A move of the clock: under way at once outside a loop, stop by stop when awaited inside."""

    def __init__(self, clock: ManualClock, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        self._begun = False
        loop = clock._adopt_running_loop()
        if loop is None:
            self._begun = True
            while clock._step(limit):
                pass
        else:
            loop.call_soon(self._jump)

    def _jump(self) -> None:
        if not self._begun:
            self._begun = True
            while self._clock._core.step(self._limit):
                pass

    def __await__(self) -> Generator[Any, None, None]:
        return self._walk().__await__()

    async def _walk(self) -> None:
        if self._begun:
            return
        self._begun = True
        clock = self._clock
        await clock.settle()
        while clock._step(self._limit):
            await clock.settle()
        await clock.settle()
