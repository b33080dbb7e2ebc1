"""`SQLiteStore`: turns in one file that many threads and processes share.

Ground rules. A process has one connection for each store, used under that store's lock; a forked
child opens its own and never touches the one it inherited. Every write is one transaction that
takes the file's write lock at its beginning, so that nothing it has read can change below it. A
terminal record is on the disk when `finish` returns; what comes before it may lag behind by a
power cut, but not by the death of a process.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from stallwatch._outcome import Outcome, Status
from stallwatch._owner import TurnOwner
from stallwatch._store import RUNNING, StoredTurn, StoreError, as_left, as_running

__all__ = ["SQLiteStore"]

T = TypeVar("T")

APPLICATION: Final = 0x57A11ED
"""Marks the file as one of ours (`PRAGMA application_id`)."""

_STEPS: Final = (
    """
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
    """,
    "ALTER TABLE turns ADD COLUMN timeline TEXT;",
)
"""What leads from each version of the file to the next; `PRAGMA user_version` says which it is."""

SCHEMA: Final = len(_STEPS)

_AGAIN: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)
"""Somebody else has the file. SQLite waits by itself, but not where it changes its journal."""

_WRITE: Final = """
    INSERT INTO turns (id, status, cause, name, started, updated, ended,
        owner_pid, owner_start, owner_boot, owner_namespace, record, timeline)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        status = excluded.status, cause = excluded.cause, name = excluded.name,
        updated = excluded.updated, ended = excluded.ended, record = excluded.record,
        timeline = coalesce(excluded.timeline, timeline)
    WHERE status = 'running'
