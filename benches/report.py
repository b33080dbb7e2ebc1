"""Renders one run's JSON into README.md and benches/README.md, between their markers.

`python benches/report.py [RUN.json]`; by default the last full run in `benches/results`. A quick
run is only printed: it is no figure. Nor is a run whose control has moved away from its history.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from string import Template
from typing import Any

from harness import Spread, show

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"

DRIFT = 0.15
"""asyncio is the control: if it moves by more than this, the machine was not itself."""

CONTROL = ("B7", "asyncio")


class RefusedError(Exception):
    """Why nothing was published."""


def _rows(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = [row for bench in run["benchmarks"] for row in bench["extra_info"].get("rows", ())]
    # By their number: B2 before B10.
    return iter(sorted(found, key=lambda row: int(row["id"][1:])))


def _shown(value: dict[str, float], unit: str) -> str:
    return show(Spread(**value), unit)


def checks_table(run: dict[str, Any]) -> str:
    """What was promised, and whether it was kept."""
    lines = ["| | work | beside | target | measured | |", "|---|---|---|---|---|---|"]
    for row in _rows(run):
        work = row["work"]
        for check in row["checks"]:
            cells = (
                row["id"],
                work,
                check["what"],
                check["target"],
                _shown(check["value"], check["unit"]),
                "met" if check["met"] else "**missed**",
            )
            lines.append("| " + " | ".join(cells) + " |")
            work = ""
    return "\n".join(lines)


def figures_table(run: dict[str, Any]) -> str:
    """What each entrant measured, as it is."""
    parts = ["\n## Each entrant's own figures\n"]
    for row in _rows(run):
        parts.append(f"\n**{row['id']}, {row['work']}** ({row['rounds']} rounds). {row['note']}\n")
        parts += ["| entrant | measured |", "|---|---|"]
        for figure in row["figures"]:
            parts.append(f"| {figure['name']} | {_shown(figure['value'], figure['unit'])} |")
    return "\n".join(parts)


def render(run: dict[str, Any], details: str) -> str:
    """The text between the markers."""
    machine = run["machine_info"]
    versions = machine["versions"]
    template = Template((HERE / "report.tmpl").read_text(encoding="utf-8"))
    return template.substitute(
        date=datetime.fromisoformat(run["datetime"]).strftime("%Y-%m-%d"),
        cpu=machine["cpu"],
        cores=machine["cores"],
        kernel=machine["kernel"],
        python=machine["python"],
        gc=machine["gc"],
        peers=", ".join(f"{name} {number}" for name, number in versions.items()),
        load_before=f"{machine['load_before']:.2f}",
        checks=checks_table(run),
        details=details,
    ).strip()


def _put(path: Path, text: str) -> None:
    page = path.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise RefusedError(f"{path.name} has no place for figures: {BEGIN} ... {END}")
    before, rest = page.split(BEGIN, 1)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def _load(path: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


def _control(run: dict[str, Any]) -> float | None:
    for row in _rows(run):
        for figure in row["figures"]:
            if (row["id"], figure["name"]) == CONTROL:
                return float(figure["value"]["median"])
    return None


def _check_control(run: dict[str, Any], path: Path) -> None:
    here = run["machine_info"]
    known = []
    for other in RESULTS.glob("*.json"):
        if other.resolve() == path.resolve():
            continue
        past = _load(other)
        machine = past["machine_info"]
        same = all(machine[what] == here[what] for what in ("cpu", "cores", "python", "quick"))
        value = _control(past)
        if same and value is not None:
            known.append(value)
    now = _control(run)
    if not known or now is None:
        return
    usual = median(known)
    if abs(now / usual - 1) > DRIFT:
        raise RefusedError(
            f"asyncio took {now:.0f} ns where it took {usual:.0f} ns in {len(known)} other runs: "
            "this machine is not itself (--force publishes all the same)"
        )


def _last_full_run() -> Path:
    runs = sorted(RESULTS.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(runs):
        if not _load(path)["machine_info"]["quick"]:
            return path
    raise RefusedError("there is no full run in benches/results: `make bench` makes one")


def main() -> int:
    """Publishes a run, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--force", action="store_true", help="whatever the control says")
    options = parser.parse_args()
    try:
        path = options.run or _last_full_run()
        run = _load(path)
        if run["machine_info"]["quick"]:
            print(render(run, ""))
            return 0
        if not options.force:
            _check_control(run, path)
        _put(HERE / "README.md", render(run, figures_table(run)))
        more = "Each entrant's own figures are in [benches/README.md](benches/README.md)."
        _put(HERE.parent / "README.md", render(run, more))
    except RefusedError as refusal:
        print(f"stallwatch: {refusal}", file=sys.stderr)
        return 1
    print(f"{path.name} is in README.md and benches/README.md")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
