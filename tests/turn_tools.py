"""Bodies, drivers and a host that sleeps, for the tests of watchdogs and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from stallwatch import _suspend
from stallwatch.testing import ManualClock


def quiet(event: Any) -> None:
    """A listener that keeps events out of the log."""


async def for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


async def stubborn(times: int, told: Callable[[], object] = lambda: None) -> str:
    """Wait for ever, and swallow the first so many cancels."""
    while True:
        try:
            await for_ever()
        except asyncio.CancelledError:
            told()
            times -= 1
            if times < 0:
                raise
        if times == 0:
            return "returned after all"


@dataclass
class End:
    """How a task ended, and when by the manual clock.

    Attributes:
        task: The task.
        started: When it was made.
        at: Seconds from then to its end, or None while it runs.
    """

    task: asyncio.Task[Any]
    started: float
    at: float | None = None

    @property
    def error(self) -> BaseException | None:
        """What it raised; a cancel as the `CancelledError`."""
        if not self.task.done():
            return None
        try:
            return self.task.exception()
        except asyncio.CancelledError as error:
            return error


def start(clock: ManualClock, body: Coroutine[Any, Any, Any]) -> End:
    """Run a coroutine as a task, and note when it ends."""
    end = End(asyncio.create_task(body), clock.time())

    def note(_: object) -> None:
        end.at = round(clock.time() - end.started, 6)
        if not end.task.cancelled():
            end.task.exception()  # heard of, whether the test asks or not

    end.task.add_done_callback(note)
    return end


async def finish(end: End) -> None:
    """Cancel what still runs."""
    while not end.task.done():
        end.task.cancel()
        await asyncio.sleep(0)


class Host:
    """A host that can sleep: stands in for the system's clocks."""

    def __init__(self) -> None:
        self.slept = 50_000.0

    def sleep(self, seconds: float) -> None:
        """Time goes on outside, and no monotonic clock notices."""
        self.slept += seconds

    def read(self) -> tuple[float, float]:
        """As `_suspend.read_clocks`."""
        return 100.0, 100.0 + self.slept


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host of the test's own."""
    host = Host()
    monkeypatch.setattr(_suspend, "read_clocks", host.read)
    return host
