"""The limits of a turn, of its phases and of its streams: the one place for defaults."""

import math
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

from stallwatch._phases import Phase
from stallwatch._seconds import (
    MAX_SECONDS,
    UNSET,
    Default,
    Unset,
    fit,
    fraction,
    is_given,
    normalise,
    refuse,
    seconds,
)

if TYPE_CHECKING:
    from stallwatch._seconds import Given

__all__ = ["UNSET", "Limits", "PhaseLimits", "StreamLimits", "Unset", "seconds"]

ENV_PREFIX: Final = "STALLWATCH_"


class _PhaseMap(dict[Phase, "PhaseLimits"]):
    """A dict that is finished: hashable, picklable, and without the methods that change it."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[Phase, "PhaseLimits"]]]:
        return type(self), (dict(self),)

    def _frozen(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("Limits.phases is immutable: build new limits with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _frozen


@dataclass(frozen=True, slots=True)
class PhaseLimits:
    """The soft and hard limit of one phase, in seconds; `None` switches that side off.

    A side that is left out is not the same as `None`: it is listed in `inherits`, and stays the
    turn's own limit in a phase that counts as LLM idle. In every other phase it is off.
    """

    __module__ = "stallwatch"

    soft: float | None = UNSET  # type: ignore[assignment]
    hard: float | None = UNSET  # type: ignore[assignment]
    inherits: tuple[str, ...] = field(default=(), kw_only=True)

    if TYPE_CHECKING:

        def __init__(
            self, soft: Given = ..., hard: Given = ..., *, inherits: tuple[str, ...] = ...
        ) -> None: ...

    def __post_init__(self) -> None:
        inherits = []
        for name in ("soft", "hard"):
            value = getattr(self, name)
            # After dataclasses.replace an inherited side arrives as None and listed.
            if value is UNSET or (value is None and name in self.inherits):
                inherits.append(name)
                value = None
            object.__setattr__(self, name, seconds(value, name=name))
        object.__setattr__(self, "inherits", tuple(inherits))
        if self.soft is not None and self.hard is not None and self.soft > self.hard:
            refuse(f"soft={self.soft!r} s", f"hard={self.hard!r} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The clocks of one stream, in seconds; `warn` is the share of `idle` at which it warns.

    Every argument may be `UNSET`. Refused: `first_chunk`, `idle` or `progress_idle` above
    `budget`, if both were given. `progress_idle` below `idle` is legal.
    """

    first_chunk: float | None = Default(300.0)
    idle: float | None = Default(90.0)
    warn: float | None = Default(0.5)
    progress_idle: float | None = Default(300.0)
    budget: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            first_chunk: Given = ...,
            idle: Given = ...,
            warn: float | Literal[Unset.UNSET] | None = ...,
            progress_idle: Given = ...,
            budget: Given = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        normalise(self, ("first_chunk", "idle", "warn", "progress_idle", "budget"))
        for name in ("first_chunk", "idle", "progress_idle"):
            fit(self, name, "budget")

    def within(self, seconds: float) -> Self:
        """The same with a lower budget, which nobody gave: what it puts out of reach may stay."""
        same = copy(self)
        if self.budget is None or seconds < self.budget:
            object.__setattr__(same, "budget", seconds)
        return same


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every limit of a turn, in seconds, and the one place for defaults.

    Takes numbers, `timedelta`s and `None` (off); `inf` is off too. Zero, negative values and NaN
    are refused, and so are two given limits of which one could never fire: `soft_idle` above
    `hard_idle`, `hard_idle + cleanup` above `transport_ceiling`, an idle limit above the budget
    around it. A default gives way to a given limit instead: `Limits(hard_idle=60)` has
    `soft_idle == 30`, `Limits(stream_budget=60)` has `stream_idle is None`, and a default
    `hard_idle` that does not fit below a given `transport_ceiling` is off.

    `dataclasses.replace` keeps the values you see. Those that were never given still count as
    defaults and may give way once more; one that has gone off stays off.

    Attributes:
        soft_idle: silence in an idle-counted phase after which it is reported.
        hard_idle: silence in an idle-counted phase after which the turn is cancelled.
        cleanup: bound on settling, in total.
        transport_ceiling: when the transport around the turn cuts by itself; only compared.
        first_chunk: wait for the first chunk of a stream that counts as progress.
        stream_idle: silence on the wire after that.
        warn: share of the stream's idle limit at which one warning is emitted.
        progress_idle: time without a chunk that counts as progress.
        stream_budget: whole life of a stream.
        turn_budget: whole life of a turn.
        tool_timeout: life of a tool call that names no limit of its own.
        child_idle: silence of a child process.
        kill_grace: wait between TERM and KILL.
        drain_grace: wait for the pipes of a child that has exited.
        close_grace: wait for a source to close.
        phases: own limits of single phases.
        observe_only: report what would have fired, and cancel nothing.
    """

    __module__ = "stallwatch"

    soft_idle: float | None = Default(90.0)
    hard_idle: float | None = Default(540.0)
    cleanup: float | None = Default(60.0)
    transport_ceiling: float | None = Default(600.0)
    first_chunk: float | None = Default(300.0)
    stream_idle: float | None = Default(90.0)
    warn: float | None = Default(0.5)
    progress_idle: float | None = Default(300.0)
    stream_budget: float | None = None
    turn_budget: float | None = None
    tool_timeout: float | None = None
    child_idle: float | None = Default(300.0)
    kill_grace: float | None = Default(5.0)
    drain_grace: float | None = Default(5.0)
    close_grace: float | None = Default(10.0)
    phases: Mapping[Phase, PhaseLimits] = field(default_factory=_PhaseMap)
    observe_only: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            soft_idle: Given = ...,
            hard_idle: Given = ...,
            cleanup: Given = ...,
            transport_ceiling: Given = ...,
            first_chunk: Given = ...,
            stream_idle: Given = ...,
            warn: float | Literal[Unset.UNSET] | None = ...,
            progress_idle: Given = ...,
            stream_budget: Given = ...,
            turn_budget: Given = ...,
            tool_timeout: Given = ...,
            child_idle: Given = ...,
            kill_grace: Given = ...,
            drain_grace: Given = ...,
            close_grace: Given = ...,
            phases: Mapping[Phase, PhaseLimits] = ...,
            observe_only: bool = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        normalise(self, _CLOCKS)
        if not isinstance(self.observe_only, bool):
            raise TypeError(f"observe_only must be a bool, not {type(self.observe_only).__name__}")
        self._fit_turn()
        for name in ("first_chunk", "stream_idle", "progress_idle"):
            fit(self, name, "stream_budget")
        # Only the turn's own clocks give way to the turn's budget: a stream's defaults stay, since
        # without them its first wait would look unbounded and its warnings would be lost.
        for name in ("first_chunk", "stream_idle", "progress_idle", "stream_budget"):
            self._refuse_above_turn(name)
        for name in ("tool_timeout", "child_idle"):
            self._refuse_above_turn(name)
        object.__setattr__(self, "phases", _phase_map(self.phases))
        for phase in self.phases:
            self.for_phase(phase)

    def _fit_turn(self) -> None:
        fit(self, "hard_idle", "turn_budget")
        if self.hard_idle is not None and self.transport_ceiling is not None:
            last = self.hard_idle + (self.cleanup or 0.0)
            if last > self.transport_ceiling:
                if not is_given(self.transport_ceiling):
                    object.__setattr__(self, "transport_ceiling", None)
                elif not is_given(self.hard_idle):
                    object.__setattr__(self, "hard_idle", None)
                else:
                    raise ValueError(
                        f"hard_idle + cleanup = {last!r} s is above "
                        f"transport_ceiling={self.transport_ceiling!r} s: the transport would cut "
                        "the turn before it has settled; lower one, or set one to None"
                    )
        if self.hard_idle is not None and self.soft_idle is not None:
            if not is_given(self.soft_idle) and self.soft_idle > self.hard_idle:
                object.__setattr__(self, "soft_idle", Default(self.hard_idle / 2))
            fit(self, "soft_idle", "hard_idle")
        fit(self, "soft_idle", "transport_ceiling")
        fit(self, "soft_idle", "turn_budget")

    def _refuse_above_turn(self, name: str) -> None:
        if is_given(getattr(self, name)):
            fit(self, name, "turn_budget")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read `STALLWATCH_HARD_IDLE=540` and the like; what is not set keeps its default.

        Values are seconds (`STALLWATCH_WARN` a fraction, `STALLWATCH_OBSERVE_ONLY` a yes or no);
        `off` or `none` switches a clock off, and an empty value counts as not set. `phases` cannot
        be set this way.

        Raises:
            ValueError: naming the variable: no number, 0 (use `off`), or limits that contradict.
        """
        env = os.environ if env is None else env
        given: dict[str, Any] = {}
        for name in (*_CLOCKS, "observe_only"):
            variable = ENV_PREFIX + name.upper()
            text = env.get(variable, "").strip()
            if text:
                given[name] = _from_text(text, name, variable)
        try:
            return cls(**given)
        except ValueError as error:
            names = ", ".join(ENV_PREFIX + name.upper() for name in given)
            raise ValueError(f"{error} (read from the environment: {names})") from None

    def for_phase(self, phase: Phase) -> PhaseLimits:
        """Return the limits in force in `phase`: its own, else the turn's if idle is counted."""
        own = self.phases.get(phase)
        soft, hard = (self.soft_idle, self.hard_idle) if phase.idle_counted else (None, None)
        if own is not None:
            hard_given = "hard" not in own.inherits or is_given(hard)
            soft_own = "soft" not in own.inherits
            soft = own.soft if soft_own else soft
            hard = own.hard if "hard" not in own.inherits else hard
            if soft is not None and hard is not None and soft > hard:
                if not soft_own:
                    soft = hard / 2
                elif hard_given:
                    refuse(f"phases[{phase}].soft={soft!r} s", f"hard_idle={hard!r} s")
                else:
                    hard = None
        return PhaseLimits(soft=_plain(soft), hard=_plain(hard))

    def stream(
        self,
        *,
        first_chunk: "Given" = UNSET,
        idle: "Given" = UNSET,
        warn: float | Literal[Unset.UNSET] | None = UNSET,
        progress_idle: "Given" = UNSET,
        budget: "Given" = UNSET,
    ) -> StreamLimits:
        """Return the clocks of one stream: the call's arguments, else those of the turn.

        The more specific word wins: beside arguments of the call the turn's own limits count as
        defaults and give way, all but `stream_budget`, which a call has to change by name.
        """
        call = {
            "first_chunk": first_chunk,
            "idle": idle,
            "warn": warn,
            "progress_idle": progress_idle,
            "budget": budget,
        }
        given = {name: value for name, value in call.items() if value is not UNSET}
        turn: dict[str, Any] = {
            "first_chunk": self.first_chunk,
            "idle": self.stream_idle,
            "warn": self.warn,
            "progress_idle": self.progress_idle,
        }
        if given:
            turn = {name: None if own is None else Default(own) for name, own in turn.items()}
        return StreamLimits(**{**turn, "budget": self.stream_budget, **given})


_CLOCKS: Final = tuple(f.name for f in fields(Limits) if f.name not in ("phases", "observe_only"))
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off", "none"})


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)


def _phase_map(phases: Mapping[Phase, PhaseLimits]) -> _PhaseMap:
    if not isinstance(phases, Mapping):
        raise TypeError(f"phases must map Phase to PhaseLimits, not be {type(phases).__name__}")
    checked = {}
    for key, limits in phases.items():
        if not isinstance(limits, PhaseLimits):
            raise TypeError(f"phases[{key}] must be PhaseLimits, not {type(limits).__name__}")
        checked[Phase(key)] = limits
    return _PhaseMap(checked)


def _from_text(text: str, name: str, variable: str) -> float | bool | None:
    word = text.lower()
    if name == "observe_only":
        if word in _YES or word in _NO:
            return word in _YES
        raise ValueError(f"{variable}={text!r} is neither yes nor no: use 1 or 0")
    if word in ("off", "none"):
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{variable}={text!r} is not a number of seconds or off") from None
    if math.isinf(number) and word.lstrip("+-")[:1].isdigit():
        number = math.copysign(MAX_SECONDS, number)
    if name == "warn":
        return fraction(number, name=variable, off="off")
    return seconds(number, name=variable, off="off")
