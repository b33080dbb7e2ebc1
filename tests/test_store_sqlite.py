"""`SQLiteStore`: its file, shared by threads and processes, of other versions and programs."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from stallwatch import Outcome, OutcomeStore, SQLiteStore, Status, StoreError, TurnOwner
from stallwatch._store_sqlite import APPLICATION, SCHEMA
from store_tools import pragma, so_far

VERSION_1 = """
    CREATE TABLE turns (
        id TEXT PRIMARY KEY NOT NULL,
        status TEXT NOT NULL,
        cause TEXT,
        name TEXT,
        started REAL NOT NULL,
        updated REAL NOT NULL,
        ended REAL,
        owner_pid INTEGER NOT NULL,
        owner_start TEXT NOT NULL,
        owner_boot TEXT NOT NULL,
        owner_namespace TEXT NOT NULL,
        record TEXT NOT NULL,
        CHECK ((status = 'running') = (ended IS NULL))
    );
    CREATE INDEX turns_by_start ON turns (started);
    CREATE INDEX turns_by_status ON turns (status, started);
"""
"""The first schema, as it was."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is to be."""
    return tmp_path / "turns.db"


def older(path: Path) -> None:
    """A file of schema 1, with an ended turn and one that another process left running."""
    ended, left = Outcome(status=Status.COMPLETED, text="old"), so_far("half")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
        for row in (
            ("a", "completed", None, "x", 1.0, 2.0, 2.0, 1, "1", "b", "", ended.to_json()),
            ("b", "running", None, "y", 3.0, 3.0, None, 1, "1", "b", "", left.to_json()),
        ):
            connection.execute(f"INSERT INTO turns VALUES ({', '.join('?' * 12)})", row)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()


# --- versions ---


def test_a_new_file_is_marked(path: Path) -> None:
    """It says whose it is, which schema it has, and is in WAL mode."""
    with SQLiteStore(path) as store:
        store.start("t", so_far())

    assert pragma(path, "application_id") == APPLICATION
    assert pragma(path, "user_version") == SCHEMA == 2
    assert pragma(path, "journal_mode") == "wal"
    assert pragma(path, "integrity_check") == "ok"


def test_an_older_file_is_brought_up_to_date(path: Path) -> None:
    """What was in it stays; what it lacked can be written; what was left running is swept."""
    older(path)
    with SQLiteStore(path) as store:
        found = {one.id: one for one in store.turns()}
        store.finish("c", Outcome(status=Status.COMPLETED), timeline={"at": 1})
        drawn = store.get("c")

    assert pragma(path, "user_version") == SCHEMA
    assert found["a"].outcome == Outcome(status=Status.COMPLETED, text="old")
    assert (found["b"].status, found["b"].record.text) == ("interrupted", "half")
    assert drawn is not None
    assert drawn.timeline == {"at": 1}


def test_many_open_an_older_file_at_once(path: Path) -> None:
    """Eight threads with a store each migrate it once, and none is turned away."""
    older(path)
    barrier = threading.Barrier(8)

    def open_it(number: int) -> int:
        barrier.wait()
        with SQLiteStore(path) as store:
            store.finish(f"n{number}", Outcome(status=Status.COMPLETED))
            return len(store.turns(status="interrupted"))

    with ThreadPoolExecutor(8) as pool:
        swept = list(pool.map(open_it, range(8)))
    with SQLiteStore(path) as store:
        assert len(store.turns()) == 10
    assert swept == [1] * 8


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that cannot be made is undone with those before it."""
    older(path)
    broken = (VERSION_1, "ALTER TABLE turns ADD COLUMN timeline TEXT; CREATE TABLE turns (a);")
    with monkeypatch.context() as patch:
        patch.setattr("stallwatch._store_sqlite._STEPS", broken)
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            SQLiteStore(path)
    version = pragma(path, "user_version")
    with SQLiteStore(path) as store:
        kept = len(store.turns())

    assert (version, kept) == (1, 2)


def test_a_newer_file_is_refused(path: Path) -> None:
    """The error names the file and both versions, and nothing in the file is changed."""
    with SQLiteStore(path) as store:
        store.finish("t", Outcome(status=Status.COMPLETED))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()

    for read_only in (False, True):
        with pytest.raises(StoreError, match=f"schema is {SCHEMA + 1}.*knows {SCHEMA}") as caught:
            SQLiteStore(path, read_only=read_only)
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_file_of_another_program_is_refused(path: Path) -> None:
    """A database with other tables, or no database at all, is left as it is."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bills (amount)")
        connection.commit()
    text = path.with_name("notes.txt")
    text.write_text("not a database, but long enough to be taken for one\n" * 50)
    before = path.read_bytes(), text.read_bytes()

    for one in (path, text):
        with pytest.raises(StoreError, match="not a store"):
            SQLiteStore(one)
    assert (path.read_bytes(), text.read_bytes()) == before


