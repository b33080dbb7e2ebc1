"""Clients of the real SDKs, pointed at a fault server, and what to ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from stallwatch.faults import FaultServer, RequestRecord

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

SLACK = 5.0
"""Seconds within which the server must have seen our side close."""

WORDS: Any = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {
    "chat": {"messages": WORDS},
    "responses": {"input": "hello"},
    "messages": {"messages": WORDS, "max_tokens": 100},
}
"""What each API is asked."""

KEY: dict[str, Any] = {"api_key": "none", "max_retries": 0}


@asynccontextmanager
async def client_of(api: str, server: FaultServer, **options: Any) -> AsyncIterator[Any]:
    """An asynchronous client of the SDK that speaks an API, without retries of its own."""
    if api == "messages":
        made: Any = anthropic.AsyncAnthropic(base_url=server.anthropic_url, **{**KEY, **options})
    else:
        made = openai.AsyncOpenAI(base_url=server.openai_url, **{**KEY, **options})
    async with made as client:
        yield client


@contextmanager
def blocking_client_of(api: str, server: FaultServer, **options: Any) -> Iterator[Any]:
    """As `client_of`, the blocking one."""
    if api == "messages":
        made: Any = anthropic.Anthropic(base_url=server.anthropic_url, **{**KEY, **options})
    else:
        made = openai.OpenAI(base_url=server.openai_url, **{**KEY, **options})
    with made as client:
        yield client


def resource_of(api: str, client: Any) -> Any:
    """Where a client has `create()` and `stream()` of an API."""
    return client.chat.completions if api == "chat" else getattr(client, api)


def ask(api: str, client: Any, model: str = "plain") -> Any:
    """`create(stream=True)`: the stream of a blocking client, the coroutine of the other."""
    return resource_of(api, client).create(model=model, stream=True, **ASKED[api])


def manage(api: str, client: Any, model: str = "plain") -> Any:
    """`stream()`: a context manager over a stream with helpers."""
    return resource_of(api, client).stream(model=model, **ASKED[api])


async def closed(record: RequestRecord) -> bool:
    """Whether the server saw our side close, in good time."""
    return await record.wait_closed(SLACK) is not None
