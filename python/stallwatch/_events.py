"""What a turn reports while it runs: eighteen frozen events.

Events hold measurements and names, never text that the model, a tool or a user wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Final

from stallwatch._phases import Phase
from stallwatch._plain import plain

__all__ = [
    "EVENT_NAMES",
    "BudgetExceeded",
    "ChildIdle",
    "CoverageLost",
    "Event",
    "FirstChunk",
    "HardIdle",
    "HostSuspended",
    "LateResult",
    "ObserverStalled",
    "PhaseChanged",
    "Settled",
    "SoftIdle",
    "StreamSlow",
    "StreamStalled",
    "StreamTruncated",
    "ToolEnded",
    "ToolStarted",
    "UnboundedWait",
    "Unresponsive",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: when it was, by `time.monotonic()`, and in which turn."""

    __module__ = "stallwatch"

    event: ClassVar[str] = "event"
    # Goes to the log when nobody listens.
    loud: ClassVar[bool] = False

    at: float
    turn: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event's name and every field as plain JSON values."""
        found: dict[str, Any] = {"event": self.event}
        for field in fields(self):
            found[field.name] = plain(getattr(self, field.name))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """The loop entered `phase`, after `elapsed` seconds in `previous`."""

    __module__ = "stallwatch"
    event = "phase_changed"

    phase: Phase
    seq: int
    previous: Phase | None = None
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftIdle(Event):
    """The model has been silent for the soft limit: once per phase instance, nothing is cut."""

    __module__ = "stallwatch"
    event = "soft_idle"
    loud = True

    phase: Phase
    seq: int
    idle: float
    limit: float
    lateness: float = 0.0
    would_have_fired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HardIdle(Event):
    """The model has been silent for the hard limit: the turn is about to be cancelled."""

    __module__ = "stallwatch"
    event = "hard_idle"
    loud = True

    phase: Phase
    seq: int
    idle: float
    limit: float
    lateness: float = 0.0
    would_have_fired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstChunk(Event):
    """The first chunk that counts as progress came `elapsed` seconds after the first pull."""

    __module__ = "stallwatch"
    event = "first_chunk"

    stream: str | None = None
    elapsed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlow(Event):
    """A silence reached its warning share of the limit of `clock`: once per silence."""

    __module__ = "stallwatch"
    event = "stream_slow"
    loud = True

    stream: str | None = None
    clock: str = "idle"
    idle: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStalled(Event):
    """`clock` of a stream fired: it is being cut. `cause` is the kind of the error to come."""

    __module__ = "stallwatch"
    event = "stream_stalled"
    loud = True

    stream: str | None = None
    clock: str
    idle: float
    limit: float
    since_chunk: float | None = None
    since_progress: float | None = None
    lateness: float = 0.0
    would_have_fired: bool = False
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTruncated(Event):
    """The source ended after `chunks` chunks without its terminal event."""

    __module__ = "stallwatch"
    event = "stream_truncated"
    loud = True

    stream: str | None = None
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnboundedWait(Event):
    """The first wait of a stream has no clock at all."""

    __module__ = "stallwatch"
    event = "unbounded_wait"
    loud = True

    stream: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool call was opened."""

    __module__ = "stallwatch"
    event = "tool_started"

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(Event):
    """A tool call reached its terminal `state` after `elapsed` seconds."""

    __module__ = "stallwatch"
    event = "tool_ended"

    name: str
    state: str
    elapsed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildIdle(Event):
    """A child process gave no sign of life for its limit; with `warning`, for half of it so far."""

    __module__ = "stallwatch"
    event = "child_idle"
    loud = True

    name: str | None = None
    idle: float
    limit: float
    lateness: float = 0.0
    would_have_fired: bool = False
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded(Event):
    """The budget of `owner` is used up, however lively the work was."""

    __module__ = "stallwatch"
    event = "budget_exceeded"
    loud = True

    owner: str
    name: str | None = None
    elapsed: float
    limit: float
    lateness: float = 0.0
    would_have_fired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverStalled(Event):
    """`clock` was found overdue because this process itself did not run for `lateness` seconds."""

    __module__ = "stallwatch"
    event = "observer_stalled"
    loud = True

    lateness: float
    clock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSuspended(Event):
    """The host slept for `slept` seconds."""

    __module__ = "stallwatch"
    event = "host_suspended"
    loud = True

    slept: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageLost(Event):
    """A clock disarmed itself because what it reads can no longer be trusted."""

    __module__ = "stallwatch"
    event = "coverage_lost"
    loud = True

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresponsive(Event):
    """`what` (a stream, a tool, a child) did not let go within `waited` seconds."""

    __module__ = "stallwatch"
    event = "unresponsive"
    loud = True

    what: str
    name: str | None = None
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult(Event):
    """Something arrived after the turn had settled; it is kept aside and changes nothing."""

    __module__ = "stallwatch"
    event = "late_result"

    what: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Event):
    """The turn reached its terminal `status` after `elapsed` seconds; `cause` is a kind."""

    __module__ = "stallwatch"
    event = "settled"

    status: str
    cause: str | None = None
    elapsed: float


EVENT_NAMES: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        cls.event: cls
        for cls in (
            PhaseChanged,
            SoftIdle,
            HardIdle,
            FirstChunk,
            StreamSlow,
            StreamStalled,
            StreamTruncated,
            UnboundedWait,
            ToolStarted,
            ToolEnded,
            ChildIdle,
            BudgetExceeded,
            ObserverStalled,
            HostSuspended,
            CoverageLost,
            Unresponsive,
            LateResult,
            Settled,
        )
    }
)
"""Every event by the name it has in `to_dict()`."""
