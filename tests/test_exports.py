"""What `import stallwatch` offers: one list of names, loaded lazily, under public paths."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stallwatch
from stallwatch import faults, testing, wheel

SUBMODULES = {"aio", "child", "faults", "testing", "wheel"}


def declared() -> set[str]:
    """The names that type checkers see: imports under `if TYPE_CHECKING`."""
    tree = ast.parse(Path(stallwatch.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
    names = set()
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stallwatch"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def run(code: str) -> str:
    """What an interpreter of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_type_checkers_see_what_the_namespace_has() -> None:
    """`__all__`, the imports for type checkers and the lazy table name the same things."""
    assert set(stallwatch.__all__) == declared() - SUBMODULES
    assert set(stallwatch.__all__) == stallwatch._HOME.keys() - {"__version__"}
    assert set(stallwatch._MODULES) == SUBMODULES
    assert len(stallwatch.__all__) == len(set(stallwatch.__all__))


def test_star_import_gives_every_name() -> None:
    """`from stallwatch import *` finds all that `__all__` promises."""
    space: dict[str, Any] = {}
    exec("from stallwatch import *", space)

    assert space.keys() - {"__builtins__"} == set(stallwatch.__all__)


def test_dir_lists_names_that_were_not_loaded_yet() -> None:
    """Completion in a shell works before the first use of a name."""
    code = "import stallwatch; print({*stallwatch.__all__, 'testing'} <= {*dir(stallwatch)})"

    assert run(code) == "True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does in any module."""
    with pytest.raises(AttributeError, match="'stallwatch' has no attribute 'gaurd'"):
        stallwatch.gaurd  # noqa: B018


def test_importing_loads_nothing_else() -> None:
    """`import stallwatch` brings in no module of its own and none of the standard library."""
    code = (
        "import sys; before = {*sys.modules}; import stallwatch; "
        "print(sorted({*sys.modules} - before))"
    )

    assert run(code) == "['stallwatch']"


def test_a_submodule_is_loaded_by_its_attribute() -> None:
    """`import stallwatch` is enough to use `stallwatch.testing`."""
    assert run("import stallwatch; print(stallwatch.testing.__name__)") == "stallwatch.testing"


@pytest.mark.parametrize("name", stallwatch.__all__)
def test_exports_carry_their_public_path(name: str) -> None:
    """Classes and functions say `stallwatch`, wherever their file is."""
    value = getattr(stallwatch, name)

    assert value.__module__ == "stallwatch"


@pytest.mark.parametrize("name", stallwatch.__all__)
def test_exports_are_pickled_by_reference(name: str) -> None:
    """Stored references survive a move of the file they come from."""
    value = getattr(stallwatch, name)
    data = pickle.dumps(value)

    assert pickle.loads(data) is value
    assert b"stallwatch._" not in data


@pytest.mark.parametrize("module", [faults, testing, wheel], ids=lambda module: module.__name__)
def test_submodules_name_what_they_have(module: Any) -> None:
    """Every name in a submodule's `__all__` is there and is public."""
    for name in module.__all__:
        assert "._" not in getattr(module, name).__module__
