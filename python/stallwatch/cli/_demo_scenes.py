"""The scenarios of the demo: what goes wrong, under which limits, and how it must end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stallwatch import (
    FirstChunk,
    HardIdle,
    Limits,
    Phase,
    SoftIdle,
    Status,
    StreamStalled,
    Turn,
)
from stallwatch.cli._demo_judge import Expected
from stallwatch.cli._demo_stage import Stage
from stallwatch.faults import Fault, Scenario

_DRIP = 0.05
_HALF = 7  # events of an answer, the role first: half of its text


@dataclass(frozen=True, slots=True)
class Scene:
    """One scenario.

    Attributes:
        name: What `--only` calls it.
        title: One line.
        says: What to look for.
        limits: The turn's limits; small, since nobody wants to wait 540 s for a demo.
        expected: How it must end.
        play: Plays it; the turn's outcome and the claims are on the stage's record then.
        clocks: The clocks worth a row in the chart.
    """

    name: str
    title: str
    says: str
    limits: Limits
    expected: Expected
    play: Callable[[Stage], Awaitable[object]]
    clocks: tuple[str, ...] = ("idle", "hard_idle")


def _limits(
    *,
    hard_idle: float = 1.5,
    soft_idle: float | None = None,
    stream_idle: float = 0.8,
    **others: Any,
) -> Limits:
    return Limits(
        hard_idle=hard_idle, soft_idle=soft_idle, stream_idle=stream_idle, cleanup=2.0, **others
    )


async def _healthy(stage: Stage) -> None:
    stage.server.play(Scenario(delay=_DRIP))

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.chat(), name="answer"))

    await stage.run("healthy", body)
    if (stats := stage.record.stats) is not None:
        gap, limit = stats.largest_gap, stage.record.limits.stream_idle or 0.0
        stage.record.claim(
            f"the longest silence was {gap:.2f} s, the limit is {limit:g} s", gap < limit
        )


async def _silence(stage: Stage) -> None:
    stage.server.play(Scenario(fault=Fault.SILENCE, at=_HALF, delay=_DRIP))
    patience = 3 * (stage.record.limits.stream_idle or 0.0)

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.chat(), name="answer"))

    bare = asyncio.create_task(stage.bare_chat(patience=patience))
    try:
        await stage.run("silence", body)
        await stage.claim_closed()
        hung = (await bare).hung
    finally:
        bare.cancel()
    stage.record.claim(
        f"without stallwatch the same client still waits after {patience:g} s of silence", hung
    )


async def _slow_first(stage: Stage) -> None:
    stage.server.play(
        Scenario(
            fault=Fault.SLOW_FIRST, stream="builtin:reasoning", duration=1.6, every=0.2, delay=0.03
        )
    )

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.responses(), name="answer"))

    await stage.run("slow-first", body)
    waited = max((one.elapsed for one in stage.record.of_kind(FirstChunk)), default=0.0)
    idle = stage.record.limits.stream_idle or 0.0
    stage.record.claim(
        f"it thought for {waited:.2f} s, beyond the idle limit of {idle:g} s", waited > idle
    )


async def _pings(stage: Stage) -> None:
    stage.server.play(Scenario(fault=Fault.PINGS, at=_HALF, delay=0.03, every=0.2))

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        async with stage.raw_messages() as response:
            await stage.record.read(turn.stream(response.iter_lines(), name="answer"))

    await stage.run("pings", body)
    await stage.claim_closed()
    for stalled in stage.record.of_kind(StreamStalled):
        heard, idle = stalled.since_chunk or 0.0, stage.record.limits.stream_idle or 0.0
        stage.record.claim(
            f"the wire was alive: last ping {heard:.2f} s before, idle limit {idle:g} s",
            heard < idle,
        )


async def _tool(stage: Stage) -> None:
    stage.server.play(Scenario(stream="builtin:tool", delay=0.01), Scenario(delay=0.01))
    hard = stage.record.limits.hard_idle or 0.0

    async def body(turn: Turn) -> None:
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.chat(), name="tool call"))
        turn.enter(Phase.EXECUTING_TOOLS)
        await asyncio.sleep(10 * hard)
        tool = turn.tracker.current().elapsed
        stage.record.claim(
            f"the tool took {tool:.1f} s, {tool / hard:.0f} times the model's hard idle limit",
            tool >= 10 * hard,
        )
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.chat(), name="answer"))

    await stage.run("tool", body)


async def _approval(stage: Stage) -> None:
    stage.server.play(Scenario(stream="builtin:tool", delay=0.03), Scenario(delay=0.04))
    asked = 0.0

    async def body(turn: Turn) -> None:
        async def ask_human(event: Any) -> None:
            nonlocal asked
            if event.type == "content_block_stop":
                with turn.phase(Phase.AWAITING_APPROVAL):
                    await asyncio.sleep(2.5)
                    asked += turn.tracker.current().elapsed

        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(
            turn.stream(await stage.messages(), name="tool call"), each=ask_human
        )
        await stage.record.read(turn.stream(await stage.messages(), name="answer"))
        charged, hard = turn.tracker.current().elapsed, turn.limits.hard_idle or 0.0
        stage.record.claim(
            f"the human took {asked:.1f} s; the model was charged {charged:.1f} s of {hard:g} s",
            charged < hard < asked,
        )

    await stage.run("approval", body)


async def _compaction(stage: Stage) -> None:
    stage.server.play(Scenario(fault=Fault.NO_HEADERS))

    async def body(turn: Turn) -> None:
        turn.enter(Phase.COMPACTING)
        await asyncio.sleep(0.5)  # local work: choose what to summarise
        with turn.phase(Phase.AWAITING_LLM):
            await stage.record.read(turn.stream(await stage.messages(), name="summary"))

    await stage.run("compaction", body)
    await stage.claim_closed()
    for fired in stage.record.of_kind(HardIdle):
        stage.record.claim(
            f"only the nested call was charged: {fired.idle:.2f} s of {stage.record.seconds:.2f} s",
            fired.idle < stage.record.seconds - 0.4,
        )


async def _stop(stage: Stage) -> None:
    stage.server.play(Scenario(fault=Fault.SILENCE, at=_HALF, delay=_DRIP))
    pressed = 0.0

    async def body(turn: Turn) -> None:
        def press() -> None:
            nonlocal pressed
            pressed = stage.record.now
            stage.record.say("user", "presses stop")
            turn.cancel("the user pressed stop")

        asyncio.get_running_loop().call_later(1.0, press)
        turn.enter(Phase.AWAITING_LLM)
        await stage.record.read(turn.stream(await stage.chat(), name="answer"))

    await stage.run("stop", body)
    await stage.claim_closed()
    took = stage.record.seconds - pressed
    stage.record.claim(f"settled {took * 1000:.0f} ms after the key", 0 <= took < 1)
    looks = [*map(stage.record.of_kind, (StreamStalled, HardIdle, SoftIdle))]
    stage.record.claim("no event of it looks like a stall", not any(looks))


_STALLED, _LLM = Status.STALLED, Phase.AWAITING_LLM

SCENES = (
    Scene(
        "healthy",
        "a healthy answer",
        "OpenAI chat. Each chunk takes the stream's idle clock back to zero. The turn's "
        "own clock, hard idle, runs for as long as the phase lasts.",
        _limits(),
        Expected(status=Status.COMPLETED),
        _healthy,
    ),
    Scene(
        "silence",
        "half an answer, then silence",
        "OpenAI chat. The connection stays open and says nothing: the idle clock cuts.",
        _limits(),
        Expected(status=_STALLED, cause="stream_idle", phase=_LLM, text="part"),
        _silence,
    ),
    Scene(
        "slow-first",
        "a reasoning model, slow to its first token",
        "OpenAI responses. The first wait has a clock of its own: idle starts after it.",
        _limits(hard_idle=5, first_chunk=4),
        Expected(status=Status.COMPLETED),
        _slow_first,
        ("first_chunk", "idle", "hard_idle"),
    ),
    Scene(
        "pings",
        "keep-alives without progress",
        "Anthropic, raw SSE lines. Pings feed the idle clock, but not the progress clock.",
        _limits(hard_idle=4, progress_idle=1.6),
        Expected(status=_STALLED, cause="stream_progress", phase=_LLM, text="part"),
        _pings,
        ("idle", "progress_idle"),
    ),
    Scene(
        "tool",
        "a tool that takes ten times the limit",
        "OpenAI chat. Who waits for a tool does not wait for the model: hard idle is off "
        "meanwhile.",
        _limits(hard_idle=0.6, stream_idle=0.5),
        Expected(status=Status.COMPLETED),
        _tool,
        ("hard_idle",),
    ),
    Scene(
        "approval",
        "a human who takes long to approve",
        "Anthropic. The phase is borrowed for the human; hard idle goes on where it was.",
        _limits(hard_idle=2),
        Expected(status=Status.COMPLETED),
        _approval,
    ),
    Scene(
        "compaction",
        "a nested summary call that never answers",
        "Anthropic. No headers, so no stream to watch: the turn's own clock reports "
        "(soft) and cuts (hard), and names the nested phase.",
        _limits(soft_idle=0.75),
        Expected(status=_STALLED, cause="hard_idle", phase=_LLM, text="none"),
        _compaction,
        ("hard_idle",),
    ),
    Scene(
        "stop",
        "a user who presses stop",
        "OpenAI chat. Silent as well, but a user was first: cancelled, not stalled.",
        _limits(hard_idle=3, stream_idle=1.6),
        Expected(status=Status.CANCELLED, cause="user_cancelled", phase=_LLM, text="part"),
        _stop,
    ),
)
