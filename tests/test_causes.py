import asyncio
import copy
import json
import pickle
import re
import sys
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stallwatch
from stallwatch import _causes
from stallwatch._causes import (
    CAUSE_KINDS,
    HardIdleError,
    PhaseViolationError,
    StallError,
    StreamIdleError,
    UserCancelled,
    cause_from_dict,
)
from stallwatch._phases import Phase

KINDS = [
    ("hard_idle", "HardIdleError"),
    ("first_chunk", "FirstChunkError"),
    ("stream_idle", "StreamIdleError"),
    ("stream_progress", "StreamProgressError"),
    ("stream_budget", "StreamBudgetError"),
    ("turn_budget", "TurnBudgetError"),
    ("tool_deadline", "ToolDeadlineError"),
    ("child_idle", "ChildIdleError"),
]

FULL: dict[str, Any] = {
    "owner": "stream",
    "name": "answer",
    "phase": Phase.AWAITING_LLM,
    "seq": 7,
    "idle": 90.04,
    "limit": 90.0,
    "lateness": 0.25,
    "since_chunk": 90.04,
    "since_progress": 200.5,
    "partial": "half an answer: timeout, connection reset",
    "tool_args": {"path": "/tmp/x", "lines": [1, 2]},
}

# What retry code in the field looks for in the text of an error.
FORBIDDEN = [
    r"time[ds]?[ _-]?out",
    r"timed",
    r"deadline",
    r"abort",
    r"cancel",
    r"interrupt",
    r"connect",
    r"network",
    r"socket",
    r"reset",
    r"clos(e|ed|ing)",
    r"hang ?up",
    r"broken pipe",
    r"\beof\b",
    r"incomplete",
    r"peer",
    r"refused",
    r"unreachable",
    r"temporar",
    r"transient",
    r"unavailable",
    r"overload",
    r"capacity",
    r"busy",
    r"rate.?limit",
    r"too many",
    r"throttl",
    r"quota",
    r"server error",
    r"internal",
    r"gateway",
    r"retry",
    r"try again",
    r"\b[1-5]\d\d\b",
    r"econn",
    r"etime",
]

ALL_CLASSES = [StallError, *CAUSE_KINDS.values()]


