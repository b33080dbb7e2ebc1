"""Why something ended early.

    StallError(RuntimeError)
     ├ HardIdleError         "hard_idle"
     ├ FirstChunkError       "first_chunk"
     ├ StreamIdleError       "stream_idle"
     ├ StreamProgressError   "stream_progress"
     ├ StreamBudgetError     "stream_budget"
     ├ TurnBudgetError       "turn_budget"
     ├ ToolDeadlineError     "tool_deadline"
     └ ChildIdleError        "child_idle"
    UserCancelled(asyncio.CancelledError)
    PhaseViolationError(RuntimeError)

A stall is terminal: trying the same thing again stalls again. Retry code in the field decides by
type (`TimeoutError`, `OSError`, `ConnectionError`) or by words in the text, so a stall is neither
of these types and says none of these words. It is a `RuntimeError`, since that is what default
retry policies leave alone.
"""

from asyncio.exceptions import CancelledError
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Self

from stallwatch._phases import Phase
from stallwatch._plain import duration, plain

__all__ = [
    "CAUSE_KINDS",
    "ChildIdleError",
    "FirstChunkError",
    "HardIdleError",
    "PhaseViolationError",
    "StallError",
    "StreamBudgetError",
    "StreamIdleError",
    "StreamProgressError",
    "ToolDeadlineError",
    "TurnBudgetError",
    "UserCancelled",
    "cause_from_dict",
]

# What an instance knows, and what it says when it knows nothing. `owner` defaults by class.
_FIELDS: Final[Mapping[str, Any]] = {
    "owner": None,
    "name": None,
    "phase": None,
    "seq": None,
    "idle": None,
    "limit": None,
    "lateness": 0.0,
    "since_chunk": None,
    "since_progress": None,
    "partial": "",
    "tool_args": None,
}


