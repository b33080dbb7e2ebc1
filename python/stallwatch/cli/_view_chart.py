"""The drawing of a stored turn: phases, spans, chunks, warnings and the cause over one time axis.

A pure function from plain values to inline SVG. All colours are classes of the page's style.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from stallwatch.cli._stored import clean, seconds

WIDTH = 1000
_GUTTER = 150
_RIGHT = 14
_ROOM = WIDTH - _GUTTER - _RIGHT
_AXIS = 28
_LANE = 30
_BAR = 20
_MOST_LANES = 40
_LABEL = 21  # characters that fit the gutter
_CHARACTER = 6.6  # pixels, about
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_TICKS = 10

FIRED = {
    "hard_idle": ("hard_idle",),
    "stream_stalled": ("first_chunk", "stream_idle", "stream_progress", "stream_budget"),
    "budget_exceeded": ("turn_budget", "tool_deadline"),
    "child_idle": ("child_idle",),
}
"""Events of a clock that cut something, and the causes that they announce."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is to be drawn.

    Attributes:
        seconds: How long the axis is.
        phases: As in `Timeline.to_dict()`; so are the next two.
        spans: Streams and tools.
        marks: Other events.
        fired: When the cause arose, or None.
        idle: The silence that it measured.
        cause: Its kind.
        end: What the end of the axis is called: a status.
    """

    seconds: float
    phases: list[Mapping[str, Any]]
    spans: list[Mapping[str, Any]]
    marks: list[Mapping[str, Any]]
    fired: float | None
    idle: float | None
    cause: str | None
    end: str


def draw(picture: Picture) -> str:
    """The SVG."""
    return "\n".join(_Chart(picture).lines())


class _Chart:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._span = max(picture.seconds, 0.001)
        lanes = list(_lanes(picture.spans))
        self._lanes, self._more = lanes[:_MOST_LANES], len(lanes[_MOST_LANES:])
        self._rows = 1 + len(self._lanes) + 1
        self._bottom = _AXIS + self._rows * _LANE

    def lines(self) -> Iterator[str]:
        picture = self._picture
        what = f"{picture.end} after {seconds(picture.seconds)}"
        yield (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {self._bottom + 20}" role="img" '
            f'aria-label="{_text(what)}">'
        )
        yield (
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/>'
            "</pattern></defs>"
        )
        yield from self._axis()
        yield from self._phases()
        for number, (label, spans) in enumerate(self._lanes, 1):
            yield self._label(number, label)
            for one in spans:
                yield from self._one(number, one)
        yield from self._silence()
        yield from self._marks()
        yield from self._cause()
        yield "</svg>"
        if self._more:
            yield f'<p class="dim">{self._more} more rows of spans are not drawn.</p>'

    # --- places ---

    def _x(self, at: float) -> float:
        return round(_GUTTER + min(max(at / self._span, 0.0), 1.0) * _ROOM, 2)

    def _y(self, row: int) -> float:
        return _AXIS + row * _LANE + (_LANE - _BAR) / 2

    def _until(self, one: Mapping[str, Any]) -> float:
        end = one.get("to")
        return self._span if end is None else float(end)

    def _label(self, row: int, text: str) -> str:
        short = text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"
        return (
            f'<text class="label" x="{_GUTTER - 10}" y="{self._y(row) + 14}">{_text(short)}'
            f"<title>{_text(text)}</title></text>"
        )

    # --- rows ---

    def _axis(self) -> Iterator[str]:
        step = next((one for one in _STEPS if self._span / one <= _TICKS), None)
        if step is None:
            step = _STEPS[-1] * max(1.0, self._span // (_STEPS[-1] * _TICKS) + 1)
        for number in range(int(self._span / step + 1e-9) + 1):
            x = self._x(number * step)
            yield f'<line class="grid" x1="{x}" y1="{_AXIS - 4}" x2="{x}" y2="{self._bottom}"/>'
            yield f'<text class="tick" x="{x}" y="{_AXIS - 10}">{_time(number * step)}</text>'

    def _phases(self) -> Iterator[str]:
        yield self._label(0, "phase")
        for one in self._picture.phases:
            begin, end = float(one["from"]), self._until(one)
            name = str(one["phase"])
            x, width = self._x(begin), self._x(end) - self._x(begin)
            yield (
                f'<g class="phase {word(name)}"><title>{_text(name)}: {_time(begin)} to '
                f"{_time(end)}, {seconds(end - begin)}</title>"
                f'<rect x="{x}" y="{self._y(0)}" width="{_wide(width)}" height="{_BAR}"/>'
            )
            if len(name) * _CHARACTER < width - 8:
                yield f'<text x="{x + 5}" y="{self._y(0) + 14}">{_text(name)}</text>'
            yield "</g>"

    def _one(self, row: int, one: Mapping[str, Any]) -> Iterator[str]:
        begin, end = float(one["from"]), self._until(one)
        x, width, y = self._x(begin), self._x(end) - self._x(begin), self._y(row)
        tool = one.get("kind") == "tool"
        state = str(one.get("state") or "running") if tool else ""
        said = f"{_said(one)}: {_time(begin)} to {_time(end)}, {seconds(end - begin)}"
        if tool:
            said += f", {state}"
        elif one.get("chunks") is not None:
            said += f", {one['chunks']} chunks, {one.get('progress')} with progress"
        yield f'<g class="{word(str(one.get("kind")))} {word(state)}">'
        yield f"<title>{_text(said)}</title>"
        yield f'<rect class="bar" x="{x}" y="{y}" width="{_wide(width)}" height="{_BAR}" rx="3"/>'
        if tool and len(state) * _CHARACTER < width - 8:
            yield f'<text x="{x + 5}" y="{y + 14}">{_text(state)}</text>'
        yield from self._chunks(row, one.get("bins") or ())
        first = one.get("first")
        if first is not None:
            at = self._x(float(first))
            yield (
                f'<path class="first" d="M{at} {y - 3}l4 -5h-8z"><title>first progress at '
                f"{_time(float(first))}</title></path>"
            )
        yield "</g>"

    def _chunks(self, row: int, bins: Iterable[Any]) -> Iterator[str]:
        """Bars as high as chunks came fast, the fastest of this stream as high as the row."""
        rates = [
            (float(a), float(b), int(n), int(p), n / max(b - a, self._span / 500))
            for a, b, n, p in bins
        ]
        top = max((rate for *_, rate in rates), default=0.0)
        for begin, end, count, progress, rate in rates:
            x = self._x(begin)
            width = _wide(self._x(end) - x)
            height = round(3 + (_BAR - 5) * rate / top, 2)
            kind = "progress" if progress else "other"
            yield (
                f'<rect class="chunks {kind}" x="{x}" y="{self._y(row) + _BAR - 1 - height}" '
                f'width="{width}" height="{height}"><title>{count} chunks, {progress} with '
                f"progress, {_time(begin)} to {_time(end)}</title></rect>"
            )

    def _silence(self) -> Iterator[str]:
        """The time that the clock counted, across all rows."""
        fired, idle = self._picture.fired, self._picture.idle
        if fired is None or not idle:
            return
        begin = max(0.0, fired - idle)
        x, top = self._x(begin), self._y(0) + _BAR + 2
        yield (
            f'<rect class="silence" x="{x}" y="{top}" width="{_wide(self._x(fired) - x)}" '
            f'height="{self._bottom - top}" fill="url(#hatch)"><title>{seconds(idle)} counted by '
            f"the clock that fired</title></rect>"
        )

    def _marks(self) -> Iterator[str]:
        row = self._rows - 1
        yield self._label(row, "events")
        for one in self._picture.marks:
            at = float(one["at"])
            name = str(one.get("event"))
            kind = "fired" if name in FIRED and not one.get("would_have_fired") else "mark"
            kind = "end" if name == "settled" else kind
            yield (
                f'<circle class="{kind}" cx="{self._x(at)}" cy="{self._y(row) + _BAR / 2}" r="4.5">'
                f"<title>{_time(at)} {_text(name)}</title></circle>"
            )

    def _cause(self) -> Iterator[str]:
        fired, cause = self._picture.fired, self._picture.cause
        if fired is None:
            return
        x = self._x(fired)
        yield f'<line class="cause" x1="{x}" y1="{_AXIS - 4}" x2="{x}" y2="{self._bottom + 14}"/>'
        if cause:
            left = x > WIDTH / 2
            yield (
                f'<text class="cause" x="{x - 6 if left else x + 6}" y="{self._bottom + 14}" '
                f'text-anchor="{"end" if left else "start"}">{_text(cause)}</text>'
            )


def _lanes(
    spans: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Spans of one name, one row if none began before another ended."""
    rows: list[tuple[str, list[Mapping[str, Any]]]] = []
    free: dict[str, list[tuple[float, int]]] = {}
    for one in spans:
        label = _said(one)
        begin = float(one["from"])
        end = float("inf") if one.get("to") is None else float(one["to"])
        known = free.setdefault(label, [])
        place = next((number for number, (until, _) in enumerate(known) if until <= begin), None)
        if place is None:
            known.append((end, len(rows)))
            rows.append((label, [one]))
        else:
            known[place] = (end, known[place][1])
            rows[known[place][1]][1].append(one)
    yield from rows


def _said(one: Mapping[str, Any]) -> str:
    name = one.get("name")
    return f"{one.get('kind')} {name}" if name else str(one.get("kind"))


def _wide(width: float) -> float:
    """What took no time is seen all the same."""
    return round(max(width, 1.5), 2)


def _time(at: float) -> str:
    """A place on the axis."""
    if at < 120:
        return f"{at:.3f}".rstrip("0").rstrip(".") + " s"
    minutes, rest = divmod(at, 60)
    hours, minutes = divmod(int(minutes), 60)
    tail = f"{rest:02.0f}" if rest == int(rest) else f"{rest:04.1f}"
    return f"{hours}:{minutes:02d}:{tail}" if hours else f"{minutes}:{tail}"


def _text(text: Any) -> str:
    return escape(clean(text))


def word(text: str) -> str:
    """A class name: nothing but letters and hyphens."""
    return "".join(sign if sign.isascii() and sign.isalpha() else "-" for sign in text)
