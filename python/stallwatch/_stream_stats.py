"""What a guard measured about its stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """A snapshot of `guard.stats`. Times are seconds; moments are on `time.monotonic()`.

    A chunk that needed no waiting costs no clock reading: it counts as having come when the wait
    before it ended. Gaps and moments are exact for every chunk that was waited for.

    Attributes:
        chunks: Chunks received.
        progress_chunks: Those of them that counted as progress.
        time_to_first_chunk: From the first pull to the first progress; None before it.
        largest_gap: The longest wait after the first chunk, consumer's time left out.
        elapsed: From the first pull to the end, or until now; 0 before the first pull.
        last_chunk: Seconds from the last chunk or sign of life to the end, or until now; None
            before the first.
        last_progress: Likewise from the last progress.
        terminal: Whether the provider's own end (or error) event was seen.
        ended: Whether the stream is over, in whatever way.
        text: Number of characters of text received so far.
    """

    __module__ = "stallwatch"

    chunks: int = 0
    progress_chunks: int = 0
    time_to_first_chunk: float | None = None
    largest_gap: float = 0.0
    elapsed: float = 0.0
    last_chunk: float | None = None
    last_progress: float | None = None
    terminal: bool = False
    ended: bool = False
    text: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain value."""
        return asdict(self)
