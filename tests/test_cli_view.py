"""`stallwatch view`: the page of a turn, read as HTML and looked at in a real browser."""

from __future__ import annotations

import asyncio
import re
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from guard_tools import HANG, on_manual_clock, script
from stallwatch import (
    Failure,
    Limits,
    Outcome,
    Phase,
    SQLiteStore,
    Status,
    StreamIdleError,
    ToolDeadlineError,
    Turn,
    run_turn,
)
from stallwatch._timeline import Timeline
from stallwatch.cli import main
from stallwatch.cli._view_chart import FIRED
from stallwatch.cli._view_page import picture_of
from stallwatch.testing import ManualClock
from store_tools import so_far
from turn_tools import start

NASTY = "</title></pre><script>alert(1)</script><img src=http://x.invalid/a.png onerror=alert(1)>"

VOID = {"meta", "br", "img", "link", "input", "hr", "base"}


class Page(HTMLParser):
    """A page as a browser takes it apart: elements, text, and what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text: dict[str, str] = {}
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def classes(self) -> Counter[str]:
        """How often each class is used in the drawing."""
        words = [str(attrs.get("class") or "").split() for _, attrs in self.found]
        return Counter(word for one in words for word in one)


async def record_a_turn(clock: ManualClock, path: Path, *, name: str = "triage") -> None:
    """A turn with every kind of thing to draw, ended by a silent stream after 141 s."""
    timeline = Timeline()
    turn = Turn(Limits(), name=name, on_event=timeline)

    async def look() -> None:
        while turn.outcome is None:
            timeline.sample(turn._streams)
            await asyncio.sleep(timeline.interval)

    async def work(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async def body(turn: Turn) -> None:
        looking = asyncio.create_task(look())
        turn.enter(Phase.SETUP)
        await asyncio.sleep(1.5)
        with turn.phase(Phase.AWAITING_LLM):
            steps = [part for _ in range(30) for part in (0.1, "tok ")]
            async for _ in turn.stream(script(3.5, *steps), name="plan"):
                pass
        with turn.phase(Phase.EXECUTING_TOOLS):
            await asyncio.gather(turn.tool("bash", work(9)), turn.tool("grep", work(4)))
            with pytest.raises(ToolDeadlineError):
                await turn.tool("fetch", work(50), timeout=6)
        with turn.phase(Phase.AWAITING_APPROVAL):
            await asyncio.sleep(20)
        with turn.phase(Phase.AWAITING_LLM):
            steps = [part for _ in range(40) for part in (0.1, "word ")]
            try:
                async for _ in turn.stream(script(4.0, *steps, HANG), name="answer"):
                    pass
            finally:
                looking.cancel()

    end = start(clock, run_turn(body, turn=turn))
    await clock.advance(200)
    outcome = end.task.result()
    timeline.sample(turn._streams)
    with SQLiteStore(path) as store:
        store.finish("turn-1", outcome, timeline=timeline.to_dict())


def view(path: Path, turn: str = "turn-1") -> str:
    """The page of a turn."""
    output = path.with_name("turn.html")
    assert main(["view", str(path), turn, "-o", str(output)]) == 0
    return output.read_text(encoding="utf-8")


# --- what is on it ---


@on_manual_clock
async def test_all_of_a_turn_is_drawn(clock: ManualClock, tmp_path: Path) -> None:
    """Phases, streams with their chunks, tools, warnings and the cause are there, once each."""
    await record_a_turn(clock, tmp_path / "turns.db")
    page = Page(view(tmp_path / "turns.db"))
    drawing = page.classes()

    assert page.wrong == []
    # Each is in the legend once more; `setup` comes back after each that was borrowed.
    assert drawing["awaiting-llm"] == 2 + 1
    assert drawing["executing-tools"] == 1 + 1
    assert drawing["awaiting-approval"] == 1 + 1
    assert drawing["stream"] == 2
    assert (drawing["tool"], drawing["completed"], drawing["deadline"]) == (3, 2, 1)
    assert drawing["progress"] > 10
    assert drawing["fired"] == 2 + 1  # the stream's clock, a tool's, and the legend
    assert drawing["silence"] == 1
    assert drawing["cause"] == 2  # a line and its name
    for word in ("stream answer", "tool bash", "stream_idle", "executing_tools"):
        assert word in page.text["text"] + page.text["title"]
    assert "stream_stalled" in page.text["td"]
    assert "tok tok" in page.text["pre"]


@on_manual_clock
async def test_things_stand_where_they_happened(clock: ManualClock, tmp_path: Path) -> None:
    """The cause is at the end of the silence that its clock counted, and that is drawn to scale."""
    await record_a_turn(clock, tmp_path / "turns.db")
    with SQLiteStore(tmp_path / "turns.db") as store:
        turn = store.get("turn-1")
    assert turn is not None
    picture = picture_of(turn)
    page = Page(view(tmp_path / "turns.db"))

    def of(kind: str) -> list[dict[str, Any]]:
        return [attrs for _, attrs in page.found if kind in str(attrs.get("class")).split()]

    (silence,), line = of("silence"), of("cause")[0]
    begin, width = float(silence["x"]), float(silence["width"])
    # But for the two of the legend.
    last_chunk = max(float(one["x"]) + float(one["width"]) for one in of("chunks")[:-2])
    scale = (1000 - 150 - 14) / picture.seconds
    assert picture.fired is not None
    assert picture.seconds == pytest.approx(turn.record.elapsed, abs=0.01)
    assert begin + width == pytest.approx(float(line["x1"]), abs=0.1)
    assert width == pytest.approx(90 * scale, abs=0.1)
    assert last_chunk == pytest.approx(begin, abs=2)


@on_manual_clock
async def test_nothing_is_loaded_and_nothing_runs(clock: ManualClock, tmp_path: Path) -> None:
    """No scripts, no handlers, no address of anything elsewhere, whatever a turn is called."""
    await record_a_turn(clock, tmp_path / "turns.db", name=NASTY)
    text = view(tmp_path / "turns.db")
    page = Page(text)

    assert page.wrong == []
    assert not {tag for tag, _ in page.found} & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "base",
    }
    for _, attrs in page.found:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "href")]
    assert re.findall(r"url\((?!#hatch\))", text) == []
    assert "default-src 'none'" in text
    assert NASTY in page.text["h1"]
    assert page.text["title"].startswith(NASTY)


def test_text_is_only_shown(tmp_path: Path) -> None:
    """What a model or a tool wrote keeps its lines, and is neither markup nor control codes."""
    path = tmp_path / "turns.db"
    text = f"first\n\tsecond {NASTY}\x00\x1b[31m \ud83d"
    with SQLiteStore(path) as store:
        store.finish(
            "turn-1",
            Outcome(
                status=Status.FAILED,
                cause=Failure("x.Error", NASTY),
                text=text,
                tool_args={"1": {"name": NASTY, "arguments": '{"a": '}},
                late=(NASTY,),
            ),
            timeline={
                "phases": [{"phase": NASTY, "from": 0.0, "to": None}],
                "spans": [{"kind": NASTY, "name": NASTY, "from": 0.0, "to": 1.0}],
                "marks": [{"at": 0.5, "event": NASTY, "what": NASTY}],
            },
        )
    page = Page(view(path))

    assert page.wrong == []
    assert page.text["pre"].startswith("first\n    second </title>")
    assert r"\x00\x1b[31m \ud83d" in page.text["pre"]
    assert "script" not in {tag for tag, _ in page.found}


@pytest.mark.parametrize("status", Status)
def test_a_turn_without_a_timeline(tmp_path: Path, status: Status) -> None:
    """Of a turn that left nothing to draw, the end is shown, and that this is all."""
    path = tmp_path / "turns.db"
    cause = StreamIdleError(idle=90.0, limit=90.0) if status is Status.STALLED else None
    with SQLiteStore(path) as store:
        store.finish(
            "turn-1", Outcome(status=status, cause=cause, elapsed=100.0, phase=Phase.AWAITING_LLM)
        )
    page = Page(view(path))

    assert page.wrong == []
    assert "No timeline was recorded" in page.text["p"]
    assert str(status) in page.text["span"]
    assert page.classes()["silence"] == (status is Status.STALLED)


def test_a_running_turn_can_be_looked_at(tmp_path: Path) -> None:
    """What is open goes on to the end of the axis."""
    path = tmp_path / "turns.db"
    drawn = {
        "schema": 1,
        "seconds": 30.0,
        "phases": [{"phase": "awaiting_llm", "seq": 1, "from": 0.0, "to": None}],
        "spans": [{"kind": "tool", "name": "bash", "from": 20.0, "to": None, "state": None}],
        "marks": [],
        "dropped": {"phases": 7, "spans": 0, "marks": 0},
    }
    with SQLiteStore(path) as store:
        store.checkpoint("turn-1", so_far("half", turn="x", started_at=1.0), timeline=drawn)
        page = Page(view(path))

    assert page.wrong == []
    assert "running" in page.text["span"]
    assert "7 phases" in page.text["p"]


def test_an_empty_turn_has_a_page(tmp_path: Path) -> None:
    """One that took no time at all has one, too."""
    path = tmp_path / "turns.db"
    with SQLiteStore(path) as store:
        store.finish("turn-1", Outcome(status=Status.COMPLETED, phase=Phase.DONE))

    assert Page(view(path)).wrong == []


def test_very_many_spans_stay_readable(tmp_path: Path) -> None:
    """Spans of one name that follow each other share a row; past 40 rows the rest is counted."""
    path = tmp_path / "turns.db"
    spans = [
        {"kind": "tool", "name": "bash", "from": float(n), "to": n + 1.0, "state": "completed"}
        for n in range(50)
    ]
    spans += [
        {"kind": "tool", "name": f"tool {n}", "from": 0.0, "to": 50.0, "state": "completed"}
        for n in range(45)
    ]
    with SQLiteStore(path) as store:
        store.finish(
            "turn-1", Outcome(status=Status.COMPLETED, elapsed=50.0), timeline={"spans": spans}
        )
    page = Page(view(path))

    assert page.classes()["label"] == 1 + 40 + 1
    assert "6 more rows" in page.text["p"]


def test_every_cause_of_a_clock_is_announced_by_an_event() -> None:
    """The drawing knows for each kind of stall by which event it shows."""
    from stallwatch._causes import CAUSE_KINDS

    assert {kind for kinds in FIRED.values() for kind in kinds} == set(CAUSE_KINDS)


# --- where it goes ---


def test_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a file named after the turn, to the one that is named, or to standard output."""
    path = tmp_path / "turns.db"
    with SQLiteStore(path) as store:
        store.finish("0123456789", Outcome(status=Status.COMPLETED))
    monkeypatch.chdir(tmp_path)
    main(["view", str(path), "0123"])
    said = capsys.readouterr().out
    main(["view", str(path), "0123", "-o", "-"])
    printed = capsys.readouterr().out

    assert said == "turn-01234567.html\n"
    assert (tmp_path / "turn-01234567.html").read_text(encoding="utf-8") == printed


