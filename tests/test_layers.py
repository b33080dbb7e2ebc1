"""The shape of the source: who may import whom, how long a file may be, what must not be in it.

The layers of `python/stallwatch`, from the top down. A module may import from its own layer and
from those below it, and there is no circle of imports:

1. commands and helpers for tests: `cli`, `integrations`, `pytest_plugin`, `testing`, `faults`
2. whole turns and other ways to run something: `_turn`, `_run_turn`, `child`, `aio`
3. `_settle`
4. things with clocks: `_guard`, `_stream_guard`, `_close`, `_watchdog`, and the like
5. `_outcome`, `_chunks` and its parts, `_text`, `_retry`, `_tracker`, `wheel`, and what empties the
   wheel's queues: `_bridge`, `_dispatch`
6. plain data: `_limits`, `_phases`, `_events`, `_causes`, and what these are made of
7. the native module

The layers of `src/core` are those of its `mod.rs`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stallwatch

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "stallwatch"
CORE = ROOT / "src" / "core"

LAYERS = (
    "cli integrations pytest_plugin testing faults __main__",
    "_turn _turn_spans _turn_outcome _turn_clocks _turn_record _run_turn _retry_turn _budget child "
    "aio",
    "_settle",
    "_guard _guard_sync _sync_guard _stream_guard _watched _abort _close _cancels _suspend "
    "_opening _helpers _phase_clock _watchdog _tap _store _store_sqlite "
    "_turn_budget _tool_call _tools _active _recording _store_writer _child_watch _child_wait",
    "_outcome _allowance _chunks _chunks_kinds _chunks_messages _chunks_read _chunks_sse _text "
    "_retry _verdict _tracker wheel _bridge _dispatch _timeline _tool_record _failure "
    "_child_options _child_outcome",
    "_limits _clock_times _phases _events _causes _seconds _hearing _sink _plain _phase_state "
    "_stream_stats _owner _suggestion",
    "_stallwatch",
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}

CORE_LAYERS = (
    "child",
    "driver timer",
    "shard phases stream",
    "wheel state stats gaps",
    "clock error sync",
)
CORE_LEVEL = {name: level for level, names in enumerate(CORE_LAYERS) for name in names.split()}

MAX_LINES = 400

RUST_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*mod \w+ \{")
"""Where the tests at the end of a Rust file begin."""


def python_sources() -> list[Path]:
    """Every module of the package but `stallwatch/__init__.py`, which names them all."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_of(path: Path) -> str:
    """`stallwatch/cli/faults.py` belongs to `cli`, `stallwatch/_turn.py` is `_turn`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The modules of stallwatch that a file imports, wherever in it."""
    package = ("stallwatch", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            # `from stallwatch import testing` imports a module.
            names = [f"{source}.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "stallwatch" and rest:
                # `from stallwatch import Limits` imports from where that is.
                yield stallwatch._HOME.get(rest, rest.partition(".")[0])


def rust_code(path: Path) -> str:
    """A Rust file without its comments and without the tests at its end."""
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
    return RUST_TESTS.split(text)[0]


def first_names(tree: str) -> Iterator[str]:
    """The first names of the items of a use tree that begins here: `{a::b, c}` gives a and c."""
    if not tree.startswith("{"):
        yield re.match(r"\w*", tree)[0]  # type: ignore[index]
        return
    depth, item = 0, ""
    for sign in tree:
        depth += (sign == "{") - (sign == "}")
        if depth == 0 or (depth == 1 and sign == ","):
            yield re.match(r"\w*", item.strip())[0]  # type: ignore[index]
            item = ""
            if depth == 0:
                return
        elif depth > 1 or sign != "{":
            item += sign


def rust_modules() -> list[Path]:
    """The files of the core that are no tests."""
    tests = ("tests", "model.rs", "tests.rs", "loom.rs")
    return sorted(p for p in CORE.rglob("*.rs") if not set(p.relative_to(CORE).parts) & {*tests})


def core_module(path: Path) -> str:
    """`core/wheel/slab.rs` belongs to `wheel`, `core/timer.rs` is `timer`."""
    return path.relative_to(CORE).parts[0].removesuffix(".rs")


def core_uses(path: Path) -> Iterator[str]:
    """The modules of the core that a file of the core names."""
    code = rust_code(path)
    # `super` is the core in its direct files, and the module itself further down.
    up = r"crate::core|super" if path.parent == CORE else r"crate::core|super::super"
    for found in re.finditer(rf"\b(?:{up})::(?!super\b)", code):
        yield from (name for name in first_names(code[found.end() :]) if name in CORE_LEVEL)


def text_files() -> list[Path]:
    """What is written by hand, of whatever kind."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != "Cargo.lock"]
    for folder in ("src", "python", "tests", "benches", "docs", ".ci"):
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    kinds = {"", ".rs", ".py", ".pyi", ".md", ".toml", ".jsonl", ".txt", ".typed"}
    return sorted(path for path in found if path.suffix in kinds and "results" not in path.parts)


def test_every_module_has_a_layer() -> None:
    """A new module is put into a layer above, deliberately."""
    known = {module_of(path) for path in python_sources()} - LEVEL.keys()

    assert known == set()


def test_no_python_module_imports_upwards() -> None:
    """A module imports from its own layer and from those below it."""
    upward = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in python_sources()
        for name in imports(path)
        if LEVEL.get(name, -1) < LEVEL[module_of(path)]
    ]

    assert upward == []


def test_no_circle_of_python_imports() -> None:
    """Modules can be sorted so that each comes after all that it imports."""
    graph: dict[str, set[str]] = {}
    for path in python_sources():
        graph.setdefault(module_of(path), set()).update(imports(path))
    left = {name: {other for other in used if other != name} for name, used in graph.items()}
    while done := {name for name, used in left.items() if not used & left.keys()}:
        left = {name: used for name, used in left.items() if name not in done}

    assert left == {}


def test_every_core_module_has_a_layer() -> None:
    """The layers above are those in the map of the core, and no file is left out."""
    text = (CORE / "mod.rs").read_text(encoding="utf-8")
    drawn = re.search(r"//! `([^`]*->[^`]*)`", text)
    assert drawn is not None

    assert [set(part.split(", ")) for part in drawn[1].split(" -> ")] == [
        set(names.split()) for names in CORE_LAYERS
    ]
    assert {core_module(path) for path in rust_modules()} - {"mod"} == CORE_LEVEL.keys()


@pytest.mark.parametrize("path", rust_modules(), ids=lambda path: str(path.relative_to(CORE)))
def test_no_core_module_uses_one_above_it(path: Path) -> None:
    """A module of the core uses its own layer and those below it."""
    own = core_module(path)
    level = CORE_LEVEL.get(own, -1)

    assert [name for name in core_uses(path) if CORE_LEVEL[name] < level] == []


def test_the_core_knows_no_python() -> None:
    """Nothing under `src/core` names PyO3 or the binding, not even in tests."""
    found = [
        str(path.relative_to(ROOT))
        for path in CORE.rglob("*.rs")
        if re.search(r"\bpyo3\b|crate::py\b|\bpy::", path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_no_file_is_too_long() -> None:
    """A file is one noun: 400 lines at most. The stub and tests may be longer."""
    long = []
    for path in [*python_sources(), *(ROOT / "src").rglob("*.rs"), *(ROOT / "benches").rglob("*")]:
        if path.suffix not in (".py", ".rs") or "tests" in path.parts or path.name == "tests.rs":
            continue
        text = path.read_text(encoding="utf-8")
        # Tests at the end of a Rust file do not count.
        count = len(RUST_TESTS.split(text)[0].splitlines())
        if count > MAX_LINES:
            long.append(f"{path.relative_to(ROOT)}: {count}")

    assert long == []


def test_work_left_undone_has_a_number() -> None:
    """What is left to do is an issue; a note in the source names its number."""
    note = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b(?!\(#\d+\))")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if note.search(line)
    ]

    assert found == []


def test_no_path_of_a_machine() -> None:
    """No file names a directory that exists on one machine only."""
    homes = "|".join(("ro" + "ot", "ho" + "me", "wo" + "rk", "Us" + "ers"))
    place = re.compile(rf"(?<![\w.}}/)-])/(?:{homes})/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if place.search(line)
    ]

    assert found == []
