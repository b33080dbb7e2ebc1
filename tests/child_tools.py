"""Children for tests, and a look at `/proc` for what they leave behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stallwatch import ChildOutcome, run_child, run_child_sync

Run = Callable[..., ChildOutcome]


def run_async(*args: Any, **options: Any) -> ChildOutcome:
    """`run_child` in a loop of its own, which must be left without tasks and readers."""

    async def main() -> ChildOutcome:
        before = asyncio.all_tasks()
        outcome = await run_child(*args, **options)
        assert asyncio.all_tasks() == before
        return outcome

    return asyncio.run(main())


BOTH: dict[str, Run] = {"async": run_async, "blocking": run_child_sync}


def shell(script: str) -> list[str]:
    """A command that runs a script in `sh`."""
    return ["sh", "-c", script]


def python(code: str, *flags: str) -> list[str]:
    """A command that runs code in a fresh interpreter."""
    return [sys.executable, "-I", "-S", *flags, "-c", code]


def stat(pid: int) -> list[str] | None:
    """State, parent, group, session and so on of a process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(") ")[2].split()


def is_alive(pid: int) -> bool:
    """Whether it runs: neither gone nor a zombie."""
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def of_session(session: int) -> list[int]:
    """The processes of a session that run.

    A dead one whose parent has died too waits for the system's first process, which may take its
    time: that is out of anybody's hands. The zombies that count are our own children.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat(int(entry.name))
            if fields is not None and int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def children() -> set[int]:
    """The children of this process, zombies included."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat(int(entry.name))
            if fields is not None and int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


def descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:
            continue  # the one that reads the directory
    return found


def eventually(fact: Callable[[], object], limit: float = 5.0) -> bool:
    """Whether something comes true within a time."""
    end = time.monotonic() + limit
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def nothing_left() -> Iterator[None]:
    """Checks that a block leaves no child, no zombie and no descriptor behind."""
    run_child_sync(
        ["true"]
    )  # what the first child brings about stays: a thread and its descriptors
    open_before, before = descriptors(), children()
    yield
    assert children() - before == set()
    assert descriptors().keys() - open_before.keys() == set()
