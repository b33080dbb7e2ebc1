"""Closing a stream: finding how it wants to be closed, and following that for a bounded time.

Works inside the task that pulled. What does not end in time is not waited for any longer: it is
kept alive (so that nothing of it is collected half-way), reported, and never called stopped.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

from stallwatch._stallwatch import Alarm

_SLACK = 1.0
"""Seconds after a second cancel before what ignores that too is left alone."""

unresponsive: list[object] = []
"""Awaitables that ignored every cancel, kept so that nothing of them is finalised half-way."""


class Grace:
    """A bound on how long a clean-up may take, told to the task by cancelling it.

    The task's own cancel count is balanced by `settle`, which also says whether somebody else
    has cancelled it meanwhile.

    Args:
        task: The task in which the clean-up runs.
        seconds: The bound; None for none.
        base: The task's cancel count before we cancelled it; by default the present one.
        cancels: Cancels of ours that the task has had already.
        then: A second bound, for what the first one's cancel sets off; None for no bound.
        on_up: Called when the first bound is up, before its cancel.
    """

    __slots__ = ("_alarm", "_base", "_cancels", "_on_up", "_seconds", "_task", "_then", "up")

    def __init__(
        self,
        task: Any,
        seconds: float | None,
        *,
        base: int | None = None,
        cancels: int = 0,
        then: float | None = None,
        on_up: Callable[[], object] | None = None,
    ) -> None:
        self._task = task
        self._base: int = task.cancelling() if base is None else base
        self._seconds = seconds
        self._cancels = cancels
        self._then = then
        self._on_up = on_up
        self.up = False
        self._alarm: Alarm | None = None

    def start(self) -> None:
        """Starts the clock, unless it has been switched off or has started."""
        if self._seconds is not None and self._alarm is None:
            self._alarm = Alarm(self._on_due)
            self._alarm.set(self._alarm.now() + self._seconds)

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        on_up, self._on_up = self._on_up, None
        if on_up is None:
            self.up = True
        else:
            on_up()
            if self._alarm is not None and self._then is not None:
                self._alarm.set(self._alarm.now() + self._then)
        self._cancels += 1
        self._task.cancel()

    def settle(self) -> bool:
        """Stops the clock and takes back its cancels. True if somebody else's cancel is left."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
        left = self._task.cancelling()
        for _ in range(min(self._cancels, left)):
            left = self._task.uncancel()
        self._cancels = 0
        return bool(left > self._base)


class Outcome:
    """How following an awaitable to its end went."""

    __slots__ = ("error", "gave_up", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.gave_up = False


@types.coroutine
def follow(
    step: Callable[[], Any], iterator: Iterator[Any], grace: Grace, outcome: Outcome
) -> Generator[Any, Any, None]:
    """Drives an awaitable to its end, or until the grace is up and it ignored that as well.

    Args:
        step: The first move: a send or a throw.
        iterator: What the awaitable is driven by.
        grace: The bound.
        outcome: Where the end is noted.
    """
    told = 0
    while True:
        try:
            awaited = step()
        except StopIteration as stop:
            outcome.value = stop.value
            return
        except BaseException as error:
            outcome.error = error
            return
        if told:
            # It was cancelled again because time is up, and waits on. There is no third word.
            unresponsive.append((iterator, awaited))
            outcome.gave_up = True
            return
        try:
            sent = yield awaited
        except BaseException as error:
            told = grace.up
            step = _thrower(iterator, error)
        else:
            step = _sender(iterator, sent)


def _thrower(iterator: Any, error: BaseException) -> Callable[[], Any]:
    def throw() -> Any:
        return iterator.throw(error)

    return throw


def _sender(iterator: Any, value: Any) -> Callable[[], Any]:
    def send() -> Any:
        # A coroutine has no `__next__`, and a plain iterator no `send`.
        resume = getattr(iterator, "send", None)
        return next(iterator) if resume is None else resume(value)

    return send


async def throw_into(iterator: Any, error: BaseException, grace: Grace) -> Outcome:
    """Throws `error` into a pending awaitable and follows its clean-up."""
    outcome = Outcome()
    await follow(_thrower(iterator, error), iterator, grace, outcome)
    return outcome


async def run(awaitable: Any, grace: Grace) -> Outcome:
    """Awaits something for as long as the grace lasts."""
    outcome = Outcome()
    iterator = awaitable.__await__()
    await follow(_sender(iterator, None), iterator, grace, outcome)
    return outcome


def closer_of(source: Any) -> Callable[[], Any] | None:
    """The way a stream wants to be closed: `aclose`, else `close`, else there is none."""
    for name in ("aclose", "close"):
        close = getattr(source, name, None)
        if callable(close):
            return close  # type: ignore[no-any-return]
    return None
