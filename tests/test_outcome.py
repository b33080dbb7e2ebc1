"""`Outcome`: frozen, and whole after every way of storing it."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

import stallwatch
from stallwatch._causes import (
    CAUSE_KINDS,
    HardIdleError,
    StreamIdleError,
    ToolDeadlineError,
    UserCancelled,
)
from stallwatch._outcome import NO_TEXT, SCHEMA, Failure, Outcome, Status
from stallwatch._phases import Phase
from stallwatch._tool_record import ToolRecord, ToolState

OUTCOMES: dict[Status, Outcome] = {
    Status.COMPLETED: Outcome(
        status=Status.COMPLETED,
        turn="answer",
        phase=Phase.DONE,
        seq=7,
        text="all of it",
        elapsed=12.5,
        started_at=1.7e9,
        result={"not": "stored"},
    ),
    Status.STALLED: Outcome(
        status=Status.STALLED,
        cause=StreamIdleError(
            name="s",
            phase=Phase.AWAITING_LLM,
            seq=3,
            idle=90.5,
            limit=90.0,
            lateness=0.5,
            since_chunk=90.5,
            partial="ab",
            tool_args={"bash": '{"cmd": "ls'},
        ),
        also=HardIdleError(idle=540.0, limit=540.0),
        phase=Phase.AWAITING_LLM,
        seq=3,
        text="ab",
        partial="ab",
        tool_args={"bash": '{"cmd": "ls'},
        tools=(
            ToolRecord(name="bash", state=ToolState.COMPLETED, elapsed=1.5, limit=60.0),
            ToolRecord(
                name="grep",
                state=ToolState.DEADLINE,
                elapsed=2.0,
                limit=2.0,
                cause=ToolDeadlineError(name="grep", idle=2.0, limit=2.0),
            ),
            ToolRecord(
                name="read",
                state=ToolState.FAILED,
                elapsed=0.5,
                cause=Failure("builtins.OSError", "gone"),
            ),
            ToolRecord(
                name="edit",
                state=ToolState.INTERRUPTED,
                elapsed=9.0,
                cause=StreamIdleError(name="s", idle=90.5, partial="ab"),
            ),
        ),
        late=("the body returned",),
    ),
    Status.CANCELLED: Outcome(
        status=Status.CANCELLED,
        cause=UserCancelled("enough"),
        also=HardIdleError(),
        placeholder=NO_TEXT,
    ),
    Status.FAILED: Outcome(
        status=Status.FAILED,
        cause=Failure("builtins.ValueError", "a bug"),
        phase=Phase.FORCE_STOP,
        text='quotes " and \u2028 and half a pair \ud83d',
    ),
    Status.INTERRUPTED: Outcome(status=Status.INTERRUPTED, placeholder=NO_TEXT),
}


def test_every_status_is_among_the_examples() -> None:
    """A status that is added later has to be shown to round trip, too."""
    assert set(OUTCOMES) == set(Status)
    assert [str(one) for one in Status] == [
        "completed",
        "stalled",
        "cancelled",
        "failed",
        "interrupted",
    ]


ROUND_TRIPS = {
    "dict": lambda outcome: Outcome.from_dict(outcome.to_dict()),
    "json": lambda outcome: Outcome.from_json(outcome.to_json()),
    "json bytes": lambda outcome: Outcome.from_json(outcome.to_json().encode("utf-8")),
    "json module": lambda outcome: Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))),
    **{
        f"pickle {protocol}": lambda outcome, protocol=protocol: pickle.loads(
            pickle.dumps(outcome, protocol)
        )
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", ROUND_TRIPS)
@pytest.mark.parametrize("status", OUTCOMES)
def test_round_trips(status: Status, how: str) -> None:
    """Every field comes back with its type, but for `result`, which is not stored."""
    outcome = OUTCOMES[status]
    again = ROUND_TRIPS[how](outcome)  # type: ignore[no-untyped-call]

    assert again == outcome
    assert hash(again) == hash(outcome)
    assert again.to_dict() == outcome.to_dict()
    for field in dataclasses.fields(Outcome):
        if field.name != "result":
            assert type(getattr(again, field.name)) is type(getattr(outcome, field.name)), field
    assert again.result is None
    if isinstance(outcome.cause, StreamIdleError):
        assert again.cause.__dict__ == outcome.cause.__dict__


@pytest.mark.parametrize("kind", CAUSE_KINDS)
def test_every_kind_of_cause_comes_back_as_its_class(kind: str) -> None:
    """The class is found by `kind`, with all that it measured."""
    cause = CAUSE_KINDS[kind](idle=1.5, limit=1.0, phase=Phase.COMPACTING, partial="x")
    again = Outcome.from_json(Outcome(status=Status.STALLED, cause=cause).to_json())

    assert type(again.cause) is CAUSE_KINDS[kind]
    assert again.cause.to_dict() == cause.to_dict()
    assert again.cause.retryable is False


def test_it_is_plain_json() -> None:
    """`to_dict` holds JSON values only, the schema's version, and not the result."""
    data = OUTCOMES[Status.COMPLETED].to_dict()

    assert data["schema"] == SCHEMA
    assert (data["status"], data["phase"]) == ("completed", "done")
    assert "result" not in data
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_it_is_frozen() -> None:
    """A record is written once."""
    outcome = OUTCOMES[Status.STALLED]
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.status = Status.COMPLETED  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        outcome.other = 1  # type: ignore[attr-defined]


