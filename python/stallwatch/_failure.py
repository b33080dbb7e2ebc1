"""Why something ended, when no clock and no user did it: an exception as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from stallwatch._causes import StallError, UserCancelled, cause_from_dict

__all__ = ["AnyCause", "Failure", "read_cause"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a turn whose body raised, or of a tool that did: the exception as text.

    Attributes:
        type: The exception's class, with its module.
        message: Its text.
    """

    __module__ = "stallwatch"

    type: str
    message: str

    kind = "error"

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The failure that an exception stands for."""
        klass = type(error)
        return cls(f"{klass.__module__}.{klass.__qualname__}", str(error))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": self.kind, "type": self.type, "message": self.message}


AnyCause = StallError | UserCancelled | Failure


def read_cause(value: Any) -> AnyCause | None:
    """Rebuild a cause from its `to_dict()`; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    if value.get("kind") == Failure.kind:
        return Failure(type=value["type"], message=value["message"])
    return cause_from_dict(value)
