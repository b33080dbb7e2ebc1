"""Recorded provider streams through the real SDKs, whole and silent at every position.

The recordings are not part of this repository: they are looked for in `../shared/streams`. What the
guard must make of each is written down here by hand, apart from the tables the guard itself uses.
The guards run on the manual clock, sockets in real time; a position is reached once the consumer
has as many events as the SDK makes of the same events followed by an end.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sdk_tools import ask, blocking_client_of, client_of, manage
from stallwatch import FirstChunkError, StallError, StreamIdleError, guard, guard_sync
from stallwatch.faults import Fault, FaultServer, RequestRecord, Scenario
from stallwatch.testing import ManualClock

httpx2 = pytest.importorskip("httpx2")

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "shared" / "streams"

FIRST_PROGRESS = {
    "anthropic-compaction": 3,
    "anthropic-text": 3,
    "anthropic-tool-call": 4,
    "anthropic-web-search": 3,
    "deepseek-chat-reasoning": 1,
    "mistral-chat-text": 1,
    "openai-chat-text": 1,
    "openai-responses-error": None,
    "openai-responses-reasoning-1": 4,
    "openai-responses-reasoning-2": 3,
    "openai-responses-reasoning-3": 3,
    "openai-responses-reasoning-4": 4,
    "openai-responses-web-search": 3,
}
"""The first event of each recording that only a model can have made, found by reading it."""

PATIENCE = 30.0
"""Seconds of real time within which sockets have to do what takes them milliseconds."""

FIRST, IDLE, GRACE = 80.0, 50.0, 10.0
"""Seconds of the manual clock: the limits, and the default time to close."""


@dataclass(frozen=True)
class Recording:
    """A recorded stream and what there is to know about it."""

    name: str
    path: Path
    events: list[dict[str, Any]] = field(repr=False)

    @property
    def api(self) -> str:
        """The API that it was recorded from."""
        if self.name.startswith("anthropic"):
            return "messages"
        return "responses" if "responses" in self.name else "chat"

    @property
    def end(self) -> int:
        """The number of events up to the one that says that the answer is over."""
        for index, event in enumerate(self.events):
            if event.get("type") in ("message_stop", "response.completed", "error"):
                return index + 1
            if any(choice["finish_reason"] for choice in event.get("choices", ())):
                return index + 1
        raise AssertionError("a recording without an end")

    @property
    def is_error(self) -> bool:
        """Whether the provider's answer was an error."""
        return any(event.get("type") == "error" for event in self.events)

    def text(self, count: int) -> str:
        """The answer's text in so many events."""
        return "".join(map(text_of, self.events[:count]))

    def cause(self, count: int) -> type[StallError]:
        """What a silence after so many events has to be called."""
        first = FIRST_PROGRESS[self.name]
        return FirstChunkError if first is None or count <= first else StreamIdleError

    def scenario(self, fault: Fault, at: int = 0) -> Scenario:
        """The recording, with something wrong after `at` events."""
        return Scenario(fault=fault, at=at, stream=self.path)

    def cut(self, at: int) -> tuple[Scenario, Scenario]:
        """So many events and an end of the body; so many, and then silence."""
        if at < len(self.events):
            return self.scenario(Fault.TRUNCATE, at), self.scenario(Fault.SILENCE, at)
        return self.scenario(Fault.OK), self.scenario(Fault.LINGER)

    def positions(self, most: int = 20) -> list[int]:
        """Every number of events for a short one, some spread over a longer one, both ends too."""
        count = len(self.events)
        if count <= most:
            return list(range(count + 1))
        return sorted({round(count * step / (most - 1)) for step in range(most)})


def text_of(event: dict[str, Any]) -> str:
    """The answer's text in one event, as the providers document it."""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    delta = event.get("delta")
    if isinstance(delta, dict) and delta.get("type") == "text_delta":
        return str(delta["text"])
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


@pytest.fixture(params=FIRST_PROGRESS)
def recording(request: pytest.FixtureRequest) -> Recording:
    """One recorded stream."""
    path = FOLDER / f"{request.param}.jsonl"
    if not path.exists():
        pytest.skip("the recorded provider streams are not beside the repository")
    lines = path.read_text(encoding="utf-8").splitlines()
    return Recording(request.param, path, [json.loads(line) for line in lines if line.strip()])


CONTEXT = ssl.create_default_context()
"""Made once: it is what costs most about a client."""

WAYS: dict[str, Callable[..., Any]] = {"create": ask, "stream": manage}


def pool_of_one(kind: Any) -> Any:
    """An HTTP client that has one connection to give, and does not wait long for it."""
    return kind(
        limits=httpx2.Limits(max_connections=1),
        timeout=httpx2.Timeout(PATIENCE, pool=5),
        verify=CONTEXT,
    )


@dataclass
class Run:
    """What came of reading a stream."""

    events: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    guarded: Any = None

    def check(self, bare: Run) -> None:
        """It gave what the unguarded run gave, the provider's error included."""
        assert self.events == bare.events
        assert type(self.error) is type(bare.error)
        assert str(self.error) == str(bare.error)


async def read(stream: Any, run: Run) -> Run:
    """Read a stream, guarded or not, to its end or its error."""
    try:
        if not hasattr(type(stream), "__aenter__"):
            stream = await stream
        async with stream as chunks:
            async for chunk in chunks:
                run.events.append(chunk)
    except Exception as error:
        run.error = error
    return run


