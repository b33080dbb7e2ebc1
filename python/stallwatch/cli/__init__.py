"""The `stallwatch` command.

A subcommand is a module with `add_arguments(parser)` and `run(args) -> int`, named in `COMMANDS`.
Only the module of the command that was asked for is imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

# name -> (one line of help, module)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "play faults against the real SDKs and show what becomes of them",
        "stallwatch.cli.demo",
    ),
    "faults": ("run a provider that misbehaves, on loopback", "stallwatch.cli.faults"),
    "turns": ("list and show the turns of a store", "stallwatch.cli.turns"),
    "view": ("draw a turn of a store as a page", "stallwatch.cli.view"),
}


class _Version(argparse.Action):
    """`--version`, which loads the compiled module only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        from stallwatch._stallwatch import __version__

        print(f"stallwatch {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="stallwatch",
        description="Who is being waited for, for how long, and what happens when they go silent.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Options before the command take no value, so the first bare word is the command.
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    run = None
    for name, (summary, module) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary.capitalize() + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            loaded = import_module(module)
            loaded.add_arguments(command)
            run = loaded.run
    namespace = parser.parse_args(arguments)
    assert run is not None, "parse_args exits unless a command was given"
    return int(run(namespace))
