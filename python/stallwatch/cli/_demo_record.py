"""What one scenario of the demo saw: events, chunks, how far each clock was, and its claims."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stallwatch import Event, Limits, Outcome, Phase, Settled, StreamGuard, StreamStats, Turn

CLOCKS = ("first_chunk", "idle", "progress_idle", "hard_idle")
"""The clocks a chart shows, in this order. `hard_idle` is the turn's, the others the stream's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How many seconds the clocks had counted at one moment; None for one that did not run."""

    at: float
    phase: Phase
    clocks: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk, when it came, the answer's text it carried, and what its provider calls it."""

    at: float
    progress: bool
    text: str = ""
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the scenario shows, with its measured numbers, and whether it held."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Said:
    """Something that somebody else did: a user, or the demo itself."""

    who: str
    text: str


@dataclass(slots=True)
class Bare:
    """The same request through the same client, without stallwatch."""

    chunks: list[float] = field(default_factory=list)
    stopped_at: float = 0.0
    hung: bool = False


Note = Event | Chunk | Claim | Said


class Record:
    """Notes of one scenario. Times are seconds since `begin()`.

    Args:
        limits: Those of the turn.
        on_note: Called with the moment and the note, as it comes.
    """

    def __init__(self, limits: Limits, *, on_note: Callable[[float, Note], object]) -> None:
        self.limits = limits
        self.events: list[tuple[float, Event]] = []
        self.chunks: list[Chunk] = []
        self.claims: list[Claim] = []
        self.samples: list[Sample] = []
        self.stats: StreamStats | None = None
        self.bare: Bare | None = None
        self.outcome: Outcome | None = None
        self.started = time.monotonic()
        self._on_note = on_note
        self._turn: Turn | None = None
        self._pulled: float | None = None
        self._pending: float | None = None
        self._without_progress: float | None = None

    def begin(self, turn: Turn) -> None:
        """The turn is about to start."""
        self._turn = turn
        self.started = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def seconds(self) -> float:
        """How long it took, what ran beside the turn included."""
        ends = [at for at, _ in self.events]
        ends += [] if self.bare is None else [self.bare.stopped_at]
        return max(ends, default=0.0)

    @property
    def doing(self) -> str:
        """What is going on, for somebody who waits."""
        if self._turn is None:
            return "starting"
        if self._turn.outcome is not None:
            return "settled" if self.bare is None else "the client without stallwatch waits"
        return str(self._turn.tracker.current().phase)

    def event(self, event: Event) -> None:
        """Notes an event of stallwatch."""
        at = event.at - self.started
        self.events.append((at, event))
        if isinstance(event, Settled):
            self._pending = None
        self._on_note(at, event)

    def of_kind(self, kind: type[Event]) -> list[Any]:
        """The events of one kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def claim(self, text: str, holds: bool) -> None:
        """Notes something the scenario shows."""
        self.claims.append(Claim(text, holds))
        self._on_note(self.now, self.claims[-1])

    def say(self, who: str, text: str) -> None:
        """Notes what somebody else did."""
        self._on_note(self.now, Said(who, text))

    async def read(
        self, stream: StreamGuard[Any], *, each: Callable[[Any], Any] | None = None
    ) -> None:
        """Reads a guarded stream to its end and notes every chunk; `each` may take its time.

        Text and progress are the guard's own findings, so the chart shows what its clocks saw.
        """
        self._pulled = self._pending = pulled = self.now
        self._without_progress = None
        progress = length = 0
        try:
            async with stream:
                async for chunk in stream:
                    now, found, text = self.now, stream.stats.progress_chunks, stream.text
                    if found > progress:
                        self._without_progress = 0.0
                    elif self._without_progress is not None:
                        self._without_progress += now - pulled
                    self._pending = None
                    self.chunks.append(Chunk(now, found > progress, text[length:], _kind_of(chunk)))
                    progress, length = found, len(text)
                    self._on_note(now, self.chunks[-1])
                    if each is not None:
                        await each(chunk)
                    self._pending = pulled = self.now
        finally:
            self._pending, self.stats = None, stream.stats

    def sample(self) -> None:
        """Notes how far the clocks are."""
        if self._turn is None or self._turn.outcome is not None:
            return
        now, state = self.now, self._turn.tracker.current()
        clocks: dict[str, float | None] = dict.fromkeys(CLOCKS)
        if state.phase.idle_counted:
            clocks["hard_idle"] = state.elapsed
        # A stream's clocks run only while the consumer waits for it.
        if self._pending is not None and self._pulled is not None:
            if self._without_progress is None:
                clocks["first_chunk"] = now - self._pulled
            else:
                clocks["idle"] = now - self._pending
                clocks["progress_idle"] = self._without_progress + now - self._pending
        self.samples.append(Sample(now, state.phase, clocks))

    def limit_of(self, clock: str) -> float | None:
        """The limit of a clock by its name in charts and events."""
        limit: float | None = getattr(
            self.limits, "stream_idle" if clock == "idle" else clock, None
        )
        return limit

    def to_dict(self) -> dict[str, Any]:
        """Everything but the samples as plain JSON values."""
        data: dict[str, Any] = {
            "seconds": round(self.seconds, 3),
            "outcome": None if self.outcome is None else self.outcome.to_dict(),
            "events": [{"t": round(at, 4), **event.to_dict()} for at, event in self.events],
            "chunks": [
                {
                    "t": round(one.at, 4),
                    "kind": one.kind,
                    "progress": one.progress,
                    "text": one.text,
                }
                for one in self.chunks
            ],
            "claims": [{"text": one.text, "holds": one.holds} for one in self.claims],
        }
        if self.bare is not None:
            data["without_stallwatch"] = {
                "chunks": [round(at, 4) for at in self.bare.chunks],
                "stopped_at": round(self.bare.stopped_at, 4),
                "hung": self.bare.hung,
            }
        return data


def _kind_of(chunk: Any) -> str | None:
    """The type of an event object, or the name in a raw SSE line; a chat chunk has neither."""
    if isinstance(chunk, str):
        return chunk.removeprefix("event: ") if chunk.startswith("event: ") else None
    kind: str | None = getattr(chunk, "type", None)
    return kind
