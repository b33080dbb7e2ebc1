"""What is left of a turn to draw: its phases, spans, chunks and warnings, in bounded memory.

A timeline is told events, as any other listener, and looks at the statistics of streams now and
then: nothing is done for a single chunk. Times in it are seconds from the start of the turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

from stallwatch._events import Event, PhaseChanged, Settled, ToolEnded, ToolStarted
from stallwatch._phases import Phase
from stallwatch._stallwatch import now
from stallwatch._stream_stats import StreamStats

__all__ = ["Timeline"]

SCHEMA: Final = 1
"""Version of `Timeline.to_dict()`."""

MOST: Final = 256
"""Phases, spans and marks that are kept of each: a quarter from the beginning, the others last."""

MOST_BINS: Final = 96
"""Bins that are kept of the chunks of one stream. Past it, two neighbours become one."""

_OFTEN: Final = 0.25
_SHARE: Final = 1 / 64


class _Stream(Protocol):
    @property
    def name(self) -> str | None: ...

    @property
    def stats(self) -> StreamStats: ...


class Timeline:
    """Notes what happens in one turn. Its methods may be called from any thread.

    Args:
        started: When the turn started, on the clock of events; by default now.
    """

    def __init__(self, started: float | None = None) -> None:
        self._started = now() if started is None else started
        # Reentrant: an event may come while memory is collected, in the middle of noting another.
        self._lock = threading.RLock()
        self._last = 0.0
        self._phases = _Ends()
        self._phase: dict[str, Any] = {"phase": str(Phase.INIT), "seq": 0, "from": 0.0, "to": None}
        self._phases.add(self._phase)
        self._spans = _Ends()
        self._marks = _Ends()
        self._tools: list[dict[str, Any]] = []
        self._streams: dict[int, tuple[_Stream, _Chunks]] = {}

    def __call__(self, event: Event) -> None:
        """Notes an event; to be given as `on_event`."""
        at = self._since(event.at)
        with self._lock:
            self._last = max(self._last, at)
            if isinstance(event, PhaseChanged):
                self._phase["to"] = at
                self._phase = {"phase": str(event.phase), "seq": event.seq, "from": at, "to": None}
                self._phases.add(self._phase)
            elif isinstance(event, ToolStarted):
                tool = {"kind": "tool", "name": event.name, "from": at, "to": None, "state": None}
                self._tools.append(tool)
                self._spans.add(tool)
            elif isinstance(event, ToolEnded):
                self._end_tool(event, at)
            else:
                said = event.to_dict()
                for known in ("at", "turn"):
                    del said[known]
                self._marks.add({"at": at, **said})
            if isinstance(event, Settled):
                self._phase["to"] = at

    def sample(self, streams: Iterable[_Stream]) -> None:
        """Looks at streams: what came since the last look becomes one bin of each.

        Args:
            streams: All guarded streams of the turn, the ended ones too; one that is not given any
                more is forgotten, and its span stays.
        """
        here = now()
        with self._lock:
            at, before, self._streams = self._since(here), self._streams, {}
            for stream in streams:
                known = before.get(id(stream))
                if known is None:
                    stats = stream.stats
                    if stats.elapsed <= 0.0 and not stats.chunks and not stats.ended:
                        continue  # nobody has asked for its first chunk yet
                    known = stream, _Chunks(stream.name, at - stats.elapsed)
                    self._spans.add(known[1].span)
                self._streams[id(stream)] = known
                if known[1].span["to"] is None:
                    known[1].look(at, stream.stats)

    @property
    def interval(self) -> float:
        """Seconds until the next look: often at first, and less the longer the turn takes."""
        return max(_OFTEN, self._since(now()) * _SHARE)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        with self._lock:
            settled = self._phase["to"] is not None
            return {
                "schema": SCHEMA,
                "seconds": _short(self._last if settled else max(self._last, self._since(now()))),
                "phases": [_plain(one) for one in self._phases],
                "spans": [_plain(one) for one in self._spans],
                "marks": [_plain(one) for one in self._marks],
                "dropped": {
                    "phases": self._phases.dropped,
                    "spans": self._spans.dropped,
                    "marks": self._marks.dropped,
                },
            }

    def _since(self, at: float) -> float:
        return max(0.0, at - self._started)

    def _end_tool(self, event: ToolEnded, at: float) -> None:
        same = [one for one in self._tools if one["name"] == event.name]
        if not same:
            return
        begun = at - event.elapsed
        tool = min(same, key=lambda one: abs(one["from"] - begun))
        tool["to"], tool["state"] = at, event.state
        self._tools = [one for one in self._tools if one is not tool]


class _Ends:
    """Keeps the first and the last of many, and counts those between."""

    __slots__ = ("_first", "_last", "dropped")

    def __init__(self) -> None:
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=MOST - MOST // 4)
        self.dropped = 0

    def add(self, one: dict[str, Any]) -> None:
        if len(self._first) < MOST // 4:
            self._first.append(one)
            return
        self.dropped += len(self._last) == self._last.maxlen
        self._last.append(one)

    def __iter__(self) -> Any:
        yield from self._first
        yield from self._last


class _Chunks:
    """The span of one stream."""

    __slots__ = ("_chunks", "_progress", "_until", "bins", "span")

    def __init__(self, name: str | None, begun: float) -> None:
        self._chunks = self._progress = 0
        self._until = max(0.0, begun)
        self.bins: list[list[float]] = []
        self.span: dict[str, Any] = {
            "kind": "stream",
            "name": name,
            "from": self._until,
            "to": None,
            "bins": self.bins,
        }

    def look(self, at: float, stats: StreamStats) -> None:
        """Takes what came since the last look. `bins` are [from, to, chunks, progress chunks]."""
        begun = self.span["from"]
        end = begun + stats.elapsed if stats.ended else at
        chunks, progress = stats.chunks - self._chunks, stats.progress_chunks - self._progress
        if chunks > 0:
            # What is known of the bin's edges: nothing came after the last chunk.
            last = end - (stats.last_chunk or 0.0)
            self.bins.append([self._until, max(self._until, last), chunks, max(0, progress)])
            self._chunks, self._progress = stats.chunks, stats.progress_chunks
        self._until = max(self._until, end)
        if len(self.bins) > MOST_BINS:
            self.bins[:] = [
                [one[0], two[1], one[2] + two[2], one[3] + two[3]]
                for one, two in zip(self.bins[::2], self.bins[1::2], strict=False)
            ] + self.bins[len(self.bins) & ~1 :]
        first = stats.time_to_first_chunk
        self.span.update(
            {
                "to": end if stats.ended else None,
                "chunks": stats.chunks,
                "progress": stats.progress_chunks,
                "first": None if first is None else begun + first,
                "largest_gap": stats.largest_gap,
                "last_chunk": None if stats.last_chunk is None else end - stats.last_chunk,
                "last_progress": (
                    None if stats.last_progress is None else end - stats.last_progress
                ),
                "terminal": stats.terminal,
            }
        )


def _plain(one: dict[str, Any]) -> dict[str, Any]:
    return {key: _short(value) for key, value in one.items()}


def _short(value: Any) -> Any:
    """Times to a tenth of a millisecond: nobody sees more of it, and it is half the text."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_short(one) for one in value]
    return value
