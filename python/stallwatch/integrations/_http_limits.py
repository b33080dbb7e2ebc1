"""The clocks of one HTTP exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stallwatch._limits import StreamLimits
from stallwatch._seconds import Default, Unset, fit, normalise

if TYPE_CHECKING:
    from stallwatch._seconds import Given

__all__ = ["HttpLimits"]

_CLOCKS = ("headers", "first_byte", "idle", "first_chunk", "progress_idle", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Seconds; None is off. Refused: a limit of the body above `budget`, if both were given."""

    headers: float | None = Default(300.0)
    first_byte: float | None = Default(300.0)
    idle: float | None = Default(90.0)
    warn: float | None = Default(0.5)
    first_chunk: float | None = Default(300.0)
    progress_idle: float | None = Default(300.0)
    budget: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            headers: Given = ...,
            first_byte: Given = ...,
            idle: Given = ...,
            warn: float | Literal[Unset.UNSET] | None = ...,
            first_chunk: Given = ...,
            progress_idle: Given = ...,
            budget: Given = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        normalise(self, (*_CLOCKS, "warn"))
        for name in ("first_byte", "idle", "first_chunk", "progress_idle"):
            fit(self, name, "budget")

    @property
    def asking(self) -> StreamLimits:
        """Until the headers, of which there is one chunk: the response."""
        return _limits(first_chunk=self.headers)

    @property
    def body(self) -> StreamLimits:
        """Of the bytes."""
        return _limits(
            first_chunk=self.first_byte, idle=self.idle, warn=self.warn, budget=self.budget
        )

    @property
    def events(self) -> StreamLimits | None:
        """Of the events in a body of events; None if there is nothing to time."""
        if self.first_chunk is None and self.progress_idle is None:
            return None
        return _limits(
            first_chunk=self.first_chunk, progress_idle=self.progress_idle, warn=self.warn
        )


def _limits(**limits: float | None) -> StreamLimits:
    given: dict[str, Any] = {"first_chunk": None, "idle": None, "progress_idle": None, **limits}
    return StreamLimits(**given)
