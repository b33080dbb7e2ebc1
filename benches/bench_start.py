"""B20: import, the first timer, a fork's first timer, and the end of a process with many armed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from harness import Contest, Row, Scale, at_most, publish

ARMED = 100_000

IMPORT = """
import json, time
{before}
start = time.monotonic()
{code}
print(json.dumps((time.monotonic() - start) * 1e3))
"""

FIRST = """
import json, time
from stallwatch import IdleTimer
start = time.monotonic()
IdleTimer(3600, print)
print(json.dumps((time.monotonic() - start) * 1e3))
"""

END = """
import time
{code}
print(time.monotonic(), flush=True)
"""

FORK = """
import os, sys, time
from stallwatch import Deadline
kept = Deadline(time.monotonic() + 3600, print)
reader, writer = os.pipe()
start = time.monotonic()
if os.fork() == 0:
    def fired():
        late = time.monotonic() - deadline.when
        assert late >= 0, "early"
        os.write(writer, repr((late * 1e3, kept.inherited)).encode())
    deadline = Deadline(time.monotonic() + 0.05, fired)
    time.sleep(5)
    os._exit(0)
late, inherited = eval(os.read(reader, 100))
assert inherited
print(late)
"""

NATIVE = f"""
from stallwatch import IdleTimer
kept = [IdleTimer(3600 + i, print) for i in range({ARMED})]
"""

ASYNCIO = f"""
import asyncio
loop = asyncio.new_event_loop()
kept = [loop.call_later(3600 + i, print) for i in range({ARMED})]
"""


def _said(code: str) -> float:
    """What a child printed."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr, done.stderr
    return float(json.loads(done.stdout))


def _end_of(code: str) -> float:
    """Milliseconds from the last statement of a child to its end."""
    command = [sys.executable, "-c", END.format(code=code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        said = float(child.stdout.readline())
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        ended = monotonic()
        noise = child.stderr.read()
    assert not noise, noise
    assert not child.returncode
    return 1000 * (ended - said)


def bench_start(benchmark: Any, scale: Scale) -> None:
    """The costs a program pays once."""
    everything = "from stallwatch import IdleTimer, Turn, Watchdog, guard, run_turn"

    def imported(code: str, before: str = "") -> Callable[[], float]:
        return lambda: _said(IMPORT.format(code=code, before=before))

    entrants: dict[str, Callable[[], float]] = {
        "import stallwatch": imported("import stallwatch"),
        everything: imported(everything),
        "the same, asyncio being there": imported(everything, "import asyncio"),
        "import asyncio": imported("import asyncio"),
        "the first timer": lambda: _said(FIRST),
        "lateness of a fork's first timer": lambda: _said(FORK),
        "exit with 100,000 IdleTimers": lambda: _end_of(NATIVE),
        "exit with 100,000 asyncio timers": lambda: _end_of(ASYNCIO),
        "exit of `import asyncio`": lambda: _end_of("import asyncio"),
    }
    contest = Contest(entrants)
    contest.play(benchmark, rounds=scale.rounds(9, 2))

    publish(
        benchmark,
        Row(
            "B20",
            "import and exit",
            (
                at_most("`import stallwatch`", contest.spread("import stallwatch"), 30, "ms"),
                at_most(
                    f"`{everything}`, asyncio being there",
                    contest.spread("the same, asyncio being there"),
                    30,
                    "ms",
                ),
                at_most(
                    "exit with 100,000 armed",
                    contest.spread("exit with 100,000 IdleTimers"),
                    50,
                    "ms",
                ),
            ),
            contest.figures("ms"),
            contest.rounds,
        ),
    )
