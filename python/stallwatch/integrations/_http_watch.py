"""The guards of one HTTP exchange: of the wait for the headers, of the bytes, and of the events.

The wait for the headers is a stream of one chunk, the response. The body is a stream of bytes, in
which every byte counts; around that, a body of events is a stream in which only progress counts.
Each of these has a guard of its own, and the names of its clocks are changed to what they time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from stallwatch._events import Event, FirstChunk, UnboundedWait
from stallwatch._sink import EventSink
from stallwatch._stream_guard import StreamGuard
from stallwatch._sync_guard import SyncStreamGuard
from stallwatch._text import Transcript
from stallwatch.integrations._http_limits import HttpLimits
from stallwatch.integrations._http_reading import Bytes, EventBytes, Events, can_read

__all__ = ["Watch"]

_ASKING: Final = "response headers"
_BODY: Final = "response body"
_EVENTS: Final = "event stream"


class _StageSink(EventSink):
    """Passes events on, with the clocks named for what they time here."""

    __slots__ = ("_clocks", "_drop")

    def __init__(
        self, sink: EventSink, clocks: Mapping[str, str], drop: tuple[type[Event], ...] = ()
    ) -> None:
        super().__init__(parent=sink)
        self._clocks = clocks
        self._drop = drop

    def wants(self, event_type: type[Event]) -> bool:
        """As the sink above, but for what is dropped."""
        return not issubclass(event_type, self._drop) and super().wants(event_type)

    def emit(self, event: Event) -> None:
        """Delivers what is not dropped."""
        if isinstance(event, self._drop):
            return
        clock = self._clocks.get(getattr(event, "clock", ""))
        super().emit(event if clock is None else replace(event, clock=clock))  # type: ignore[call-arg]

    __call__ = emit


class Watch:
    """Makes the guards of the exchanges of one transport."""

    def __init__(
        self,
        limits: HttpLimits,
        *,
        sink: EventSink,
        name: str | None,
        close_grace: float | None,
        observe_only: bool,
    ) -> None:
        self.limits = limits
        self.observe_only = observe_only
        self._name = name
        self._close_grace = close_grace
        once: tuple[type[Event], ...] = (FirstChunk, UnboundedWait)
        self._asking = _StageSink(sink, {"first_chunk": "headers"}, once)
        self._events = _StageSink(sink, {}, (UnboundedWait,))
        # A body of events says itself when its first chunk has come.
        clocks = {"first_chunk": "first_byte"}
        bounded = limits.first_byte is not None or limits.budget is not None
        self._body = _StageSink(sink, clocks, (UnboundedWait,) if bounded else ())
        bounded = bounded or limits.first_chunk is not None
        drop = once if bounded else (FirstChunk,)
        self._body_below = _StageSink(sink, clocks, drop)

    # --- asynchronous ---

    def asking(self, source: Any) -> StreamGuard[Any]:
        """Around the wait for the response."""
        return self._guard(source, self.limits.asking, Bytes(), self._asking, _ASKING)

    def body(self, response: Any) -> StreamGuard[bytes]:
        """Around the byte stream of a response."""
        limits, events = self.limits.body, self.limits.events
        if not can_read(response.headers):
            return self._guard(response.stream, limits, Bytes(), self._body, _BODY)
        reading = EventBytes(response.headers)
        sink = self._body if events is None else self._body_below
        inner = self._guard(response.stream, limits, reading, sink, _BODY)
        if events is None:
            return inner
        above = Events(reading, lambda: inner.text)
        return self._guard(inner, events, above, self._events, _EVENTS)

    def _guard(
        self, source: Any, limits: Any, transcript: Transcript, sink: EventSink, owner: str
    ) -> StreamGuard[Any]:
        return StreamGuard(
            source,
            limits,
            sink=sink,
            transcript=transcript,
            name=self._name,
            close_grace=self._close_grace,
            observe_only=self.observe_only,
            context=_owned_by(owner),
        )

    # --- blocking ---

    def asking_sync(self, source: Any, abort: Any) -> SyncStreamGuard[Any]:
        """As `asking`."""
        return self._guard_sync(source, self.limits.asking, Bytes(), self._asking, _ASKING, abort)

    def body_sync(self, response: Any) -> SyncStreamGuard[bytes]:
        """As `body`."""
        limits, events = self.limits.body, self.limits.events
        stream = response.stream
        if not can_read(response.headers):
            return self._guard_sync(stream, limits, Bytes(), self._body, _BODY, response)
        reading = EventBytes(response.headers)
        sink = self._body if events is None else self._body_below
        inner = self._guard_sync(stream, limits, reading, sink, _BODY, response)
        if events is None:
            return inner
        above = Events(reading, lambda: inner.text)
        return self._guard_sync(inner, events, above, self._events, _EVENTS, response)

    def _guard_sync(
        self,
        source: Any,
        limits: Any,
        transcript: Transcript,
        sink: EventSink,
        owner: str,
        abort: Any,
    ) -> SyncStreamGuard[Any]:
        return SyncStreamGuard(
            source,
            limits,
            sink=sink,
            transcript=transcript,
            name=self._name,
            abort=abort,
            observe_only=self.observe_only,
            context=_owned_by(owner),
        )


def _owned_by(owner: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"owner": owner}
