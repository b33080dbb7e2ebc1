"""Retry libraries around real SDKs: a passing fault is tried again, a stall is not.

The server counts the requests. `RESET, SILENCE` is a connection reset in the middle of the first
answer, and silence in the middle of every later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from stallwatch import (
    FirstChunkError,
    StallError,
    StreamIdleError,
    cause_of,
    giveup_if_stalled,
    guard,
    guard_sync,
    is_retryable,
    retry_unless_stalled,
)
from stallwatch.faults import Fault, FaultServer, Scenario

anthropic = pytest.importorskip("anthropic")
backoff = pytest.importorskip("backoff")
openai = pytest.importorskip("openai")
stamina = pytest.importorskip("stamina")
tenacity = pytest.importorskip("tenacity")

pytestmark = [pytest.mark.sdk, pytest.mark.slow]

IDLE = 0.4
"""Seconds of `idle`: events of a healthy answer come within milliseconds."""

RESET = Scenario(fault=Fault.RESET, at=8)
SILENCE = Scenario(fault=Fault.SILENCE, at=8)
TRIES = 4


@pytest.fixture(scope="module")
def running() -> Iterator[FaultServer]:
    """A fault server for all of these tests."""
    with FaultServer.serve_in_thread() as server:
        yield server


@pytest.fixture
def server(running: FaultServer) -> FaultServer:
    """The fault server, with no request seen yet."""
    running.requests.clear()
    running.play(Scenario())
    return running


class Api:
    """One protocol of one SDK, asked by blocking code or not. Its own retries are on."""

    def __init__(self, name: str, *, blocking: bool) -> None:
        self.name = name
        self.blocking = blocking

    def client(self, server: FaultServer) -> Any:
        kind = "" if self.blocking else "Async"
        if self.name == "messages":
            make, url = getattr(anthropic, f"{kind}Anthropic"), server.anthropic_url
        else:
            make, url = getattr(openai, f"{kind}OpenAI"), server.openai_url
        return make(base_url=url, api_key="any", max_retries=5, timeout=30)

    def ask(self, client: Any) -> Any:
        words = [{"role": "user", "content": "?"}]
        if self.name == "messages":
            return client.messages.create(model="any", max_tokens=9, messages=words, stream=True)
        if self.name == "responses":
            return client.responses.create(model="any", input="?", stream=True)
        return client.chat.completions.create(model="any", messages=words, stream=True)

    def call(self, server: FaultServer, retried: Callable[..., Any]) -> str:
        """One whole answer: opened, read and, if `retried` says so, begun again."""

        def read_blocking(client: Any) -> str:
            with guard_sync(self.ask(client), first_chunk=IDLE, idle=IDLE) as chunks:
                for _ in chunks:
                    pass
                return str(chunks.text)

        async def read(client: Any) -> str:
            async with guard(await self.ask(client), first_chunk=IDLE, idle=IDLE) as chunks:
                async for _ in chunks:
                    pass
                return str(chunks.text)

        async def main() -> str:
            async with self.client(server) as client:
                return str(await retried(read)(client))

        if not self.blocking:
            return asyncio.run(main())
        with self.client(server) as client:
            return str(retried(read_blocking)(client))


APIS = {
    f"{name}, {'blocking' if blocking else 'async'}": Api(name, blocking=blocking)
    for name in ("chat", "responses", "messages")
    for blocking in (False, True)
}

TRANSIENT = (
    openai.APIConnectionError,
    anthropic.APIConnectionError,
    pytest.importorskip("httpx2").TransportError,
)
"""What either SDK raises when the connection is reset in the middle of an answer."""


def with_tenacity(condition: Any, **more: Any) -> Any:
    return tenacity.retry(
        retry=condition, stop=tenacity.stop_after_attempt(TRIES), wait=tenacity.wait_none(), **more
    )


def with_stamina(on: Any) -> Any:
    return stamina.retry(on=on, attempts=TRIES, wait_initial=0, wait_jitter=0)


def with_backoff(kinds: Any, **more: Any) -> Any:
    return backoff.on_exception(
        backoff.constant, kinds, max_tries=TRIES, interval=0, jitter=None, **more
    )


LIBRARIES = {
    "tenacity": with_tenacity(retry_unless_stalled),
    "tenacity, reraise": with_tenacity(retry_unless_stalled, reraise=True),
    "tenacity, chosen errors": with_tenacity(
        tenacity.retry_if_exception_type(TRANSIENT) & retry_unless_stalled
    ),
    "stamina": with_stamina(is_retryable),
    "stamina, chosen errors": with_stamina(
        lambda error: isinstance(error, TRANSIENT) and is_retryable(error)
    ),
    "backoff": with_backoff(Exception, giveup=giveup_if_stalled),
    "backoff, chosen errors": with_backoff(TRANSIENT, giveup=giveup_if_stalled),
}

PAIRS = [
    (library, list(APIS)[(number + step) % len(APIS)])
    for number, library in enumerate(LIBRARIES)
    for step in (0, 3)
]
"""Every library with blocking and with asynchronous code, and every API with two libraries."""

UNAWARE = {
    "tenacity": with_tenacity(tenacity.retry_if_exception_type(Exception)),
    "stamina": with_stamina(Exception),
    "backoff": with_backoff(Exception),
}


def stall_of(api: Api, server: FaultServer, retried: Any) -> StallError:
    """The stall that one call ends in, also out of tenacity's wrapper."""
    with pytest.raises((StallError, tenacity.RetryError)) as caught:
        api.call(server, retried)
    cause = cause_of(caught.value)
    assert isinstance(cause, StallError)
    return cause


