"""What keeps the records of turns: the protocol, what is read back, and a store in memory.

A turn is `running` from its start on, whatever its record says, and until its terminal record is
written or its process is found gone. So the record that is kept meanwhile is the one that is true
if the process ends at this moment: an `Outcome` whose status is `interrupted`.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

from stallwatch._outcome import NO_TEXT, Outcome, Status
from stallwatch._owner import TurnOwner

__all__ = ["RUNNING", "MemoryStore", "OutcomeStore", "StoreError", "StoredTurn", "new_turn_id"]

RUNNING: Final = "running"
"""The status of a turn without a terminal record. Never one of `Status`."""


class StoreError(RuntimeError):
    """A store cannot be used: its file is of a newer version, or not a store at all."""

    __module__ = "stallwatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """One turn, as a store has it.

    Attributes:
        id: Its id.
        status: `running`, or the label of a `Status`.
        cause: The kind of its cause, or None.
        name: Its name.
        started_at: When it started, in seconds since the epoch, like the other times here.
        updated_at: When anything of it was written last.
        ended_at: When its terminal record was written; None while it runs.
        owner: The process that runs or ran it.
        data: `Outcome.to_dict()`: the terminal record, or what it is if the process ends now.
        timeline: What is left to draw, as plain values; None if nothing was recorded.
    """

    __module__ = "stallwatch"

    id: str
    status: str
    cause: str | None
    name: str | None
    started_at: float
    updated_at: float
    ended_at: float | None
    owner: TurnOwner
    data: Mapping[str, Any] = field(repr=False)
    timeline: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def is_running(self) -> bool:
        """Whether there is no terminal record yet. Its process may be gone: see `sweep`."""
        return self.status == RUNNING

    @property
    def outcome(self) -> Outcome | None:
        """The terminal record; None while there is none.

        Raises:
            ValueError: if it was written by a version whose records this one cannot read.
        """
        return None if self.is_running else self.record

    @property
    def record(self) -> Outcome:
        """The terminal record, or while the turn runs what it is if the process ends now.

        Raises:
            ValueError: if it was written by a version whose records this one cannot read.
        """
        return Outcome.from_dict(self.data)

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values; `data` is called `outcome`."""
        return {
            "id": self.id,
            "status": self.status,
            "cause": self.cause,
            "name": self.name,
            "started_at": self.started_at,
            "updated_at": self.updated_at,
            "ended_at": self.ended_at,
            "owner": self.owner.to_dict(),
            "outcome": dict(self.data),
            "timeline": None if self.timeline is None else dict(self.timeline),
        }


