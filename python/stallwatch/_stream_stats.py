"""What a guard measured about its stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from stallwatch._stallwatch import gap_edges
from stallwatch._suggestion import HEADROOM, Suggestion, suggestion_of

_EDGES: Final = tuple(gap_edges())


@dataclass(frozen=True, slots=True)
class Gaps:
    """How long the silences of streams were, in seconds.

    A gap is a silence that has ended: the time a pull waited between two signs of life, after the
    first progress. The wait before that is not one, nor is what follows the terminal chunk, nor a
    silence in which the stream was cut, closed or left. A chunk that needed no waiting makes none.

    Attributes:
        buckets: How many gaps are of which length. A bucket is an eighth as wide as the lengths in
            it, so that quantiles are at most 12.5 % too high (0.13 ms below a millisecond). In a
            blocking stream every pull is a wait, however short.
        max: The longest, exactly.
    """

    __module__ = "stallwatch"

    buckets: tuple[int, ...] = ()
    max: float = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.buckets)

    @property
    def p50(self) -> float:
        """What half of them were no longer than; 0 if there were none."""
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        """What 99 of 100 were no longer than; 0 if there were none."""
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """An upper bound of the q-quantile in seconds, never above `max`; 0 if there were none.

        Args:
            q: Between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must lie between 0 and 1, not {q!r}")
        seen, total = 0, self.count
        for edge, count in zip(_EDGES[:-1], self.buckets, strict=False):
            seen += count
            if seen and seen >= q * total:
                return min(edge, self.max)
        return self.max

    def __repr__(self) -> str:
        times = f"p50={self.p50:.4g}, p99={self.p99:.4g}, max={self.max:.4g}"
        return f"Gaps(count={self.count}, {times})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """A snapshot of `guard.stats`. Times are seconds; moments are on `time.monotonic()`.

    A chunk that needed no waiting costs no clock reading: it counts as having come when the wait
    before it ended. Gaps and moments are exact for every chunk that was waited for.

    Attributes:
        chunks: Chunks received.
        progress_chunks: Those of them that counted as progress.
        time_to_first_chunk: From the first pull to the first progress; None before it.
        first_wait: The part of it that was spent waiting, as `first_chunk` counts it; None before
            the first progress.
        largest_gap: The longest silence after the first progress, consumer's time left out; the one
            in which it was cut is one too.
        gaps: All silences that have ended, by length.
        largest_progress_gap: The longest wait from one progress to the next (or from the last to
            the end), as `progress_idle` counts it.
        elapsed: From the first pull to the end, or until now; 0 before the first pull.
        last_chunk: Seconds from the last chunk or sign of life to the end, or until now; None
            before the first.
        last_progress: Likewise from the last progress.
        terminal: Whether the provider's own end (or error) event was seen.
        ended: Whether the stream is over, in whatever way.
        whole: Whether it ended with its terminal event, or the source ended by itself.
        stalls: How often a clock fired, or would have fired with `observe_only`.
        text: Number of characters of text received so far.
        streams: How many streams these are the numbers of: see `merge`.
    """

    __module__ = "stallwatch"

    chunks: int = 0
    progress_chunks: int = 0
    time_to_first_chunk: float | None = None
    first_wait: float | None = None
    largest_gap: float = 0.0
    gaps: Gaps = field(default_factory=Gaps)
    largest_progress_gap: float = 0.0
    elapsed: float = 0.0
    last_chunk: float | None = None
    last_progress: float | None = None
    terminal: bool = False
    ended: bool = False
    whole: bool = False
    stalls: int = 0
    text: int = 0
    streams: int = 1
    longest_whole: float | None = None

    @property
    def progress_share(self) -> float | None:
        """The share of chunks that counted as progress, between 0 and 1; None without chunks."""
        return self.progress_chunks / self.chunks if self.chunks else None

    def suggest(self, *, headroom: float = HEADROOM) -> Suggestion:
        """The limits that would have been safe for what was seen, times a headroom.

        No clock of a guard with these limits would have fired on what these streams delivered. One
        stream says little about the next: merge the statistics of many, under load, first. A
        silence that nobody has seen end (cut, cancelled, left) says nothing about a limit.

        Args:
            headroom: What the longest waits are multiplied with, 1 or more. By default 2: nobody
                has seen the slowest answer yet.

        Raises:
            ValueError: for a headroom below 1, or one that is not finite.
        """
        return suggestion_of(
            headroom=headroom,
            streams=self.streams,
            stalls=self.stalls,
            first=self.first_wait,
            gap=self.gaps.max if self.gaps.count else None,
            progress=self.largest_progress_gap if self.progress_chunks else None,
            whole=self.longest_whole,
        )

    @staticmethod
    def merge(stats: Iterable[StreamStats]) -> StreamStats:
        """The statistics of several streams as one, to suggest limits that are safe for all.

        Counts are summed up, times are the longest of any stream, ages (`last_chunk`,
        `last_progress`) the shortest; `terminal`, `ended` and `whole` hold if they do for each.

        Raises:
            ValueError: if there are none.
        """
        every = list(stats)
        if not every:
            raise ValueError("merge() needs the statistics of at least one stream")
        width = max(len(one.gaps.buckets) for one in every)
        buckets = [0] * width
        for one in every:
            for place, count in enumerate(one.gaps.buckets):
                buckets[place] += count
        return StreamStats(
            chunks=sum(one.chunks for one in every),
            progress_chunks=sum(one.progress_chunks for one in every),
            time_to_first_chunk=_longest(one.time_to_first_chunk for one in every),
            first_wait=_longest(one.first_wait for one in every),
            largest_gap=max(one.largest_gap for one in every),
            gaps=Gaps(tuple(buckets), max(one.gaps.max for one in every)),
            largest_progress_gap=max(one.largest_progress_gap for one in every),
            elapsed=max(one.elapsed for one in every),
            last_chunk=min((x.last_chunk for x in every if x.last_chunk is not None), default=None),
            last_progress=min(
                (x.last_progress for x in every if x.last_progress is not None), default=None
            ),
            terminal=all(one.terminal for one in every),
            ended=all(one.ended for one in every),
            whole=all(one.whole for one in every),
            stalls=sum(one.stalls for one in every),
            text=sum(one.text for one in every),
            streams=sum(one.streams for one in every),
            longest_whole=_longest(one.longest_whole for one in every),
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain value, with the shares and quantiles."""
        plain = asdict(self)
        gaps = self.gaps
        plain["gaps"] = {
            "count": gaps.count,
            "p50": gaps.p50,
            "p99": gaps.p99,
            "max": gaps.max,
            "buckets": list(gaps.buckets),
        }
        plain["progress_share"] = self.progress_share
        return plain


def _longest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)
