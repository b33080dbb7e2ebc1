"""What became of a tool call, as a turn's outcome has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from stallwatch._failure import AnyCause, read_cause
from stallwatch._phases import LabelledStrEnum

__all__ = ["ToolRecord", "ToolState"]


class ToolState(LabelledStrEnum):
    """How a tool call stands, or ended.

    `running`: it has not ended. `completed`: it returned. `failed`: it raised. `deadline`: its
    clock fired, and it has stopped. `interrupted`: its caller or its turn was cancelled, or its
    turn ended without it, and it has stopped. `cancelled`: it was cancelled by somebody else.
    `unresponsive`: it was cancelled, and has not stopped. `abandoned`: it runs in a thread, which
    nothing can stop, and is no longer waited for.
    """

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    UNRESPONSIVE = "unresponsive"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One tool call.

    Attributes:
        name: The name it was given.
        state: See `ToolState`.
        elapsed: Seconds from its start until it had that state.
        limit: Seconds it was allowed; None without a clock.
        cause: Why it did not complete: the cause of the turn, its own `ToolDeadlineError`, or the
            exception it raised as a `Failure`; else None. Text of the turn is left out of it in
            `to_dict()`, as the outcome has that already.
    """

    __module__ = "stallwatch"

    name: str
    state: ToolState
    elapsed: float
    limit: float | None = None
    cause: AnyCause | None = None

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        cause = None if self.cause is None else self.cause.to_dict()
        if cause is not None and "partial" in cause:
            cause |= {"partial": "", "tool_args": None, "text_received": False}
        return {
            "name": self.name,
            "state": str(self.state),
            "elapsed": self.elapsed,
            "limit": self.limit,
            "cause": cause,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a record from `to_dict()`."""
        return cls(
            name=data["name"],
            state=ToolState(data["state"]),
            elapsed=data["elapsed"],
            limit=data.get("limit"),
            cause=read_cause(data.get("cause")),
        )


ToolState.__module__ = "stallwatch"
