"""LangChain and LangGraph: `StallModel(model, turn)` in a node, `StallCallback(turn)` beside it.

A stall raised in a node comes out of the graph as it is, and the default `RetryPolicy()` leaves it
alone; `RetryPolicy(retry_on=is_retryable)` does too, and so does
`.with_retry(retry_if_exception_type=is_retryable)`, whose default would try again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from stallwatch._phases import Phase
from stallwatch.integrations._waits import Clocks, waits_of

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackHandler

    from stallwatch._limits import Limits
    from stallwatch._sink import OnEvent
    from stallwatch._turn import Turn

__all__ = ["StallCallback", "StallModel"]

M = TypeVar("M")


def StallModel(  # noqa: N802 - it stands beside the classes of the same name for other frameworks
    model: M, watch: Turn | Limits | None = None, *, on_event: OnEvent = None
) -> M:
    """A copy of a chat model with clocks: those of `guard` on all that it answers asynchronously.

    It is of the model's own class, so tools can be bound to it, and output be structured. `ainvoke`
    is made as a stream, by the model's own `streaming` switch, unless that is off or missing; then
    only the turn's own clocks watch it. `invoke` and `stream`, which block, have no clocks.

    With a turn, its outcome has the text, and its phase is `AWAITING_LLM` while an answer is read.
    `idle` sees the chunks of LangChain: keep-alives of the provider do not reset it.

    Args:
        model: A chat model, or one with arguments bound to it.
        watch: The turn that the run is part of, or limits for streams alone.
        on_event: A callable, or a list of them, for the events of the streams.
    """
    return _guarded(model, Clocks(watch, on_event))  # type: ignore[no-any-return]


def StallCallback(turn: Turn) -> AsyncCallbackHandler:  # noqa: N802 - as above
    """A callback that puts the turn into the phase of what runs: of a model, or of a tool.

    Give it to a run, `config={"callbacks": [StallCallback(turn)]}`; it passes to all that runs
    inside. The phase lasts from the start of a model or tool to its end or error, or, as LangChain
    tells nothing of what is cancelled, to the end of the task in which it ran.
    """
    made: AsyncCallbackHandler = _callback_class()(turn)
    return made


def _guarded(model: Any, clocks: Clocks) -> Any:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables.base import RunnableBindingBase

    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": _guarded(model.bound, clocks)})
    if not isinstance(model, BaseChatModel):
        raise TypeError(f"StallModel takes a chat model, not {type(model).__name__}")
    fields = type(model).model_fields
    changes: dict[str, Any] = {}
    if "streaming" in fields and "streaming" not in model.model_fields_set:
        changes["streaming"] = True
    if "stream_usage" in fields and getattr(model, "stream_usage", None) is None:
        changes["stream_usage"] = True  # an answer that is not streamed has it too
    copy = model.model_copy(update=changes)
    private = {**(copy.__pydantic_private__ or {}), "_stall_clocks": clocks}
    object.__setattr__(copy, "__pydantic_private__", private)
    kind: Any = type(model)
    object.__setattr__(copy, "__class__", _model_class(kind))
    return copy


@cache
def _model_class(kind: Any) -> Any:
    from langchain_core.language_models import BaseChatModel
    from pydantic import PrivateAttr

    if kind._astream is BaseChatModel._astream and kind._stream is BaseChatModel._stream:
        return kind  # it cannot stream

    class Guarded(kind):
        _stall_clocks: Any = PrivateAttr(default=None)

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            clocks = self._stall_clocks
            name = getattr(self, "model_name", None) or getattr(self, "model", kind.__name__)
            with clocks.phase(Phase.AWAITING_LLM):
                chunks = super()._astream(*args, **kwargs)
                async with clocks.stream(chunks, name=name) as guarded:
                    async for chunk in guarded:
                        yield chunk

    # Traces tell the provider by the name of the class.
    Guarded.__name__, Guarded.__qualname__ = kind.__name__, kind.__qualname__
    Guarded.__module__, Guarded.__doc__ = kind.__module__, kind.__doc__
    return Guarded


@cache
def _callback_class() -> Any:
    from asyncio import current_task

    from langchain_core.callbacks import AsyncCallbackHandler

    class StallCallback(AsyncCallbackHandler):
        run_inline = True  # in order, and before what it tells of goes on

        def __init__(self, turn: Turn) -> None:
            self._waits = waits_of(turn)

        def _begin(self, phase: Phase, run_id: Any) -> None:
            self._waits.begin(phase, run_id)
            task = current_task()
            if task is not None:  # of what is cancelled nobody tells the end
                task.add_done_callback(lambda _: self._waits.end(run_id))

        async def on_chat_model_start(self, *_: Any, run_id: Any, **__: Any) -> None:
            self._begin(Phase.AWAITING_LLM, run_id)

        async def on_tool_start(self, *_: Any, run_id: Any, **__: Any) -> None:
            self._begin(Phase.EXECUTING_TOOLS, run_id)

        async def _on_end(self, *_: Any, run_id: Any, **__: Any) -> None:
            self._waits.end(run_id)

        on_llm_start = on_chat_model_start
        on_llm_end = on_llm_error = on_tool_end = on_tool_error = _on_end

    return StallCallback
