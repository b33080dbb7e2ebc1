"""The one terminal record of a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from stallwatch._causes import StallError, UserCancelled
from stallwatch._clock_times import ClockTime
from stallwatch._failure import Failure, read_cause
from stallwatch._phases import LabelledStrEnum, Phase
from stallwatch._plain import plain
from stallwatch._tool_record import ToolRecord
from stallwatch._verdict import Retry, retry_verdict

__all__ = ["NO_TEXT", "Failure", "Outcome", "Status"]

SCHEMA: Final = 3
"""Version of `Outcome.to_dict()`.

1 had no tools; 2 had no clocks, no attempts and no last progress. Both are read as well.
"""

NO_TEXT: Final = "[no text was received]"
"""The placeholder of a turn that ended before any text came. Never part of `text`."""


class Status(LabelledStrEnum):
    """How a turn ended.

    `completed`: the body returned. `stalled`: a clock fired. `cancelled`: by a user, or from
    outside. `failed`: the body raised. `interrupted`: its process is gone.
    """

    COMPLETED = "completed"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What became of a turn. Frozen, picklable, and round trips through JSON.

    Attributes:
        status: See `Status`.
        turn: The turn's name.
        cause: Why it did not complete: a `StallError`, a `UserCancelled` or a `Failure`; else None.
        also: The loser of a race, if another cause came in the same moment.
        phase: The phase in which it ended, or in which its cause arose.
        seq: The tracker's number of that phase.
        text: All text received from its streams.
        partial: The text of the answer that was not finished; "" if none was cut.
        placeholder: Stands in for `text` where there is none and one was to be expected; else None.
        tool_args: Half-received tool arguments of a cut answer, or None.
        tools: The tool calls, in the order in which they started.
        elapsed: Seconds from start to settlement.
        started_at: Start, in seconds since the epoch.
        attempts: How many streams were begun; with `retry_turn`, in all attempts.
        last_progress: Seconds from the last progress of a stream to settlement; None if none came.
        clocks: The longest run of each clock that there was, and its limit, by its name in
            `Limits`: `clocks["stream_idle"].elapsed`. Idle is what phases are that count as such.
        uncovered: Seconds in which no clock ran that would have ended a silence: in phases that do
            not count as idle, outside of streams and of tools with a limit, without a budget.
        late: What arrived after settlement, as text.
        result: What the body returned. In memory only: not in `to_dict()`, not pickled.
    """

    status: Status
    turn: str | None = None
    cause: StallError | UserCancelled | Failure | None = None
    also: StallError | UserCancelled | Failure | None = None
    phase: Phase = Phase.INIT
    seq: int = 0
    text: str = ""
    partial: str = ""
    placeholder: str | None = None
    tool_args: Any = None
    tools: tuple[ToolRecord, ...] = ()
    elapsed: float = 0.0
    started_at: float = 0.0
    attempts: int = 0
    last_progress: float | None = None
    clocks: Mapping[str, ClockTime] = field(default_factory=dict)
    uncovered: float = 0.0
    late: tuple[str, ...] = ()
    result: Any = field(default=None, repr=False)

    @property
    def retry(self) -> Retry:
        """Whether it may be run again, and why: never, before any output, or only by resuming."""
        return retry_verdict(
            status=self.status,
            kind=None if self.cause is None else self.cause.kind,
            has_output=bool(self.text or self.tool_args) or self.last_progress is not None,
            has_tools=bool(self.tools),
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field but `result` as plain JSON values, `retry`, and the schema's version."""
        data: dict[str, Any] = {"schema": SCHEMA}
        for one in fields(self):
            if one.name != "result":
                data[one.name] = _plain(getattr(self, one.name))
        data["retry"] = self.retry.to_dict()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild an outcome from `to_dict()`.

        Raises:
            ValueError: for a schema that this version does not know.
        """
        if data.get("schema") not in range(1, SCHEMA + 1):
            raise ValueError(
                f"cannot read an outcome of schema {data.get('schema')!r}: "
                f"this version knows {SCHEMA} and below"
            )
        known = {one.name for one in fields(cls)} - {"result"}
        values = {key: value for key, value in data.items() if key in known}
        values["status"] = Status(values["status"])
        values["phase"] = _phase(values.get("phase"))
        values["cause"] = read_cause(values.get("cause"))
        values["also"] = read_cause(values.get("also"))
        values["tools"] = tuple(ToolRecord.from_dict(one) for one in values.get("tools", ()))
        times = dict(values.get("clocks", {}))
        values["clocks"] = {name: ClockTime.from_dict(one) for name, one in times.items()}
        values["late"] = tuple(values.get("late", ()))
        return cls(**values)

    def to_json(self) -> str:
        """`to_dict()` as JSON text."""
        # Escaped, since text may hold halves of surrogate pairs, which no file or database takes.
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Rebuild an outcome from `to_json()`."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        # Causes are exceptions, which compare by identity; what counts is what they say.
        if not isinstance(other, Outcome):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.turn, self.status, self.seq, self.started_at))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.to_dict(),)

    __module__ = "stallwatch"


def _rebuild(data: Mapping[str, Any]) -> Outcome:
    return Outcome.from_dict(data)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value.to_dict() if hasattr(value, "to_dict") else plain(value)


def _phase(value: Any) -> Phase:
    return Phase.INIT if value is None else Phase(value)


Status.__module__ = "stallwatch"