@pytest.mark.parametrize("library", UNAWARE)
def test_a_library_that_is_not_told_runs_into_the_stall_again(
    server: FaultServer, library: str
) -> None:
    """The fault these tests are about: every attempt opens one more request. Cut at 0.4 s each."""
    server.play(SILENCE)

    stall_of(APIS["chat, async"], server, UNAWARE[library])

    assert len(server.requests) == TRIES


@pytest.mark.parametrize(("library", "api"), PAIRS)
def test_a_reset_is_tried_again_and_a_stall_is_not(
    server: FaultServer, library: str, api: str
) -> None:
    """Reset, then silence: two requests, the second is the last, and its text is in the cause.

    Silence lasts for ever, `idle` is 0.4 s, events are milliseconds apart.
    """
    server.play(RESET, SILENCE)

    stall = stall_of(APIS[api], server, LIBRARIES[library])

    assert len(server.requests) == 2
    assert type(stall) is StreamIdleError
    assert stall.partial
    assert server.requests[1].wait_closed_sync(10) is not None


@pytest.mark.parametrize(("library", "api"), PAIRS)
def test_two_resets_are_survived(server: FaultServer, library: str, api: str) -> None:
    """The libraries still do their work: the third answer comes whole."""
    whole = APIS[api].call(server, lambda read: read)
    server.play(RESET, RESET, Scenario())

    text = APIS[api].call(server, LIBRARIES[library])

    assert text == whole
    assert len(server.requests) == 1 + 3


@pytest.mark.parametrize(("library", "api"), PAIRS[::2])
def test_an_answer_that_never_begins_is_asked_for_once(
    server: FaultServer, library: str, api: str
) -> None:
    """Headers come, the first event does not: one request, and the cause says there is no text."""
    server.play(Scenario(fault=Fault.SILENCE, at=0))

    stall = stall_of(APIS[api], server, LIBRARIES[library])

    assert len(server.requests) == 1
    assert type(stall) is FirstChunkError
    assert stall.text_received is False


# --- code that decides by itself ---

WORDS = (
    "timed out",
    "timeout",
    "time-out",
    "deadline exceeded",
    "aborted",
    "connection closed",
    "connection error",
    "connection reset",
    "connection aborted",
    "connection refused",
    "network error",
    "socket hang up",
    "server disconnected",
    "incomplete read",
    "peer closed",
    "broken pipe",
    "temporarily unavailable",
    "overloaded",
    "rate limit",
    "try again",
    "eof",
    "readerror",
)


def by_words(error: BaseException) -> bool:
    """Retry code as it is found in the field: it looks for words."""
    text = f"{type(error).__name__}: {error}".lower()
    return any(word in text for word in WORDS)


def by_type(error: BaseException) -> bool:
    """Retry code as it is found in the field: it looks at the class."""
    return isinstance(error, (TimeoutError, asyncio.TimeoutError, OSError, *TRANSIENT))


