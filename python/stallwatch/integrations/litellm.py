"""litellm: `StallCompletion(turn)` in place of `litellm.acompletion`, `StallLogger` in the proxy.

The guard lies outside what litellm makes of a provider, so its retries and fallbacks are inside of
`first_chunk`, and none of them sees a stall.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

from stallwatch._phases import Phase
from stallwatch.integrations._waits import Clocks

if TYPE_CHECKING:
    from litellm import ModelResponse, ModelResponseStream
    from litellm.integrations.custom_logger import CustomLogger

    from stallwatch._limits import Limits
    from stallwatch._sink import OnEvent
    from stallwatch._stream_guard import StreamGuard
    from stallwatch._turn import Turn

__all__ = ["StallCompletion", "StallLogger"]


class StallCompletion:
    """Asks models by way of litellm, with the clocks of `guard` on every answer.

    With a turn, its outcome has the text, and its phase is `AWAITING_LLM` from the first pull of an
    answer to its end. `first_chunk` includes the request, with the retries that `num_retries` asks
    for. `idle` sees the chunks of litellm: keep-alives of the provider do not reset it.

    Args:
        watch: The turn that the calls are part of, or limits.
        on_event: A callable, or a list of them, for the events of the streams.

    Example:
        >>> async def answer(turn, messages):
        ...     ask = StallCompletion(turn)
        ...     async with ask.stream(model="openai/gpt-5", messages=messages) as chunks:
        ...         return [chunk async for chunk in chunks]
    """

    def __init__(self, watch: Turn | Limits | None = None, *, on_event: OnEvent = None) -> None:
        self._clocks = Clocks(watch, on_event)

    def stream(self, **call: Any) -> StreamGuard[ModelResponseStream]:
        """The guarded stream of a call, which takes the arguments of `litellm.acompletion`."""
        asked = _Asked(call, self._clocks)
        return self._clocks.stream(asked, name=call.get("model"), over_when=lambda _: asked.is_over)

    async def __call__(self, **call: Any) -> ModelResponse:
        """The whole answer to a call, read as a stream: only there is silence told from slowness.

        The arguments are those of `litellm.acompletion`.
        """
        from litellm import stream_chunk_builder

        options = {"include_usage": True, **(call.pop("stream_options", None) or {})}
        async with self.stream(stream_options=options, **call) as chunks:
            got = [chunk async for chunk in chunks]
        return stream_chunk_builder(got, messages=call.get("messages"))


def StallLogger(  # noqa: N802 - to its users it is a class; making it one would import the library
    limits: Limits | None = None, *, on_event: OnEvent = None
) -> CustomLogger:
    """A callback for the litellm proxy, `litellm.callbacks = [StallLogger()]`: guards its streams.

    Args:
        limits: By default `Limits()`.
        on_event: A callable, or a list of them, for the events of the streams.
    """
    made: CustomLogger = _logger_class()(Clocks(limits, on_event))
    return made


class _Asked:
    """A stream that is asked for at its first pull."""

    def __init__(self, call: dict[str, Any], clocks: Clocks) -> None:
        self._call = call
        self._clocks = clocks
        self._stream: Any = None

    @property
    def is_over(self) -> bool:
        return has_finished(self._stream)

    async def __aiter__(self) -> AsyncIterator[Any]:
        from litellm import acompletion

        with self._clocks.phase(Phase.AWAITING_LLM):
            self._stream = stream = await acompletion(**{**self._call, "stream": True})
            try:
                async for chunk in stream:
                    yield chunk
            finally:
                await stream.aclose()


def has_finished(stream: Any) -> bool:
    """Whether the provider has given its finish reason, which litellm holds back to the end."""
    return getattr(stream, "received_finish_reason", None) is not None


@cache
def _logger_class() -> Any:
    from litellm.integrations.custom_logger import CustomLogger

    class StallLogger(CustomLogger):
        def __init__(self, clocks: Clocks) -> None:
            super().__init__()
            self._clocks = clocks

        async def async_post_call_streaming_iterator_hook(
            self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
        ) -> AsyncIterator[Any]:
            name = request_data.get("model")
            guarded = self._clocks.stream(
                response, name=name, over_when=lambda _: has_finished(response)
            )
            async with guarded:
                async for chunk in guarded:
                    yield chunk

    return StallLogger
