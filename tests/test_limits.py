import ast
import copy
import dataclasses
import inspect
import math
import pickle
import sys
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stallwatch
from stallwatch import _limits
from stallwatch._limits import Limits, PhaseLimits, StreamLimits
from stallwatch._phases import Phase
from stallwatch._seconds import MAX_SECONDS, UNSET, seconds

DEFAULTS = {
    "soft_idle": 90,
    "hard_idle": 540,
    "cleanup": 60,
    "transport_ceiling": 600,
    "first_chunk": 300,
    "stream_idle": 90,
    "warn": 0.5,
    "progress_idle": 300,
    "stream_budget": None,
    "turn_budget": None,
    "tool_timeout": None,
    "child_idle": 300,
    "kill_grace": 5,
    "drain_grace": 5,
    "close_grace": 10,
    "phases": {},
    "observe_only": False,
}


class NumpyLike:
    """Stands in for a numpy scalar: no number by type, but convertible by float()."""

    def __init__(self, value: float, kind: str = "f") -> None:
        self.value = value
        self.dtype = type("dtype", (), {"kind": kind})()

    def __float__(self) -> float:
        return float(self.value)


class Indexed:
    """An integer by protocol alone."""

    def __index__(self) -> int:
        return 7


@pytest.fixture(autouse=True)
def public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle looks classes up by their public name."""
    for cls in (Phase, Limits, PhaseLimits):
        monkeypatch.setattr(stallwatch, cls.__name__, cls, raising=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (90, 90.0),
        (0.25, 0.25),
        (1e-9, 1e-9),
        (5e-324, 5e-324),
        (timedelta(minutes=2), 120.0),
        (timedelta(microseconds=1), 1e-6),
        (Decimal("1.5"), 1.5),
        (Fraction(1, 4), 0.25),
        (NumpyLike(2.5), 2.5),
        (NumpyLike(3, kind="i"), 3.0),
        (Indexed(), 7.0),
        (None, None),
        (math.inf, None),
        (Decimal("Infinity"), None),
        (NumpyLike(math.inf), None),
        (1e18, MAX_SECONDS),
        (1e308, MAX_SECONDS),
        (2**55, MAX_SECONDS),
        (2**63 + 1, MAX_SECONDS),
        (sys.maxsize, MAX_SECONDS),
        (10**400, MAX_SECONDS),
        pytest.param(10**5000, MAX_SECONDS, id="10**5000"),
        (Decimal("1e400"), MAX_SECONDS),
        (Fraction(10**400), MAX_SECONDS),
        (timedelta.max, MAX_SECONDS),
        (Decimal("1e-400"), 5e-324),
        (Fraction(1, 10**400), 5e-324),
    ],
)
def test_seconds_converts(value: Any, expected: float | None) -> None:
    """Every real number and timedelta becomes plain seconds; inf is off; huge values saturate."""
    result = seconds(value)

    assert result == expected
    assert result is None or type(result) is float


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -0.0,
        -1,
        -5e-324,
        -math.inf,
        math.nan,
        -(10**400),
        pytest.param(-(10**5000), id="-10**5000"),
        timedelta(0),
        timedelta(seconds=-1),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("-1e-400"),
        Fraction(-1, 2),
        NumpyLike(math.nan),
        NumpyLike(0.0),
    ],
)
def test_seconds_refuses_what_is_not_positive(value: Any) -> None:
    """Zero, negative values, -inf and NaN raise ValueError that names the limit."""
    with pytest.raises(ValueError, match="hard_idle"):
        seconds(value, name="hard_idle")


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        "1",
        b"1",
        "off",
        "",
        1j,
        [1],
        (1,),
        {},
        object(),
        float,
        timedelta,
        UNSET,
        NumpyLike(1, kind="b"),
        NumpyLike(1, kind="U"),
        NumpyLike(1, kind="m"),
    ],
)
def test_seconds_refuses_non_numbers(value: Any) -> None:
    """Bools, strings and whatever else is no number raise TypeError that names the limit."""
    with pytest.raises(TypeError, match="hard_idle"):
        seconds(value, name="hard_idle")


def test_zero_says_how_to_switch_off() -> None:
    """The message for zero names the way to switch a clock off."""
    with pytest.raises(ValueError, match="use None"):
        Limits(hard_idle=0)


@given(st.floats())
def test_seconds_has_three_answers_for_floats(value: float) -> None:
    """Any float is refused, off, or a positive number of seconds that is never raised."""
    if math.isnan(value) or value <= 0:
        with pytest.raises(ValueError):
            seconds(value)
    elif math.isinf(value):
        assert seconds(value) is None
    else:
        assert seconds(value) == min(value, MAX_SECONDS)


def test_limits_have_exactly_the_documented_defaults() -> None:
    """Fields, defaults and the signature are those of the contract, as plain numbers."""
    limits = Limits()

    assert {f.name: getattr(limits, f.name) for f in dataclasses.fields(limits)} == DEFAULTS
    assert dataclasses.asdict(limits) == DEFAULTS
    assert repr(limits).startswith("Limits(soft_idle=90.0, hard_idle=540.0, cleanup=60.0,")
    parameters = inspect.signature(Limits).parameters
    assert list(parameters) == list(DEFAULTS)
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    assert parameters["hard_idle"].default == 540.0


def test_limits_are_frozen_slotted_values() -> None:
    """Limits cannot be changed, have no dict, compare and hash by value, and are not shared."""
    limits = Limits()

    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.hard_idle = 1.0  # type: ignore[misc]
    assert not hasattr(limits, "__dict__")
    assert limits == Limits(hard_idle=540)
    assert hash(limits) == hash(Limits(hard_idle=timedelta(minutes=9)))
    assert limits != Limits(hard_idle=500)
    with pytest.raises(TypeError):
        Limits(90)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [n for n in DEFAULTS if n not in ("phases", "observe_only")])
def test_every_limit_is_converted(name: str) -> None:
    """Each field takes timedelta, None and inf, and refuses zero, NaN, bools and strings."""
    if name != "warn":
        assert getattr(Limits(**{name: timedelta(seconds=2)}), name) == 2.0
    assert getattr(Limits(**{name: None}), name) is None
    assert getattr(Limits(**{name: math.inf}), name) is None
    for bad in (0, -1, math.nan):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: bad})
    for bad in (True, "1"):
        with pytest.raises(TypeError, match=name):
            Limits(**{name: bad})


@pytest.mark.parametrize(
    "given_limits",
    [
        {"soft_idle": 61, "hard_idle": 60},
        {"soft_idle": 90, "hard_idle": 60},
        {"hard_idle": 541, "cleanup": 60, "transport_ceiling": 600},
        {"hard_idle": 590, "transport_ceiling": 600},
        {"stream_idle": 90, "stream_budget": 60},
        {"first_chunk": 300, "stream_budget": 60},
        {"progress_idle": 300, "stream_budget": 60},
        {"hard_idle": 540, "turn_budget": 60},
        {"soft_idle": 90, "turn_budget": 60},
        {"stream_idle": 90, "turn_budget": 60},
        {"stream_budget": 90, "turn_budget": 60},
        {"tool_timeout": 90, "turn_budget": 60},
        {"child_idle": 90, "turn_budget": 60},
        {"soft_idle": 700, "transport_ceiling": 600},
    ],
)
def test_contradictions_are_refused(given_limits: dict[str, float]) -> None:
    """Two given limits of which one can never fire raise ValueError that names both."""
    with pytest.raises(ValueError) as caught:
        Limits(**given_limits)  # type: ignore[arg-type]

    for name in given_limits:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "given_limits",
    [
        {"soft_idle": 60, "hard_idle": 60},
        {"hard_idle": 540, "cleanup": 60, "transport_ceiling": 600},
        {"stream_idle": 60, "stream_budget": 60},
        {"progress_idle": 5, "stream_idle": 60},
        {"hard_idle": 700, "transport_ceiling": None},
        {"soft_idle": None, "hard_idle": 10},
        {"soft_idle": 10, "hard_idle": None},
    ],
)
def test_legal_neighbours_are_kept(given_limits: dict[str, float | None]) -> None:
    """Equal limits, progress below idle and limits that are off contradict nothing."""
    limits = Limits(**given_limits)  # type: ignore[arg-type]

    assert {name: getattr(limits, name) for name in given_limits} == given_limits


@pytest.mark.parametrize(
    ("given_limits", "seen"),
    [
        ({"hard_idle": 60}, {"soft_idle": 30}),
        ({"hard_idle": 100}, {"soft_idle": 90}),
        ({"hard_idle": 580}, {"transport_ceiling": None, "cleanup": 60}),
        ({"cleanup": 120}, {"transport_ceiling": None, "hard_idle": 540}),
        ({"transport_ceiling": 300}, {"hard_idle": None, "soft_idle": 90}),
        ({"transport_ceiling": 60}, {"hard_idle": None, "soft_idle": None}),
        ({"soft_idle": 600}, {"hard_idle": None}),
        ({"stream_budget": 60}, {"first_chunk": None, "stream_idle": None, "progress_idle": None}),
        ({"stream_budget": 100}, {"first_chunk": None, "stream_idle": 90, "progress_idle": None}),
        ({"turn_budget": 100}, {"hard_idle": None, "soft_idle": 90, "stream_idle": 90}),
        ({"turn_budget": 60}, {"hard_idle": None, "soft_idle": None, "first_chunk": 300}),
        ({"hard_idle": None}, {"soft_idle": 90, "transport_ceiling": 600}),
    ],
)
def test_defaults_give_way(given_limits: dict[str, Any], seen: dict[str, float | None]) -> None:
    """A default that a given limit makes unreachable becomes half of hard, or goes off."""
    limits = Limits(**given_limits)

    assert {name: getattr(limits, name) for name in seen} == seen


LIMIT = st.none() | st.floats(min_value=0.001, max_value=1e4)


@given(st.fixed_dictionaries({}, optional={n: LIMIT for n in DEFAULTS if DEFAULTS[n] != {}}))
def test_built_limits_never_contradict(drawn: dict[str, Any]) -> None:
    """Whatever is given, it is refused, or kept word for word with every clock able to fire."""
    drawn.pop("warn", None)
    drawn.pop("observe_only", None)
    try:
        limits = Limits(**drawn)
    except ValueError:
        return

    assert all(getattr(limits, name) == value for name, value in drawn.items())
    assert (limits.soft_idle or 0) <= (limits.hard_idle or math.inf)
    last = (limits.hard_idle or 0) + (limits.cleanup or 0) if limits.hard_idle else 0
    assert last <= (limits.transport_ceiling or math.inf)
    for name in ("first_chunk", "stream_idle", "progress_idle"):
        assert (getattr(limits, name) or 0) <= (limits.stream_budget or math.inf)
    assert dataclasses.replace(limits) == limits
    assert limits.stream() is not None


def test_replace_keeps_values_and_what_was_given() -> None:
    """dataclasses.replace lets defaults give way again, and refuses what was given before."""
    assert dataclasses.replace(Limits(), hard_idle=30).soft_idle == 15
    assert dataclasses.replace(Limits(hard_idle=30), hard_idle=14).soft_idle == 7
    assert dataclasses.replace(Limits(hard_idle=30), cleanup=10).soft_idle == 15
    with pytest.raises(ValueError):
        dataclasses.replace(Limits(soft_idle=90), hard_idle=30)
    off = Limits(stream_budget=60)
    assert dataclasses.replace(off, stream_budget=None).stream_idle is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_limits_survive_pickle(protocol: int) -> None:
    """A pickled Limits is equal, still immutable, and still knows what was given."""
    limits = Limits(hard_idle=200, phases={Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)})

    again = pickle.loads(pickle.dumps(limits, protocol))

    assert again == limits
    assert hash(again) == hash(limits)
    assert copy.deepcopy(limits) == limits
    assert dataclasses.replace(again, hard_idle=30).soft_idle == 15
    with pytest.raises(TypeError):
        again.phases[Phase.SETUP] = PhaseLimits()


def test_phases_are_immutable_and_independent() -> None:
    """The mapping given for phases is copied; the copy refuses every change."""
    mine = {Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)}
    limits = Limits(phases=mine)
    mine.clear()

    phases: Any = limits.phases
    assert phases == {Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)}
    for change in (
        lambda: phases.update({}),
        lambda: phases.pop(Phase.EXECUTING_TOOLS),
        lambda: phases.clear(),
        lambda: phases.popitem(),
        lambda: phases.setdefault(Phase.INIT, PhaseLimits()),
        lambda: phases.__delitem__(Phase.EXECUTING_TOOLS),
        lambda: phases.__ior__({}),
    ):
        with pytest.raises(TypeError, match="immutable"):
            change()


@pytest.mark.parametrize(
    ("phases", "error"),
    [
        ({Phase.SETUP: 30}, TypeError),
        ({"nonsense": PhaseLimits()}, ValueError),
        ({99: PhaseLimits()}, ValueError),
        (None, TypeError),
        ([], TypeError),
    ],
)
def test_bad_phases_are_refused(phases: Any, error: type[Exception]) -> None:
    """Unknown phases, bare numbers and non-mappings are refused when the limits are built."""
    with pytest.raises(error):
        Limits(phases=phases)


def test_observe_only_must_be_a_bool() -> None:
    """A truthy word such as "no" is not silently taken for yes."""
    with pytest.raises(TypeError):
        Limits(observe_only="no")  # type: ignore[arg-type]


def test_phase_limits_refuse_and_show() -> None:
    """PhaseLimits converts, refuses soft above hard, and allows them equal."""
    assert PhaseLimits(timedelta(seconds=1), 2).soft == 1.0
    assert PhaseLimits(soft=30).hard is None
    assert PhaseLimits(soft=5, hard=5).hard == 5.0
    with pytest.raises(ValueError):
        PhaseLimits(soft=6, hard=5)
    with pytest.raises(ValueError):
        PhaseLimits(soft=0)
    assert PhaseLimits(soft=30) != PhaseLimits(soft=30, hard=None)
    assert dataclasses.replace(PhaseLimits(soft=30), soft=20) == PhaseLimits(soft=20)
    assert dataclasses.replace(PhaseLimits(soft=30), hard=40) == PhaseLimits(soft=30, hard=40)


@pytest.mark.parametrize("phase", Phase)
def test_for_phase_without_own_limits(phase: Phase) -> None:
    """Idle-counted phases have the turn's soft and hard limit, the others none."""
    limits = Limits(soft_idle=1, hard_idle=2).for_phase(phase)

    expected = (1.0, 2.0) if phase in (Phase.AWAITING_LLM, Phase.FORCE_STOP) else (None, None)
    assert (limits.soft, limits.hard) == expected


