"""`stallwatch turns`: what a store knows of its turns, for an operator and for machines."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stallwatch import Status, StoredTurn
from stallwatch._store import RUNNING
from stallwatch.cli._stored import (
    SHORT,
    NotShownError,
    cause_of,
    cause_text,
    clean,
    find,
    is_left,
    moment,
    opened,
    seconds,
    seconds_of,
    status_of,
    tools_of,
    tools_text,
)

SCHEMA = 1
"""Version of `--json`."""

_WIDTH = 80
_LABEL = 12
_HEAD = ("id", "status", "cause", "phase", "idle", "took", "text", "tools", "started", "name")
_RIGHT = {"idle", "took", "text"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "The file is only read, unless --sweep is given. A turn that is `running, gone` has no\n"
        "process any more: it becomes `interrupted` when a program opens the store, or now with\n"
        "--sweep. `idle` is the silence that its cause measured; `text` counts characters.\n\n"
        "Exit status: 0, or 1 if the file cannot be read or there is no such turn."
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="file of a stallwatch.SQLiteStore")
    parser.add_argument(
        "turn",
        nargs="?",
        metavar="TURN",
        help="show this one with all that is known: its id, or how that begins",
    )
    parser.add_argument(
        "--status",
        action="append",
        choices=[RUNNING, *(one.value for one in Status)],
        metavar="STATUS",
        help=f"only turns that are {RUNNING}, {', '.join(Status)}; can be given more than once",
    )
    parser.add_argument("--name", help="only turns of this name")
    parser.add_argument(
        "--limit", type=int, default=50, help="at most so many, 0 for all (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--sweep", action="store_true", help="first make turns without a process interrupted"
    )


def run(args: argparse.Namespace) -> int:
    """Print what was asked for, and return the exit status."""
    try:
        with opened(args.path, sweep=args.sweep) as store:
            if args.sweep:
                store.sweep()
            if args.turn is not None:
                turns = [find(store, args.turn)]
            else:
                turns = _listed(args, store.turns)
        if args.json:
            print(json.dumps(_to_dict(turns, args.turn is not None), indent=1))
        else:
            print("\n".join(shown(turns[0]) if args.turn is not None else listed(turns)))
        sys.stdout.flush()
    except NotShownError as error:
        print(f"stallwatch turns: {clean(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read has left. Python would try once more to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _listed(args: argparse.Namespace, turns: Any) -> list[StoredTurn]:
    limit = None if args.limit <= 0 else args.limit
    found: list[StoredTurn] = []
    for status in args.status or [None]:
        found += turns(status=status, name=args.name, limit=limit)
    if len(args.status or ()) > 1:
        found = sorted({one.id: one for one in found}.values(), key=lambda one: -one.started_at)
    return found[:limit]


def _to_dict(turns: Sequence[StoredTurn], whole: bool) -> dict[str, Any]:
    rows = []
    for turn in turns:
        row = {**turn.to_dict(), "owner_gone": is_left(turn) if turn.is_running else None}
        if not whole:
            del row["timeline"]
        rows.append(row)
    return {"schema": SCHEMA, "turns": rows}


# --- many ---


def listed(turns: Sequence[StoredTurn]) -> list[str]:
    """A line each, below a head; what no turn has takes no column."""
    if not turns:
        return ["no turns"]
    rows = [_row(turn) for turn in turns]
    used = [head for head in _HEAD if any(row[head] for row in rows)]
    widths = {head: max(len(head), *(len(row[head]) for row in rows)) for head in used}

    def line(cells: dict[str, str]) -> str:
        return "  ".join(
            f"{cells[head]:>{widths[head]}}" if head in _RIGHT else f"{cells[head]:<{widths[head]}}"
            for head in used
        ).rstrip()

    lines = [line({head: head for head in used}), *(line(row) for row in rows)]
    left = sum(is_left(turn) for turn in turns)
    if left:
        they = "1 turn has" if left == 1 else f"{left} turns have"
        lines.append(f"{they} no process any more: --sweep makes that interrupted")
    return lines


def _row(turn: StoredTurn) -> dict[str, str]:
    data = turn.data
    return {
        "id": clean(turn.id[:SHORT]),
        "status": status_of(turn),
        "cause": clean(turn.cause or ""),
        "phase": clean(data.get("phase") or ""),
        "idle": seconds(cause_of(turn).get("idle")),
        "took": seconds(seconds_of(turn)),
        "text": str(len(data.get("text") or "") or ""),
        "tools": tools_text(turn),
        "started": moment(turn.started_at),
        "name": clean(turn.name or ""),
    }


# --- one ---


def shown(turn: StoredTurn) -> list[str]:
    """All that an operator may want to know of one turn."""
    data, cause = turn.data, cause_of(turn)
    lines = _labelled("turn", turn.id)
    lines += _labelled("name", turn.name)
    lines += _labelled("status", status_of(turn))
    lines += _labelled("cause", cause_text(cause) if cause else None)
    measured = [
        f"{key} {seconds(cause[key])}" for key in ("idle", "limit", "lateness") if cause.get(key)
    ]
    lines += _labelled("measured", ", ".join(measured))
    also = data.get("also")
    lines += _labelled("also", cause_text(also) if isinstance(also, dict) else None)
    lines += _labelled("phase", f"{data.get('phase')}, seq {data.get('seq')}")
    lines += _labelled("started", moment(turn.started_at))
    lines += _labelled("took", seconds(seconds_of(turn)))
    lines += _labelled("written", moment(turn.updated_at))
    lines += _labelled("ended", moment(turn.ended_at))
    lines += _labelled("process", str(turn.owner.pid))
    for one in tools_of(turn):
        took = seconds(one.get("elapsed"))
        why = one.get("cause")
        said = f", {cause_text(why)}" if isinstance(why, dict) else ""
        lines += _labelled("tool", f"{one.get('name')}: {one.get('state')} after {took}{said}")
    kept = data.get("text") or ""
    lines += _labelled("kept text", kept or data.get("placeholder") or "none")
    partial = data.get("partial") or ""
    if partial and partial != kept:
        lines += _labelled("cut answer", partial)
    arguments = data.get("tool_args")
    lines += _labelled("arguments", json.dumps(arguments) if arguments else None)
    for late in data.get("late") or ():
        lines += _labelled("late", late)
    retry = data.get("retry")
    lines += _labelled("retry", _retry(retry) if retry else None)
    return lines


def _retry(retry: Any) -> str:
    if not isinstance(retry, dict):
        return str(retry)
    return ", ".join(str(value) for value in retry.values() if value not in (None, ""))


def _labelled(label: str, text: Any) -> list[str]:
    if text is None or text == "":
        return []
    lines = [
        part
        for line in str(text).splitlines() or [""]
        for part in textwrap.wrap(clean(line), _WIDTH - _LABEL) or [""]
    ]
    return [
        f"{label if number == 0 else '':<{_LABEL}}{line}".rstrip()
        for number, line in enumerate(lines)
    ]
