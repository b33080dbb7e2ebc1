"""What the demo writes: a line for each event as it comes, the charts, the summary."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Sequence
from typing import TextIO

from stallwatch import (
    Event,
    FirstChunk,
    HardIdle,
    PhaseChanged,
    Settled,
    SoftIdle,
    StreamSlow,
    StreamStalled,
)
from stallwatch.cli._demo_chart import ASCII, UNICODE, WIDTH, Chart
from stallwatch.cli._demo_judge import verdict
from stallwatch.cli._demo_record import Chunk, Claim, Note, Record, Said
from stallwatch.cli._demo_scenes import Scene

STYLES = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "bad": "1;31",
    "warn": "33",
    "calm": "36",
    "phase0": "2",
    "phase2": "94",
    "phase4": "35",
    "phase5": "36",
    "phase6": "32",
}
_WORD = 13
_INDENT = 11 + _WORD  # "  12.34 s  " and the word
_TICK = 0.1
_PAUSE = 0.15  # seconds of silence that end a run of chunks


class Screen:
    """Writes to a terminal or a file, `WIDTH` columns wide.

    Escape codes only go to a terminal, and only without `NO_COLOR`; so does the line that counts
    the seconds. Where the encoding has no block characters, ASCII stands in.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._colour = self._live and not plain
        self.glyphs = UNICODE if _can_write(out, "".join(UNICODE.levels)) else ASCII
        self.reader_left = False
        self._waiting = False
        self._run: list[Chunk] = []

    def paint(self, text: str, style: str) -> str:
        """The text in a style, if this is the place for it."""
        code = STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text else text

    def line(self, text: str = "", style: str = "") -> None:
        """One line, at once: whoever reads a pipe wants to see it come as well."""
        try:
            self.clear()
            print(self.paint(text, style), file=self._out, flush=True)
        except BrokenPipeError:
            # Noted only: this may be deep inside a turn, where it is nobody's business.
            self.reader_left = True

    def clear(self) -> None:
        """Takes the line that counts the seconds away."""
        if self._waiting:
            self._waiting = False
            self._out.write("\r" + " " * (WIDTH - 1) + "\r")

    async def count(self, record: Record) -> None:
        """Shows, in a terminal, what is going on while nothing happens."""
        while self._live:
            tail = "".join(chunk.text for chunk in self._run)[-40:]
            text = f"  {record.now:5.2f} s  {record.doing} ... {tail}"
            self._out.write("\r" + self.paint(text.ljust(WIDTH - 1), "dim"))
            self._out.flush()
            self._waiting = True
            await asyncio.sleep(_TICK)

    # --- before, while and after a scenario ---

    def intro(self, scenes: Sequence[Scene]) -> None:
        """What is about to be seen, and how to read it."""
        one, glyphs = self.paint, self.glyphs
        clock = one(glyphs.levels[:4], "calm") + one(glyphs.levels[4:], "warn")
        self.line(
            f"stallwatch demo: {len(scenes)} scenario{'s' * (len(scenes) != 1)}, the real SDKs, "
            "a misbehaving server on loopback"
        )
        self.line(
            f"{one(glyphs.progress, 'good')} chunk with progress   {glyphs.other} other chunk   "
            f"{clock} a clock filling up   {one(glyphs.fired, 'bad')} fired"
        )

    def heading(self, number: int, total: int, scene: Scene) -> None:
        """The head of a scenario."""
        self.line()
        head = f"[{number}/{total}] {scene.name}: {scene.title}"
        self.line(f"{head} {self.glyphs.line * (WIDTH - 2 - len(head))}", "bold")
        for text in textwrap.wrap(scene.says, WIDTH - 3):
            self.line(f"  {text}")
        self.line()

    def note(self, at: float, note: Note) -> None:
        """An event or chunk, as it comes; chunks wait for their like, claims for the chart."""
        if isinstance(note, Chunk):
            if self._run and at - self._run[-1].at > _PAUSE:
                self._flush()
            self._run.append(note)
            return
        self._flush()
        if isinstance(note, Said):
            self._moment(at, note.who, note.text, "bold")
        elif not isinstance(note, Claim):
            self._moment(at, *describe(note))

    def result(self, scene: Scene, record: Record, problems: Sequence[str]) -> None:
        """The chart of a scenario that is over, what it shows, and how it ended."""
        self._flush()
        if record.events:
            self.line()
            for text in Chart(record, scene.clocks, glyphs=self.glyphs, paint=self.paint).lines():
                self.line(text)
            self.line()
        outcome = record.outcome
        if outcome is not None:
            kept = f'"{outcome.text}"' if outcome.text else f"none: {outcome.placeholder}"
            self._labelled("kept text", kept)
            if outcome.cause is not None:
                kind = outcome.cause.kind
                said = getattr(outcome.cause, "reason", None) or str(outcome.cause)
                self._labelled("cause", f"{kind}: {said}")
            self._labelled(
                "outcome",
                f"{outcome.status} in phase {outcome.phase} after {outcome.elapsed:.2f} s",
                "good" if not problems else "bad",
            )
        for claim in record.claims:
            self._checked(claim.text, claim.holds)
        for problem in problems:
            if not problem.startswith("does not hold"):
                self._checked(problem, False)

    def summary(self, rows: Sequence[tuple[Scene, Record, Sequence[str]]]) -> None:
        """One row a scenario: what had to come, what came, and how long it took."""
        self.line()
        self.line(f"  {'scenario':<12}{'expected':<27}{'got':<27}{'seconds':>7}", "bold")
        for scene, record, problems in rows:
            outcome = record.outcome
            kind = None if outcome is None or outcome.cause is None else outcome.cause.kind
            got = "nothing" if outcome is None else verdict(outcome.status, kind)
            mark = self.paint(*((self.glyphs.no, "bad") if problems else (self.glyphs.yes, "good")))
            self.line(
                f"{mark} {scene.name:<12}{scene.expected!s:<27}{got:<27}{record.seconds:>7.2f}"
            )

    # --- pieces ---

    def _flush(self) -> None:
        """Writes the run of chunks that has come to its end."""
        run, self._run = self._run, []
        if not run:
            return
        text, progress = "".join(one.text for one in run), sum(one.progress for one in run)
        said = f"{len(run)} chunk{'s' * (len(run) != 1)}"
        if not progress:
            kinds = list(dict.fromkeys(one.kind for one in run if one.kind))
            said += " without progress" + (f": {', '.join(kinds)}" if kinds else "")
        elif not text:
            said += f", {progress} with progress (reasoning, tool arguments)"
        self._moment(run[0].at, "text" if text else "chunks", f'"{text}"' if text else said, "")

    def _moment(self, at: float, word: str, text: str, style: str) -> None:
        first, *rest = textwrap.wrap(text, WIDTH - 1 - _INDENT) or [""]
        when = self.paint(f"  {at:5.2f} s  ", "dim")
        self.line(f"{when}{self.paint(f'{word:<{_WORD}}', style)}{first}")
        for more in rest:
            self.line(" " * _INDENT + more)

    def _labelled(self, label: str, text: str, style: str = "") -> None:
        first, *rest = textwrap.wrap(text, WIDTH - 15) or [""]
        self.line(f"  {label:<11} {self.paint(first, style)}")
        for more in rest:
            self.line(" " * 14 + self.paint(more, style))

    def _checked(self, text: str, holds: bool) -> None:
        mark, style = (self.glyphs.yes, "good") if holds else (self.glyphs.no, "bad")
        first, *rest = textwrap.wrap(text, WIDTH - 5) or [""]
        self.line(f"  {self.paint(mark, style)} {first}")
        for more in rest:
            self.line(f"    {more}")


def describe(event: Event) -> tuple[str, str, str]:
    """An event as a word, a text and a style."""
    match event:
        case PhaseChanged():
            return "phase", f"{event.previous} -> {event.phase}", f"phase{int(event.phase)}"
        case FirstChunk():
            return "first chunk", f"with progress, {event.elapsed:.2f} s after the first pull", ""
        case StreamSlow():
            text = f"{event.clock} at {event.idle:.2f} of {event.limit:g} s; nothing is touched"
            return "slow", text, "warn"
        case SoftIdle():
            text = f"{event.phase} for {event.idle:.2f} s; only reported, nothing is cut"
            return "soft idle", text, "warn"
        case StreamStalled():
            return "stalled", f"{event.clock} reached {event.limit:g} s: {event.cause}", "bad"
        case HardIdle():
            return "hard idle", f"{event.phase} reached {event.limit:g} s: the turn is cut", "bad"
        case Settled():
            return "settled", verdict(event.status, event.cause), "bold"
        case _:
            fields = event.to_dict()
            text = ", ".join(
                f"{key} {value}"
                for key, value in fields.items()
                if key not in ("event", "at", "turn")
            )
            return event.event, text, "warn"


def _can_write(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
