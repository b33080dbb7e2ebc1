"""What the server saw of one request."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from ._scenario import Scenario


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request and how far its answer got. Times are `time.monotonic()`.

    Attributes:
        events_sent: Events of the stream handed to the socket, pings of the stream included;
            neither the `[DONE]` line nor keep-alives count.
        closed_by_peer_at: When the client's side was seen to close while the answer was still
            open; `None` while it is open, and when the server ended the answer itself.
        finished: The server did all its scenario asked for, a reset or an HTTP error included.
    """

    path: str
    api: str
    model: str
    scenario: Scenario
    opened_at: float = field(default_factory=time.monotonic)
    events_sent: int = 0
    keepalives_sent: int = 0
    closed_by_peer_at: float | None = None
    ended_at: float | None = None
    finished: bool = False
    # A concurrent future: it is set on the server's loop and awaited from any loop or thread.
    _over: Future[float | None] = field(default_factory=Future, repr=False)

    async def wait_closed(self, timeout: float | None = 5.0) -> float | None:
        """Wait until the answer is over; the time the client closed it, `None` if it did not.

        Raises `TimeoutError` when the request is still open after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[float | None] = loop.create_future()

        def settle(value: float | None) -> None:
            if not waiter.done():
                waiter.set_result(value)

        def wake(over: Future[float | None]) -> None:
            # A waiter that gave up may have left with its loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, over.result())

        self._over.add_done_callback(wake)
        async with asyncio.timeout(timeout):
            return await waiter

    def wait_closed_sync(self, timeout: float | None = 5.0) -> float | None:
        """`wait_closed` for a blocking caller in another thread than the server's."""
        return self._over.result(timeout)

    def _end(self, *, by_peer: bool = False, finished: bool = False) -> None:
        if self._over.done():
            return
        self.ended_at = time.monotonic()
        self.finished = finished
        if by_peer:
            self.closed_by_peer_at = self.ended_at
        self._over.set_result(self.closed_by_peer_at)
