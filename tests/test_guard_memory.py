"""What guards leave behind: timers, memory, references."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stallwatch import guard, wheel_stats

psutil = pytest.importorskip("psutil")


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


@pytest.mark.slow
def test_five_hundred_streams_of_two_thousand_chunks() -> None:
    """Case 56: at most two timers a stream at any time, and memory flat after warm-up.

    A million chunks; no time is measured.
    """
    timers: list[int] = []
    memory: list[int] = []

    async def source() -> AsyncIterator[str]:
        for number in range(2000):
            if number % 20 == 0:
                await asyncio.sleep(0)
            yield "x"

    async def consume() -> None:
        async for _ in guard(source(), idle=300):
            pass

    async def watch(tasks: list[asyncio.Task[None]]) -> None:
        turns = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turns += 1
            if turns % 10 == 0:
                timers.append(wheel_stats().armed)
                memory.append(resident())

    async def main() -> None:
        tasks = [asyncio.create_task(consume()) for _ in range(500)]
        await watch(tasks)

    before = wheel_stats().armed
    asyncio.run(main())

    assert max(timers) - before <= 1000
    assert wheel_stats().armed == before
    assert len(memory) >= 8
    # The text itself grows: 500 streams of 2 000 characters are 1 MB.
    assert memory[-1] - memory[len(memory) // 4] < 16 * 2**20


CROWD = """
import asyncio, gc, json, sys
import psutil
from stallwatch import guard, wheel_stats

ended = []

async def source():
    for _ in range(5):
        await asyncio.sleep(0.01)
        yield "word "

async def consume():
    async with guard(source(), idle=60) as chunks:
        async for _ in chunks:
            pass
        ended.append(len(chunks.text))

async def main():
    await asyncio.gather(*(consume() for _ in range(10_000)))

seen = []
for _ in range(9):
    asyncio.run(main())
    whole = ended == [25] * 10_000
    ended.clear()
    gc.collect()
    memory = psutil.Process().memory_info().rss
    seen.append([whole, wheel_stats().armed, sys.getallocatedblocks(), memory])
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_ten_thousand_guarded_streams_at_once() -> None:
    """All end, nothing stays armed, and later rounds take no more memory than earlier ones.

    In a process of its own, whose heap holds nothing else. The allocator needs about four rounds
    until it has met every order in which streams end; then a kept object per stream would be
    10 000 blocks a round, and 400 bytes a stream the 12 MiB that are allowed for three rounds.
    """
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=300, check=True
    )
    rounds = json.loads(done.stdout)

    assert [whole for whole, *_ in rounds] == [True] * 9
    assert [armed for _, armed, *_ in rounds] == [0] * 9
    assert rounds[-1][2] - rounds[0][2] < 1_000
    assert min(memory for *_, memory in rounds[6:]) - rounds[5][3] < 12 * 2**20


class Chunk:
    """A chunk that can be referred to weakly."""


@pytest.mark.parametrize("leave", ["end", "break"])
def test_nothing_is_kept_by_a_circle(leave: str) -> None:
    """A guard that is let go dies, with its source and chunks, without the collector."""
    alive: list[weakref.ref[Any]] = []

    async def source() -> AsyncIterator[Chunk]:
        for _ in range(3):
            chunk = Chunk()
            alive.append(weakref.ref(chunk))
            yield chunk

    async def main() -> None:
        guarded = guard(source(), idle=60)
        alive.append(weakref.ref(guarded))
        async for chunk in guarded:
            del chunk
            if leave == "break":
                break
        del guarded
        for _ in range(5):
            await asyncio.sleep(0)  # the loop closes a generator that was left in a task of its own
        assert [ref for ref in alive if ref() is not None] == []

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_pull_makes_no_timer() -> None:
    """However often a stream waits, it has one timer, which is filed anew and not made anew."""

    async def source() -> AsyncIterator[str]:
        for _ in range(500):
            await asyncio.sleep(0)
            yield "x"

    async def main() -> int:
        before = wheel_stats().started
        async for _ in guard(source()):
            pass
        return wheel_stats().started - before

    assert asyncio.run(main()) == 1
