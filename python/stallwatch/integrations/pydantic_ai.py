"""pydantic-ai: `agent.run(prompt, capabilities=[StallCapability(turn)])`.

The model is wrapped, so events are guarded below what groups text. A request that nobody streams is
made as a stream too: only there can silence be told from slowness.
"""

from __future__ import annotations

from abc import update_abstractmethods
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from stallwatch._phases import Phase
from stallwatch.integrations._pydantic_chunks import as_chunk
from stallwatch.integrations._waits import Clocks

if TYPE_CHECKING:
    from pydantic_ai.capabilities import AbstractCapability

    from stallwatch._limits import Limits
    from stallwatch._sink import OnEvent
    from stallwatch._turn import Turn

__all__ = ["StallCapability"]


def StallCapability(  # noqa: N802 - to its users it is a class; making it one would import the library
    watch: Turn | Limits | None = None, *, on_event: OnEvent = None
) -> AbstractCapability[Any]:
    """A capability that puts clocks on an agent: for one run, or for all runs of an agent.

    Every request to the model gets the clocks of `guard`, which raise their cause out of the run.
    With a turn, its outcome has the text, and its phases follow the run: `AWAITING_LLM` during a
    request, `EXECUTING_TOOLS` during tools, `SETUP` in between. One that is given for a run takes
    the place of the agent's own.

    `idle` sees what pydantic-ai makes of the wire: keep-alives of the provider do not reset it.

    Args:
        watch: The turn that the run is part of, or limits for streams alone.
        on_event: A callable, or a list of them, for the events of the streams.
    """
    made: AbstractCapability[Any] = _classes()(Clocks(watch, on_event))
    return made


@cache
def _classes() -> Any:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.models.wrapper import WrapperModel

    class GuardedResponse(StreamedResponse):
        """The model's own response, read through a guard."""

        _event_iterator: Any

        def __init__(self, guarded: Any, response: StreamedResponse) -> None:
            self._guarded = guarded
            self._response = response

        def __aiter__(self) -> Any:
            # pydantic-ai may have put an iterator that has looked ahead in its place.
            if self._event_iterator is None:
                self._event_iterator = self._guarded
            return self._event_iterator

        def get(self) -> ModelResponse:
            made = self._response.get()
            # Its socket lingered after the last word, so the response was not read to its end.
            whole = self._guarded.is_complete and self._response.state == "complete"
            return replace(made, state="complete") if whole else made

    def forward(name: str) -> property:
        def write(self: Any, value: Any) -> None:
            setattr(self._response, name, value)

        return property(attrgetter(f"_response.{name}"), write)

    own = {"_event_iterator", *vars(GuardedResponse)}
    names = {*dir(StreamedResponse), *StreamedResponse.__dataclass_fields__}
    for name in names - own:
        if not name.startswith("__") and name != "_abc_impl":
            setattr(GuardedResponse, name, forward(name))
    update_abstractmethods(GuardedResponse)

    def can_stream(model: Any) -> bool:
        while isinstance(model, WrapperModel):
            model = model.wrapped
        if type(model).request_stream is Model.request_stream:
            return False
        # `FunctionModel` has a stream only if it was given a function for it.
        return getattr(model, "stream_function", True) is not None

    class StallModel(WrapperModel):
        def __init__(self, wrapped: Model, clocks: Clocks) -> None:
            super().__init__(wrapped)
            self._clocks = clocks

        async def request(self, messages: Any, settings: Any, parameters: Any) -> Any:
            if not can_stream(self.wrapped):
                return await self.wrapped.request(messages, settings, parameters)
            async with self.request_stream(messages, settings, parameters) as response:
                async for _ in response:
                    pass
                return response.get()

        @asynccontextmanager
        async def request_stream(
            self, messages: Any, settings: Any, parameters: Any, run_context: Any = None
        ) -> AsyncIterator[Any]:
            opening = self.wrapped.request_stream(messages, settings, parameters, run_context)
            guarded = self._clocks.stream(
                opening,
                name=self.model_name,
                translate=as_chunk,
                over_when=lambda guarded: getattr(guarded._stream, "finish_reason", None),
            )
            async with guarded:
                yield GuardedResponse(guarded, guarded._stream)

    class StallCapability(AbstractCapability[Any]):
        id = "stallwatch"

        def __init__(self, clocks: Clocks) -> None:
            self._clocks = clocks

        def get_wrapper_model(self, model: Any) -> Any:
            return StallModel(model, self._clocks)

        async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
            with self._clocks.phase(Phase.SETUP):
                return await handler()

        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            with self._clocks.phase(Phase.AWAITING_LLM):
                return await handler(request_context)

        async def wrap_tool_execute(
            self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
        ) -> Any:
            with self._clocks.phase(Phase.EXECUTING_TOOLS):
                return await handler(args)

    return StallCapability
