"""`active`: what is being waited for in this process, read from outside."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from guard_tools import HANG, on_manual_clock, script
from stallwatch import Active, Limits, Phase, PhaseLimits, Turn, active, run_turn
from stallwatch.testing import ManualClock
from turn_tools import finish, for_ever, quiet, start, stubborn


def named(seen: Active) -> list[str | None]:
    """The names of the turns in a picture."""
    return [turn.name for turn in seen.turns]


@on_manual_clock
async def test_a_turn_and_its_spans_are_seen(clock: ManualClock) -> None:
    """Name, phase, owner, idle so far, limits, and each open stream and tool."""
    limits = Limits(
        turn_budget=600, phases={Phase.EXECUTING_TOOLS: PhaseLimits(soft=30)}, tool_timeout=None
    )

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await asyncio.sleep(5)
        with turn.phase(Phase.EXECUTING_TOOLS):
            call = turn.start_tool("bash", for_ever(), timeout=60)
            async for _ in turn.stream(script(0, "a", HANG), name="answer"):
                pass
            await call

    end = start(clock, run_turn(body, limits, name="seen", on_event=quiet))
    await clock.advance(12)
    seen = active()
    await finish(end)

    (turn,) = [one for one in seen.turns if one.name == "seen"]
    assert (turn.phase, turn.owner) == (Phase.EXECUTING_TOOLS, "each tool's own clock")
    assert (turn.idle, turn.elapsed) == (pytest.approx(7), pytest.approx(12))
    assert turn.limits == {"soft": 30, "turn_budget": 600}
    assert turn.cause is None
    stream, tool = turn.spans
    assert (stream.kind, stream.name, stream.state) == ("stream", "answer", "pending")
    assert (stream.idle, stream.elapsed) == (pytest.approx(7), pytest.approx(7))
    assert stream.limits == {"first_chunk": 300, "idle": 90, "progress_idle": 300}
    assert (tool.kind, tool.name, tool.state) == ("tool", "bash", "running")
    assert (tool.elapsed, tool.limits) == (pytest.approx(7), {"timeout": 60})
    json.dumps(seen.to_dict())


@on_manual_clock
async def test_a_turn_that_settled_is_gone(clock: ManualClock) -> None:
    """However it ends, it is not in the next picture; one that was dropped is not either."""
    ends: list[Any] = []

    async def short(turn: Turn) -> None:
        ends.append(named(active()))

    await run_turn(short, name="one", on_event=quiet)
    assert ends == [["one"]]
    assert named(active()) == []

    turn = Turn(name="dropped", on_event=quiet)
    await turn.__aenter__()
    assert named(active()) == ["dropped"]
    del turn
    gc.collect()
    assert named(active()) == []


@on_manual_clock
async def test_a_turn_that_is_ending_says_why(clock: ManualClock) -> None:
    """Between its cause and its settlement a turn is still live, and its cause is shown."""
    end = start(
        clock,
        run_turn(lambda turn: stubborn(2), Limits(turn_budget=5), name="stubborn", on_event=quiet),
    )
    await clock.advance(1)
    before = active().turns[0].cause
    await clock.advance(6)
    after = active().turns[0].cause
    await clock.advance(600)

    assert (before, after) == (None, "turn_budget")
    assert end.task.done()
    assert named(active()) == []


@on_manual_clock
async def test_a_tool_that_ignores_its_cancel_stays_until_it_ends(clock: ManualClock) -> None:
    """After its turn has settled it is listed under a heading of its own, until it really ends."""
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def body(turn: Turn) -> None:
        await turn.tool("deaf", deaf())

    task = asyncio.create_task(run_turn(body, Limits(turn_budget=5, cleanup=10), on_event=quiet))
    await clock.advance(30)
    seen = active()

    assert task.done()
    assert seen.turns == ()
    assert [(one.kind, one.name, one.state) for one in seen.unresponsive] == [
        ("tool", "deaf", "unresponsive")
    ]
    release.set()
    await clock.settle()
    assert active().unresponsive == ()


@on_manual_clock
async def test_a_body_that_never_lets_go_stays_too(clock: ManualClock) -> None:
    """The body of a settled turn is listed until its task goes on or ends."""
    task = asyncio.create_task(
        run_turn(
            lambda turn: stubborn(5), Limits(turn_budget=5, cleanup=10), name="deaf", on_event=quiet
        )
    )
    await clock.advance(60)
    seen = active()

    assert task.done()
    assert [(one.kind, one.name) for one in seen.unresponsive] == [("body", "deaf")]
    for other in asyncio.all_tasks() - {asyncio.current_task()}:
        await finish(start_of(other))
    assert active().unresponsive == ()


def start_of(task: Any) -> Any:
    """A task as `finish` takes it."""
    from turn_tools import End

    return End(task, 0.0)


@on_manual_clock
async def test_it_is_frozen_and_read_from_any_thread(clock: ManualClock) -> None:
    """A picture does not change, and can be taken by an operator's thread."""
    end = start(clock, run_turn(lambda turn: for_ever(), name="busy", on_event=quiet))
    await clock.advance(1)
    seen: list[Active] = []
    thread = threading.Thread(target=lambda: seen.append(active()))
    thread.start()
    thread.join()
    await finish(end)

    assert named(seen[0]) == ["busy"]
    with pytest.raises(FrozenInstanceError):
        seen[0].at = 0.0  # type: ignore[misc]