class StallError(RuntimeError):
    """An owner stayed silent for its whole limit. Terminal, and never retryable.

    Raised by a clock that fired, as one of the subclasses; never for an error that the source
    itself raised, and never for a cancel by the user.

    It can be rebuilt from `cls(*exc.args)`, and `args` holds plain JSON values only, so that
    pickle, Celery and Ray carry it whole. The text holds no user data: `partial` and `tool_args`
    are attributes, and part of `args` and `to_dict()`, but never of `str(exc)`.

    Args:
        message: Text to show in place of the one made from the fields.
        details: The fields below as one mapping of plain values; keywords win over it.

    Attributes:
        kind: The closed set of reasons, fixed by the class.
        owner: The component that promised progress.
        name: The name of the stream, tool, child or turn, if it has one.
        phase: The phase the turn was in, if there was a turn.
        seq: The tracker's sequence number of that phase.
        idle: Seconds measured by the clock that fired: silence, or elapsed time for budgets.
        limit: Seconds that clock allowed.
        lateness: Seconds between the limit and the decision, beyond the limit.
        since_chunk: Seconds since the last chunk of any kind; None if unknown or none came.
        since_progress: Seconds since the last chunk that was progress; None likewise.
        partial: The text received until then.
        tool_args: Half-received tool arguments.
        retryable: Always false.
    """

    __module__ = "stallwatch"

    kind: ClassVar[str] = "stall"
    retryable: ClassVar[Literal[False]] = False

    _owner: ClassVar[str] = "watchdog"
    _what: ClassVar[str] = "no progress for {idle}"

    def __init__(
        self,
        message: str | None = None,
        details: Mapping[str, Any] | None = None,
        /,
        *,
        owner: str | None = None,
        name: str | None = None,
        phase: Phase | None = None,
        seq: int | None = None,
        idle: float | None = None,
        limit: float | None = None,
        lateness: float = 0.0,
        since_chunk: float | None = None,
        since_progress: float | None = None,
        partial: str = "",
        tool_args: Any = None,
    ) -> None:
        super().__init__()
        self.owner: str = self._owner if owner is None else owner
        self.name = name
        self.phase: Phase | None = None if phase is None else Phase(phase)
        self.seq = seq
        self.idle = idle
        self.limit = limit
        self.lateness = lateness
        self.since_chunk = since_chunk
        self.since_progress = since_progress
        self.partial = partial
        self.tool_args = tool_args
        if isinstance(details, Mapping):
            self._fill_from(details)
        # A message that equals the rendered one came out of args: keep it following the fields.
        self._message = None if message is None or message == self._render() else str(message)

    def _fill_from(self, details: Mapping[str, Any]) -> None:
        for key in _FIELDS.keys() & details.keys():
            value = details[key]
            if value is not None and self._is_unknown(key):
                setattr(self, key, _phase(value) if key == "phase" else value)

    def _is_unknown(self, key: str) -> bool:
        value, nothing = getattr(self, key), self._owner if key == "owner" else _FIELDS[key]
        return value is None if nothing is None else bool(value == nothing)

    @property
    def text_received(self) -> bool:
        """Whether any text arrived: false tells an empty answer from one that never began."""
        return bool(self.partial)

    def annotate(self, **fields: Any) -> Self:
        """Fill in fields that are still unknown, and return the same object.

        For the layers a stall passes on its way up: the stream knows its silence and its partial
        text, the turn adds phase and sequence number. What is known already is not overwritten.
        """
        for key in fields:
            if key not in _FIELDS:
                raise TypeError(f"annotate() got an unexpected keyword argument {key!r}")
        self._fill_from(fields)
        return self

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The text and the known fields as plain values: all that is needed to rebuild it."""
        known = (key for key in _FIELDS if not self._is_unknown(key))
        return str(self), {key: plain(getattr(self, key)) for key in known}

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields travel in args; the state holds what others attached, notes above all.
        state = {k: v for k, v in self.__dict__.items() if k not in _FIELDS and k != "_message"}
        return type(self), self.args, state or None

    def __str__(self) -> str:
        return self._render() if self._message is None else self._message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _render(self) -> str:
        label = "" if self.name is None else f" {str(self.name)[:80]!r}"
        idle = "its whole limit" if self.idle is None else duration(self.idle)
        text = self._what.format(idle=idle, name=label)
        if self.phase is not None:
            text += f" while {self.phase}"
        known = [] if self.limit is None else [f"limit {duration(self.limit)}"]
        known.append(f"owner {self.owner}" + ("" if "{name}" in self._what else label))
        if self.lateness >= 0.1:
            known.append(f"decided {duration(self.lateness)} late")
        return f"{text} ({', '.join(known)})"

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values, with `kind`, `message` and `text_received`."""
        fields = {key: plain(getattr(self, key)) for key in _FIELDS}
        return {
            "kind": self.kind,
            "message": str(self),
            **fields,
            "text_received": self.text_received,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StallError":
        """Rebuild a cause from `to_dict()`; its class is looked up by `kind`.

        Keys this version does not know are ignored.

        Raises:
            ValueError: the kind is not one of `CAUSE_KINDS`.
        """
        kind = data.get("kind")
        if kind == StallError.kind:
            return StallError(data.get("message"), data)
        if not isinstance(kind, str) or kind not in CAUSE_KINDS:
            raise ValueError(f"unknown kind of stall: {kind!r}")
        return CAUSE_KINDS[kind](data.get("message"), data)


class HardIdleError(StallError):
    """The turn spent its hard limit, in seconds, in a phase that counts as LLM idle.

    It says nothing of streams, which have clocks and owners of their own: a lively answer that
    takes longer than the hard limit is ended by it too, unless the loop enters the phase again.
    Not raised for time spent in other phases, an approval or a tool say, nor for a turn whose
    phase tracker can no longer be trusted.
    """

    __module__ = "stallwatch"
    kind = "hard_idle"
    _owner = "turn watchdog"
    _what = "no change of phase for {idle}"


class FirstChunkError(StallError):
    """No chunk that counts as progress came within `first_chunk` seconds of the first pull.

    Not raised once such a chunk was seen, nor while nobody pulls.
    """

    __module__ = "stallwatch"
    kind = "first_chunk"
    _owner = "stream"
    _what = "provider sent no first chunk for {idle}"


class StreamIdleError(StallError):
    """Nothing at all came for `idle` seconds after the first chunk: the transport is silent.

    Not raised before the first chunk, while the consumer is busy, or after the terminal event.
    """

    __module__ = "stallwatch"
    kind = "stream_idle"
    _owner = "stream"
    _what = "provider silent for {idle}"


class StreamProgressError(StallError):
    """Chunks came, but none that counts as progress for `progress_idle` seconds.

    Not raised before the first chunk, while the consumer is busy, or after the terminal event.
    `since_chunk` and `since_progress` tell the two silences apart.
    """

    __module__ = "stallwatch"
    kind = "stream_progress"
    _owner = "stream"
    _what = "provider alive but without progress for {idle}"


class StreamBudgetError(StallError):
    """The stream was not finished `budget` seconds after its first pull, lively or not.

    Not raised after the terminal event. `idle` holds the elapsed seconds.
    """

    __module__ = "stallwatch"
    kind = "stream_budget"
    _owner = "stream"
    _what = "stream unfinished after {idle}"


class TurnBudgetError(StallError):
    """A turn, or a `budget(...)` block, was not finished within its seconds.

    Raised however lively the work was, across every attempt inside. `idle` holds the elapsed
    seconds.
    """

    __module__ = "stallwatch"
    kind = "turn_budget"
    _owner = "turn"
    _what = "unfinished after {idle}"


class ToolDeadlineError(StallError):
    """A tool was still running after its own limit, in seconds.

    It is an answer to give to the model, not the end of the turn. `idle` holds the elapsed
    seconds. Not raised for an error of the tool itself.
    """

    __module__ = "stallwatch"
    kind = "tool_deadline"
    _owner = "tool"
    _what = "tool{name} still running after {idle}"


class ChildIdleError(StallError):
    """A child process gave no sign of life on any watched channel for `idle` seconds.

    Not raised for a child that has exited, whatever its status.
    """

    __module__ = "stallwatch"
    kind = "child_idle"
    _owner = "child process"
    _what = "child process{name} silent for {idle}"


CAUSE_KINDS: Final[Mapping[str, type[StallError]]] = MappingProxyType(
    {
        cls.kind: cls
        for cls in (
            HardIdleError,
            FirstChunkError,
            StreamIdleError,
            StreamProgressError,
            StreamBudgetError,
            TurnBudgetError,
            ToolDeadlineError,
            ChildIdleError,
        )
    }
)
"""The closed set of reasons for a stall, and the class of each."""


class UserCancelled(CancelledError):
    """A person, or the program on their behalf, ended the turn with `turn.cancel(reason)`.

    It is a cancellation, so every `except Exception` lets it pass. Not raised for a clock that
    fired, nor for a task that was cancelled from elsewhere.
    """

    __module__ = "stallwatch"

    kind: ClassVar[str] = "user_cancelled"
    retryable: ClassVar[Literal[False]] = False

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(*(() if reason is None else (reason,)))

    @property
    def reason(self) -> str | None:
        """Why, in the words of whoever cancelled."""
        return self.args[0] if self.args else None

    def to_dict(self) -> dict[str, Any]:
        """The kind and the reason as plain JSON values."""
        return {"kind": self.kind, "reason": plain(self.reason)}


class PhaseViolationError(RuntimeError):
    """The loop broke the rules of its phase tracker, and strict mode is on.

    Raised before anything changes. Outside strict mode the same fault is logged, and every clock
    that reads the tracker disarms itself.
    """

    __module__ = "stallwatch"


def cause_from_dict(data: Mapping[str, Any]) -> StallError | UserCancelled:
    """Rebuild a stall or a user cancel from its `to_dict()`."""
    if data.get("kind") == UserCancelled.kind:
        return UserCancelled(data.get("reason"))
    return StallError.from_dict(data)


def _phase(value: Any) -> Phase | None:
    # A record of a newer version may name a phase unknown here: lose the phase, not the cause.
    try:
        return Phase(value)
    except ValueError:
        return None
