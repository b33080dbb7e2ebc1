"""The page of a stored turn: one file, without scripts, and without anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from stallwatch import StoredTurn
from stallwatch.cli._stored import (
    cause_of,
    cause_text,
    clean,
    moment,
    seconds,
    seconds_of,
    status_of,
    tools_of,
)
from stallwatch.cli._view_chart import FIRED, Picture, draw, word

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --dim: #66707c; --line: #d5dae1;
  --soft: #f2f4f7; --good: #1a7f37; --bad: #c4242d; --warn: #9a6700; --calm: #2563c9;
  --other: #8a94a0; --quiet: #c3cad3; --plum: #8250c4; --teal: #12828c; --in-bar: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e4e8ed; --dim: #98a2ae;
  --line: #333b45; --soft: #1d232a; --good: #3fb950; --bad: #ff6b6b; --warn: #d9a422;
  --calm: #5b9bff; --other: #77818d; --quiet: #444d58; --plum: #b58af0; --teal: #3cb8c2;
  --in-bar: #10141a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 40px; max-width: 1100px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 4px; font-size: 22px; overflow-wrap: anywhere; }
h2 { margin: 28px 0 8px; font-size: 16px; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 10px; color: var(--in-bar);
  background: var(--other); font-size: 13px; font-weight: 600; vertical-align: 3px; }
.badge.completed { background: var(--good); }
.badge.stalled, .badge.failed { background: var(--bad); }
.badge.cancelled, .badge.interrupted { background: var(--warn); }
.badge.running { background: var(--calm); }
.why { margin: 6px 0 0; overflow-wrap: anywhere; } .dim, dt { color: var(--dim); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 12px 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.frame { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; padding: 8px; }
.chart { display: block; min-width: 720px; width: 100%; height: auto;
  font: 12px system-ui, sans-serif; }
.chart .grid { stroke: var(--line); } .chart .tick { fill: var(--dim); text-anchor: middle; }
.chart .label { fill: var(--text); text-anchor: end; }
.phase rect { fill: var(--quiet); } .phase text, .tool text { fill: var(--in-bar); }
.phase.init text, .phase.setup text, .phase.done text { fill: var(--text); }
.phase.awaiting-llm rect { fill: var(--calm); } .phase.retrying-llm rect { fill: var(--warn); }
.phase.compacting rect { fill: var(--plum); } .phase.awaiting-approval rect { fill: var(--teal); }
.phase.executing-tools rect { fill: var(--good); }
.phase.injecting-message rect { fill: var(--other); } .phase.force-stop rect { fill: var(--bad); }
.stream .bar { fill: var(--soft); stroke: var(--line); } .chunks.progress { fill: var(--good); }
.chunks.other { fill: var(--other); } .first { fill: var(--good); }
.tool .bar { fill: var(--other); } .tool.completed .bar { fill: var(--good); }
.tool.failed .bar, .tool.deadline .bar, .tool.unresponsive .bar { fill: var(--bad); }
.tool.interrupted .bar, .tool.abandoned .bar, .tool.cancelled .bar { fill: var(--warn); }
.tool.running .bar { fill: var(--calm); }
.hatch { stroke: var(--bad); stroke-width: 1.5; opacity: .45; }
.mark { fill: var(--warn); } .fired { fill: var(--bad); } .end { fill: var(--text); }
line.cause { stroke: var(--bad); stroke-width: 2; }
text.cause { fill: var(--bad); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; padding: 0;
  list-style: none; color: var(--dim); font-size: 13px; }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: 5px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: anywhere; } th { color: var(--dim); font-weight: 500; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { margin: 0; padding: 12px; background: var(--soft); border-radius: 8px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; }
"""

_LEGEND = (
    ('<rect class="chunks progress" y="3" width="14" height="8"/>', "chunks with progress"),
    ('<rect class="chunks other" y="3" width="14" height="8"/>', "other chunks"),
    ('<path class="first" d="M7 11l5 -8h-10z"/>', "first progress"),
    ('<circle class="mark" cx="7" cy="7" r="5"/>', "warning or note"),
    ('<circle class="fired" cx="7" cy="7" r="5"/>', "a clock fired"),
    ('<rect fill="url(#hatch)" width="14" height="14"/>', "counted by that clock"),
)


def page(turn: StoredTurn) -> str:
    """The HTML of a turn."""
    return "\n".join(_page(turn)) + "\n"


def picture_of(turn: StoredTurn) -> Picture:
    """What there is to draw of a turn; without a timeline, only how it ended."""
    drawn = turn.timeline or {}
    phases, spans, marks = (_list(drawn.get(key)) for key in ("phases", "spans", "marks"))
    cause = cause_of(turn)
    ends = [float(drawn.get("seconds") or 0.0), seconds_of(turn)]
    ends += [float(one.get("to") or 0.0) for one in (*phases, *spans)]
    ends += [float(one["at"]) for one in marks]
    end = max(ends)
    if not phases and end:
        phases = [{"phase": turn.data.get("phase"), "from": 0.0, "to": end}]
    fired = None
    if cause:
        cuts = [
            float(one["at"])
            for one in marks
            if turn.cause in FIRED.get(str(one.get("event")), ())
            and not one.get("would_have_fired")
        ]
        settled = [float(one["at"]) for one in marks if one.get("event") == "settled"]
        fired = (cuts or settled or [end])[-1]
    idle = cause.get("idle")
    return Picture(
        seconds=end,
        phases=phases,
        spans=spans,
        marks=marks,
        fired=fired,
        idle=float(idle) if isinstance(idle, (int, float)) else None,
        cause=turn.cause,
        end=status_of(turn),
    )


