"""Every store: running first, one terminal record, and what a sweep makes of turns left behind."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallwatch import (
    Failure,
    HardIdleError,
    MemoryStore,
    Outcome,
    OutcomeStore,
    Phase,
    SQLiteStore,
    Status,
    StoredTurn,
    StoreError,
    StreamIdleError,
    ToolRecord,
    ToolState,
    TurnOwner,
    UserCancelled,
)
from stallwatch._outcome import NO_TEXT
from stallwatch._store import RUNNING
from store_tools import gone, owned, so_far, start_of
from test_outcome import OUTCOMES


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutcomeStore]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        with SQLiteStore(tmp_path / "turns.db") as found:
            yield found


# --- the life of a turn ---


def test_it_keeps_the_protocol(store: OutcomeStore) -> None:
    """A store is recognised by its methods, not by its base class."""
    assert isinstance(store, OutcomeStore)
    assert not isinstance(object(), OutcomeStore)


def test_a_turn_is_running_from_its_start_on(store: OutcomeStore) -> None:
    """Before anything else is known, there is a running turn with its owner and no outcome."""
    before = time.time()
    store.start("t", so_far(turn="answer", started_at=before))
    found = store.get("t")

    assert found is not None
    assert (found.id, found.name, found.status, found.cause) == ("t", "answer", RUNNING, None)
    assert found.is_running
    assert found.outcome is None
    assert found.started_at == before <= found.updated_at <= time.time()
    assert found.ended_at is None
    assert found.owner == TurnOwner.current()
    assert found.record == so_far(turn="answer", started_at=before, placeholder=NO_TEXT)


def test_an_unknown_turn_is_none(store: OutcomeStore) -> None:
    """What was never written is not there."""
    assert store.get("t") is None
    assert store.turns() == []
    assert store.sweep() == []


@pytest.mark.parametrize("status", Status)
def test_what_runs_never_looks_ended(store: OutcomeStore, status: Status) -> None:
    """Whatever status its record is given with, it is kept as interrupted until `finish`."""
    store.start("t", Outcome(status=status, result=object()))
    first = store.get("t")
    store.checkpoint("t", Outcome(status=status, text="x", result=object()))
    second = store.get("t")

    for one in (first, second):
        assert one is not None
        assert one.status == RUNNING
        assert one.record.status is Status.INTERRUPTED
    assert second is not None
    assert second.record.placeholder is None


def test_a_checkpoint_replaces_the_record(store: OutcomeStore) -> None:
    """The latest is kept, with the start and the timeline that were there."""
    store.start("t", so_far(started_at=5.0))
    drawn = {"phases": [1, "ü", None]}

    assert store.checkpoint("t", so_far("ab", phase=Phase.SETUP), timeline=drawn)
    assert store.checkpoint("t", so_far("abc", phase=Phase.AWAITING_LLM, seq=2))
    found = store.get("t")
    assert found is not None
    assert (found.record.text, found.record.phase) == ("abc", Phase.AWAITING_LLM)
    assert found.started_at == 5.0
    assert found.timeline == drawn
    assert len(store.turns()) == 1


@pytest.mark.parametrize("status", OUTCOMES)
def test_every_outcome_comes_back_whole(store: OutcomeStore, status: Status) -> None:
    """A record makes the round trip with its cause and all fields, but for `result`."""
    outcome = OUTCOMES[status]
    store.start("t", so_far())

    assert store.finish("t", outcome)
    found = store.get("t")
    assert found is not None
    assert found.outcome == outcome
    assert found.status == outcome.status
    assert found.cause == (None if outcome.cause is None else outcome.cause.kind)
    assert found.ended_at is not None
    if isinstance(outcome.cause, StreamIdleError):
        assert isinstance(found.outcome.cause, StreamIdleError)
        assert found.outcome.cause.__dict__ == outcome.cause.__dict__
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert json.loads(json.dumps(found.to_dict()))["outcome"] == outcome.to_dict()


def test_a_terminal_record_is_written_once(store: OutcomeStore) -> None:
    """The first one stays: later ones and checkpoints are refused, and a start changes nothing."""
    first = Outcome(status=Status.STALLED, cause=HardIdleError(idle=1.0), text="first")
    store.start("t", so_far())

    assert store.finish("t", first) is True
    assert store.finish("t", Outcome(status=Status.COMPLETED)) is False
    assert store.checkpoint("t", so_far("late")) is False
    store.start("t", so_far("again"))
    assert store.sweep() == []
    found = store.get("t")
    assert found is not None
    assert found.outcome == first


def test_a_turn_whose_start_was_lost_still_gets_its_record(store: OutcomeStore) -> None:
    """A store that failed at the start and works at the end has the end."""
    outcome = Outcome(status=Status.FAILED, cause=Failure("builtins.ValueError", "a bug"))

    assert store.finish("t", outcome)
    assert store.checkpoint("u", so_far("ab"))
    found = {one.id: one.status for one in store.turns()}
    assert found == {"t": "failed", "u": RUNNING}


def test_one_of_many_threads_finishes(store: OutcomeStore) -> None:
    """Of 8 threads that end a turn at once one is told that it did, and its record is the one."""
    for number in range(20):
        turn_id, barrier = f"t{number}", threading.Barrier(8)
        store.start(turn_id, so_far())

        def end(one: int, turn_id: str = turn_id, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return store.finish(turn_id, Outcome(status=Status.COMPLETED, text=str(one)))

        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(end, range(8)))
        found = store.get(turn_id)

        assert told.count(True) == 1
        assert found is not None
        assert found.outcome is not None
        assert found.outcome.text == str(told.index(True))


# --- lists ---


def test_turns_are_listed_by_start(store: OutcomeStore) -> None:
    """The latest start comes first; among equals, the one written last."""
    for turn_id, started in (("a", 1.0), ("c", 3.0), ("b", 2.0), ("d", 3.0)):
        store.start(turn_id, so_far(started_at=started))

    assert [one.id for one in store.turns()] == ["d", "c", "b", "a"]
    assert [one.id for one in store.turns(limit=2)] == ["d", "c"]
    assert store.turns(limit=0) == []


def test_turns_are_found_by_status_and_name(store: OutcomeStore) -> None:
    """Filters take a status or its label, `running`, and a name, and combine."""
    store.start("a", so_far(turn="x"))
    store.start("b", so_far(turn="y"))
    store.finish("c", Outcome(status=Status.COMPLETED, turn="x"))
    store.finish("d", Outcome(status=Status.CANCELLED, turn="x", cause=UserCancelled("enough")))

    def ids(**filters: Any) -> set[str]:
        return {one.id for one in store.turns(**filters)}

    assert ids(status="running") == {"a", "b"}
    assert ids(status=Status.COMPLETED) == {"c"}
    assert ids(status="cancelled") == {"d"}
    assert ids(name="x") == {"a", "c", "d"}
    assert ids(name="x", status=RUNNING) == {"a"}
    assert ids(name="z") == set()


def test_a_name_that_is_no_unicode_is_kept(store: OutcomeStore) -> None:
    """Half a surrogate pair in a name does not keep a turn from being recorded."""
    name = "half \ud83d"

    assert store.finish("t", Outcome(status=Status.COMPLETED, turn=name))
    assert len(store.turns(name=name)) == 1
    assert store.turns()[0].record.turn == name


# --- owners that are gone ---


def test_a_sweep_interrupts_what_was_left(
    store: OutcomeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running turn of an ended process becomes interrupted, with the last record it left."""
    left, mine = owned(store, gone(), monkeypatch), "mine"
    store.start(mine, so_far())

    assert store.sweep() == [left]
    found = store.get(left)
    assert found is not None
    assert found.status == Status.INTERRUPTED
    assert found.outcome is not None
    assert found.outcome.status is Status.INTERRUPTED
    assert (found.outcome.text, found.outcome.phase, found.outcome.seq) == (
        "left behind",
        Phase.AWAITING_LLM,
        4,
    )
    assert found.ended_at is not None
    assert store.sweep() == []
    assert store.finish(left, Outcome(status=Status.COMPLETED)) is False
    assert [one.id for one in store.turns(status=RUNNING)] == [mine]


