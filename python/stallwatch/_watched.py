"""What asynchronous and blocking guards have in common: all but the waiting and the cutting.

The state and the clocks are native (`_stallwatch.PullBase`, `src/core/stream.rs`); here verdicts
become events and causes. A guard class derives from `Watched` and from one of the native pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from stallwatch._causes import (
    FirstChunkError,
    StallError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._events import (
    FirstChunk,
    ObserverStalled,
    StreamSlow,
    StreamStalled,
    StreamTruncated,
)
from stallwatch._limits import StreamLimits
from stallwatch._sink import EventSink
from stallwatch._stallwatch import PullBase, frozen_until
from stallwatch._stream_stats import Gaps, StreamStats
from stallwatch._suspend import Sleeps
from stallwatch._tap import tap
from stallwatch._text import Transcript

WAIT, WARN, FIRE = range(3)
CLOCKS: Final = ("first_chunk", "idle", "progress_idle", "budget", "linger")
FIRST, BUDGET, LINGER = 0, 3, 4
CAUSES: Final[tuple[type[StallError], ...]] = (
    FirstChunkError,
    StreamIdleError,
    StreamProgressError,
    StreamBudgetError,
)

_LATE: Final = 0.05
"""A fire delivered later than this found the loop blocked: queued data gets `_CHANCE` seconds."""

_CHANCE: Final = 0.05


class Verdict:
    """A clock that has run out, and where: what comes after that may be somewhere else."""

    __slots__ = ("clock", "lateness", "limit", "measured", "where")

    def __init__(self, clock: int, measured: float, limit: float) -> None:
        self.clock = clock
        self.measured = measured
        self.limit = limit
        self.lateness = max(0.0, measured - limit)
        self.where: Mapping[str, Any] = {}


def pull_arguments(limits: StreamLimits) -> tuple[float | None, ...]:
    """What the native half is made of."""
    warn, idle, progress = limits.warn, limits.idle, limits.progress_idle
    return (
        limits.first_chunk,
        idle,
        None if warn is None or idle is None else warn * idle,
        progress,
        None if warn is None or progress is None else warn * progress,
        limits.budget,
    )


if TYPE_CHECKING:
    _Native = PullBase
else:
    # The native half comes from the other base, `Pull` or `SyncPull`.
    _Native = object


class Watched(_Native):
    """A stream with clocks, whichever way it is waited for."""

    def _watch(
        self,
        stream: Any,
        limits: StreamLimits,
        *,
        sink: EventSink,
        transcript: Transcript,
        name: str | None,
        close_grace: float | None,
        observe_only: bool,
        context: Callable[[], Mapping[str, Any]] | None,
        sleeps: Sleeps | None,
    ) -> None:
        self._stream = stream
        self._limits = limits
        self._sink = sink
        self._transcript = transcript
        self._name = name
        self._close_grace = close_grace
        self._observe_only = observe_only
        self._context = context
        self._sleeps = Sleeps(sink) if sleeps is None else sleeps
        self._awake = 0.0
        self._doom: Verdict | None = None
        self._cause: StallError | None = None
        self._closed = False
        self._ended_by_source = False
        self._given_chance = False
        self._ended_at: float | None = None
        self._untap: Callable[[], None] | None = None
        self._stalls = 0
        self._entering = 0.0

    # --- what users see ---

    @property
    def stats(self) -> StreamStats:
        """What was measured so far."""
        (chunks, progress, started, first, heard, progressed, gap, _, _, now) = self._numbers()
        first_wait, between, longest, buckets = self._seen()
        end = now if self._ended_at is None else self._ended_at
        elapsed = 0.0 if started is None else end - started
        return StreamStats(
            chunks=chunks,
            progress_chunks=progress,
            time_to_first_chunk=None if first is None or started is None else first - started,
            first_wait=None if first is None else max(first_wait, self._entering),
            largest_gap=gap,
            gaps=Gaps(tuple(buckets), longest),
            largest_progress_gap=between,
            elapsed=elapsed,
            last_chunk=since(heard, end),
            last_progress=since(progressed, end),
            terminal=self._terminal,
            ended=self._ended,
            whole=self.is_complete,
            stalls=self._stalls,
            text=len(self.text),
            longest_whole=elapsed if self.is_complete else None,
        )

    @property
    def text(self) -> str:
        """The text received so far."""
        self._transcript.fold(self._take_kept())
        return self._transcript.text

    @property
    def name(self) -> str | None:
        """The name it was given."""
        return self._name

    @property
    def cause(self) -> StallError | None:
        """Why it was cut, if it was."""
        return self._cause

    @property
    def is_complete(self) -> bool:
        """Whether the answer came whole: with its terminal event, or the source ended by itself."""
        if self._terminal or self._transcript.is_over:
            return True
        return self._ended_by_source and not self._transcript.expects_end

    def bound_close(self, seconds: float) -> None:
        """Lowers `close_grace` to what a turn has left."""
        known = self._close_grace
        self._close_grace = max(seconds if known is None else min(known, seconds), 0.0)

    def __getattr__(self, name: str) -> Any:
        # Only for what the guard itself does not have.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        label = "" if self._name is None else f" {self._name!r}"
        state = "ended" if self._ended else "pending" if self._pending else "open"
        return f"<guard{label} {state} of {self._stream!r}>"

    # --- called by the native half ---

    def _classify(self, chunk: object) -> int:
        flags = self._transcript.classify(chunk)
        if self._transcript.is_plain:
            self._set_plain()
        return flags

    def _first(self, now: float) -> None:
        if self._sink.wants(FirstChunk):
            started = self._numbers()[2]
            elapsed = 0.0 if started is None else now - started
            self._sink.emit(FirstChunk(at=now, stream=self._name, elapsed=elapsed))

    def _fold(self, chunks: list[object]) -> None:
        self._transcript.fold(chunks)

    def _on_end(self) -> None:
        if not self._ended:
            self._finish()
            self._ended_by_source = True
            if not self._terminal and self._transcript.expects_end:
                chunks = self._numbers()[0]
                self._sink.emit(StreamTruncated(at=self._now(), stream=self._name, chunks=chunks))

    def _on_error(self, error: BaseException) -> None:
        """The source raised. Its exception is its own business; there is nothing to time now."""

    def _on_due(self, due: float, decided: float, overslept: float) -> None:
        if self._ended:
            return
        if self._cutting:
            self._on_deaf()
            return
        late = self._now() - due
        if slept := self._sleeps.since(self._awake, self._now()):
            # The host slept while it ran: see `_suspend`.
            self._awake += slept
            self._forgive()
            self._rearm()
            return
        what, clock, measured, limit = self._judge()
        unseen = frozen_until() > self._now() - measured and clock != BUDGET
        if overslept or (what == FIRE and unseen):
            # This process did not run for a part of it: nobody can say that the source was silent.
            self._sink.emit(ObserverStalled(at=self._now(), lateness=late, clock=CLOCKS[clock]))
            self._forgive()
            self._rearm()
            return
        if what == FIRE and late > _LATE and not self._given_chance and clock != BUDGET:
            self._given_chance = True
            self._sink.emit(ObserverStalled(at=self._now(), lateness=late, clock=CLOCKS[clock]))
            self._look_again(_CHANCE)
            return
        if what == FIRE:
            self._consider()
            return
        if what == WARN and self._warned(clock):
            self._sink.emit(
                StreamSlow(
                    at=self._now(),
                    stream=self._name,
                    clock=CLOCKS[clock],
                    idle=measured,
                    limit=limit,
                )
            )
        self._given_chance = False
        self._rearm()

    def _only_report(self, verdict: Verdict) -> None:
        """What a guard that only observes does in place of a cut."""
        clock = verdict.clock
        self._switch_off(clock) if clock in (FIRST, BUDGET) else self._overlook()
        if clock != LINGER:
            self._rearm()
            self._report(verdict, would=True)

    # --- carried out by each kind of guard in its own way ---

    if TYPE_CHECKING:

        def _on_deaf(self) -> None:
            """A cut that was asked for has not begun in all this time."""

        def _consider(self) -> None:
            """A clock has run out: gives what is queued its chance, and then cuts."""

    def _report(self, verdict: Verdict, *, would: bool = False) -> Verdict:
        if verdict.clock != LINGER:
            if self._context is not None:
                verdict.where = self._context()
            self._stalls += 1
            numbers = self._numbers()
            self._sink.emit(
                StreamStalled(
                    at=numbers[9],
                    stream=self._name,
                    clock=CLOCKS[verdict.clock],
                    idle=verdict.measured,
                    limit=verdict.limit,
                    since_chunk=since(numbers[4], numbers[9]),
                    since_progress=since(numbers[5], numbers[9]),
                    lateness=verdict.lateness,
                    would_have_fired=would,
                    cause=CAUSES[verdict.clock].kind,
                )
            )
        return verdict

    def _blame(self, verdict: Verdict) -> StallError:
        numbers = self._numbers()
        self._transcript.fold(self._take_kept(), final=True)
        cause = CAUSES[verdict.clock](
            owner="stream",
            name=self._name,
            idle=verdict.measured,
            limit=verdict.limit,
            lateness=verdict.lateness,
            since_chunk=since(numbers[4], numbers[9]),
            since_progress=since(numbers[5], numbers[9]),
            partial=self._transcript.text,
            tool_args=self._transcript.tool_args,
        )
        cause.annotate(**verdict.where)
        self._cause = cause
        return cause

    def _listen(self) -> None:
        """Hears the bytes below the stream as well, where that is an SDK's: see `_tap`."""
        if self._limits.idle is not None:
            self._untap = tap(self._stream, self)

    def _finish(self) -> None:
        if self._ended_at is None:
            self._ended_at = self._now()
        self._end()
        untap, self._untap = self._untap, None
        if untap is not None:
            untap()


def since(moment: float | None, now: float) -> float | None:
    """Seconds from a moment to now, if there was such a moment."""
    return None if moment is None else now - moment