"""


class SQLiteStore:
    """Keeps turns in an SQLite file: one that threads and processes write to at the same time.

    Opening it makes the file if there is none, brings an older one up to date, and sweeps turns
    whose process is gone. A turn whose process is killed at any moment is either as its last
    `finish` left it, or running until the next sweep. The file has to be on a local disk, as SQLite
    asks for; beside it are `-wal` and `-shm`, which belong to it.

    Args:
        path: The file. Its directory has to exist.
        busy_timeout: Seconds to wait for other writers before `sqlite3.OperationalError`.
        sweep: Whether opening sweeps.
        read_only: Only read: the file has to exist, may be older, and nothing is changed.

    Raises:
        StoreError: the file was written by a newer version, or is not a store.
        sqlite3.Error: whatever SQLite has to say about the file.
        FileNotFoundError: there is no such directory; or no such file, to only read.
    """

    __module__ = "stallwatch"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float = 10.0,
        sweep: bool = True,
        read_only: bool = False,
    ) -> None:
        if not busy_timeout >= 0:
            raise ValueError(f"busy_timeout must not be negative: {busy_timeout!r}")
        self.path: Path = Path(path).absolute()
        self.read_only = read_only
        self._busy = busy_timeout
        self._opened: dict[int, _Opened] = {}
        with self._connection():
            pass
        if sweep and not read_only:
            self.sweep()

    # --- writing ---

    def start(self, turn_id: str, record: Outcome) -> None:
        """See `OutcomeStore.start`."""
        self._write(turn_id, as_running(record), RUNNING, None)

    def checkpoint(
        self, turn_id: str, record: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """See `OutcomeStore.checkpoint`."""
        return self._write(turn_id, as_running(record), RUNNING, timeline)

    def finish(
        self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """See `OutcomeStore.finish`. When it returns True, the record outlives a power cut."""
        return self._write(turn_id, outcome, str(outcome.status), timeline)

    def sweep(self) -> list[str]:
        """See `OutcomeStore.sweep`. Of processes that share the file, each may do it any time."""
        with self._connection() as connection:
            owners = connection.execute(
                "SELECT DISTINCT owner_pid, owner_start, owner_boot, owner_namespace "
                "FROM turns WHERE status = 'running'"
            ).fetchall()
        # A process that is gone stays gone, so this needs no lock.
        gone = [owner for owner in owners if TurnOwner(*owner).is_gone()]
        if not gone:
            return []
        swept, now = [], time.time()
        with self._connection() as connection, _transaction(connection):
            for owner in gone:
                left = connection.execute(
                    "SELECT id, record FROM turns WHERE status = 'running' AND owner_pid = ? "
                    "AND owner_start = ? AND owner_boot = ? AND owner_namespace = ?",
                    owner,
                ).fetchall()
                for turn_id, record in left:
                    connection.execute(
                        "UPDATE turns SET status = ?, ended = ?, record = ? WHERE id = ?",
                        (
                            Status.INTERRUPTED.value,
                            now,
                            json.dumps(as_left(json.loads(record))),
                            turn_id,
                        ),
                    )
                    swept.append(str(turn_id))
        return swept

    def _write(
        self, turn_id: str, record: Outcome, status: str, timeline: Mapping[str, Any] | None
    ) -> bool:
        terminal, owner, now = status != RUNNING, TurnOwner.current(), time.time()
        values = (
            turn_id,
            status,
            None if record.cause is None else record.cause.kind,
            _storable(record.turn),
            record.started_at,
            now,
            now if terminal else None,
            owner.pid,
            owner.start,
            owner.boot,
            owner.namespace,
            record.to_json(),
            None if timeline is None else json.dumps(timeline),
        )
        with self._connection() as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if terminal else 'NORMAL'}")
            with _transaction(connection):
                return connection.execute(_WRITE, values).rowcount == 1

    # --- reading ---

    def get(self, turn_id: str) -> StoredTurn | None:
        """See `OutcomeStore.get`."""
        found = self._select("WHERE id = ?", (turn_id,))
        return found[0] if found else None

    def turns(
        self, *, status: str | None = None, name: str | None = None, limit: int | None = None
    ) -> list[StoredTurn]:
        """See `OutcomeStore.turns`."""
        terms, values = [], []
        for column, value in (("status", status), ("name", _storable(name))):
            if value is not None:
                terms.append(f"{column} = ?")
                values.append(str(value))
        where = f"WHERE {' AND '.join(terms)} " if terms else ""
        most = -1 if limit is None else max(0, limit)
        return self._select(f"{where}ORDER BY started DESC, rowid DESC LIMIT ?", (*values, most))

    def find(self, beginning: str) -> list[StoredTurn]:
        """The turn with this id, or else all whose ids begin like this, the latest start first."""
        exact = self.get(beginning)
        if exact is not None:
            return [exact]
        return self._select(
            "WHERE substr(id, 1, ?) = ? ORDER BY started DESC", (len(beginning), beginning)
        )

    def _select(self, clauses: str, values: tuple[Any, ...]) -> list[StoredTurn]:
        with self._connection() as connection:
            cursor = connection.execute(f"SELECT * FROM turns {clauses}", values)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        return [_turn(dict(zip(names, row, strict=True))) for row in rows]

    # --- the file ---

    def close(self) -> None:
        """Close this process's connection. The store can be used again, which opens it anew."""
        here = self._here()
        with here.lock:
            connection, here.connection = here.connection, None
            if connection is not None:
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}{', read_only=True' * self.read_only})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self.path), self._busy, self.read_only)

    def _here(self) -> _Opened:
        # By process: what a child inherits stays where it is, untouched, its lock included.
        return self._opened.setdefault(os.getpid(), _Opened())

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        here = self._here()
        with here.lock:
            yield here.connection or self._open(here)

    def _open(self, here: _Opened) -> sqlite3.Connection:
        needed = self.path if self.read_only else self.path.parent
        if not needed.exists():
            raise FileNotFoundError(f"there is no {needed}")
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={'ro' if self.read_only else 'rwc'}",
            uri=True,
            timeout=self._busy,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._patiently(lambda: self._prepare(connection))
        except BaseException:
            connection.close()
            raise
        here.connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection, "DEFERRED"):  # one look at what another may be making
            version = self._version(connection)
        if self.read_only:
            if version == 0:
                raise StoreError(f"{self.path} is not a store of stallwatch")
            return
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        if version == SCHEMA:
            return
        with _transaction(connection):
            for number in range(self._version(connection), SCHEMA):
                for statement in _STEPS[number].split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _version(self, connection: sqlite3.Connection) -> int:
        """The file's version; 0 for a new one."""
        try:
            mark = _pragma(connection, "application_id")
            version = _pragma(connection, "user_version")
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
                raise
            raise StoreError(f"{self.path} is not a store of stallwatch: {error}") from None
        if mark != APPLICATION and (mark or version or tables):
            raise StoreError(f"{self.path} is not a store of stallwatch, but of another program")
        if version > SCHEMA:
            raise StoreError(
                f"{self.path} was written by a newer stallwatch: its schema is {version}, and "
                f"this version knows {SCHEMA}. Use the newer stallwatch, or another file"
            )
        return version

    def _patiently(self, work: Callable[[], T]) -> T:
        end = time.monotonic() + self._busy
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _AGAIN or time.monotonic() >= end:
                    raise
            time.sleep(0.01)


class _Opened:
    """The connection of one process, and the lock under which it is used."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _storable(text: str | None) -> str | None:
    """Text that a database takes: halves of surrogate pairs become question marks."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")


def _turn(row: Mapping[str, Any]) -> StoredTurn:
    timeline = row.get("timeline")  # a file that is only read may be older
    return StoredTurn(
        id=row["id"],
        status=row["status"],
        cause=row["cause"],
        name=row["name"],
        started_at=row["started"],
        updated_at=row["updated"],
        ended_at=row["ended"],
        owner=TurnOwner(
            row["owner_pid"], row["owner_start"], row["owner_boot"], row["owner_namespace"]
        ),
        data=json.loads(row["record"]),
        timeline=None if timeline is None else json.loads(timeline),
    )


def _rebuild(path: str, busy_timeout: float, read_only: bool) -> SQLiteStore:
    return SQLiteStore(path, busy_timeout=busy_timeout, read_only=read_only, sweep=False)