@pytest.mark.parametrize(
    ("turn", "phase", "own", "expected"),
    [
        ({}, Phase.EXECUTING_TOOLS, PhaseLimits(soft=30), (30, None)),
        ({}, Phase.EXECUTING_TOOLS, PhaseLimits(soft=30, hard=9000), (30, 9000)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(soft=30), (30, 540)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(soft=30, hard=None), (30, None)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(), (90, 540)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(None, None), (None, None)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(hard=40), (20, 40)),
        ({}, Phase.AWAITING_LLM, PhaseLimits(soft=600), (600, None)),
        ({"hard_idle": 20}, Phase.AWAITING_LLM, PhaseLimits(soft=15), (15, 20)),
        ({"soft_idle": 50}, Phase.AWAITING_LLM, PhaseLimits(hard=40), (20, 40)),
    ],
)
def test_for_phase_with_own_limits(
    turn: dict[str, Any], phase: Phase, own: PhaseLimits, expected: tuple[float | None, ...]
) -> None:
    """A phase's own side wins; a side left out is the turn's in idle-counted phases, else off."""
    limits = Limits(**turn, phases={phase: own}).for_phase(phase)

    assert (limits.soft, limits.hard) == expected


def test_for_phase_contradiction_is_refused_early() -> None:
    """A phase's own soft limit above the hard limit given for the turn is refused at once."""
    with pytest.raises(ValueError, match="awaiting_llm"):
        Limits(hard_idle=20, phases={Phase.AWAITING_LLM: PhaseLimits(soft=30)})


