"""Carries the steps of a scenario out on an aiohttp response.

The only module here that imports aiohttp. Two rules hold it together: the server runs with
`handler_cancellation`, so a client that leaves cancels the handler at once, silent or not; and
whoever ends a request marks its record before the connection goes, so that the cancellation which
follows our own cut is not taken for the client's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

from aiohttp import web

from ._plan import Cut, Headers, KeepAlives, Send, Silence, Status, Step, plan
from ._record import RequestRecord
from ._wire import Api, Event, error_body, keep_alive

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

# What was written must reach the peer before a reset, which throws unsent bytes away.
_FLUSH = 0.02


async def play(
    request: web.Request, record: RequestRecord, events: Sequence[Event]
) -> web.StreamResponse:
    """Answer one request as its record's scenario says."""
    api = Api(record.api)
    response = web.StreamResponse(headers=HEADERS)
    try:
        for step in plan(record.scenario, api, events):
            if isinstance(step, Status):
                record._end(finished=True)
                return web.json_response(error_body(api, step.code), status=step.code)
            if isinstance(step, Headers):
                await response.prepare(request)
            elif isinstance(step, Cut):
                await _cut(request, record, reset=step.reset)
            else:
                await _step(step, response, record, api)
        await response.write_eof()
    except asyncio.CancelledError:
        record._end(by_peer=True)
        raise
    except ConnectionError:
        # The write met a closed transport before the cancellation met us.
        record._end(by_peer=True)
    else:
        record._end(finished=True)
    return response


async def _step(step: Step, response: web.StreamResponse, record: RequestRecord, api: Api) -> None:
    match step:
        case Send(data=data, events=events, per_byte=0):
            await response.write(data)
            record.events_sent += events
            # An answer without delays must still let a client on the same loop keep up.
            await asyncio.sleep(0)
        case Send(data=data, events=events, per_byte=pause):
            for index in range(len(data)):
                await asyncio.sleep(pause)
                await response.write(data[index : index + 1])
            record.events_sent += events
        case Silence(seconds=seconds):
            await _sleep(seconds)
        case KeepAlives(seconds=seconds, every=every):
            try:
                async with asyncio.timeout(seconds):
                    await _keep_alive(response, record, api, every)
            except TimeoutError:
                pass
        case _:
            raise AssertionError(step)


async def _sleep(seconds: float | None) -> None:
    if seconds is None:
        await asyncio.get_running_loop().create_future()
    else:
        await asyncio.sleep(seconds)


async def _keep_alive(
    response: web.StreamResponse, record: RequestRecord, api: Api, every: float
) -> None:
    while True:
        await response.write(keep_alive(api, record.scenario.keepalive, record.events_sent))
        record.keepalives_sent += 1
        await asyncio.sleep(every)


async def _cut(request: web.Request, record: RequestRecord, *, reset: bool) -> None:
    """End the connection and stay until its loss cancels this handler."""
    await asyncio.sleep(_FLUSH)
    transport = request.transport
    record._end(finished=True)
    if transport is not None:
        if reset:
            peer: socket.socket = transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
    await _sleep(None)
