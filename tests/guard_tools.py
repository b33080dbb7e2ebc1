"""Scripted sources, recorders and runners for the tests of `guard`."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from stallwatch._events import Event
from stallwatch._guard import StreamGuard, guard
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats

LOOPS = ("asyncio", "uvloop")


class _Hang:
    def __repr__(self) -> str:
        return "HANG"


HANG = _Hang()
"""A step that waits until it is cancelled."""


class Source:
    """An asynchronous iterable that follows a script: see `script`.

    Attributes:
        given: Chunks handed out.
        cancels: `CancelledError` seen inside.
        closes: `GeneratorExit` seen inside.
        finals: Times its clean-up ran.
    """

    def __init__(self, steps: tuple[Any, ...]) -> None:
        self.steps = steps
        self.given: list[Any] = []
        self.cancels = 0
        self.closes = 0
        self.finals = 0
        self.opened = 0

    def __aiter__(self) -> AsyncGenerator[Any, None]:
        self.opened += 1
        return self._run()

    async def _run(self) -> AsyncGenerator[Any, None]:
        try:
            for step in self.steps:
                if isinstance(step, (int, float)):
                    if step:
                        await asyncio.sleep(step)
                elif step is HANG:
                    await asyncio.get_running_loop().create_future()
                elif isinstance(step, BaseException):
                    raise step
                elif callable(step):
                    result = step()
                    if inspect.isawaitable(result):
                        await result
                else:
                    self.given.append(step)
                    yield step
        except asyncio.CancelledError:
            self.cancels += 1
            raise
        except GeneratorExit:
            self.closes += 1
            raise
        finally:
            self.finals += 1


def script(*steps: Any) -> Source:
    """A source: a number waits so long, `HANG` for ever, an exception is raised, a function is
    called (and awaited), anything else is a chunk."""
    return Source(steps)


@dataclass
class Seen:
    """What a consumer saw.

    Attributes:
        chunks: Chunks, in order.
        times: When each came, counted from the start.
        error: What ended the loop, if anything was raised.
        ended_at: When it ended, or None while it goes on.
        cancelling: The task's cancel count after the loop.
    """

    chunks: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: BaseException | None = None
    ended_at: float | None = None
    cancelling: int = 0
    task: asyncio.Task[Any] | None = None

    @property
    def waits(self) -> bool:
        """Whether the loop has not ended."""
        return self.ended_at is None


async def consume(
    stream: Any, *, seen: Seen | None = None, pause: float = 0.0, clock: Any = None
) -> Seen:
    """Read a stream to its end, `pause` seconds after each chunk, and note everything."""
    seen = Seen() if seen is None else seen
    task = asyncio.current_task()
    assert task is not None
    seen.task = task
    now = asyncio.get_running_loop().time if clock is None else clock.time
    start = now()
    try:
        async for chunk in stream:
            seen.chunks.append(chunk)
            seen.times.append(round(now() - start, 6))
            if pause:
                await asyncio.sleep(pause)
    except BaseException as error:
        seen.error = error
        seen.cancelling = task.cancelling()
        seen.ended_at = round(now() - start, 6)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
    else:
        seen.cancelling = task.cancelling()
        seen.ended_at = round(now() - start, 6)
    return seen


async def play(
    clock: ManualClock, stream: Any, *, upto: float = 10_000.0, pause: float = 0.0
) -> Seen:
    """Read a stream in a task of its own while the manual clock moves on by `upto` seconds.

    What still waits then is cancelled, and has `waits` true in the result.
    """
    seen = Seen()
    task = asyncio.create_task(consume(stream, seen=seen, pause=pause, clock=clock))
    await clock.advance(upto)
    if not task.done():
        snapshot = Seen(list(seen.chunks), list(seen.times))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return snapshot
    await task
    return seen


class Recorder:
    """A list of events that can be given as `on_event`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        """The names of the events, in order."""
        return [event.event for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def only(clock: str, limit: float, **more: Any) -> dict[str, Any]:
    """Keyword arguments of `guard` that switch every clock off but one."""
    off: dict[str, Any] = {"first_chunk": None, "idle": None, "progress_idle": None}
    return {**off, "budget": None, clock: limit, **more}


def run(main: Callable[[], Coroutine[Any, Any, Any]], *, loop: str = "asyncio") -> Any:
    """Run a test body on a fresh loop: nothing may be left armed, unretrieved or complained of."""
    complaints: list[dict[str, Any]] = []
    before = wheel_stats().armed

    async def body() -> Any:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )
        result = await main()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        return result

    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(body())
        gc.collect()
    assert complaints == []
    assert wheel_stats().armed <= before
    return result


def on_manual_clock(
    body: Callable[..., Awaitable[None]],
) -> Callable[..., None]:
    """Make a test of a coroutine function that takes a manual clock first."""

    @functools.wraps(body)
    def test(**kwargs: Any) -> None:
        async def main() -> None:
            with ManualClock() as clock:
                await body(clock, **kwargs)

        run(main, loop=kwargs.get("loop", "asyncio"))

    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())[1:]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test


__all__ = [
    "HANG",
    "LOOPS",
    "Recorder",
    "Seen",
    "Source",
    "StreamGuard",
    "consume",
    "guard",
    "on_manual_clock",
    "only",
    "play",
    "run",
    "script",
]