def test_a_sweep_ends_tools_too(store: OutcomeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that ran in the process that is gone has stopped with it; others stay as they were."""
    tools = (
        ToolRecord(name="bash", state=ToolState.RUNNING, elapsed=3.0, limit=9.0),
        ToolRecord(name="grep", state=ToolState.COMPLETED, elapsed=1.0),
    )
    left = owned(store, gone(), monkeypatch)
    store.checkpoint(left, so_far("half", tools=tools))
    before = store.get(left)
    store.sweep()
    after = store.get(left)

    assert before is not None
    assert before.record.tools == tools
    assert after is not None
    assert after.outcome == so_far(
        "half", tools=(replace(tools[0], state=ToolState.INTERRUPTED), tools[1])
    )


def test_a_live_owner_is_left_alone(store: OutcomeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that runs, stopped by a signal even, keeps its turns."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        owner = TurnOwner(
            child.pid, start_of(child.pid), TurnOwner.current().boot, TurnOwner.current().namespace
        )
        turn_id = owned(store, owner, monkeypatch)
        child.send_signal(signal.SIGSTOP)
        live = store.sweep()
        child.kill()
        child.wait()

        assert live == []
    assert store.sweep() == [turn_id]


@pytest.mark.parametrize(
    ("change", "is_gone"),
    [
        ({}, False),
        ({"start": "1"}, True),
        ({"boot": "another"}, True),
        ({"boot": "another", "namespace": "pid:[1]"}, True),
        ({"namespace": "pid:[1]"}, False),
        ({"start": ""}, False),
        ({"pid": 2**22 + 1, "start": "1"}, True),
        ({"pid": 2**22 + 1, "start": ""}, True),
    ],
)
def test_who_is_gone(change: dict[str, Any], is_gone: bool) -> None:
    """A reused process id and an earlier boot are noticed; what cannot be seen is in doubt."""
    owner = TurnOwner(**{**TurnOwner.current().to_dict(), **change})

    assert owner.is_gone() is is_gone


def test_a_process_that_nobody_reaped_is_gone() -> None:
    """A killed child whose parent has not asked for its status does nothing any more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = TurnOwner.current()
    owner = TurnOwner(child.pid, start_of(child.pid), here.boot, here.namespace)
    before = owner.is_gone()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    after = owner.is_gone()
    child.communicate()

    assert (before, after) == (False, True)


def test_a_forked_child_is_another_owner() -> None:
    """What a process knows about itself is not inherited."""
    here, read_end, write_end = TurnOwner.current(), *os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, repr(TurnOwner.current().to_dict()).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    child = TurnOwner(**eval(os.read(read_end, 1000)))
    os.close(read_end)
    os.close(write_end)

    assert (child.pid, child.boot) == (pid, here.boot)
    assert child != here
    assert child.is_gone()
    assert not here.is_gone()


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Elsewhere a process is known by its id and by what `ps` says of its start."""
    monkeypatch.setattr("stallwatch._owner._PROC", tmp_path)
    monkeypatch.setattr("stallwatch._owner._here", None)
    here = TurnOwner.current()
    monkeypatch.setattr("stallwatch._owner._here", TurnOwner(here.pid, "x", "", ""))

    assert (here.boot, here.namespace) == ("", "")
    assert TurnOwner(here.pid, here.start).is_gone() is False
    assert TurnOwner(here.pid, "").is_gone() is False
    assert TurnOwner(2**22 + 1, here.start).is_gone() is True
    if here.start:
        assert TurnOwner(here.pid, "Thu Jan 1 00:00:00 1970").is_gone() is True


# --- memory ---


def test_memory_keeps_so_many_ended_turns() -> None:
    """With `keep`, the ones that ended first go first, and running ones stay."""
    store = MemoryStore(keep=2)
    store.start("runs", so_far())
    for turn_id in "abc":
        store.start(turn_id, so_far())
    for turn_id in "bca":
        store.finish(turn_id, Outcome(status=Status.COMPLETED))

    assert {one.id for one in store.turns()} == {"runs", "c", "a"}
    with pytest.raises(ValueError, match="keep"):
        MemoryStore(keep=0)


def test_memory_keeps_a_copy() -> None:
    """What a caller changes afterwards is not changed in the record."""
    store, arguments, drawn = MemoryStore(), {"bash": "{"}, {"chunks": [1]}
    store.finish("t", Outcome(status=Status.STALLED, tool_args=arguments), timeline=drawn)
    arguments["bash"] = "{}"
    drawn["chunks"].append(2)
    found = store.get("t")

    assert found is not None
    assert found.record.tool_args == {"bash": "{"}
    assert found.timeline == {"chunks": [1]}


def test_a_record_of_a_later_version_is_listed() -> None:
    """A record that cannot be read is in the list all the same; reading it says why."""
    turn = StoredTurn(
        id="t",
        status="completed",
        cause=None,
        name=None,
        started_at=1.0,
        updated_at=1.0,
        ended_at=1.0,
        owner=TurnOwner.current(),
        data={"schema": 99},
    )

    assert turn.to_dict()["outcome"] == {"schema": 99}
    with pytest.raises(ValueError, match="schema 99"):
        turn.outcome  # noqa: B018


def test_errors_of_stores_are_no_stalls() -> None:
    """`StoreError` is an ordinary error, which has nothing to do with clocks."""
    assert issubclass(StoreError, RuntimeError)