def test_what_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing store, a missing turn and a place that cannot be written to: one line each."""
    path = tmp_path / "turns.db"
    statuses = [main(["view", str(path), "x"])]
    with SQLiteStore(path) as store:
        store.finish("turn-1", Outcome(status=Status.COMPLETED))
    statuses.append(main(["view", str(path), "x"]))
    statuses.append(main(["view", str(path), "turn-1", "-o", str(tmp_path / "no" / "x.html")]))

    assert statuses == [1, 1, 1]
    assert len(capsys.readouterr().err.splitlines()) == 3


# --- in a browser ---

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def photograph(page: Path, picture: Path, *options: str) -> Counter[tuple[int, int, int]]:
    """What a browser shows of a page: its colours, and how many pixels of each."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={picture}.d", "--force-color-profile=srgb"]
    command += ["--window-size=1100,560", f"--screenshot={picture}", *options, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return Counter(pixels(picture.read_bytes()))


def pixels(png: bytes) -> list[tuple[int, int, int]]:
    """The pixels of a PNG with 8 bits a channel."""
    place, packed, size, channels = 8, b"", (0, 0), 3
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        data = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", data)
            assert (depth, colour in (2, 6)) == (8, True)
            size, channels = (width, height), 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += data
        place += 12 + length
    raw, row_length, found = zlib.decompress(packed), size[0] * channels, []
    above = bytearray(row_length)
    for number in range(size[1]):
        begin = number * (row_length + 1)
        row = bytearray(raw[begin + 1 : begin + 1 + row_length])
        unfilter(raw[begin], row, above, channels)
        found += [tuple(row[at : at + 3]) for at in range(0, row_length, channels)]
        above = row
    return found  # type: ignore[return-value]


def unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> None:
    """Undoes what PNG does to a row, in place."""
    for at in range(len(row)):
        left = row[at - step] if at >= step else 0
        up = above[at]
        corner = above[at - step] if at >= step else 0
        guess = left + up - corner
        near = min((abs(guess - left), 0), (abs(guess - up), 1), (abs(guess - corner), 2))[1]
        row[at] = (row[at] + (0, left, up, (left + up) // 2, (left, up, corner)[near])[kind]) & 255


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
@on_manual_clock
async def test_a_browser_shows_it(clock: ManualClock, tmp_path: Path) -> None:
    """Phases, chunks, tools and the cause are seen in their colours, in light and in dark.

    Real time: starting a browser may take up to 100 s.
    """
    await record_a_turn(clock, tmp_path / "turns.db")
    text = view(tmp_path / "turns.db")
    light, dark = (
        {name: colour(value) for name, value in re.findall(r"--(\w+): (#\w+)", part)}
        for part in text.split("@media (prefers-color-scheme: dark)")
    )
    page = tmp_path / "turn.html"
    by_day = photograph(page, tmp_path / "day.png", "--blink-settings=preferredColorScheme=1")
    by_night = photograph(page, tmp_path / "night.png", "--blink-settings=preferredColorScheme=0")

    for seen, colours in ((by_day, light), (by_night, dark)):
        assert seen.most_common(1)[0][0] == colours["back"]
        # A phase of 98 s; tools of 13 s and a row of chunks; a tool of 6 s and the cause.
        assert seen[colours["calm"]] > 8_000
        assert seen[colours["good"]] > 2_000
        assert seen[colours["bad"]] > 500
        assert seen[colours["teal"]] > 1_500
    assert by_day[dark["back"]] == by_night[light["back"]] == 0


def colour(text: str) -> tuple[int, int, int]:
    """`#rgb` or `#rrggbb`."""
    digits = text[1:] if len(text) == 7 else "".join(2 * digit for digit in text[1:])
    red, green, blue = bytes.fromhex(digits)
    return red, green, blue
