"""The chart of a scenario: phases, chunks and clocks over one time axis. A pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stallwatch import HardIdle, Phase, PhaseChanged, StreamStalled
from stallwatch.cli._demo_record import Record, Sample

WIDTH = 80
_GUTTER = 22
_COLUMNS = WIDTH - _GUTTER - 1
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LABEL_ROOM = 9  # columns between two numbers of the axis


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What a chart is drawn with."""

    phase: str
    progress: str
    other: str
    wait: str
    fired: str
    levels: str
    tick: str
    line: str
    yes: str
    no: str


UNICODE = Glyphs("█", "●", "·", "╌", "✗", "▁▂▃▄▅▆▇█", "┬", "─", "✓", "✗")
ASCII = Glyphs("#", "o", ".", "~", "X", "_.:-=+*#", "+", "-", "+", "X")

Paint = Callable[[str, str], str]
"""Paints a text in a style (`_demo_show.STYLES`), or leaves it as it is."""


class Chart:
    """Draws one record, `WIDTH` columns wide."""

    def __init__(self, record: Record, clocks: Iterable[str], *, glyphs: Glyphs, paint: Paint):
        self._record = record
        self._clocks = clocks
        self._glyphs = glyphs
        self._paint = paint
        self._span = max(record.seconds, 0.1) * 1.001

    def lines(self) -> list[str]:
        """All rows, the axis first."""
        return [*self._axis(), *self._phases(), *self._chunks(), *self._clock_rows()]

    def _column(self, at: float) -> int:
        return min(_COLUMNS - 1, max(0, int(at / self._span * _COLUMNS)))

    def _row(self, label: str, cells: list[str]) -> str:
        # Cells may be painted, so they are not counted here.
        return f"  {label:<{_GUTTER - 2}}" + "".join(cells).rstrip()

    def _axis(self) -> list[str]:
        step = next(
            (one for one in _STEPS if one / self._span * _COLUMNS >= _LABEL_ROOM), _STEPS[-1]
        )
        digits = 1 if step < 1 else 0
        numbers, line = [" "] * _COLUMNS, [self._glyphs.line] * _COLUMNS
        count = 0
        while (at := count * step) < self._span:
            column = self._column(at)
            line[column] = self._glyphs.tick
            number = f"{at:.{digits}f}"
            if column + len(number) <= _COLUMNS:
                numbers[column : column + len(number)] = number
            count += 1
        return [
            self._paint(self._row("seconds", numbers), "dim"),
            self._paint(self._row("", line), "dim"),
        ]

    def _by_column(self) -> dict[int, list[Sample]]:
        columns: dict[int, list[Sample]] = {}
        for sample in self._record.samples:
            columns.setdefault(self._column(sample.at), []).append(sample)
        return columns

    def _phases(self) -> list[str]:
        changes = [
            (at, event.phase)
            for at, event in self._record.events
            if isinstance(event, PhaseChanged)
        ]
        found: dict[Phase, list[str]] = {}
        for column in range(_COLUMNS):
            # The phase in the middle of the column: one that took no time takes no row.
            middle = (column + 0.5) * self._span / _COLUMNS
            before = [phase for at, phase in changes if at <= middle]
            if before and middle <= self._end:
                phase = before[-1]
                cell = self._paint(self._glyphs.phase, f"phase{phase.value}")
                found.setdefault(phase, [" "] * _COLUMNS)[column] = cell
        return [self._row(str(phase), cells) for phase, cells in found.items()]

    @property
    def _end(self) -> float:
        """When the turn settled."""
        return max((at for at, _ in self._record.events), default=0.0)

    def _chunks(self) -> list[str]:
        rows = []
        if self._record.chunks:
            cells = [" "] * _COLUMNS
            for chunk in self._record.chunks:
                column = self._column(chunk.at)
                if chunk.progress or cells[column] == " ":
                    cells[column] = (
                        self._paint(self._glyphs.progress, "good")
                        if chunk.progress
                        else self._glyphs.other
                    )
            rows.append(self._row("chunks", cells))
        bare = self._record.bare
        if bare is not None:
            cells = [" "] * _COLUMNS
            for column in range(self._column(bare.stopped_at) + 1):
                cells[column] = self._paint(self._glyphs.wait, "dim")
            for at in bare.chunks:
                cells[self._column(at)] = self._paint(self._glyphs.progress, "good")
            rows.append(self._row("no stallwatch", cells))
        return rows

    def _clock_rows(self) -> list[str]:
        rows, columns = [], self._by_column()
        fired = dict(_fired(self._record))
        for clock in self._clocks:
            limit = self._record.limit_of(clock)
            if limit is None:
                continue
            cells, level = [" "] * _COLUMNS, " "
            for column in range(self._column(self._end) + 1):
                values = [sample.clocks[clock] for sample in columns.get(column, ())]
                if values:
                    running = [value for value in values if value is not None]
                    level = self._level(max(running) / limit) if running else " "
                cells[column] = level
            if clock in fired:
                column = self._column(fired[clock])
                cells[column:] = [self._paint(self._glyphs.fired, "bad")]
            rows.append(self._row(f"{clock} {limit:g} s", cells))
        return rows

    def _level(self, share: float) -> str:
        levels = self._glyphs.levels
        level = levels[min(len(levels) - 1, int(share * len(levels)))]
        return self._paint(level, "calm" if share < 0.5 else "warn")


def _fired(record: Record) -> Iterable[tuple[str, float]]:
    for at, event in record.events:
        if isinstance(event, StreamStalled):
            yield event.clock, at
        elif isinstance(event, HardIdle):
            yield "hard_idle", at