@runtime_checkable
class OutcomeStore(Protocol):
    """Where turns are recorded. Methods block, may be called from any thread, and may raise.

    A turn calls them one after the other, in a worker thread: `start`, then `checkpoint` whenever
    there is something new, then `finish`. A call that failed can be made again. An error of a
    store never changes how a turn ends.
    """

    def start(self, turn_id: str, record: Outcome) -> None:
        """Write a turn as `running`, owned by this process.

        Args:
            turn_id: A new one, from `new_turn_id()`.
            record: What is true if the process ends now; kept as `interrupted`.
        """
        ...

    def checkpoint(
        self, turn_id: str, record: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Replace the record of a running turn; one that is not there yet is started.

        Args:
            turn_id: Which turn.
            record: What is true if the process ends now; kept as `interrupted`.
            timeline: What there is to draw so far, as plain values.

        Returns:
            False if the turn has its terminal record, which stays as it is.
        """
        ...

    def finish(
        self, turn_id: str, outcome: Outcome, *, timeline: Mapping[str, Any] | None = None
    ) -> bool:
        """Write the terminal record, once; also of a turn whose start could not be written.

        Returns:
            True if it is written and will be found by whoever comes later; False if the turn has
            a terminal record already, which stays as it is.
        """
        ...

    def sweep(self) -> list[str]:
        """Make running turns whose owner is gone `interrupted`, with the last record they left.

        Returns:
            The ids of those that this call changed.
        """
        ...

    def get(self, turn_id: str) -> StoredTurn | None:
        """One turn, or None."""
        ...

    def turns(
        self, *, status: str | None = None, name: str | None = None, limit: int | None = None
    ) -> list[StoredTurn]:
        """Turns, the latest start first.

        Args:
            status: Only those: `running`, or a `Status` or its label.
            name: Only those with this name.
            limit: At most so many.
        """
        ...


# Not in its body, where it would be a member that every store has to have.
OutcomeStore.__module__ = "stallwatch"


class MemoryStore:
    """Keeps turns in this process, for as long as it lasts.

    Args:
        keep: How many ended turns to keep; the ones that ended first go first. None for all.
    """

    __module__ = "stallwatch"

    def __init__(self, *, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be 1 or more, or None: {keep!r}")
        self._keep = keep
        self._lock = threading.Lock()
        self._turns: dict[str, StoredTurn] = {}
        self._ended: dict[str, None] = {}

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
        """See `OutcomeStore.finish`."""
        return self._write(turn_id, outcome, str(outcome.status), timeline)

    def sweep(self) -> list[str]:
        """See `OutcomeStore.sweep`. Only a forked child finds turns of another process here."""
        with self._lock:
            running = [one for one in self._turns.values() if one.is_running]
        gone = {owner for owner in {one.owner for one in running} if owner.is_gone()}
        return [
            one.id
            for one in running
            if one.owner in gone
            and self._write(
                one.id, Outcome.from_dict(as_left(one.data)), Status.INTERRUPTED.value, None
            )
        ]

    def get(self, turn_id: str) -> StoredTurn | None:
        """See `OutcomeStore.get`."""
        with self._lock:
            return self._turns.get(turn_id)

    def turns(
        self, *, status: str | None = None, name: str | None = None, limit: int | None = None
    ) -> list[StoredTurn]:
        """See `OutcomeStore.turns`."""
        with self._lock:
            found = list(self._turns.values())
        wanted = [
            one
            for one in found
            if (status is None or one.status == status) and (name is None or one.name == name)
        ]
        wanted.reverse()  # for those that started in the same moment
        wanted.sort(key=lambda one: one.started_at, reverse=True)
        return wanted if limit is None else wanted[: max(0, limit)]

    def _write(
        self, turn_id: str, record: Outcome, status: str, timeline: Mapping[str, Any] | None
    ) -> bool:
        data = json.loads(record.to_json())  # a copy, as any other store keeps one
        drawn = None if timeline is None else json.loads(json.dumps(timeline))
        now = time.time()
        with self._lock:
            known = self._turns.get(turn_id)
            if known is not None and not known.is_running:
                return False
            self._turns[turn_id] = StoredTurn(
                id=turn_id,
                status=status,
                cause=None if record.cause is None else record.cause.kind,
                name=record.turn,
                started_at=record.started_at if known is None else known.started_at,
                updated_at=now,
                ended_at=None if status == RUNNING else now,
                owner=TurnOwner.current() if known is None else known.owner,
                data=data,
                timeline=known.timeline if known is not None and drawn is None else drawn,
            )
            if status != RUNNING:
                self._ended[turn_id] = None
                while self._keep is not None and len(self._ended) > self._keep:
                    oldest = next(iter(self._ended))
                    del self._ended[oldest], self._turns[oldest]
        return True


def new_turn_id() -> str:
    """An id that no other turn has, in any process: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def as_running(record: Outcome) -> Outcome:
    """The record to keep while a turn runs: it never looks complete."""
    return replace(
        record,
        status=Status.INTERRUPTED,
        placeholder=record.placeholder or (None if record.text else NO_TEXT),
        result=None,
    )


def as_left(data: Mapping[str, Any]) -> dict[str, Any]:
    """The terminal record of a turn whose process is gone, from the last one that it left.

    What ran in that process has stopped with it, tools too.
    """
    tools = data.get("tools")
    if not isinstance(tools, list):
        return dict(data)
    return {
        **data,
        "tools": [
            {**tool, "state": Status.INTERRUPTED.value} if tool.get("state") == RUNNING else tool
            for tool in tools
        ],
    }
