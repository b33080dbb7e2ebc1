"""Where events go: to the callables of whoever listens, else the loud ones to the log."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from stallwatch._events import Event
from stallwatch._hearing import heard, name_of

__all__ = ["EventSink", "OnEvent"]

OnEvent = Callable[[Any], object] | Iterable[Callable[[Any], object]] | None


class EventSink:
    """Hands each event to every callable; without any, loud events go to the `stallwatch` logger.

    A callable that raises is logged, and stops neither the others nor the clock that reported; one
    that blocks is left behind, with what it has still to hear: see `_hearing`. A sink inside a turn
    has the turn's sink as its `parent`: both get the event, and the log only stands in if neither
    has a callable. A sink is itself a callable.

    Args:
        on_event: A callable, an iterable of them, or None.
        turn: Name of the turn, for events that carry none.
        parent: The sink around this one.
    """

    __slots__ = ("_callables", "_parent", "_taps", "_turn")

    def __init__(
        self,
        on_event: OnEvent = None,
        *,
        turn: str | None = None,
        parent: "EventSink | None" = None,
    ) -> None:
        if on_event is None:
            found: tuple[Callable[[Any], object], ...] = ()
        elif callable(on_event):
            found = (on_event,)
        else:
            found = tuple(on_event)
        for one in found:
            _check(one)
        self._callables = found
        self._taps: tuple[Callable[[Any], object], ...] = ()
        self._turn = turn
        self._parent = parent

    def wants(self, event_type: type[Event]) -> bool:
        """Whether emitting this kind of event would reach anybody: spares making it."""
        return event_type.loud or self._hears()

    def tap(self, listener: Callable[[Any], object]) -> None:
        """Hand events to one more callable, which does not stand in for a listener of the user."""
        self._taps += (listener,)

    def emit(self, event: Event) -> None:
        """Deliver `event`; never raises what a callable raised, unless it ends the process."""
        event = self._named(event)
        fatal = self._deliver(event)
        if event.loud and not self._listens():
            _logger().warning(
                "%s", _line(event), extra={"stallwatch_event": event.to_dict()}, stacklevel=2
            )
        if fatal is not None:
            raise fatal

    __call__ = emit

    def _listens(self) -> bool:
        return bool(self._callables) or (self._parent is not None and self._parent._listens())

    def _hears(self) -> bool:
        if self._callables or self._taps:
            return True
        return self._parent is not None and self._parent._hears()

    def _named(self, event: Event) -> Event:
        if event.turn is None and self._turn is not None:
            return replace(event, turn=self._turn)
        return event

    def _deliver(self, event: Event) -> BaseException | None:
        fatal: BaseException | None = None
        for tap in self._taps:
            try:
                tap(event)
            except Exception:
                _logger().exception("%s raised on %s", name_of(tap), event.event)
        for one in self._callables:
            fatal = heard(one, event) or fatal
        if self._parent is not None:
            fatal = self._parent._deliver(self._parent._named(event)) or fatal
        return fatal


def _check(one: Any) -> None:
    if not callable(one):
        raise TypeError(f"on_event takes callables, not {type(one).__name__}")
    # A coroutine function would return a coroutine that nobody awaits: an event lost in silence.
    code = getattr(getattr(one, "func", one), "__code__", None)
    if code is not None and code.co_flags & _CO_ASYNC:
        raise TypeError(f"on_event takes plain functions: {name_of(one)} is asynchronous")


# inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR, without importing inspect.
_CO_ASYNC: Final = 0x80 | 0x200


def _line(event: Event) -> str:
    pairs = event.to_dict()
    name = pairs.pop("event")
    del pairs["at"]
    return " ".join([name, *(f"{key}={value!r}" for key, value in pairs.items())])


def _logger() -> Any:
    import logging  # only a turn in trouble needs it

    return logging.getLogger("stallwatch")