def test_stream_limits_defaults_and_unset() -> None:
    """UNSET stands for an argument that was not given."""
    limits = StreamLimits()

    assert dataclasses.astuple(limits) == (300.0, 90.0, 0.5, 300.0, None)
    assert StreamLimits(first_chunk=UNSET, idle=UNSET, warn=UNSET, budget=UNSET) == limits
    assert StreamLimits(idle=UNSET, budget=60).idle is None
    assert not hasattr(limits, "__dict__")


@pytest.mark.parametrize("name", ["first_chunk", "idle", "progress_idle"])
def test_stream_limits_above_the_budget(name: str) -> None:
    """Above the budget a given clock is refused and a default one goes off; equal is legal."""
    with pytest.raises(ValueError, match="budget"):
        StreamLimits(**{name: 11, "budget": 10})  # type: ignore[arg-type]
    assert getattr(StreamLimits(**{name: 10, "budget": 10}), name) == 10  # type: ignore[arg-type]
    assert getattr(StreamLimits(budget=10), name) is None


@pytest.mark.parametrize("warn", [1.01, 0, -0.5, math.nan, 90, 10**400])
def test_warn_is_a_share(warn: float) -> None:
    """warn is above 0 and at most 1; anything else is refused."""
    with pytest.raises(ValueError, match="warn"):
        StreamLimits(warn=warn)
    with pytest.raises(ValueError, match="warn"):
        Limits(warn=warn)
    with pytest.raises(TypeError, match="warn"):
        StreamLimits(warn=timedelta(seconds=1))  # type: ignore[arg-type]
    assert StreamLimits(warn=1).warn == 1.0