def test_it_takes_keywords_only() -> None:
    """Fields may be added between others."""
    with pytest.raises(TypeError):
        Outcome(Status.COMPLETED)  # type: ignore[misc]


def test_a_record_of_schema_1_is_read() -> None:
    """It knew no tools; all else is as it was."""
    old = OUTCOMES[Status.FAILED].to_dict()
    del old["tools"]
    old["schema"] = 1

    assert Outcome.from_dict(old) == OUTCOMES[Status.FAILED]


def test_a_tool_does_not_repeat_the_text_of_its_turn() -> None:
    """Its cause is the turn's, whose text the outcome has already."""
    data = OUTCOMES[Status.STALLED].to_dict()

    assert data["tools"][3]["cause"]["kind"] == "stream_idle"
    assert data["tools"][3]["cause"]["partial"] == ""
    assert data["cause"]["partial"] == "ab"


@pytest.mark.parametrize("schema", [None, 0, SCHEMA + 1, "1", "missing"])
def test_an_unknown_schema_is_refused(schema: Any) -> None:
    """Better no record than one read wrongly; the message says what is known."""
    data = OUTCOMES[Status.COMPLETED].to_dict()
    data["schema"] = schema
    if schema == "missing":
        del data["schema"]
    with pytest.raises(ValueError, match=f"knows {SCHEMA}"):
        Outcome.from_dict(data)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    """Within a schema fields are only added; and what is missing has its default."""
    again = Outcome.from_dict(
        {"schema": SCHEMA, "status": "stalled", "mood": "fine", "cause": None}
    )

    assert again == Outcome(status=Status.STALLED)


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"phase": "lunch"}, {"cause": {"kind": "boredom"}}]
)
def test_what_cannot_be_understood_is_refused(change: dict[str, Any]) -> None:
    """A status, phase or kind of cause that does not exist is an error, not a guess."""
    with pytest.raises(ValueError):
        Outcome.from_dict({**OUTCOMES[Status.COMPLETED].to_dict(), **change})


def test_equal_by_what_it_says() -> None:
    """Causes are exceptions, which compare by identity: outcomes compare what they say."""
    one, two = (Outcome(status=Status.STALLED, cause=HardIdleError(idle=1.0)) for _ in range(2))

    assert one == two
    assert one != Outcome(status=Status.STALLED, cause=HardIdleError(idle=2.0))
    assert one != "stalled"


def test_a_result_that_cannot_be_pickled_does_not_matter() -> None:
    """`result` lives in memory only."""
    outcome = Outcome(status=Status.COMPLETED, result=lambda: None)

    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert "lambda" not in repr(outcome)


def test_the_placeholder_is_never_text() -> None:
    """Where nothing came, text is empty and the placeholder apart from it."""
    outcome = OUTCOMES[Status.INTERRUPTED]

    assert (outcome.text, outcome.placeholder) == ("", NO_TEXT)


def test_stored_under_the_public_name() -> None:
    """Pickles name `stallwatch`, so that private files may move."""
    assert Outcome.__module__ == Status.__module__ == Failure.__module__ == "stallwatch"
    assert stallwatch.Outcome is Outcome
