"""The table of chunk kinds in the docs is the table in the code."""

from pathlib import Path

import pytest

from stallwatch import _chunks_kinds as kinds
from stallwatch._chunks_kinds import ERROR, KEEPALIVE, PROGRESS, TERMINAL, Rule

PAGE = Path(__file__).parents[1] / "docs" / "chunks.md"

NESTED_HEADINGS = {
    "content_block_delta": "Anthropic: `content_block_delta`, by `delta.type`",
    "content_block_start": "Anthropic: `content_block_start`, by `content_block.type`",
    "response.output_item.added": "OpenAI responses: `response.output_item.added`, by `item.type`",
    "response.output_item.done": "OpenAI responses: `response.output_item.done`, by `item.type`",
}

TYPED_HEADINGS = {
    "Any provider, by `type`": kinds.COMMON,
    "Anthropic messages, by `type`": kinds.ANTHROPIC,
    "OpenAI responses, by `type`": kinds.RESPONSES,
    "SDK helper streams, by `type`": kinds.HELPERS,
}


def row(kind: str, rule: Rule) -> tuple[str, str, str, str]:
    """One line of the page for one rule."""
    counts = "no"
    if rule.flags & PROGRESS:
        counts = "yes"
        if rule.fields:
            counts = "if " + " or ".join(f"`{name}`" for name in rule.fields)
    elif rule.flags & KEEPALIVE:
        counts = "keep-alive"
    ends = "error" if rule.flags & ERROR else "end" if rule.flags & TERMINAL else ""
    return (
        f"`{kind}`",
        counts,
        ends,
        f"{rule.carries} (twin)".strip() if rule.twin else rule.carries,
    )


def expected() -> dict[str, set[tuple[str, str, str, str]]]:
    """Every table of the code as the page should show it."""
    tables = {
        heading: {row(kind, rule) for kind, rule in table.items()}
        for heading, table in TYPED_HEADINGS.items()
    }
    for kind, (_, table, default) in kinds.NESTED.items():
        tables[NESTED_HEADINGS[kind]] = {row(name, rule) for name, rule in table.items()} | {
            row("", default)
        }
    tables["OpenAI chat completions, fields of `delta`"] = {
        row(name, Rule(PROGRESS, (name,), carries)) for name, carries in kinds.CHAT_DELTA.items()
    }
    tables["Google generateContent, fields of a part"] = {
        row(name, Rule(PROGRESS, (name,), carries)) for name, carries in kinds.GOOGLE_PART.items()
    }
    return tables


def documented() -> dict[str, list[tuple[str, ...]]]:
    """The tables of the page, by the heading above each."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("|") and not line.startswith(("| kind", "|---")):
            cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
            cells = ("``" if cells[0] == "anything else" else cells[0], *cells[1:])
            tables.setdefault(heading, []).append(cells)
    return tables


@pytest.mark.parametrize("heading", expected())
def test_table_of_the_docs_equals_the_table_of_the_code(heading: str) -> None:
    """Each kind is in the docs with its rule, and the docs name no kind that the code lacks."""
    shown = documented()[heading]

    assert set(shown) == expected()[heading]
    assert len(shown) == len(set(shown))


def test_the_docs_have_no_table_without_code() -> None:
    """No table of the page stands for nothing."""
    assert documented().keys() == expected().keys()
