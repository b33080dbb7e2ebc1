"""What a framework waits for, put on the clocks: shared by the integrations of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stallwatch._limits import Limits
from stallwatch._sink import EventSink, OnEvent
from stallwatch._stream_guard import StreamGuard
from stallwatch._text import Transcript
from stallwatch._turn import Turn

if TYPE_CHECKING:
    from stallwatch._phases import Phase
    from stallwatch._tracker import PhaseTracker, Restore

__all__ = ["Clocks", "Waits", "waits_of"]


class Waits:
    """Phases of waits that overlap, shown on a tracker one at a time: the one begun last.

    Frameworks run tools side by side and report their ends in any order, while borrowed phases have
    to be given back in order. So a wait that is over gives its phase back once all that began after
    it are over too, and nobody else's borrowed phase lies on top.
    """

    __slots__ = ("_over", "_stack", "_tracker")

    def __init__(self, tracker: PhaseTracker) -> None:
        self._tracker = tracker
        self._stack: list[tuple[object, int, Restore]] = []
        self._over: set[object] = set()

    def begin(self, phase: Phase, key: object = None) -> object:
        """A wait begins.

        Args:
            phase: The phase it is.
            key: What `end` will be told; by default one that is made for it.

        Returns:
            The key.
        """
        key = object() if key is None else key
        restore = self._tracker.enter_transient(phase)
        self._stack.append((key, self._tracker.depth, restore))
        return key

    def end(self, key: object) -> None:
        """A wait is over. One that is not known is nothing to end."""
        if any(key == known for known, _, _ in self._stack):
            self._over.add(key)
        while self._stack:
            key, depth, restore = self._stack[-1]
            if key not in self._over or self._tracker.depth != depth:
                return
            self._stack.pop()
            self._over.discard(key)
            restore()

    def close(self) -> None:
        """All waits are over: nobody will say so of those whose framework tells no errors."""
        for key, _, _ in tuple(self._stack):
            self.end(key)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A wait for the time of a block."""
        key = self.begin(phase)
        try:
            yield
        finally:
            self.end(key)


def waits_of(turn: Turn) -> Waits:
    """The waits of a turn, one for all the integrations it is given to."""
    known = _waits.get(turn)
    if known is None:
        known = _waits[turn] = Waits(turn.tracker)
        turn.tracker._at_end.append(known.close)
    return known


_waits: WeakKeyDictionary[Turn, Waits] = WeakKeyDictionary()


class Clocks:
    """The clocks of a turn, or those of limits alone, for whatever a framework streams.

    Args:
        watch: A turn; or limits, for streams alone; None for the limits there are by default.
        on_event: A callable, or a list of them, for the events of the streams.
    """

    __slots__ = ("_limits", "_on_event", "_waits", "turn")

    def __init__(self, watch: Turn | Limits | None, on_event: OnEvent = None) -> None:
        if watch is not None and not isinstance(watch, (Turn, Limits)):
            raise TypeError(f"this takes a Turn or Limits, not {type(watch).__name__}")
        self.turn = watch if isinstance(watch, Turn) else None
        self._limits = watch if isinstance(watch, Limits) else Limits()
        self._on_event = on_event
        self._waits = None if self.turn is None else waits_of(self.turn)

    def stream(
        self,
        stream: Any,
        *,
        name: str | None = None,
        translate: Callable[[Any], Any] | None = None,
        over_when: Callable[[StreamGuard[Any]], object] | None = None,
    ) -> StreamGuard[Any]:
        """Guard a stream.

        Args:
            stream: The stream, or its manager.
            name: Shown in events and causes.
            translate: Gives the chunk of a known kind that stands for one of the stream's.
            over_when: Whether the end has come, for a stream that shows no chunk for it.
        """
        guarded = self._guard(stream, name)
        is_over = None if over_when is None else partial(over_when, guarded)
        guarded._transcript.adapt(translate=translate, is_over=is_over)
        return guarded

    def _guard(self, stream: Any, name: str | None) -> StreamGuard[Any]:
        if self.turn is not None:
            return self.turn.stream(stream, name=name, on_event=self._on_event)
        return StreamGuard(
            stream,
            self._limits.stream(),
            sink=EventSink(self._on_event),
            transcript=Transcript(),
            name=name,
            close_grace=self._limits.close_grace,
            observe_only=self._limits.observe_only,
        )

    def begin(self, phase: Phase, key: object = None) -> object:
        """As `Waits.begin`; without a turn there is no phase to be in."""
        return None if self._waits is None else self._waits.begin(phase, key)

    def end(self, key: object) -> None:
        """As `Waits.end`."""
        if self._waits is not None:
            self._waits.end(key)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """As `Waits.phase`."""
        if self._waits is None:
            yield
        else:
            with self._waits.phase(phase):
                yield