def test_stream_takes_the_turns_limits() -> None:
    """Without arguments a stream has the turn's clocks, as they are."""
    limits = Limits(first_chunk=7, stream_idle=5, warn=None, progress_idle=None, stream_budget=9)

    assert limits.stream() == StreamLimits(
        first_chunk=7, idle=5, warn=None, progress_idle=None, budget=9
    )
    assert Limits().stream() == StreamLimits()


def test_stream_arguments_override_the_turn() -> None:
    """The call's word wins: the turn's own limits give way to it like defaults."""
    limits = Limits(stream_idle=90, first_chunk=120)

    assert limits.stream(idle=5).idle == 5
    assert limits.stream(idle=None).idle is None
    assert limits.stream(budget=60) == StreamLimits(
        first_chunk=None, idle=None, progress_idle=None, budget=60
    )
    assert limits.stream(budget=100).idle == 90
    with pytest.raises(ValueError):
        limits.stream(budget=60, idle=90)


def test_stream_argument_above_the_turns_budget_is_refused() -> None:
    """A budget is never lost because a call asked for a longer silence."""
    limits = Limits(stream_budget=60)

    with pytest.raises(ValueError, match="budget"):
        limits.stream(idle=90)
    assert limits.stream(idle=90, budget=None).budget is None


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Limits()),
        ({"STALLWATCH_HARD_IDLE": "300"}, Limits(hard_idle=300)),
        ({"STALLWATCH_HARD_IDLE": " 30 "}, Limits(hard_idle=30)),
        ({"STALLWATCH_HARD_IDLE": "off"}, Limits(hard_idle=None)),
        ({"STALLWATCH_HARD_IDLE": "None"}, Limits(hard_idle=None)),
        ({"STALLWATCH_HARD_IDLE": ""}, Limits()),
        ({"STALLWATCH_CHILD_IDLE": "inf"}, Limits(child_idle=None)),
        ({"STALLWATCH_CHILD_IDLE": "1e400"}, Limits(child_idle=1e18)),
        ({"STALLWATCH_WARN": "0.8"}, Limits(warn=0.8)),
        ({"STALLWATCH_WARN": "off"}, Limits(warn=None)),
        ({"STALLWATCH_STREAM_BUDGET": "60"}, Limits(stream_budget=60)),
        ({"STALLWATCH_OBSERVE_ONLY": "1"}, Limits(observe_only=True)),
        ({"STALLWATCH_OBSERVE_ONLY": "Yes"}, Limits(observe_only=True)),
        ({"STALLWATCH_OBSERVE_ONLY": "0"}, Limits()),
        ({"STALLWATCH_OBSERVE_ONLY": "off"}, Limits()),
        ({"STALLWATCH_PHASE_STRICT": "1", "HARD_IDLE": "1"}, Limits()),
    ],
)
def test_from_env_reads(env: dict[str, str], expected: Limits) -> None:
    """Seconds, off, fractions and yes or no are read; what is not set keeps its default."""
    assert Limits.from_env(env) == expected


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("STALLWATCH_HARD_IDLE", "0"),
        ("STALLWATCH_HARD_IDLE", "-1"),
        ("STALLWATCH_HARD_IDLE", "nan"),
        ("STALLWATCH_HARD_IDLE", "-inf"),
        ("STALLWATCH_HARD_IDLE", "90s"),
        ("STALLWATCH_HARD_IDLE", "true"),
        ("STALLWATCH_WARN", "2"),
        ("STALLWATCH_WARN", "0"),
        ("STALLWATCH_OBSERVE_ONLY", "maybe"),
    ],
)
def test_from_env_refuses_and_names_the_variable(variable: str, text: str) -> None:
    """Junk raises ValueError that names the variable."""
    with pytest.raises(ValueError, match=variable):
        Limits.from_env({variable: text})


