"""Every set that exists twice is the same set: in Rust and Python, in code and pages."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import stallwatch
from stallwatch import (
    Event,
    Limits,
    Phase,
    StallError,
    Status,
    _chunks,
    _stallwatch,
    _watched,
)
from stallwatch._causes import CAUSE_KINDS
from stallwatch._events import EVENT_NAMES
from stallwatch._stallwatch import PullBase, phase_table

ROOT = Path(__file__).parent.parent
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def rust(name: str) -> str:
    """A Rust source file."""
    return (ROOT / "src" / name).read_text(encoding="utf-8")


def table(*head: str) -> list[tuple[str, ...]]:
    """The rows of the table in the page on semantics whose header begins with these words."""
    lines = SEMANTICS.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {' | '.join(head)} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip().strip("`") for cell in line.strip("| ").split("|")))
    return rows


def subclasses(cls: type) -> set[type]:
    """All classes below one that belong to stallwatch."""
    found: list[type] = cls.__subclasses__()
    below = {sub for sub in found if sub.__module__ == "stallwatch"}
    return below | {deep for sub in below for deep in subclasses(sub)}


def test_phases_of_rust_and_python() -> None:
    """The core and `Phase` agree on number, label and whether idle time is counted."""
    assert phase_table() == [(phase.value, phase.label, phase.idle_counted) for phase in Phase]


def test_phases_of_the_page() -> None:
    """The table of phases has every phase, its owner and whether it is counted."""
    assert table("value", "phase", "counted as LLM idle") == [
        (str(phase.value), phase.label, "yes" if phase.idle_counted else "no", phase.owner)
        for phase in Phase
    ]


def test_kinds_of_causes() -> None:
    """The closed set of kinds has each class below `StallError` once, under its own kind."""
    assert set(CAUSE_KINDS.values()) == subclasses(StallError)
    assert {kind: cls.kind for kind, cls in CAUSE_KINDS.items()} == {k: k for k in CAUSE_KINDS}


def test_causes_of_the_page() -> None:
    """The table of causes has every kind, its class and its owner."""
    assert table("kind", "class", "owner") == [
        (kind, cls.__name__, cls().owner) for kind, cls in CAUSE_KINDS.items()
    ]


def test_stream_clocks_of_rust_and_python() -> None:
    """A number of a clock means the same in the core's judging and in its execution."""
    kinds = re.search(r"pub enum Kind \{(.*?)\n\}", rust("core/stream.rs"), re.DOTALL)
    assert kinds is not None
    numbers = [(int(n), name) for name, n in re.findall(r"(\w+) = (\d+),", kinds[1])]
    titles = {"first": "first_chunk", "progress": "progress_idle"}

    assert [n for n, _ in numbers] == list(range(len(numbers)))
    assert tuple(titles.get(name.lower(), name.lower()) for _, name in numbers) == _watched.CLOCKS
    assert _watched.CLOCKS[_watched.BUDGET] == "budget"
    assert _watched.CLOCKS[_watched.LINGER] == "linger"


def test_stream_clocks_and_their_causes() -> None:
    """Each clock of a stream that can be to blame has a cause whose kind names it."""
    blamed = [clock for clock in _watched.CLOCKS if clock != "linger"]
    kinds = [cause.kind.removeprefix("stream_") for cause in _watched.CAUSES]

    assert kinds == [clock.removesuffix("_idle") for clock in blamed]
    assert {cause.kind for cause in _watched.CAUSES} <= CAUSE_KINDS.keys()


def test_verdicts_of_rust_and_python() -> None:
    """What the native half answers about its clocks is what the Python half reads."""
    judge = re.search(r"fn _judge\b.*?\n    \}", rust("py/guard/methods.rs"), re.DOTALL)
    assert judge is not None
    numbers = {name: int(n) for name, n in re.findall(r"Verdict::(\w+)\(.*?=> \((\d),", judge[0])}

    assert numbers == {
        "Wait": _watched.WAIT,
        "Warn": _watched.WARN,
        "Fire": _watched.FIRE,
    }
    assert PullBase(None, 9.0, None, None, None, None)._judge()[0] == _watched.WAIT


def test_flags_of_rust_and_python() -> None:
    """A chunk's flags have the same bits in the classifier and in the native pull."""
    constant = r"(?m)^(?:pub\(in crate::py\) )?const (PROGRESS|TERMINAL): u32 = (\d+);"
    found = dict(re.findall(constant, rust("py/guard/mod.rs")))

    assert {name: int(bit) for name, bit in found.items()} == {
        "PROGRESS": _chunks.PROGRESS,
        "TERMINAL": _chunks.TERMINAL,
    }


def test_limits_of_the_page() -> None:
    """The table of limits has every field, its default and its variable."""
    known = Limits()

    def shown(value: Any) -> str:
        if value is None or value is False:
            return "off" if value is None else "no"
        return f"{value:g}" if isinstance(value, float) else "none"

    assert [row[:3] for row in table("field", "default", "variable")] == [
        (
            one.name,
            shown(getattr(known, one.name)),
            "-" if one.name == "phases" else f"STALLWATCH_{one.name.upper()}",
        )
        for one in fields(Limits)
    ]


@pytest.mark.parametrize("field", [one.name for one in fields(Limits) if one.name != "phases"])
def test_every_limit_is_read_from_the_environment(field: str) -> None:
    """Each field but `phases` has a variable of its name."""
    text, value = {"observe_only": ("1", True), "warn": ("0.25", 0.25)}.get(field, ("45", 45.0))

    assert getattr(Limits.from_env({f"STALLWATCH_{field.upper()}": text}), field) == value


def test_names_of_events() -> None:
    """The names of events are those of their classes, each class below `Event` once."""
    # A dataclass with slots takes the place of the class as written, which may live on unseen.
    assert set(EVENT_NAMES.values()) == {c for c in subclasses(Event) if "__slots__" in vars(c)}
    for name, cls in EVENT_NAMES.items():
        assert name == cls.event == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def test_events_of_the_page() -> None:
    """The table of events has every event, its class and whether it is logged unheard."""
    assert [row[:3] for row in table("event", "class", "without a listener")] == [
        (name, cls.__name__, "log" if cls.loud else "-") for name, cls in EVENT_NAMES.items()
    ]


def test_statuses_of_the_page() -> None:
    """The table of outcomes has every status."""
    assert [row[0] for row in table("status", "when")] == [str(status) for status in Status]


def test_every_cause_and_event_is_exported() -> None:
    """Whatever can be raised or reported can be imported from `stallwatch`."""
    classes = {*CAUSE_KINDS.values(), *EVENT_NAMES.values(), StallError, Event}
    classes |= {stallwatch.UserCancelled, stallwatch.PhaseViolationError}

    assert {cls.__name__ for cls in classes} <= set(stallwatch.__all__)
    assert all(getattr(stallwatch, cls.__name__) is cls for cls in classes)


def test_private_methods_of_the_stub() -> None:
    """The stub has the private methods of native classes too, which stubtest does not look for."""
    stub = ast.parse((ROOT / "python/stallwatch/_stallwatch.pyi").read_text(encoding="utf-8"))
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            written = {sub.name for sub in node.body if isinstance(sub, ast.FunctionDef)}
            found = set(vars(getattr(_stallwatch, node.name)))

            assert {name for name in written ^ found if not name.startswith("__")} == set()


def test_version() -> None:
    """The package, the crate and the project have one version."""
    for name in ("Cargo.toml", "pyproject.toml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.search(r'(?m)^version = "([^"]+)"', text)
        assert found is not None
        assert found[1] == stallwatch.__version__