def _page(turn: StoredTurn) -> Iterator[str]:
    title, status, data = turn.name or f"turn {turn.id}", status_of(turn), turn.data
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    # Nothing may be loaded and nothing may run, whatever a turn's text says.
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)}: {_text(status)}</title>"
    yield f"<style>{_STYLE}</style></head><body>"
    yield (
        f'<h1>{_text(title)} <span class="badge {_text(turn.status)}">{_text(status)}</span></h1>'
    )
    cause = cause_of(turn)
    if cause:
        yield f'<p class="why">{_text(cause_text(cause))}</p>'
    yield from _facts(turn)
    yield '<div class="frame">'
    picture = picture_of(turn)
    yield draw(picture)
    yield "</div>"
    if turn.timeline is None:
        yield '<p class="dim">No timeline was recorded: only the end of the turn is drawn.</p>'
    yield '<ul class="legend">'
    seen = dict.fromkeys(str(one.get("phase")) for one in picture.phases)
    phases = (
        (f'<g class="phase {word(name)}"><rect y="2" width="14" height="10"/></g>', _text(name))
        for name in seen
    )
    for shape, says in (*phases, *_LEGEND):
        yield f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{shape}</svg>{says}</li>'
    yield "</ul>"
    yield from _dropped(turn)
    yield from _events(_list((turn.timeline or {}).get("marks")))
    yield from _tools(turn)
    kept = str(data.get("text") or "")
    yield "<h2>Kept text</h2>"
    yield f"<pre>{_block(kept)}</pre>" if kept else f'<p class="dim">{_text(_none(data))}</p>'
    if data.get("tool_args"):
        yield "<h2>Half-received tool arguments</h2>"
        yield f"<pre>{_block(json.dumps(data['tool_args'], indent=1))}</pre>"
    yield "</body></html>"


def _facts(turn: StoredTurn) -> Iterator[str]:
    data = turn.data
    also = data.get("also")
    facts = (
        ("turn", turn.id),
        ("phase", f"{data.get('phase')}, seq {data.get('seq')}"),
        ("started", moment(turn.started_at)),
        ("took", seconds(seconds_of(turn))),
        ("ended", moment(turn.ended_at)),
        ("process", turn.owner.pid),
        ("also", cause_text(also) if isinstance(also, Mapping) else ""),
        ("late", "; ".join(str(one) for one in data.get("late") or ())),
    )
    yield "<dl>"
    for name, value in facts:
        if value:
            yield f"<dt>{name}</dt><dd>{_text(value)}</dd>"
    yield "</dl>"


def _dropped(turn: StoredTurn) -> Iterator[str]:
    dropped = (turn.timeline or {}).get("dropped")
    if isinstance(dropped, Mapping) and any(dropped.values()):
        counts = ", ".join(f"{count} {kind}" for kind, count in dropped.items() if count)
        yield f'<p class="dim">Not kept, from the middle of the turn: {_text(counts)}.</p>'


def _events(marks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        f'<tr><td class="time">{seconds(one.get("at"))}</td><td>{_text(one.get("event"))}</td>'
        f"<td>{_text(_details(one))}</td></tr>"
        for one in marks
    ]
    if rows:
        yield "<h2>Events</h2><table><tr><th>at</th><th>event</th><th>says</th></tr>"
        yield from rows
        yield "</table>"


def _details(mark: Mapping[str, Any]) -> str:
    measured = {"idle", "limit", "elapsed", "lateness", "since_chunk", "since_progress", "waited"}
    return ", ".join(
        f"{key} {seconds(value) if key in measured else value}"
        for key, value in mark.items()
        if key not in ("at", "event") and value not in (None, False, 0.0, "")
    )


def _tools(turn: StoredTurn) -> Iterator[str]:
    tools = tools_of(turn)
    if not tools:
        return
    yield "<h2>Tools</h2><table><tr><th>tool</th><th>state</th><th>took</th><th>cause</th></tr>"
    for one in tools:
        why = one.get("cause")
        cells = (
            one.get("name"),
            one.get("state"),
            seconds(one.get("elapsed")),
            cause_text(why) if isinstance(why, Mapping) else "",
        )
        yield "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _none(data: Mapping[str, Any]) -> str:
    return str(data.get("placeholder") or "none")


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(text: Any) -> str:
    return escape(clean(text))


def _block(text: str) -> str:
    """Text of several lines."""
    return "\n".join(_text(line) for line in text.expandtabs(4).split("\n"))
