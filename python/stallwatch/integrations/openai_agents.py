"""openai-agents: `StallModel(model, turn)` is an agent's model, `StallHooks(turn)` a run's hooks.

The model is wrapped, so its events are guarded in the task that the run reads them in. A response
that nobody streams is made as a stream too: only there can silence be told from slowness.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

from stallwatch._phases import Phase
from stallwatch.integrations._waits import Clocks, waits_of

if TYPE_CHECKING:
    from agents import RunHooks
    from agents.models.interface import Model

    from stallwatch._limits import Limits
    from stallwatch._sink import OnEvent
    from stallwatch._turn import Turn

__all__ = ["StallHooks", "StallModel"]


def StallModel(  # noqa: N802 - to its users it is a class; making it one would import the library
    model: Model | str | None, watch: Turn | Limits | None = None, *, on_event: OnEvent = None
) -> Model:
    """A model with clocks: those of `guard` on every response, whose cause ends the run.

    With a turn, its outcome has the text, and its phase is `AWAITING_LLM` while a response is read.
    A response that is not streamed is put together from the stream of one, unless the model has
    none (it raises `NotImplementedError`); then only the turn's own clocks watch it.

    `idle` sees the events of the model: keep-alives of the provider do not reset it.

    Args:
        model: A model, or a name for which the library's own providers are asked.
        watch: The turn that the run is part of, or limits for streams alone.
        on_event: A callable, or a list of them, for the events of the streams.
    """
    made: Model = _model_class()(model, Clocks(watch, on_event))
    return made


def StallHooks(turn: Turn) -> RunHooks:  # noqa: N802 - as above
    """Hooks of a run that put the turn into `EXECUTING_TOOLS` while tools run.

    The library tells nobody of a tool that raised: its phase lasts until the next one begins.
    """
    made: RunHooks = _hooks_class()(turn)
    return made


@cache
def _model_class() -> Any:
    from agents import ModelResponse, MultiProvider, Usage
    from agents.exceptions import ModelBehaviorError
    from agents.models.interface import Model

    def as_response(made: Any, items: list[Any]) -> ModelResponse:
        counts = ("input_tokens", "output_tokens", "total_tokens")
        names = (*counts, "input_tokens_details", "output_tokens_details") if made.usage else ()
        usage = Usage(requests=1, **{name: getattr(made.usage, name) for name in names})
        asked = getattr(made, "_request_id", None)
        # Some servers list the items only as they come.
        return ModelResponse(made.output or items, usage, made.id, request_id=asked)

    class StallModel(Model):
        def __init__(self, model: Model | str | None, clocks: Clocks) -> None:
            known = isinstance(model, Model)
            self.wrapped: Any = model if known else MultiProvider().get_model(model)
            self._clocks = clocks
            name = getattr(self.wrapped, "model", None)
            self._name = name if isinstance(name, str) else type(self.wrapped).__name__

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            items: list[Any] = []
            try:
                async for event in self.stream_response(*args, **kwargs):
                    if event.type == "response.output_item.done":
                        items.append(event.item)
                    elif event.type in ("response.completed", "response.incomplete"):
                        return as_response(event.response, items)
                    elif event.type in ("response.failed", "error"):
                        raise ModelBehaviorError(f"the model's response ended as {event!r}")
            except NotImplementedError:
                with self._clocks.phase(Phase.AWAITING_LLM):
                    return await self.wrapped.get_response(*args, **kwargs)
            raise ModelBehaviorError("the model's stream ended without a response")

        async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            events = self.wrapped.stream_response(*args, **kwargs)
            with self._clocks.phase(Phase.AWAITING_LLM):
                async with self._clocks.stream(events, name=self._name) as guarded:
                    async for event in guarded:
                        yield event

        def get_retry_advice(self, request: Any) -> Any:
            return self.wrapped.get_retry_advice(request)

        async def _cleanup_on_run_end(self, owner: object) -> None:
            await self.wrapped._cleanup_on_run_end(owner)

        async def close(self) -> None:
            await self.wrapped.close()

    return StallModel


@cache
def _hooks_class() -> Any:
    from agents import RunHooks

    class StallHooks(RunHooks):
        def __init__(self, turn: Turn) -> None:
            self._tracker, self._waits = turn.tracker, waits_of(turn)
            self._before = Phase.INIT
            self._running: set[object] = set()

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            key, tracker = _key(context, tool), self._tracker
            if tracker.depth:
                self._waits.begin(Phase.EXECUTING_TOOLS, key)
                return
            # Not borrowed: if the tool raises, nobody will say that it is over.
            phase = tracker.current().phase
            if phase is not Phase.EXECUTING_TOOLS:
                self._before = phase
                self._running.clear()
                tracker.enter(Phase.EXECUTING_TOOLS)
            self._running.add(key)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
            key, tracker = _key(context, tool), self._tracker
            if key not in self._running:
                self._waits.end(key)
                return
            self._running.discard(key)
            ours = tracker.current().phase is Phase.EXECUTING_TOOLS and not tracker.depth
            if ours and not self._running:
                tracker.enter(self._before)

    return StallHooks


def _key(context: Any, tool: Any) -> object:
    return getattr(context, "tool_call_id", None) or id(tool)
