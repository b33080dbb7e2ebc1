"""`kill -9` of processes that share one file: nothing is lost, left running, or made up."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch import SQLiteStore, Status
from stallwatch._store import RUNNING
from store_tools import pragma

TURNS = 200
AT_ONCE = 4
ENOUGH_KILLS = 12

# Lines on stdout, each after the fact but for B: S started, C checkpoint, B about to finish, F has
# finished. A line is one write, so a kill leaves no half of one.
TELL = """
import os, random, sys, threading, time
from stallwatch import Failure, HardIdleError, Outcome, SQLiteStore, Status

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

store = SQLiteStore(sys.argv[1], busy_timeout=60)
"""

BY_HAND = (
    TELL
    + """
from stallwatch._store import new_turn_id

def turn(chance):
    turn_id = new_turn_id()
    store.start(turn_id, Outcome(status=Status.INTERRUPTED))
    tell("S", turn_id)
    for number in range(1, chance.randint(2, 5)):
        time.sleep(chance.uniform(0, 0.015))
        kept = Outcome(status=Status.INTERRUPTED, seq=number, text="x" * chance.randint(0, 20_000))
        assert store.checkpoint(turn_id, kept)
        tell("C", turn_id, number)
    status = chance.choice([Status.COMPLETED, Status.STALLED])
    cause = HardIdleError(idle=1.0) if status is Status.STALLED else None
    tell("B", turn_id, status)
    assert store.finish(turn_id, Outcome(status=status, cause=cause, text=turn_id))
    tell("F", turn_id, status)

def work(seed):
    chance = random.Random(seed)
    try:
        while True:
            turn(chance)
    except BaseException as error:
        tell("X", repr(error))
        raise

for number in range(4):
    threading.Thread(target=work, args=(f"{sys.argv[2]} {number}",)).start()
tell("R")
"""
)


BY_TURN = (
    TELL
    + """
import asyncio
from stallwatch import Limits, Phase, run_turn

LIMITS = Limits(soft_idle=None, hard_idle=0.03, cleanup=20)

async def one(chance):
    status = chance.choice([Status.COMPLETED, Status.STALLED])
    ids = []

    async def body(turn):
        ids.append(turn.store_id)
        tell("S", turn.store_id)
        for _ in range(chance.randint(1, 4)):
            turn.enter(Phase.SETUP)
            await asyncio.sleep(chance.uniform(0, 0.015))
        tell("B", turn.store_id, status)
        if status is Status.STALLED:
            turn.enter(Phase.AWAITING_LLM)
            await asyncio.sleep(3600)

    outcome = await run_turn(body, LIMITS, store=store, on_event=[lambda event: None])
    if outcome.status is status:
        tell("F", ids[0], status)
    else:
        tell("X", outcome.to_json())

async def work(seed):
    chance = random.Random(seed)
    while True:
        await one(chance)

async def main():
    tell("R")
    await asyncio.gather(*(work(f"{sys.argv[2]} {number}") for number in range(4)))

asyncio.run(main())
"""
)


class Told:
    """What children said until they were killed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: set[str] = set()
        self.kept: dict[str, int] = {}
        self.ending: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.wrong: list[str] = []
        self.kills = 0

    def hear(self, line: str) -> None:
        """Notes one line."""
        word, *rest = line.split()
        with self.lock:
            if word == "S":
                self.started.add(rest[0])
            elif word == "C":
                self.kept[rest[0]] = int(rest[1])
            elif word == "B":
                self.ending[rest[0]] = rest[1]
            elif word == "F":
                self.ended[rest[0]] = rest[1]
            elif word == "X":
                self.wrong.append(line)

    @property
    def enough(self) -> bool:
        """Whether there have been as many turns and kills as there are to be."""
        return bool(self.wrong) or (len(self.started) >= TURNS and self.kills >= ENOUGH_KILLS)


def keep_killing(script: str, path: Path, told: Told, seed: str) -> None:
    """Run children one after the other, and kill each up to half a second after it began."""
    chance = random.Random(seed)
    number = 0
    while not told.enough:
        number += 1
        child = subprocess.Popen(
            [sys.executable, "-c", script, path, f"{seed} {number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        timer = None
        for line in child.stdout:
            told.hear(line)
            if line == "R\n":
                timer = threading.Timer(chance.uniform(0, 0.5), child.kill)
                timer.start()
        if timer is None:
            told.wrong.append("a child ended before it began")
        child.wait()
        child.stdout.close()
        told.kills += child.returncode == -9


def kill_many(script: str, path: Path, seed: int) -> Told:
    """Four children at a time, killed at random, until there were 200 turns and 12 kills."""
    told = Told()
    threads = [
        threading.Thread(target=keep_killing, args=(script, path, told, f"{seed}.{number}"))
        for number in range(AT_ONCE)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def check(path: Path, told: Told) -> None:
    """Every turn is there, in the state that it was in when its process was killed."""
    assert told.wrong == []
    with SQLiteStore(path, sweep=False) as store:
        left = {one.id for one in store.turns(status=RUNNING)}
        swept = store.sweep()
        turns = {one.id: one for one in store.turns()}

    assert pragma(path, "integrity_check") == "ok"
    assert left  # else no kill came in the middle of a turn, and this would show nothing
    assert set(swept) == left
    assert told.started <= turns.keys()
    for turn_id, turn in turns.items():
        assert turn.status != RUNNING
        assert turn.outcome is not None
        assert turn.outcome.status == turn.status
        if turn_id in told.ended:
            assert turn.status == told.ended[turn_id]
        elif turn.status != Status.INTERRUPTED:
            assert turn.status == told.ending[turn_id]  # killed before it could say so
        if turn.status == Status.INTERRUPTED:
            assert turn.outcome.seq >= told.kept.get(turn_id, 0)
        else:
            assert turn.cause == ("hard_idle" if turn.status == Status.STALLED else None)


@pytest.mark.slow
@pytest.mark.parametrize("script", [BY_HAND, BY_TURN], ids=["store", "run_turn"])
def test_kill_at_random_moments(
    script: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of 200 turns of four processes that are killed all the time, none is lost or falsely ended.

    Children sweep when they begin, beside others that live: whoever then cannot end its turn has
    lost it, and says so. Real time: each child has up to 0.5 s before it is killed; how far it
    gets does not matter, but 60 s for a busy file and 120 s for all of them are enough.
    """
    seed = random.randrange(2**32)
    record_property("seed", seed)
    told = kill_many(script, tmp_path / "turns.db", seed)

    check(tmp_path / "turns.db", told)
