"""What the pages say is true: their examples run, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stallwatch
from stallwatch import Limits, Phase
from stallwatch.testing import ManualClock

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


class Example(NamedTuple):
    """A Python block, the reason not to run it, and what it must print."""

    line: int
    reason: str | None
    code: str
    output: str


def read(path: Path) -> str:
    """The text of a page."""
    return path.read_text(encoding="utf-8")


def examples(text: str) -> Iterator[Example]:
    """The Python blocks of a page, in order."""
    block = re.compile(
        r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```python\n(?P<code>.*?)^```$"
        r"(?:\n\n^```text\n(?P<output>.*?)^```$)?",
        re.DOTALL | re.MULTILINE,
    )
    for found in block.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        yield Example(line, found["reason"], found["code"], found["output"] or "")


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```$", "", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def name_of(path: Path) -> str:
    """The page's path from the root."""
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(examples(read(page)))], ids=name_of)
def test_examples_run(page: Path) -> None:
    """The examples of a page run in order, and print what the page says.

    In real time: their silences are much longer than the limits on them, and their lively parts
    leave 0.3 s or more below theirs.
    """
    space: dict[str, Any] = {"__name__": "example"}
    log = logging.getLogger("stallwatch")
    log.disabled = True
    try:
        for example in examples(read(page)):
            if example.reason is not None:
                continue
            printed = io.StringIO()
            # Line numbers of the page, for the traceback of one that fails.
            code = compile("\n" * example.line + example.code, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, space)
                for name in [name for name in space if name.startswith("test_")]:
                    run_test(space.pop(name))

            assert printed.getvalue() == example.output, f"{name_of(page)}:{example.line}"
    finally:
        log.disabled = False


def run_test(test: Callable[[ManualClock], None]) -> None:
    """Run a test that an example defines, with the fixture it asks for."""
    with ManualClock() as clock:
        test(clock)


def test_examples_that_are_not_run_compile() -> None:
    """An example that needs what tests do not have is at least Python."""
    skipped = [
        (page, example) for page in PAGES for example in examples(read(page)) if example.reason
    ]
    for page, example in skipped:
        compile(example.code, str(page), "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    assert skipped


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Links inside the repository name a file that is there, and a heading in it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in anchors(read(other))):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "docs"], ids=name_of)
def test_every_page_can_be_reached(page: Path) -> None:
    """The README links to every page."""
    assert f"](docs/{page.name})" in read(ROOT / "README.md")


def test_no_registry_is_named() -> None:
    """Where packages come from is for whoever installs them; nothing here names a registry."""
    hosts = re.compile(
        "|".join(("py" + r"pi\.org", "python" + "hosted", r"crates\.io", "npm" + "js"))
    )
    files = [*PAGES, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "Cargo.toml"]
    files += [*(ROOT / "python").rglob("*.py"), *(ROOT / "src").rglob("*.rs")]

    assert [name_of(path) for path in files if hosts.search(read(path))] == []


def test_readme_has_its_sections_in_order() -> None:
    """Question, example, clocks, promises, differences, figures, set-up, links."""
    text = read(ROOT / "README.md")
    marks = [
        "who is being waited for",
        "```python",
        "## the clocks",
        "## what it will never do",
        "## unlike asyncio",
        "<!-- figures:begin -->",
        "<!-- figures:end -->",
        "## set-up",
        "## more",
    ]
    places = [text.lower().find(mark) for mark in marks]

    assert -1 not in places
    assert places == sorted(places)


def test_set_up_is_two_commands() -> None:
    """`make demo` and `make test` are all that has to be typed."""
    setup = read(ROOT / "README.md").partition("## Set-up")[2]
    block = re.search(r"```console\n(.*?)```", setup, re.DOTALL)

    assert block is not None
    assert block[1].split("\n") == ["make demo", "make test", ""]


def test_every_make_target_has_a_rule() -> None:
    """What is declared phony, or named by a page or the help, is a target."""
    text = read(ROOT / "Makefile")
    rules = set(re.findall(r"(?m)^([a-z][\w-]*):", text))
    named = set(re.findall(r"(?m)^\.PHONY: (.*)$", text)[0].split())
    for source in (*map(read, PAGES), *re.findall(r"(?m)^\t@echo.*$", text)):
        named |= set(re.findall(r"(?:`|\"|^)make ([a-z][\w-]*)", source, re.MULTILINE))

    assert named <= rules


@pytest.mark.parametrize("name", ["README.md", "docs/semantics.md"])
def test_defaults_in_tables_of_clocks(name: str) -> None:
    """A default in a table is that of `Limits`."""
    limits = Limits()
    known = {"idle": limits.stream_idle, "soft idle": limits.soft_idle, "budget": None}
    known |= {"hard idle": limits.hard_idle, "turn_budget": limits.turn_budget}
    known |= {"first_chunk": limits.first_chunk, "progress_idle": limits.progress_idle}
    rows = re.findall(r"(?m)^\| `?([\w ]+?)`? \|.*\| (off|\d+ s) \|$", read(ROOT / name))
    for clock, default in rows:
        value = known[clock]
        assert default == ("off" if value is None else f"{value:g} s")

    assert bool(rows) == (name == "README.md")


def test_what_is_not_yet_is_not_there() -> None:
    """What the pages call not built yet is not built; whoever builds it writes the pages anew."""
    _, heading, section = read(ROOT / "docs" / "semantics.md").partition("## Not yet")
    rows = re.findall(r"(?m)^\| (?!what|--).*\| (.*) \|$", section)
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]

    assert bool(names) == bool(heading)
    for name in names:
        owner, _, attribute = name.rpartition(".")
        assert not hasattr(getattr(stallwatch, owner) if owner else stallwatch, attribute)


def test_pages_name_real_phases() -> None:
    """`Phase.X` in a page is a member."""
    named = {name for page in PAGES for name in re.findall(r"\bPhase\.([A-Z_]+)", read(page))}

    assert named <= Phase.__members__.keys()