def test_a_missing_place_says_so(tmp_path: Path) -> None:
    """No directory is made, and no file where one is only to be read."""
    missing = tmp_path / "no" / "turns.db"

    with pytest.raises(FileNotFoundError, match="no"):
        SQLiteStore(missing)
    with pytest.raises(FileNotFoundError, match=r"turns\.db"):
        SQLiteStore(tmp_path / "turns.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


# --- reading only ---


def test_reading_changes_nothing(path: Path) -> None:
    """An older file is read as it is; turns whose process is gone stay running in it."""
    older(path)
    before = path.read_bytes()
    with SQLiteStore(path, read_only=True) as store:
        found = {one.id: (one.status, one.timeline) for one in store.turns()}
        with pytest.raises(sqlite3.OperationalError):
            store.finish("b", Outcome(status=Status.COMPLETED))

    assert found == {"a": ("completed", None), "b": ("running", None)}
    assert path.read_bytes() == before


def test_an_empty_file_is_no_store_to_read(path: Path) -> None:
    """Where nothing is, there is nothing to show."""
    path.touch()
    with pytest.raises(StoreError, match="not a store"):
        SQLiteStore(path, read_only=True)


def test_a_reader_sees_what_a_writer_writes(path: Path) -> None:
    """A store that only reads follows one that is being written to."""
    with SQLiteStore(path) as writer, SQLiteStore(path, read_only=True) as reader:
        writer.start("t", so_far())
        first = reader.get("t")
        writer.finish("t", Outcome(status=Status.COMPLETED))
        second = reader.get("t")

    assert first is not None
    assert second is not None
    assert (first.status, second.status) == ("running", "completed")


# --- threads and processes ---


def test_a_closed_store_opens_again(path: Path) -> None:
    """Closing gives the file back, and is no end."""
    store = SQLiteStore(path)
    store.finish("t", Outcome(status=Status.COMPLETED))
    store.close()
    store.close()
    names = {one.name for one in path.parent.iterdir()}
    again = store.get("t")
    store.close()

    assert names == {"turns.db"}  # the last one to close takes the others along
    assert again is not None


def test_it_can_be_sent_to_another_process(path: Path) -> None:
    """A pickled store is the same file, with a connection of its own."""
    with SQLiteStore(path) as store:
        store.start("t", so_far())
        with pickle.loads(pickle.dumps(store)) as other:
            assert isinstance(other, OutcomeStore)
            assert other.get("t") == store.get("t")
            assert repr(other) == repr(store) == f"SQLiteStore({str(path)!r})"


def test_it_waits_for_other_writers(path: Path) -> None:
    """While another holds the file, a write waits its busy timeout, then says that it is locked.

    Real time: 0.5 s held against a timeout of 30 s; and a timeout of 0.05 s against one that is
    held until the error has come.
    """
    with SQLiteStore(path) as patient, SQLiteStore(path, busy_timeout=0.05) as hasty:
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                hasty.start("t", so_far())
            timer = threading.Timer(0.5, lambda: other.execute("COMMIT"))
            timer.start()
            begun = time.monotonic()
            patient.start("t", so_far())
            waited = time.monotonic() - begun
            timer.join()
        hasty.checkpoint("t", so_far("x"))

    assert waited >= 0.3
    with pytest.raises(ValueError, match="busy_timeout"):
        SQLiteStore(path, busy_timeout=-1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_uses_a_connection_of_its_own(path: Path) -> None:
    """A child forked while the store is open, and in use by a thread, writes beside its parent."""
    with SQLiteStore(path) as store:
        store.start("parent", so_far())
        holding, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with store._connection():
                holding.set()
                let_go.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait(30)
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(store,))
        child.start()
        child.join(30)
        let_go.set()
        thread.join()
        store.finish("parent", Outcome(status=Status.COMPLETED))
        found = {one.id: one.status for one in store.turns()}
        swept = store.sweep()

    assert child.exitcode == 0
    assert found == {"parent": "completed", "child": "completed", "left": "running"}
    assert swept == ["left"]
    assert pragma(path, "integrity_check") == "ok"


def _in_child(store: SQLiteStore) -> None:
    assert store.get("parent") is not None
    store.finish("child", Outcome(status=Status.COMPLETED))
    store.start("left", so_far())
    assert store.sweep() == []
    left = store.get("left")
    assert left is not None
    assert left.owner == TurnOwner.current()
    assert left.owner.pid == os.getpid()


WRITER = """
import sys
from stallwatch import Outcome, SQLiteStore, Status

store = SQLiteStore(sys.argv[1], busy_timeout=60)
for number in range(int(sys.argv[3])):
    turn_id = f"{sys.argv[2]}-{number}"
    store.start(turn_id, Outcome(status=Status.INTERRUPTED))
    store.checkpoint(turn_id, Outcome(status=Status.INTERRUPTED, text="x" * number))
    assert store.sweep() == []
    assert store.finish(turn_id, Outcome(status=Status.COMPLETED, text=turn_id))
store.close()
"""


def test_four_processes_write_one_file(path: Path) -> None:
    """Each writes 50 turns and sweeps all the time: nobody loses one or takes another's."""
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name, "50"]) for name in "abcd"
    ]
    ends = [child.wait(100) for child in children]
    with SQLiteStore(path) as store:
        turns = store.turns()

    assert ends == [0, 0, 0, 0]
    assert len(turns) == 200
    assert all(one.outcome is not None and one.outcome.text == one.id for one in turns)
    assert pragma(path, "integrity_check") == "ok"


def test_the_file_itself_refuses_what_looks_ended_and_is_not(path: Path) -> None:
    """Whatever writes to it: a running turn has no end, and an ended one is not running."""
    with SQLiteStore(path) as store:
        store.start("t", so_far())
    with closing(sqlite3.connect(path)) as connection:
        for change in ("status = 'completed'", "ended = 1.0"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(f"UPDATE turns SET {change}")


def test_columns_say_what_the_record_says(path: Path) -> None:
    """Other tools can ask the file for status, cause and name, and read the record as JSON."""
    with SQLiteStore(path) as store:
        store.finish("t", Outcome(status=Status.COMPLETED, turn="x", started_at=5.0))
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(
            "SELECT status, cause, name, started, json_extract(record, '$.status') FROM turns"
        ).fetchone()

    assert row == ("completed", None, "x", 5.0, "completed")
    assert json.dumps(row)
