"""Clocks around the transports of httpx and httpx2, and so around every client built on them.

    client = AsyncOpenAI(
        http_client=httpx2.AsyncClient(transport=AsyncStallTransport(idle=30), timeout=None)
    )

Neither library is imported here before it is used: which of the two it is, the wrapped transport
or the first request tells.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from stallwatch._causes import StallError
from stallwatch._seconds import Default, Unset, seconds
from stallwatch._sink import EventSink, OnEvent
from stallwatch._tap import class_with_base
from stallwatch.integrations._http_asking import Asking, SyncAsking, library_of
from stallwatch.integrations._http_late import is_of_sdk, refusal, wrap
from stallwatch.integrations._http_limits import HttpLimits
from stallwatch.integrations._http_watch import Watch

if TYPE_CHECKING:
    import httpx
    import httpx2

    from stallwatch._seconds import Given

    class _AsyncTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """Whichever the client asks for."""

    class _Transport(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
        """Whichever the client asks for."""

else:
    # Clients call what they need of a transport; none asks for its class.
    _AsyncTransport = _Transport = object

__all__ = ["AsyncStallTransport", "StallTransport"]


class _Wrapping:
    """What both transports have in common."""

    _default: str
    _watch: Watch
    _made: dict[str, Any]
    _making: threading.Lock

    def _set_up(
        self,
        transport: Any,
        limits: HttpLimits,
        *,
        close_grace: Any,
        observe_only: bool,
        on_event: OnEvent,
        name: str | None,
    ) -> None:
        self._transport = transport
        self._made = {}
        self._making = threading.Lock()
        self._watch = Watch(
            limits,
            sink=EventSink(on_event),
            name=name,
            close_grace=seconds(close_grace, name="close_grace"),
            observe_only=observe_only,
        )

    def _transport_for(self, request: Any) -> Any:
        if self._transport is not None:
            return self._transport
        library = library_of(request)
        with self._making:
            if library not in self._made:
                self._made[library] = getattr(sys.modules[library], self._default)()
            return self._made[library]

    def __repr__(self) -> str:
        around = "the default" if self._transport is None else repr(self._transport)
        return f"<{type(self).__name__} around {around}>"


class AsyncStallTransport(_Wrapping, _AsyncTransport):
    """Clocks around an asynchronous transport of httpx or httpx2.

    Each clock fires as a `StreamStalled` event, then as its cause, which is raised where the client
    waits; the pending wait is cancelled in the client's own task, the connection closed, and the
    task's cancel count left as it was. An exception of the transport leaves as the very same
    object. If data and deadline meet, data wins; if a cancel by the user and a deadline meet, the
    user wins. The clocks of the body run only while a read is pending.

    The SDKs of OpenAI and Anthropic raise the cause as it is and do not try again; see
    `docs/httpx.md`.

    Limits are seconds or a `timedelta`; None switches a clock off, 0 is refused. A default that a
    given `budget` puts out of reach goes off.

    Args:
        transport: What to wrap. By default the `AsyncHTTPTransport` of the library that sends the
            first request, made without arguments; give one for proxies, certificates, HTTP/2 or
            limits of connections, since clients do not pass these on to a transport they are given.
        headers: Runs from the request to the headers of its response: waiting for a connection,
            connecting, sending and the provider's time to think are all part of it. Reset by
            nothing. Fires as `FirstChunkError` with the owner "response headers". An answer that
            is not streamed has its headers when it is complete.
        first_byte: Runs from the first read of the body to its first byte. Fires as
            `FirstChunkError` with the owner "response body".
        idle: Runs after that. Reset by every byte, those of keep-alives too. Fires as
            `StreamIdleError` with the owner "response body".
        warn: At this fraction of `idle` one `StreamSlow` event a silence, and likewise of
            `progress_idle` while only bytes without progress come. Never touches the read.
        first_chunk: For `text/event-stream` bodies. Runs from the first read to the first event
            that counts as progress, which disarms it; not affected by comments, pings and
            metadata. Fires as `FirstChunkError` with the owner "event stream".
        progress_idle: Runs after that. Reset by events that count as progress and by nothing else.
            Fires as `StreamProgressError` with the owner "event stream". After the end event of a
            provider no clock is left: the body gets `min(idle, 1 s)` to end by itself, and then
            ends.
        budget: Runs from the first read of the body to its end, also while no read is pending;
            reset by nothing. Fires as `StreamBudgetError` with the owner "response body".
        close_grace: How long closing a connection that was cut may take.
        observe_only: Whether clocks only report, with `would_have_fired`.
        on_event: A callable, or a list of them, for the events.
        name: Shown in events and causes.

    Raises:
        ValueError: for a limit of 0 or less, NaN, or two given limits of which one can never fire.
        TypeError: if `transport` has no `handle_async_request`.
    """

    _default = "AsyncHTTPTransport"

    def __init__(
        self,
        transport: Any = None,
        *,
        headers: Given = Default(300.0),
        first_byte: Given = Default(300.0),
        idle: Given = Default(90.0),
        warn: float | Literal[Unset.UNSET] | None = Default(0.5),
        first_chunk: Given = Default(300.0),
        progress_idle: Given = Default(300.0),
        budget: Given = None,
        close_grace: Given = 10.0,
        observe_only: bool = False,
        on_event: OnEvent = None,
        name: str | None = None,
    ) -> None:
        if transport is not None and not hasattr(transport, "handle_async_request"):
            raise TypeError(
                "AsyncStallTransport wraps an asynchronous transport of httpx or httpx2, "
                f"not {type(transport).__name__!r}"
            )
        limits = HttpLimits(
            headers=headers,
            first_byte=first_byte,
            idle=idle,
            warn=warn,
            first_chunk=first_chunk,
            progress_idle=progress_idle,
            budget=budget,
        )
        self._set_up(
            transport,
            limits,
            close_grace=close_grace,
            observe_only=observe_only,
            on_event=on_event,
            name=name,
        )

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request through the transport it wraps."""
        transport, for_sdk = self._transport_for(request), is_of_sdk(request)
        try:
            response = await self._ask(transport, request)
        except StallError as cause:
            if not for_sdk:
                raise
            return refusal(library_of(request), cause)
        if response.is_closed:
            return response  # it came whole
        body = class_with_base(_AsyncBody, "AsyncByteStream", response.stream)
        if body is None:
            return response
        stream = body(self._watch.body(response))
        if for_sdk:
            return wrap(response, stream)
        response.stream = stream
        return response

    async def _ask(self, transport: Any, request: Any) -> Any:
        if self._watch.limits.headers is None:
            return await transport.handle_async_request(request)
        asking = Asking(transport, request)
        async with self._watch.asking(asking) as guard:
            response = await anext(guard)
            asking.take()
        return response

    async def __aenter__(self) -> AsyncStallTransport:
        if self._transport is not None:
            await self._transport.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        if self._transport is not None:
            await self._transport.__aexit__(*details)
        else:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the transport it wraps."""
        if self._transport is not None:
            await self._transport.aclose()
        for made in list(self._made.values()):
            await made.aclose()


class StallTransport(_Wrapping, _Transport):
    """Clocks around a blocking transport of httpx or httpx2: `AsyncStallTransport` for threads.

    A blocking read cannot be cancelled. When a clock of the body fires, the watcher's thread shuts
    the socket of the response down, under TLS as well, and the reading thread then raises the
    cause. Before there is a response, the socket of a new connection is shut down, and every single
    wait of the client (for a connection of the pool, to connect, to write, to read) is bounded by
    what is left of `headers`. What nothing can release, such as a transport of the user's that
    ignores all that, or the lookup of a name, is reported `Unresponsive`, and the cause is raised
    when it comes back by itself.

    Args:
        transport: What to wrap. By default the `HTTPTransport` of the library that sends the first
            request, as for `AsyncStallTransport`.
        headers: As of `AsyncStallTransport`, and so are the other limits.
        first_byte: As of `AsyncStallTransport`.
        idle: As of `AsyncStallTransport`.
        warn: As of `AsyncStallTransport`.
        first_chunk: As of `AsyncStallTransport`.
        progress_idle: As of `AsyncStallTransport`.
        budget: As of `AsyncStallTransport`.
        observe_only: Whether clocks only report, with `would_have_fired`.
        on_event: A callable, or a list of them, for the events. Those of clocks come on the
            watcher's thread, which serves all blocking streams: it must not be held up.
        name: Shown in events and causes.

    Raises:
        ValueError: for a limit of 0 or less, NaN, or two given limits of which one can never fire.
        TypeError: if `transport` has no `handle_request`.
    """

    _default = "HTTPTransport"

    def __init__(
        self,
        transport: Any = None,
        *,
        headers: Given = Default(300.0),
        first_byte: Given = Default(300.0),
        idle: Given = Default(90.0),
        warn: float | Literal[Unset.UNSET] | None = Default(0.5),
        first_chunk: Given = Default(300.0),
        progress_idle: Given = Default(300.0),
        budget: Given = None,
        observe_only: bool = False,
        on_event: OnEvent = None,
        name: str | None = None,
    ) -> None:
        if transport is not None and not hasattr(transport, "handle_request"):
            raise TypeError(
                "StallTransport wraps a blocking transport of httpx or httpx2, "
                f"not {type(transport).__name__!r}"
            )
        limits = HttpLimits(
            headers=headers,
            first_byte=first_byte,
            idle=idle,
            warn=warn,
            first_chunk=first_chunk,
            progress_idle=progress_idle,
            budget=budget,
        )
        self._set_up(
            transport,
            limits,
            close_grace=None,
            observe_only=observe_only,
            on_event=on_event,
            name=name,
        )

    def handle_request(self, request: Any) -> Any:
        """Sends a request through the transport it wraps."""
        transport, for_sdk = self._transport_for(request), is_of_sdk(request)
        try:
            response = self._ask(transport, request)
        except StallError as cause:
            if not for_sdk:
                raise
            return refusal(library_of(request), cause)
        if response.is_closed:
            return response  # it came whole
        body = class_with_base(_SyncBody, "SyncByteStream", response.stream)
        if body is None:
            return response
        stream = body(self._watch.body_sync(response))
        if for_sdk:
            return wrap(response, stream)
        response.stream = stream
        return response

    def _ask(self, transport: Any, request: Any) -> Any:
        limit = self._watch.limits.headers
        if limit is None:
            return transport.handle_request(request)
        asking = SyncAsking(transport, request, None if self._watch.observe_only else limit)
        with self._watch.asking_sync(asking, asking.abort) as guard:
            response = next(guard)
            asking.take()
        return response

    def __enter__(self) -> StallTransport:
        if self._transport is not None:
            self._transport.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._transport is not None:
            self._transport.__exit__(*details)
        else:
            self.close()

    def close(self) -> None:
        """Closes the transport it wraps."""
        if self._transport is not None:
            self._transport.close()
        for made in list(self._made.values()):
            made.close()


class _AsyncBody:
    """A body under guard, for the client, whose own kind of byte stream is mixed in."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def __aiter__(self) -> Any:
        return self._guard

    async def aclose(self) -> None:
        """Closes the connection, or gives it back."""
        await self._guard.aclose()


class _SyncBody:
    """A body under guard, for the client, whose own kind of byte stream is mixed in."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def __iter__(self) -> Iterator[bytes]:
        return self._guard  # type: ignore[no-any-return]

    def close(self) -> None:
        """Closes the connection, or gives it back."""
        self._guard.close()
