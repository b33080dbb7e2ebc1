"""What the scenarios of the demo play on: a fault server, the real clients, a turn at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from stallwatch import Outcome, Turn, run_turn
from stallwatch.cli._demo_record import Bare, Record
from stallwatch.faults import FaultServer, Scenario

if TYPE_CHECKING:
    import anthropic
    import openai

MODEL = "demo-model"
BARE_MODEL = "demo-model-without-stallwatch"
PROMPT: Any = [{"role": "user", "content": "What is a stall?"}]
_EVERY = 0.02  # seconds between two looks at the clocks, a fraction of a chart's column


class Stage:
    """The server, a client of each provider, and the record of the scenario that is played."""

    def __init__(
        self, server: FaultServer, openai: openai.AsyncOpenAI, anthropic: anthropic.AsyncAnthropic
    ) -> None:
        self.server = server
        self.openai = openai
        self.anthropic = anthropic
        self.record: Record

    async def chat(self, model: str = MODEL) -> Any:
        """An answer of OpenAI's chat completions, streamed."""
        return await self.openai.chat.completions.create(model=model, messages=PROMPT, stream=True)

    async def responses(self) -> Any:
        """An answer of OpenAI's responses, streamed."""
        return await self.openai.responses.create(model=MODEL, input="What is it?", stream=True)

    async def messages(self) -> Any:
        """An answer of Anthropic's messages, streamed."""
        return await self.anthropic.messages.create(
            model=MODEL, messages=PROMPT, max_tokens=99, stream=True
        )

    def raw_messages(self) -> Any:
        """The same as a context manager that yields the response below the SDK's own stream."""
        return self.anthropic.messages.with_streaming_response.create(
            model=MODEL, messages=PROMPT, max_tokens=99, stream=True
        )

    async def run(self, name: str, body: Callable[[Turn], Awaitable[Any]]) -> Outcome:
        """Runs an agent body as a turn, with its events, and what the clocks do, on record."""
        record = self.record
        turn = Turn(record.limits, name=name, on_event=record.event)
        record.begin(turn)
        sampler = asyncio.create_task(self._sample())
        try:
            record.outcome = await run_turn(body, turn=turn)
        finally:
            sampler.cancel()
        return record.outcome

    async def _sample(self) -> None:
        while True:
            self.record.sample()
            await asyncio.sleep(_EVERY)

    async def bare_chat(self, *, patience: float) -> Bare:
        """Reads `chat()` as if there were no stallwatch, until it was silent for `patience`."""
        record = self.record
        record.bare = bare = Bare()

        async def read() -> None:
            async for _ in await self.chat(BARE_MODEL):
                bare.chunks.append(record.now)

        reading = asyncio.create_task(read())
        try:
            while not reading.done():
                left = max(bare.chunks, default=0.0) + patience - record.now
                if left <= 0:
                    break
                await asyncio.wait({reading}, timeout=left)
            bare.hung, bare.stopped_at = not reading.done(), record.now
            what = "still waits; the demo ends it" if bare.hung else "is over"
            record.say("baseline", f"the client without stallwatch {what}")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return bare

    async def claim_closed(self) -> None:
        """Claims that the server saw the client hang up when the turn ended, and not later."""
        request = [one for one in self.server.requests if one.model == MODEL][-1]
        try:
            closed = await request.wait_closed(2.0)
        except TimeoutError:
            closed = None
        if closed is None:
            self.record.claim("the provider saw its connection close", False)
            return
        at, outcome = closed - self.record.started, self.record.outcome
        self.record.claim(
            f"the provider saw its connection close at {at:.2f} s",
            outcome is not None and at < outcome.elapsed + 0.5,
        )


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """Starts the server and both clients, and has each ask once, since a first request is slow."""
    import anthropic
    import openai

    async with FaultServer() as server:
        # No proxy of the environment may stand between a client and its own machine.
        chat = openai.AsyncOpenAI(
            base_url=server.openai_url,
            api_key="any",
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )
        messages = anthropic.AsyncAnthropic(
            base_url=server.anthropic_url,
            api_key="any",
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
        )
        async with chat, messages:
            server.play(Scenario())
            stage = Stage(server, chat, messages)
            for ask in (stage.chat, stage.responses, stage.messages):
                async for _ in await ask():
                    pass
            yield stage