@pytest.fixture(autouse=True)
def public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle looks classes up by their public name."""
    for cls in (*ALL_CLASSES, UserCancelled, PhaseViolationError, Phase):
        monkeypatch.setattr(stallwatch, cls.__name__, cls, raising=False)


def fields_of(exc: StallError) -> dict[str, Any]:
    return {name: getattr(exc, name) for name in FULL}


def test_kinds_are_those_of_the_contract() -> None:
    """Kinds, class names and order match the documented tree."""
    assert [(kind, cls.__name__) for kind, cls in CAUSE_KINDS.items()] == KINDS
    assert all(cls.kind == kind for kind, cls in CAUSE_KINDS.items())


def test_registry_and_subclasses_agree_both_ways() -> None:
    """Every subclass declared in the module is registered, and nothing else is."""
    declared = {
        cls
        for cls in vars(_causes).values()
        if isinstance(cls, type) and issubclass(cls, StallError) and cls is not StallError
    }

    assert declared == set(CAUSE_KINDS.values())
    assert {cls.__name__ for cls in declared} <= set(_causes.__all__)


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_stall_is_only_a_runtime_error(cls: type[StallError]) -> None:
    """No stall can be mistaken for a failure of time, of the system or of a connection."""
    assert issubclass(cls, RuntimeError)
    assert not issubclass(cls, (TimeoutError, OSError, ConnectionError, asyncio.CancelledError))
    assert cls.__module__ == "stallwatch"
    assert cls.__doc__


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_every_field_is_optional(cls: type[StallError]) -> None:
    """A bare cause can be made and says what it does not know."""
    exc = cls()

    assert exc.owner
    assert (exc.phase, exc.seq, exc.idle, exc.limit, exc.name) == (None,) * 5
    assert (exc.partial, exc.text_received, exc.lateness, exc.tool_args) == ("", False, 0.0, None)
    assert (exc.since_chunk, exc.since_progress) == (None, None)
    assert cls("own words").args[0] == str(cls("own words")) == "own words"


@pytest.mark.parametrize("cls", ALL_CLASSES)
@pytest.mark.parametrize(
    "fields",
    [{}, FULL, {"idle": 0.05, "limit": 0.05, "lateness": 3}, {"idle": 503.2, "limit": 429}],
    ids=["bare", "full", "short", "status-like"],
)
def test_text_says_nothing_that_retry_code_matches(
    cls: type[StallError], fields: dict[str, Any]
) -> None:
    """No text of a stall holds a word, or a number, that retry code takes for a passing fault."""
    text = str(cls(**fields))

    for pattern in FORBIDDEN:
        assert not re.search(pattern, text, re.IGNORECASE), (pattern, text)


@given(st.floats(min_value=0, allow_nan=False), st.floats(min_value=0, allow_nan=False))
def test_text_has_no_large_number(idle: float, limit: float) -> None:
    """Whatever was measured, the text holds no number above 99 outside a decimal fraction."""
    text = str(StreamIdleError(idle=idle, limit=limit))

    assert not re.search(r"\d{3}", text)


def test_text_reads_well() -> None:
    """The text names who was silent, how long, where, and under which limit."""
    exc = StreamIdleError(name="answer", phase=Phase.AWAITING_LLM, idle=90.0, limit=90.0)
    hard = HardIdleError(phase=Phase.AWAITING_LLM, idle=540.4, limit=540, lateness=2)
    tool = CAUSE_KINDS["tool_deadline"](name="bash", idle=0.3, limit=0.3)

    assert (
        str(exc) == "provider silent for 90.0 s while awaiting_llm "
        "(limit 90.0 s, owner stream 'answer')"
    )
    assert (
        str(hard) == "no change of phase for 9 min while awaiting_llm "
        "(limit 9 min, owner turn watchdog, decided 2.0 s late)"
    )
    assert str(tool) == "tool 'bash' still running after 0.30 s (limit 0.30 s, owner tool)"


def test_text_holds_no_user_data() -> None:
    """Partial text and tool arguments reach neither str, repr nor a printed traceback."""
    exc = StreamIdleError(partial="SECRET-A", tool_args={"key": "SECRET-B"})

    printed = "".join(traceback.format_exception(exc))
    assert "SECRET" not in str(exc) + repr(exc) + printed
    assert exc.text_received


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_rebuilt_from_args(cls: type[StallError]) -> None:
    """cls(*args) gives back the whole cause, and args are plain JSON values."""
    exc = cls(**FULL)

    again = cls(*json.loads(json.dumps(exc.args)))

    assert fields_of(again) == FULL
    assert isinstance(again.phase, Phase)
    assert str(again) == str(exc)
    assert again.args == exc.args


def test_rebuilt_by_module_name_and_args() -> None:
    """A JSON task queue, which keeps only module, class name and args, carries it whole."""
    exc = StreamIdleError(**FULL)
    wire = json.dumps(
        {"module": type(exc).__module__, "type": type(exc).__name__, "args": exc.args}
    )

    data = json.loads(wire)
    again = getattr(sys.modules[data["module"]], data["type"])(*data["args"])

    assert type(again) is StreamIdleError
    assert fields_of(again) == FULL


@pytest.mark.parametrize("cls", ALL_CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(cls: type[StallError], protocol: int) -> None:
    """Every pickle protocol keeps the class, all fields, notes and the refusal to be retried."""
    exc = cls(**FULL)
    exc.add_note("seen by the worker")

    again = pickle.loads(pickle.dumps(exc, protocol))

    assert type(again) is cls
    assert fields_of(again) == FULL
    assert again.__notes__ == ["seen by the worker"]
    assert again.retryable is False


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_everything(copied: Any) -> None:
    """A shallow and a deep copy hold the same fields and stay not retryable."""
    exc = StreamIdleError("own words", **FULL)

    again = copied(exc)

    assert (fields_of(again), str(again), again.retryable) == (FULL, "own words", False)


def test_pickle_survives_arguments_that_cannot_be_pickled() -> None:
    """Tool arguments that are no plain values travel as text instead of breaking the trip."""
    exc = StreamIdleError(tool_args={"handle": lambda: None, 1: (2, {3})})

    again = pickle.loads(pickle.dumps(exc))

    assert again.tool_args["1"] == [2, [3]]
    assert "lambda" in again.tool_args["handle"]


@pytest.mark.parametrize("cls", [*ALL_CLASSES, UserCancelled])
def test_retryable_is_false_on_class_and_instance(cls: Any) -> None:
    """The flag is the plain value False, not something that only looks false."""
    assert cls.retryable is False
    assert cls().retryable is False


def test_retryable_survives_chains_and_groups() -> None:
    """Raising it from another error, or inside a group, changes nothing about it."""
    stall = StreamIdleError(**FULL)
    try:
        try:
            raise stall
        except StallError as exc:
            raise ValueError("outer") from exc
    except ValueError as outer:
        chained = outer.__cause__
    group = ExceptionGroup("many", [ExceptionGroup("inner", [stall])])
    matched, _ = group.split(StallError)

    assert chained is stall
    assert matched is not None
    assert matched.exceptions[0].exceptions[0] is stall  # type: ignore[attr-defined]
    assert stall.retryable is False


def test_changed_fields_follow_into_args_and_text() -> None:
    """A field set after construction is part of args, pickle and text."""
    exc = pickle.loads(pickle.dumps(StreamIdleError(idle=1.0)))

    exc.partial = "abc"
    exc.idle = 2.0

    assert exc.args[1]["partial"] == "abc"
    assert "2.0 s" in str(exc)
    assert pickle.loads(pickle.dumps(exc)).idle == 2.0


def test_annotate_fills_only_what_is_unknown() -> None:
    """A later layer adds what it knows and cannot overwrite what was measured."""
    exc = StreamIdleError(idle=0.3, limit=0.3, partial="abc")

    same = exc.annotate(phase=Phase.AWAITING_LLM, seq=0, idle=9.0, partial="", owner="my stream")

    assert same is exc
    assert (exc.phase, exc.seq, exc.idle, exc.partial) == (Phase.AWAITING_LLM, 0, 0.3, "abc")
    assert exc.owner == "my stream"
    assert "awaiting_llm" in str(exc)
    assert exc.annotate(seq=5, owner="other").seq == 0
    assert exc.owner == "my stream"
    with pytest.raises(TypeError, match="nonsense"):
        exc.annotate(nonsense=1)


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_dict_round_trip(cls: type[StallError]) -> None:
    """to_dict is plain JSON with kind and the no-text marker; from_dict gives the same cause."""
    exc = cls(**FULL)
    data = json.loads(json.dumps(exc.to_dict()))

    again = StallError.from_dict(data)

    assert data["kind"] == cls.kind
    assert data["phase"] == "awaiting_llm"
    assert data["text_received"] is True
    assert data["message"] == str(exc)
    assert set(data) == {"kind", "message", "text_received", *FULL}
    assert type(again) is cls
    assert fields_of(again) == FULL
    assert cls().to_dict()["text_received"] is False
    assert fields_of(StallError.from_dict(cls().to_dict())) == fields_of(cls())


def test_from_dict_of_another_version() -> None:
    """Unknown keys and phases are dropped without losing the cause; unknown kinds are refused."""
    exc = StallError.from_dict({"kind": "stream_idle", "phase": "dreaming", "new": 1, "idle": 2})

    assert isinstance(exc, StreamIdleError)
    assert (exc.phase, exc.idle) == (None, 2)
    for junk in ({}, {"kind": "unheard_of"}, {"kind": None}, {"kind": ["stream_idle"]}):
        with pytest.raises(ValueError, match="unknown kind"):
            StallError.from_dict(junk)


def test_phase_is_checked_when_given() -> None:
    """A phase may be given as member, value or label; nonsense is refused."""
    assert StallError(phase=2).phase is Phase.AWAITING_LLM  # type: ignore[arg-type]
    assert StallError(phase="done").phase is Phase.DONE  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        StallError(phase="nonsense")  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", [None, "", "changed my mind"])
def test_user_cancel_round_trips(reason: str | None) -> None:
    """A user cancel keeps its reason through args, copy, every pickle protocol and dicts."""
    exc = UserCancelled(reason) if reason is not None else UserCancelled()

    assert isinstance(exc, asyncio.CancelledError)
    assert not isinstance(exc, Exception)
    assert UserCancelled.__module__ == "stallwatch"
    assert exc.reason == reason
    assert UserCancelled(*exc.args).reason == reason
    assert UserCancelled(reason=reason).reason == reason
    assert copy.deepcopy(exc).reason == reason
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(exc, protocol))
        assert type(again) is UserCancelled
        assert again.reason == reason
    back = cause_from_dict(json.loads(json.dumps(exc.to_dict())))
    assert isinstance(back, UserCancelled)
    assert back.reason == reason


def test_cause_from_dict_knows_both_trees() -> None:
    """Stored stalls and user cancels are told apart by their kind."""
    assert isinstance(cause_from_dict(HardIdleError().to_dict()), HardIdleError)
    assert isinstance(cause_from_dict({"kind": "user_cancelled"}), UserCancelled)


async def raise_in_task(exc: BaseException) -> BaseException:
    async def body() -> None:
        raise exc

    try:
        await asyncio.create_task(body())
    except BaseException as caught:
        return caught
    raise AssertionError("nothing was raised")


def test_user_cancel_leaves_a_task_with_its_reason() -> None:
    """Awaiting a task that raised UserCancelled gives the subclass and its reason."""
    caught = asyncio.run(raise_in_task(UserCancelled("stop")))

    assert isinstance(caught, UserCancelled)
    assert caught.reason == "stop"


def test_phase_violation_is_a_plain_runtime_error() -> None:
    """A violation carries its message, pickles, and is no stall."""
    exc = PhaseViolationError("enter(done) while a transient is open")

    assert isinstance(exc, RuntimeError)
    assert not isinstance(exc, StallError)
    assert str(pickle.loads(pickle.dumps(exc))) == str(exc)
    assert PhaseViolationError.__module__ == "stallwatch"
