import copy
import json
import pickle

import pytest

import stallwatch
from stallwatch._phases import LabelledIntEnum, LabelledStrEnum, Phase

TABLE = [
    (0, "INIT", "init", False, "loop construction"),
    (1, "SETUP", "setup", False, "local initialisation"),
    (2, "AWAITING_LLM", "awaiting_llm", True, "turn watchdog"),
    (3, "RETRYING_LLM", "retrying_llm", False, "retry policy"),
    (4, "COMPACTING", "compacting", False, "compaction coordinator"),
    (5, "AWAITING_APPROVAL", "awaiting_approval", False, "a human"),
    (6, "EXECUTING_TOOLS", "executing_tools", False, "each tool's own clock"),
    (7, "INJECTING_MESSAGE", "injecting_message", False, "follow-up injection"),
    (8, "FORCE_STOP", "force_stop", True, "turn watchdog"),
    (9, "DONE", "done", False, "nobody"),
]


@pytest.mark.parametrize(("value", "name", "label", "counted", "owner"), TABLE)
def test_phase_follows_the_table(
    value: int, name: str, label: str, counted: bool, owner: str
) -> None:
    """Each phase has the value, label, idle rule and owner of the documented table."""
    phase = Phase(value)

    assert (phase.name, phase.value, phase.label) == (name, value, label)
    assert phase.idle_counted is counted
    assert phase.owner == owner


def test_phase_has_no_member_outside_the_table() -> None:
    """The enum and the table list the same members in the same order."""
    assert [(p.value, p.name) for p in Phase] == [row[:2] for row in TABLE]


@pytest.mark.parametrize("phase", Phase)
def test_phase_prints_its_label(phase: Phase) -> None:
    """str, format, f-strings, %s and format specs all print the label."""
    label = phase.name.lower()

    assert str(phase) == label
    assert f"{phase}" == label
    assert format(phase, ">18") == label.rjust(18)
    assert f"{phase:<18}|" == label.ljust(18) + "|"
    assert "{:^18}".format(phase) == label.center(18)  # noqa: UP032
    assert "%s" % phase == label  # noqa: UP031


def test_phase_stays_an_integer() -> None:
    """A phase compares, hashes, orders and serialises as its integer."""
    assert Phase.AWAITING_LLM == 2
    assert {2: "x"}[Phase.AWAITING_LLM] == "x"
    assert Phase.INIT < Phase.DONE
    assert json.dumps(Phase.AWAITING_LLM) == "2"
    assert "%d" % Phase.AWAITING_LLM == "2"  # noqa: UP031


@pytest.mark.parametrize("phase", Phase)
def test_phase_is_found_by_label(phase: Phase) -> None:
    """The label of a stored record leads back to the member."""
    assert Phase(phase.label) is phase  # type: ignore[arg-type]


@pytest.mark.parametrize("junk", ["AWAITING_LLM", "", "nonsense", 10, -1, None])
def test_unknown_phase_is_refused(junk: object) -> None:
    """A value that names no phase raises ValueError."""
    with pytest.raises(ValueError):
        Phase(junk)  # type: ignore[arg-type]


def test_phase_survives_copy_and_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and pickles give back the same member, under the public name."""
    monkeypatch.setattr(stallwatch, "Phase", Phase, raising=False)

    assert Phase.__module__ == "stallwatch"
    assert copy.deepcopy(Phase.SETUP) is Phase.SETUP
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Phase.SETUP, protocol)) is Phase.SETUP


def test_other_enums_print_labels_the_same_way() -> None:
    """Both helper bases give every enum built on them the label behaviour of Phase."""

    class Level(LabelledIntEnum):
        LOW_TIDE = 1

    class Word(LabelledStrEnum):
        STILL_OPEN = "still_open"

    assert (f"{Level.LOW_TIDE:>9}", str(Level.LOW_TIDE)) == (" low_tide", "low_tide")
    assert (f"{Word.STILL_OPEN:>11}", str(Word.STILL_OPEN)) == (" still_open", "still_open")
    assert Word.STILL_OPEN.label == "still_open"
    assert json.dumps(Word.STILL_OPEN) == '"still_open"'
