"""What type checkers make of the guards for SDKs. Checked by `make lint`, never run."""

# pyright: basic

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import ParsedMessage, RawMessageStreamEvent
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import ParsedResponse, ResponseStreamEvent

from stallwatch import StreamGuard, SyncStreamGuard
from stallwatch.integrations import anthropic, openai


async def of_openai(client: AsyncOpenAI) -> None:
    """The chunks of a raw stream, and what helpers give."""
    raw = client.chat.completions.create(model="m", messages=[], stream=True)
    assert_type(openai.guard(raw), StreamGuard[ChatCompletionChunk])
    assert_type(openai.guard(await raw, idle=30), StreamGuard[ChatCompletionChunk])
    assert_type(
        openai.guard(lambda: client.responses.create(model="m", input="", stream=True)),
        StreamGuard[ResponseStreamEvent],
    )
    chat = openai.guard(client.chat.completions.stream(model="m", messages=[]))
    assert_type(await chat.get_final_completion(), ParsedChatCompletion[None])
    response = openai.guard(client.responses.stream(model="m", input=""))
    assert_type(await response.get_final_response(), ParsedResponse[None])
    openai.guard(raw, patience=30)  # type: ignore


def of_blocking_openai(client: OpenAI) -> None:
    """The same of the blocking client."""
    raw = client.chat.completions.create(model="m", messages=[], stream=True)
    assert_type(openai.guard_sync(raw, abort=raw), SyncStreamGuard[ChatCompletionChunk])
    chat = openai.guard_sync(client.chat.completions.stream(model="m", messages=[]))
    assert_type(chat.get_final_completion(), ParsedChatCompletion[None])
    response = openai.guard_sync(client.responses.stream(model="m", input=""))
    assert_type(response.get_final_response(), ParsedResponse[None])


async def of_anthropic(client: AsyncAnthropic) -> None:
    """The events of a raw stream, and what helpers give."""
    raw = client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
    assert_type(anthropic.guard(raw), StreamGuard[RawMessageStreamEvent])
    stream = anthropic.guard(client.messages.stream(model="m", max_tokens=1, messages=[]))
    assert_type(stream.text_stream, AsyncIterator[str])
    assert_type(await stream.get_final_message(), ParsedMessage[None])
    assert_type(await stream.get_final_text(), str)


def of_blocking_anthropic(client: Anthropic) -> None:
    """The same of the blocking client."""
    raw = client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
    assert_type(anthropic.guard_sync(raw), SyncStreamGuard[RawMessageStreamEvent])
    stream = anthropic.guard_sync(client.messages.stream(model="m", max_tokens=1, messages=[]))
    assert_type(stream.text_stream, Iterator[str])
    assert_type(stream.get_final_message(), ParsedMessage[None])
    assert_type(stream.current_message_snapshot, ParsedMessage[None])
