"""Records, owners and files for tests of stores."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stallwatch import Outcome, OutcomeStore, Phase, Status, TurnOwner
from stallwatch._store import new_turn_id


def so_far(text: str = "", **fields: Any) -> Outcome:
    """What is true of a running turn if its process ends now."""
    return Outcome(status=Status.INTERRUPTED, text=text, **fields)


def gone() -> TurnOwner:
    """A process that has ended."""
    code = "from stallwatch import TurnOwner; print(TurnOwner.current().to_dict())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return TurnOwner(**eval(done.stdout))


def owned(store: OutcomeStore, owner: TurnOwner, monkeypatch: pytest.MonkeyPatch) -> str:
    """A running turn of another owner; its id."""
    turn_id = new_turn_id()
    with monkeypatch.context() as patch:
        patch.setattr(TurnOwner, "current", classmethod(lambda cls: owner))
        store.start(turn_id, so_far("left behind", turn="lost", phase=Phase.AWAITING_LLM, seq=4))
    return turn_id


def start_of(pid: int) -> str:
    """When a process started, as its owner would say."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def pragma(path: Path, name: str) -> Any:
    """What SQLite says about a file, through a connection of its own."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