@pytest.mark.parametrize("text", ["0", "0.0"])
def test_from_env_zero_says_off(text: str) -> None:
    """Zero is refused with a message that says to use off."""
    with pytest.raises(ValueError, match="use off"):
        Limits.from_env({"STALLWATCH_HARD_IDLE": text})


def test_from_env_names_the_variables_of_a_contradiction() -> None:
    """Limits that contradict each other name both variables."""
    with pytest.raises(ValueError) as caught:
        Limits.from_env({"STALLWATCH_SOFT_IDLE": "90", "STALLWATCH_HARD_IDLE": "60"})

    assert "STALLWATCH_SOFT_IDLE" in str(caught.value)
    assert "STALLWATCH_HARD_IDLE" in str(caught.value)


def test_from_env_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the environment of the process is read at the call."""
    monkeypatch.setenv("STALLWATCH_HARD_IDLE", "123")

    assert Limits.from_env().hard_idle == 123


def test_typed_signatures_name_the_fields() -> None:
    """The signatures written for type checkers list exactly the fields of their class."""
    tree = ast.parse(inspect.getsource(_limits))
    seen = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    seen[node.name] = [a.arg for a in inner.args.args[1:] + inner.args.kwonlyargs]

    for cls in (Limits, PhaseLimits, StreamLimits):
        assert seen[cls.__name__] == [f.name for f in dataclasses.fields(cls)]
