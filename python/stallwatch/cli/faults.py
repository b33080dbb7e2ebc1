"""`stallwatch faults`: run the fault server until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from stallwatch.faults import Fault, FaultServer, RequestRecord, Scenario
from stallwatch.faults._scenario import BUILTINS, FORMS, KEEP_ALIVES, label_of, usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    width = max(len(usage(fault)) for fault in Fault)
    scenarios = "\n".join(f"  {usage(f):<{width}}  {form.summary}" for f, form in FORMS.items())
    parser.epilog = (
        "A request whose model name reads as a scenario gets that one, whatever the options say;\n"
        f"add @{', @'.join(BUILTINS)} for another built-in stream (stall:3@tool):\n\n"
        f"{scenarios}\n\n"
        "Point a client at it with any non-empty key: OPENAI_BASE_URL=http://127.0.0.1:PORT/v1 or\n"
        "ANTHROPIC_BASE_URL=http://127.0.0.1:PORT. One line is printed for each request that is\n"
        "over. Ctrl-C or SIGTERM ends the server with exit status 0; 1 is a server that could\n"
        "not start."
    )
    known = Scenario()
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument(
        "--fault",
        choices=[str(fault) for fault in Fault],
        default=str(known.fault),
        metavar="LABEL",
        help=f"what goes wrong: {', '.join(Fault)} (default: {known.fault})",
    )
    parser.add_argument(
        "--at", type=int, default=known.at, help="events before it does (default: %(default)s)"
    )
    parser.add_argument(
        "--stream",
        default=known.stream,
        metavar="FILE",
        help="file with one JSON event a line, or "
        f"{', '.join(f'builtin:{name}' for name in BUILTINS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=0.02,
        help="seconds before each event, or byte for drip-bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=known.every,
        help="seconds between keep-alives (default: %(default)s)",
    )
    parser.add_argument(
        "--duration",
        type=float,
        default=None,
        help="seconds until a silence or keep-alives give way to the rest of the answer "
        "(default: never; needed for slow-first)",
    )
    parser.add_argument(
        "--keepalive",
        choices=KEEP_ALIVES,
        default=known.keepalive,
        help="kind of keep-alive (default: what the provider does)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    builtin = args.stream.startswith("builtin:")
    try:
        scenario = Scenario(
            fault=Fault(args.fault),
            at=args.at,
            stream=args.stream if builtin else Path(args.stream),
            delay=args.delay,
            every=args.every,
            duration=args.duration,
            keepalive=args.keepalive,
        )
        return asyncio.run(_serve(FaultServer(scenario, port=args.port, on_end=_report)))
    except (ValueError, OSError, ImportError) as error:
        print(f"stallwatch faults: {error}", file=sys.stderr)
        return 1


async def _serve(server: FaultServer) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        # Flushed: whoever started us as a child waits for this line.
        print(server.url, flush=True)
        await stop.wait()
    return 0


def _report(record: RequestRecord) -> None:
    if record.finished:
        end = "finished"
    elif record.closed_by_peer_at is not None:
        end = "closed by the client"
    else:
        end = "dropped, the server stopped"
    took = (record.ended_at or record.opened_at) - record.opened_at
    beats = f", {record.keepalives_sent} keep-alives" if record.keepalives_sent else ""
    print(
        f"{record.api} {label_of(record.scenario)}: {record.events_sent} events{beats}, "
        f"{end} after {took:.2f} s",
        flush=True,
    )
