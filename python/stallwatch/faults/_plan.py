"""A scenario as a list of steps: what to send, when to be silent, how to cut.

Pure: no socket, no clock. `_play` carries the steps out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ._scenario import Fault, Scenario
from ._wire import DONE, Api, Event, encode, error_event, is_end


@dataclass(frozen=True, slots=True)
class Status:
    """Answer with an HTTP error instead of a stream."""

    code: int


@dataclass(frozen=True, slots=True)
class Headers:
    """Send the response headers."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes; `per_byte` seconds before each when it is set."""

    data: bytes
    events: int = 0
    per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Silence:
    """Send nothing for so many seconds; `None` until the client goes away."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class KeepAlives:
    """Send keep-alives only, for so many seconds; `None` until the client goes away."""

    seconds: float | None
    every: float


@dataclass(frozen=True, slots=True)
class Cut:
    """End the connection under the response."""

    reset: bool


Step = Status | Headers | Send | Silence | KeepAlives | Cut

_STATUS = {Fault.HTTP_500: 500, Fault.HTTP_529: 529}


def plan(scenario: Scenario, api: Api, events: Sequence[Event]) -> Iterator[Step]:
    """The steps of an answer; after the last one the body ends in the well-formed way."""
    fault = scenario.fault
    if fault in _STATUS:
        yield Status(_STATUS[fault])
        return
    if fault is Fault.NO_HEADERS:
        yield Silence(scenario.duration)
    yield Headers()
    if fault is Fault.SLOW_FIRST:
        yield KeepAlives(scenario.duration, scenario.every)

    body, end = _split(api, events)
    at = min(scenario.at, len(body))
    yield from _events(scenario, api, body[:at])
    match fault:
        case Fault.SILENCE:
            yield Silence(scenario.duration)
        case Fault.PINGS:
            yield KeepAlives(scenario.duration, scenario.every)
        case Fault.RESET | Fault.FIN:
            yield Cut(reset=fault is Fault.RESET)
            return
        case Fault.ERROR_EVENT:
            yield Send(error_event(api, at))
            return
        case Fault.TRUNCATE:
            return
        case _:
            pass
    yield from _events(scenario, api, body[at:])
    if fault is Fault.NO_END:
        yield Silence(scenario.duration)
    yield from _events(scenario, api, end)
    if api is Api.OPENAI_CHAT:
        yield Send(DONE)
    if fault is Fault.LINGER:
        yield Silence(scenario.duration)


def _split(api: Api, events: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
    """The events before the end marker, and the rest. A stream without one is all body."""
    for index, event in enumerate(events):
        if is_end(api, event):
            return events[:index], events[index:]
    return events, ()


def _events(scenario: Scenario, api: Api, events: Sequence[Event]) -> Iterator[Step]:
    for event in events:
        if scenario.fault is Fault.DRIP_BYTES:
            yield Send(encode(api, event), events=1, per_byte=scenario.delay)
            continue
        if scenario.delay:
            yield Silence(scenario.delay)
        yield Send(encode(api, event), events=1)
