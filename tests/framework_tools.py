"""Runs inside a turn against the fault server, for the tests of integrations of frameworks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from stallwatch import Limits, Outcome, Turn
from stallwatch.faults import FaultServer, RequestRecord

IDLE = 0.4
"""Seconds of `idle` in these tests: events of a healthy answer come within milliseconds."""

SLACK = 5.0
"""Seconds for all sides to see a cut, on a busy machine."""

LIMITS = Limits(first_chunk=2 * IDLE, stream_idle=IDLE, soft_idle=20, hard_idle=40, close_grace=5)


@dataclass
class Seen:
    """What a run left behind.

    Attributes:
        result: What the body returned.
        error: What left the turn.
        outcome: The turn's outcome.
        requests: What the server was asked.
        closed: Whether the server saw each request's connection closed from our side.
        events: The events, in order.
    """

    outcome: Outcome
    result: Any = None
    error: BaseException | None = None
    requests: list[RequestRecord] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @property
    def phases(self) -> list[str]:
        """The phases gone through."""
        return [str(event.phase) for event in self.events if event.event == "phase_changed"]

    @property
    def names(self) -> list[str]:
        """The names of the other events but the last, `settled`."""
        skip = ("phase_changed", "settled")
        return [event.event for event in self.events if event.event not in skip]


async def run_in_turn(
    server: FaultServer, body: Callable[[Turn], Awaitable[Any]], limits: Limits = LIMITS
) -> Seen:
    """Run a body in a turn of its own and see what became of everything."""
    before, events = len(server.requests), []
    turn, result, error = Turn(limits, on_event=events.append), None, None
    try:
        async with turn:
            result = await body(turn)
    except Exception as caught:
        error = caught
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert turn.outcome is not None
    requests = server.requests[before:]
    closed = [await one.wait_closed(SLACK) is not None for one in requests] if error else []
    return Seen(turn.outcome, result, error, requests, closed, events)


def import_without(module: str, *libraries: str) -> str:
    """What a process without some libraries says of importing an integration and using it."""
    code = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({libraries!r}))\n"
        f"module = importlib.import_module('stallwatch.integrations.{module}')\n"
        "used = getattr(module, module.__all__[0])\n"
        "try:\n"
        "    used(*[None] * int(sys.argv[1]))\n"
        "except ImportError as error:\n"
        "    print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