def by_chain(error: BaseException | None) -> bool:
    """Retry code that also asks what an error was raised from."""
    while error is not None:
        if by_type(error) or by_words(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def loop(decide: Callable[[BaseException], bool]) -> Callable[..., Any]:
    """A hand-written retry loop, for both kinds of function."""

    def retried(read: Callable[..., Any]) -> Callable[..., Any]:
        def blocking(client: Any) -> Any:
            for attempt in range(TRIES):
                try:
                    return read(client)
                except Exception as error:
                    if attempt == TRIES - 1 or not decide(error):
                        raise
            raise AssertionError

        async def waiting(client: Any) -> Any:
            for attempt in range(TRIES):
                try:
                    return await read(client)
                except Exception as error:
                    if attempt == TRIES - 1 or not decide(error):
                        raise
            raise AssertionError

        return waiting if asyncio.iscoroutinefunction(read) else blocking

    return retried


DECIDERS = {"type": by_type, "words": by_words, "type and words of the chain": by_chain}


@pytest.mark.parametrize("api", ["chat, async", "chat, blocking", "messages, async"])
@pytest.mark.parametrize("decider", DECIDERS)
def test_code_that_looks_at_types_or_words_leaves_a_stall_alone(
    server: FaultServer, decider: str, api: str
) -> None:
    """Nothing has to be told: a stall is of none of the types and says none of the words."""
    server.play(RESET, SILENCE)

    stall = stall_of(APIS[api], server, loop(DECIDERS[decider]))

    assert len(server.requests) == 2
    assert type(stall) is StreamIdleError


@pytest.mark.parametrize("decider", DECIDERS)
def test_a_plain_timeout_in_its_place_is_tried_again(server: FaultServer, decider: str) -> None:
    """The fault the causes avoid: bounding the read with `asyncio.timeout` stalls four times."""
    server.play(SILENCE)

    def unguarded(read: Any) -> Any:
        async def bounded(client: Any) -> str:
            async with asyncio.timeout(IDLE):
                async for _ in await APIS["chat, async"].ask(client):
                    pass
            return ""

        return loop(DECIDERS[decider])(bounded)

    with pytest.raises(TimeoutError):
        APIS["chat, async"].call(server, unguarded)

    assert len(server.requests) == TRIES


class ModelUnavailable(ConnectionError):
    """What an application makes of every failure of its provider."""


def renamed(read: Callable[[Any], Awaitable[str]]) -> Callable[[Any], Awaitable[str]]:
    """An application layer that hides what went wrong behind words of its own."""

    async def wrapped(client: Any) -> str:
        try:
            return await read(client)
        except Exception as error:
            raise ModelUnavailable("connection error: the request timed out") from error

    return wrapped


@pytest.mark.parametrize(("aware", "opened"), [(False, TRIES), (True, 1)])
@pytest.mark.parametrize("decider", DECIDERS)
def test_a_layer_that_renames_errors_needs_the_predicate(
    server: FaultServer, decider: str, aware: bool, opened: int
) -> None:
    """An error renamed into words of the network is tried again, unless `is_retryable` is asked."""
    server.play(SILENCE)
    decide = DECIDERS[decider]

    def both(error: BaseException) -> bool:
        return is_retryable(error) and decide(error)

    retried = loop(both if aware else decide)
    with pytest.raises(ModelUnavailable) as caught:
        APIS["chat, async"].call(server, lambda read: retried(renamed(read)))

    assert len(server.requests) == opened
    assert isinstance(cause_of(caught.value), StreamIdleError)


# --- the SDKs' own retries ---


@pytest.mark.parametrize("name", ["chat", "messages"])
def test_an_sdk_does_not_ask_again_for_a_stream_that_was_cut(
    server: FaultServer, name: str
) -> None:
    """A manager whose answer has no headers is entered once, although the SDK may try six times.

    The guard bounds entering with `first_chunk`, 0.4 s; the server would stay silent for ever.
    """
    server.play(Scenario(fault=Fault.NO_HEADERS))
    api = Api(name, blocking=False)
    words: Any = [{"role": "user", "content": "?"}]

    async def main() -> None:
        async with api.client(server) as client:
            if name == "messages":
                manager = client.messages.stream(model="any", max_tokens=9, messages=words)
            else:
                manager = client.chat.completions.stream(model="any", messages=words)
            async with guard(manager, first_chunk=IDLE) as chunks:
                async for _ in chunks:
                    raise AssertionError("nothing was sent")

    with pytest.raises(FirstChunkError):
        asyncio.run(main())

    assert len(server.requests) == 1
    assert server.requests[0].wait_closed_sync(10) is not None
