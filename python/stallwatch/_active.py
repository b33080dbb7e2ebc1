"""`active`: who is being waited for in this process right now.

Turns enrol when they are entered and are struck off when they settle; `active()` reads them from
outside, on any thread, and holds up none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from stallwatch._phases import Phase
from stallwatch._plain import plain
from stallwatch._stallwatch import now
from stallwatch._tool_call import lingering

if TYPE_CHECKING:
    from stallwatch._tool_call import ToolCall

__all__ = ["Active", "ActiveSpan", "ActiveTurn", "active", "enrol", "strike_off"]

_turns: Final[dict[int, ref[Any]]] = {}
_bodies: Final[dict[int, tuple[str | None, float, ref[Any]]]] = {}


def enrol(turn: Any) -> None:
    """A turn has begun."""
    key = id(turn)
    _turns[key] = ref(turn, lambda _: _turns.pop(key, None))


def strike_off(turn: Any) -> None:
    """A turn has settled."""
    _turns.pop(id(turn), None)


def enrol_body(turn: Any, task: Any) -> None:
    """The body of a turn that has settled runs on, in a task."""
    _bodies[id(turn)] = (turn.name, now(), ref(task))


def strike_off_body(turn: Any) -> None:
    """Such a body has let go after all."""
    _bodies.pop(id(turn), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSpan:
    """An open wait.

    Attributes:
        kind: `stream`, `tool`, or `body` for that of a settled turn.
        name: The name it was given.
        state: For a tool its state; for a stream `pending` while a chunk is waited for, else
            `open`.
        elapsed: Seconds since it began.
        idle: Seconds of silence so far, of a stream that is pending; else None.
        limits: Seconds each of its clocks allows, by name; clocks that are off are left out.
    """

    __module__ = "stallwatch"

    kind: str
    name: str | None
    state: str
    elapsed: float
    idle: float | None = None
    limits: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        return _as_dict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTurn:
    """A turn that has not settled.

    Attributes:
        name: Its name.
        phase: The phase it is in.
        seq: The tracker's number of that phase.
        owner: Who promised progress in that phase.
        idle: Seconds it has been in that phase, borrowed time left out.
        elapsed: Seconds since its start.
        cause: The kind of the cause for which it is ending; None while it is well.
        limits: Seconds allowed by name: `soft` and `hard` of that phase, and `turn_budget`; clocks
            that are off are left out.
        spans: Its open streams and tools.
    """

    __module__ = "stallwatch"

    name: str | None
    phase: Phase
    seq: int
    owner: str
    idle: float
    elapsed: float
    cause: str | None
    limits: Mapping[str, float]
    spans: tuple[ActiveSpan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        return _as_dict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """What `active()` saw.

    Attributes:
        at: When, on the clock that events have too.
        turns: The turns that have not settled, in the order in which they began.
        unresponsive: What runs on although its turn has settled or has given it up: tools that
            ignored their cancel, tools in threads, bodies. They stay here until they really end.
    """

    __module__ = "stallwatch"

    at: float
    turns: tuple[ActiveTurn, ...]
    unresponsive: tuple[ActiveSpan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        return _as_dict(self)


def active() -> Active:
    """Take a picture of every turn and span in this process that is not over.

    From any thread. It stops no clock and changes nothing; ten thousand turns take tens of
    milliseconds, so it may be taken each second. A turn that has settled is not in it; a tool that
    ignored its cancel is, under `unresponsive`, until it ends.
    """
    moment = now()
    known: dict[tuple[int, Phase], Mapping[str, float]] = {}
    found = [turn for one in list(_turns.values()) if (turn := one()) is not None]
    return Active(
        at=moment,
        turns=tuple(_turn(turn, known) for turn in found),
        unresponsive=(*(_tool(call) for call in lingering()), *_stuck(moment)),
    )


def _stuck(moment: float) -> list[ActiveSpan]:
    spans = []
    for key, (name, since, task) in list(_bodies.items()):
        alive = task()
        if alive is None or alive.done():
            _bodies.pop(key, None)
            continue
        elapsed = moment - since
        spans.append(
            ActiveSpan(kind="body", name=name, state="unresponsive", elapsed=elapsed, limits={})
        )
    return spans


def _turn(turn: Any, known: dict[tuple[int, Phase], Mapping[str, float]]) -> ActiveTurn:
    state = turn.tracker.current()
    cause = turn.cause
    # Many turns share their limits.
    key = (id(turn.limits), state.phase)
    limits = known.get(key)
    if limits is None:
        limits = known[key] = _limits(turn.limits, state.phase)
    streams = [_stream(one) for one in list(turn._streams) if one.has_begun and not one.is_over]
    return ActiveTurn(
        name=turn.name,
        phase=state.phase,
        seq=state.seq,
        owner=state.phase.owner,
        idle=state.elapsed,
        elapsed=0.0 if turn._budget is None else turn._budget.elapsed(),
        cause=None if cause is None else cause.kind,
        limits=limits,
        spans=(*streams, *(_tool(call) for call in turn._tools.open)),
    )


def _limits(limits: Any, phase: Phase) -> Mapping[str, float]:
    own = limits.for_phase(phase)
    found = {"soft": own.soft, "hard": own.hard, "turn_budget": limits.turn_budget}
    return {name: float(limit) for name, limit in found.items() if limit is not None}


def _stream(guard: Any) -> ActiveSpan:
    numbers, limits, moment = guard._numbers(), guard._limits, guard._now()
    started, heard = numbers[2], numbers[4]
    clocks = {
        name: getattr(limits, name) for name in ("first_chunk", "idle", "progress_idle", "budget")
    }
    pending = guard._pending
    began = moment if started is None else started
    return ActiveSpan(
        kind="stream",
        name=guard.name,
        state="pending" if pending else "open",
        elapsed=moment - began,
        idle=moment - (began if heard is None else heard) if pending else None,
        limits={name: float(limit) for name, limit in clocks.items() if limit is not None},
    )


def _tool(call: ToolCall[Any]) -> ActiveSpan:
    return ActiveSpan(
        kind="tool",
        name=call.name,
        state=str(call.state),
        elapsed=call.elapsed,
        limits={} if call.limit is None else {"timeout": call.limit},
    )


def _as_dict(one: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(one, field.name)) for field in fields(one)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.to_dict() if hasattr(value, "to_dict") else plain(value)


active.__module__ = "stallwatch"
