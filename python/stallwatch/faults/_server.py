"""The server's life: binding, choosing a scenario per request, stopping without leftovers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ._record import RequestRecord
from ._scenario import Fault, Scenario, from_model
from ._scripts import events_of, read_file
from ._wire import PATHS, error_body

if TYPE_CHECKING:
    from aiohttp import web

_HOST = "127.0.0.1"
_MAX_BODY = 64 * 2**20
_EARLY = (Fault.HTTP_500, Fault.HTTP_529, Fault.NO_HEADERS)


class FaultServer:
    """An SSE server on loopback that answers like a provider and fails as told.

    Use it as an async context manager, or from blocking code through `serve_in_thread()`. A request
    whose model name reads as a scenario (`stall:3`, `ping:2`, `nohead`, ...) gets that one; any
    other gets what `play` last set. `requests` keeps a record of each, in order of arrival; one
    that asks for something impossible is answered with 400 and leaves no record.

    Args:
        scenario: What is played until `play` says otherwise.
        port: 0 picks a free one.
        on_end: Called with the record of every request that is over, on the server's loop.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        port: int = 0,
        on_end: Callable[[RequestRecord], object] | None = None,
    ) -> None:
        self.requests: list[RequestRecord] = []
        self._default = _checked(scenario or Scenario())
        self._queue: deque[Scenario] = deque()
        self._port = port
        self._on_end = on_end
        self._open: dict[RequestRecord, web.Request] = {}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the server listens."""
        if self._runner is None:
            raise RuntimeError("the fault server is not running: enter it with `async with`")
        return f"http://{_HOST}:{self._port}"

    @property
    def openai_url(self) -> str:
        """The `base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` of an Anthropic client."""
        return self.url

    def play(self, *scenarios: Scenario) -> None:
        """Set what the next requests get: one scenario each, the last for all that follow too."""
        if not scenarios:
            raise ValueError("play() needs at least one scenario")
        checked = [_checked(scenario) for scenario in scenarios]
        self._queue = deque(checked[:-1])
        self._default = checked[-1]

    async def start(self) -> None:
        """Bind and serve; `async with` does it for you."""
        web = _import_web()
        if self._runner is not None:
            raise RuntimeError("the fault server is already running")
        app = web.Application(client_max_size=_MAX_BODY)
        for path in PATHS:
            app.router.add_post(path, self._handle)
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, _HOST, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Drop every open request and stop; safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for record, request in list(self._open.items()):
            record._end()
            if request.transport is not None:
                request.transport.abort()
        await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @classmethod
    @contextmanager
    def serve_in_thread(cls, *args: Any, **kwargs: Any) -> Iterator[Self]:
        """Run a server on a loop in a thread of its own, for blocking callers.

        Takes the arguments of the class. `play` and `requests` may be used from any thread.
        """
        server = cls(*args, **kwargs)
        started = threading.Event()
        failure: list[BaseException] = []
        handle: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

        async def serve() -> None:
            stop = asyncio.Event()
            async with server:
                handle.append((asyncio.get_running_loop(), stop))
                started.set()
                await stop.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                failure.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=run, name="stallwatch-faults", daemon=True)
        thread.start()
        started.wait()
        try:
            if failure:
                raise failure[0]
            yield server
        finally:
            for loop, stop in handle:
                # A loop that died on its own is closed already; its error is raised below.
                if not loop.is_closed():
                    loop.call_soon_threadsafe(stop.set)
            thread.join()
        if failure:
            raise failure[0]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        from ._play import play

        api = PATHS[request.path]
        try:
            body = await request.json()
            model = str(body["model"])
            scenario = self._choose(model)
            events = events_of(scenario.stream, api=api, model=model)
            if not body.get("stream") and scenario.fault not in _EARLY:
                raise ValueError("the fault server only streams: ask with stream=True")
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            # 400, since the SDKs would retry a 500 and hide the mistake behind their back-off.
            text = f"{type(error).__name__}: {error}"
            return web.json_response(error_body(api, 400, text), status=400)
        record = RequestRecord(path=request.path, api=api, model=model, scenario=scenario)
        self.requests.append(record)
        self._open[record] = request
        try:
            return await play(request, record, events)
        finally:
            del self._open[record]
            record._end()
            if self._on_end is not None:
                self._on_end(record)

    def _choose(self, model: str) -> Scenario:
        named = from_model(model, self._default)
        if named is not None:
            return named
        return self._queue.popleft() if self._queue else self._default


def _checked(scenario: Scenario) -> Scenario:
    """Read a stream file once up front, so that a bad one fails here and not in a request."""
    stream = scenario.stream
    if isinstance(stream, Path) or (isinstance(stream, str) and not stream.startswith("builtin:")):
        read_file(Path(stream))
    return scenario


def _import_web() -> Any:
    try:
        from aiohttp import web
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise ModuleNotFoundError(
            "the fault server needs aiohttp: pip install stallwatch[faults]", name="aiohttp"
        ) from None
    return web
