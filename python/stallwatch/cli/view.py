"""`stallwatch view`: a stored turn as a page, drawn over a time axis."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stallwatch.cli._stored import SHORT, NotShownError, clean, find, opened
from stallwatch.cli._view_page import page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "The page is one file that loads nothing and runs nothing, so it can be kept or sent.\n"
        "It holds the turn's kept text.\n\n"
        "Exit status: 0, or 1 if the store cannot be read, there is no such turn, or the page\n"
        "cannot be written."
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="file of a stallwatch.SQLiteStore")
    parser.add_argument("turn", metavar="TURN", help="the turn's id, or how that begins")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write it, - for standard output (default: turn-ID.html)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and return the exit status."""
    try:
        with opened(args.path) as store:
            turn = find(store, args.turn)
        text = page(turn)
        if args.output == Path("-"):
            sys.stdout.write(text)
            return 0
        output = args.output or Path(f"turn-{turn.id[:SHORT]}.html")
        output.write_text(text, encoding="utf-8")
    except (NotShownError, OSError) as error:
        print(f"stallwatch view: {clean(error)}", file=sys.stderr)
        return 1
    print(output)
    return 0
