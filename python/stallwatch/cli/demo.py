"""`stallwatch demo`: the real SDKs, a provider that misbehaves, and what becomes of it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stallwatch.cli._demo_judge import judge
from stallwatch.cli._demo_record import Record
from stallwatch.cli._demo_scenes import SCENES, Scene
from stallwatch.cli._demo_show import Screen
from stallwatch.cli._demo_stage import Stage, open_stage

_NEEDS = ("aiohttp", "anthropic", "openai")
_ENOUGH = 20.0  # seconds after which a scenario is broken, whatever it waits for

Played = tuple[Scene, Record, list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "Exit status: 0 if every scenario ended as it must, 1 if one did not, 2 if something is\n"
        "missing, 130 after Ctrl-C. Needs pip install stallwatch[demo]; talks to loopback only."
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--only",
        action="append",
        choices=[scene.name for scene in SCENES],
        metavar="NAME",
        help="play this scenario only; can be given more than once",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write events, chunks and outcomes of every scenario to FILE",
    )


def run(args: argparse.Namespace) -> int:
    """Play the scenarios and return the exit status."""
    if args.list:
        for scene in SCENES:
            print(f"{scene.name:<12}{scene.expected!s:<28}{scene.title}")
        return 0
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"stallwatch demo: {', '.join(missing)} not found: pip install stallwatch[demo]",
            file=sys.stderr,
        )
        return 2
    scenes = [scene for scene in SCENES if args.only is None or scene.name in args.only]
    screen = Screen(sys.stdout)
    try:
        if args.json is not None:
            args.json.touch()  # a place that cannot be written to shows before the demo, not after
        played = asyncio.run(_play_all(scenes, screen))
        screen.summary(played)
        if args.json is not None:
            args.json.write_text(json.dumps(_to_dict(played), indent=1) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        screen.clear()
        return 130
    except OSError as error:
        print(f"stallwatch demo: {error}", file=sys.stderr)
        return 1
    if screen.reader_left:
        # Python would try once more to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    wrong = [scene.name for scene, _, problems in played if problems]
    if wrong:
        print(f"stallwatch demo: did not end as it must: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


async def _play_all(scenes: Sequence[Scene], screen: Screen) -> list[Played]:
    played: list[Played] = []
    screen.intro(scenes)
    async with open_stage() as stage:
        for number, scene in enumerate(scenes, 1):
            screen.heading(number, len(scenes), scene)
            record = Record(scene.limits, on_note=screen.note)
            problems = await _play(scene, record, stage, screen)
            screen.result(scene, record, problems)
            played.append((scene, record, problems))
            if screen.reader_left:
                break
    return played


async def _play(scene: Scene, record: Record, stage: Stage, screen: Screen) -> list[str]:
    stage.record = record
    counter = asyncio.create_task(screen.count(record))
    try:
        async with asyncio.timeout(_ENOUGH):
            await scene.play(stage)
    except Exception as error:
        return [f"the scenario raised {type(error).__name__}: {error}".rstrip(": ")]
    finally:
        counter.cancel()
        await asyncio.wait({counter})
    return judge(scene.expected, record.outcome, record.claims)


def _to_dict(played: Sequence[Played]) -> dict[str, Any]:
    return {
        "schema": 1,
        "ok": not any(problems for _, _, problems in played),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("stallwatch", *_NEEDS)},
        },
        "scenarios": [
            {
                "name": scene.name,
                "title": scene.title,
                "expected": {
                    "status": str(scene.expected.status),
                    "cause": scene.expected.cause,
                    "phase": str(scene.expected.phase),
                    "text": scene.expected.text,
                },
                "problems": list(problems),
                **record.to_dict(),
            }
            for scene, record, problems in played
        ],
    }
