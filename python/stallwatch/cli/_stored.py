"""What commands that show stored turns have in common: finding one, and saying what it says."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stallwatch import SQLiteStore, Status, StoredTurn, StoreError
from stallwatch._plain import duration
from stallwatch._store import RUNNING

SHORT = 8
"""Digits of an id that are shown; as many as are needed can be given."""


class NotShownError(Exception):
    """There is nothing to show, and this is why."""


@contextmanager
def opened(path: Path, *, sweep: bool = False) -> Iterator[SQLiteStore]:
    """A store to read from, or to sweep and read from. A file that is not there is not made.

    Raises:
        NotShownError: it cannot be read, now or later in the block.
    """
    try:
        if not path.exists():
            raise NotShownError(f"there is no {path}")
        with SQLiteStore(path, read_only=not sweep, sweep=False) as store:
            yield store
    except sqlite3.Error as error:
        raise NotShownError(f"{path}: {error}") from error
    except (StoreError, OSError) as error:
        raise NotShownError(str(error)) from error


def find(store: SQLiteStore, turn_id: str) -> StoredTurn:
    """The turn with this id, or the one whose id begins like this.

    Raises:
        NotShownError: there is none, or more than one.
    """
    found = store.find(turn_id)
    if not found:
        raise NotShownError(f"no turn in {store.path} has an id that begins with {turn_id!r}")
    if len(found) > 1:
        known = ", ".join(one.id for one in found[:4]) + ", ..." * (len(found) > 4)
        raise NotShownError(f"{len(found)} turns have an id that begins with {turn_id!r}: {known}")
    return found[0]


def is_left(turn: StoredTurn) -> bool:
    """Whether nobody will ever end it: its process is gone, and nobody has swept since."""
    return turn.is_running and turn.owner.is_gone()


def status_of(turn: StoredTurn) -> str:
    """Its status in words."""
    return f"{turn.status}, gone" if is_left(turn) else turn.status


def cause_of(turn: StoredTurn) -> Mapping[str, Any]:
    """The fields of its cause; none if it has none."""
    cause = turn.data.get("cause")
    return cause if isinstance(cause, Mapping) else {}


def cause_text(cause: Mapping[str, Any]) -> str:
    """A cause in a line: its kind, and what it says."""
    said = cause.get("message") or cause.get("reason") or ""
    if cause.get("type"):
        said = f"{cause['type']}: {said}"
    return f"{cause.get('kind')}: {said}".removesuffix(": ")


def tools_of(turn: StoredTurn) -> list[Mapping[str, Any]]:
    """The records of its tools."""
    found = turn.data.get("tools")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def tools_text(turn: StoredTurn) -> str:
    """Its tools in a few words: how many, and how many in which state but for completed."""
    tools = tools_of(turn)
    states: dict[str, int] = {}
    for one in tools:
        state = str(one.get("state"))
        if state != "completed":
            states[state] = states.get(state, 0) + 1
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{len(tools)} ({said})" if said else str(len(tools) or "")


def seconds_of(turn: StoredTurn) -> float:
    """How long it took, or has been running; of one that was left, until it was last heard of."""
    if turn.is_running and not is_left(turn):
        return max(0.0, time.time() - turn.started_at)
    elapsed = float(turn.data.get("elapsed") or 0.0)
    if turn.status in (RUNNING, Status.INTERRUPTED):
        return max(elapsed, turn.updated_at - turn.started_at)
    return elapsed


def seconds(value: Any) -> str:
    """Seconds in short; nothing for what is not known."""
    return duration(float(value)) if isinstance(value, (int, float)) else ""


def moment(value: float | None) -> str:
    """A time since the epoch, in this place's own time, to the second."""
    if not value:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))


def clean(text: Any) -> str:
    """Text that only shows: whoever wrote it, a terminal does nothing but print it."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
        for sign in str(text)
    )