def read_sync(stream: Any, run: Run) -> Run:
    """As `read`, of a blocking client."""
    try:
        with stream as chunks:
            for chunk in chunks:
                run.events.append(chunk)
    except Exception as error:
        run.error = error
    return run


async def until(reached: Callable[[], bool]) -> None:
    """Wait in real time until something has happened."""
    async with asyncio.timeout(PATIENCE):
        while not reached():
            await asyncio.sleep(0.001)


def check_silence(recording: Recording, at: int, run: Run, bare: Run) -> None:
    """The run was cut where it fell silent, or was a success or the provider's error before."""
    guarded = run.guarded
    assert run.events == bare.events
    if at >= recording.end:
        run.check(bare)
        assert guarded.cause is None
        assert guarded.stats.terminal == (not recording.is_error)
    else:
        assert type(run.error) is recording.cause(at)
        assert run.error is guarded.cause
        assert run.error.partial == recording.text(at)
        assert run.error.limit == (FIRST if run.error.kind == "first_chunk" else IDLE)
        assert not guarded.stats.terminal
    assert guarded.text == recording.text(at)


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_recording(recording: Recording, way: str) -> None:
    """Every event and the final text arrive as without the guard, async and blocking."""
    make, api = WAYS[way], recording.api

    async def main(server: FaultServer) -> tuple[Run, Run]:
        async with client_of(api, server) as client:
            bare = await read(make(api, client), Run())
            guarded: Any = guard(make(api, client), first_chunk=PATIENCE, idle=PATIENCE)
            return bare, await read(guarded, Run(guarded=guarded))

    with FaultServer.serve_in_thread() as server:
        server.play(recording.scenario(Fault.OK))
        bare, run = asyncio.run(main(server))
        with blocking_client_of(api, server) as client:
            blocking = guard_sync(make(api, client), first_chunk=PATIENCE, idle=PATIENCE)
            run_sync = read_sync(blocking, Run(guarded=blocking))

    assert (bare.error is not None) == recording.is_error
    for each in (run, run_sync):
        each.check(bare)
        assert each.guarded.text == recording.text(len(recording.events))
        assert each.guarded.stats.terminal == (not recording.is_error)


@pytest.mark.parametrize("way", WAYS)
def test_a_recording_that_falls_silent(recording: Recording, way: str) -> None:
    """Silent at each position: the right cause and text, a closed connection, and a free pool.

    All requests share a pool of one connection, so each is made with what the last cut gave back.
    """
    make, api = WAYS[way], recording.api

    async def main() -> None:
        async with (
            FaultServer() as server,
            pool_of_one(httpx2.AsyncClient) as pool,
            client_of(api, server, http_client=pool) as client,
        ):
            with ManualClock(patch_loop=False) as clock:
                for at in recording.positions(20 if way == "create" else 10):
                    await silent_at(clock, server, client, at)
            server.play(Scenario())
            assert (await read(make(api, client), Run())).error is None

    async def silent_at(clock: ManualClock, server: FaultServer, client: Any, at: int) -> None:
        server.play(*recording.cut(at))
        bare = await read(make(api, client), Run())
        guarded: Any = guard(make(api, client), first_chunk=FIRST, idle=IDLE)
        run = Run(guarded=guarded)
        task = asyncio.create_task(read(guarded, run))
        await until(lambda: len(run.events) == len(bare.events) and len(server.requests) % 2 == 0)
        await until(lambda: task.done() or guarded._pending)
        began = clock.time()
        if not task.done():
            await clock.advance(IDLE - 1)
            if at < recording.end:
                assert not task.done()
                await clock.advance(FIRST - IDLE + 2)
        await until(task.done)

        check_silence(recording, at, run, bare)
        record: RequestRecord = server.requests[-1]
        assert await record.wait_closed(PATIENCE) is not None or at >= recording.end
        assert clock.time() - began < FIRST + GRACE
        assert task.cancelling() == 0

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_a_recording_that_falls_silent_under_a_blocking_client(
    recording: Recording, way: str
) -> None:
    """The same for `guard_sync`, at a few positions of each recording."""
    make, api = WAYS[way], recording.api
    with (
        FaultServer.serve_in_thread() as server,
        pool_of_one(httpx2.Client) as pool,
        blocking_client_of(api, server, http_client=pool) as client,
        ManualClock() as clock,
    ):
        for at in recording.positions(6):
            server.play(*recording.cut(at))
            bare = read_sync(make(api, client), Run())
            guarded: Any = guard_sync(make(api, client), first_chunk=FIRST, idle=IDLE)
            run = Run(guarded=guarded)
            thread = threading.Thread(target=read_sync, args=(guarded, run), daemon=True)
            thread.start()
            for _ in polls():
                if len(run.events) == len(bare.events) and (guarded._pending or guarded._ended):
                    break
            clock.advance(IDLE - 1)
            if at < recording.end:
                assert thread.is_alive()
                clock.advance(FIRST - IDLE + 2)
            thread.join(PATIENCE)
            assert not thread.is_alive()

            check_silence(recording, at, run, bare)
            gone = server.requests[-1].wait_closed_sync(PATIENCE)
            assert gone is not None or at >= recording.end


def polls() -> Iterator[int]:
    """Looks at something every millisecond, for so long."""
    last = time.monotonic() + PATIENCE
    while time.monotonic() < last:
        yield 0
        time.sleep(0.001)
    raise AssertionError("it never happened")
