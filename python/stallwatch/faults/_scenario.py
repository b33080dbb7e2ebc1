"""What a request is answered with: the fault, where it strikes, and the stream it strikes in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

Stream = str | Path | Sequence[Mapping[str, Any]]
KeepAlive = Literal["auto", "comment", "ping", "both"]

BUILTINS = ("text", "reasoning", "tool")
KEEP_ALIVES: tuple[KeepAlive, ...] = ("auto", "comment", "ping", "both")


class Fault(StrEnum):
    """What goes wrong. The value is the label used in model names and on the command line."""

    OK = "ok"
    NO_HEADERS = "nohead"
    SILENCE = "stall"
    NO_END = "noend"
    LINGER = "linger"
    PINGS = "ping"
    SLOW_FIRST = "slow-first"
    DRIP = "drip"
    DRIP_BYTES = "drip-bytes"
    RESET = "rst"
    FIN = "fin"
    TRUNCATE = "trunc"
    ERROR_EVENT = "error"
    HTTP_500 = "http500"
    HTTP_529 = "http529"


@dataclass(frozen=True, slots=True)
class Form:
    """How a fault is written in a model name: the fields its numbers set, and what it does."""

    numbers: tuple[tuple[str, float | None], ...]
    summary: str


# A default beside each field: what the bare label means, whatever the server's default scenario is.
FORMS: Mapping[Fault, Form] = {
    Fault.OK: Form((), "the whole answer"),
    Fault.NO_HEADERS: Form((("duration", None),), "silence before the response headers"),
    Fault.SILENCE: Form(
        (("at", 3), ("duration", None)), "silence after event AT (0: before the first)"
    ),
    Fault.NO_END: Form((("duration", None),), "silence in place of the end marker"),
    Fault.LINGER: Form((("duration", None),), "end marker sent, socket left open"),
    Fault.PINGS: Form((("at", 3), ("every", 0.1)), "nothing but keep-alives after event AT"),
    Fault.SLOW_FIRST: Form(
        (("duration", 2.0), ("every", 0.1)), "keep-alives for DURATION, then the whole answer"
    ),
    Fault.DRIP: Form((("delay", 0.05),), "the whole answer, DELAY before each event"),
    Fault.DRIP_BYTES: Form((("delay", 0.002),), "the whole answer, DELAY before each byte"),
    Fault.RESET: Form((("at", 3),), "connection reset (RST) after event AT"),
    Fault.FIN: Form((("at", 3),), "connection closed (FIN) inside the body after event AT"),
    Fault.TRUNCATE: Form((("at", 3),), "well-formed HTTP end after event AT, no end marker"),
    Fault.ERROR_EVENT: Form((("at", 3),), "the provider's error event after event AT"),
    Fault.HTTP_500: Form((), "HTTP 500 in the provider's shape"),
    Fault.HTTP_529: Form((), "HTTP 529, overloaded, in the provider's shape"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One answer of the fault server.

    Args:
        fault: What goes wrong.
        at: How many events of the stream go out before it does. Counted as the stream lists them,
            pings included; beyond the last event means just before the end marker.
        stream: `"builtin:text"`, `"builtin:reasoning"`, `"builtin:tool"` (each in the form of the
            API that was asked), a file with one JSON event a line, or the events themselves.
        delay: Seconds before each event, or before each byte for `DRIP_BYTES`.
        every: Seconds between two keep-alives.
        duration: For a silence or keep-alives: seconds until the rest of the answer follows;
            `None` leaves them to last until the client goes away.
        keepalive: SSE comments, the provider's own pings, or both; `"auto"` is what the provider
            does. OpenAI chat has no ping event, there a comment stands in.
    """

    fault: Fault = Fault.OK
    at: int = 3
    stream: Stream = "builtin:text"
    delay: float = 0.0
    every: float = 0.1
    duration: float | None = None
    keepalive: KeepAlive = "auto"

    def __post_init__(self) -> None:
        # A label is as good as the member; later code compares by identity.
        object.__setattr__(self, "fault", Fault(self.fault))
        if self.at < 0:
            raise ValueError(f"at must be 0 or more, not {self.at}")
        _check("delay", self.delay, zero=self.fault not in (Fault.DRIP, Fault.DRIP_BYTES))
        _check("every", self.every)
        if self.duration is not None:
            _check("duration", self.duration)
        elif self.fault is Fault.SLOW_FIRST:
            raise ValueError("slow-first needs a duration, the seconds until the answer starts")
        if self.keepalive not in KEEP_ALIVES:
            raise ValueError(f"keepalive must be one of {', '.join(KEEP_ALIVES)}")
        if isinstance(self.stream, str) and self.stream.startswith("builtin:"):
            name = self.stream.removeprefix("builtin:")
            if name not in BUILTINS:
                raise ValueError(f"no built-in stream {name!r}; there are {', '.join(BUILTINS)}")


def _check(name: str, seconds: float, *, zero: bool = False) -> None:
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        raise ValueError(f"{name} must be a finite number of seconds {least}, not {seconds}")


def from_model(model: str, base: Scenario) -> Scenario | None:
    """Read a scenario off a model name such as `stall:3` or `ping:2:0.5@reasoning`.

    What the name leaves out (stream, delay, kind of keep-alive) comes from `base`. A name whose
    label is no fault is an ordinary model name and gives `None`; a fault with bad numbers is
    refused, since a test that mistypes its fault would otherwise pass for the wrong reason.
    """
    spec, _, stream = model.partition("@")
    label, *numbers = spec.split(":")
    try:
        fault = Fault(label)
    except ValueError:
        return None
    form = FORMS[fault]
    if len(numbers) > len(form.numbers):
        raise ValueError(f"{label} takes at most {len(form.numbers)} numbers: {usage(fault)}")
    changes: dict[str, Any] = {"fault": fault, **dict(form.numbers)}
    for (field, _default), text in zip(form.numbers, numbers, strict=False):
        try:
            changes[field] = int(text) if field == "at" else float(text)
        except ValueError:
            raise ValueError(f"{text!r} is no number for {field}: {usage(fault)}") from None
    if stream:
        changes["stream"] = f"builtin:{stream}"
    return replace(base, **changes)


def usage(fault: Fault) -> str:
    """The model-name form of a fault, e.g. `stall[:AT[:DURATION]]`."""
    names = [name.upper() for name, _ in FORMS[fault].numbers]
    return f"{fault}{''.join(f'[:{name}' for name in names)}{']' * len(names)}"


def label_of(scenario: Scenario) -> str:
    """A short name for a log line; reads like the model name that asks for the same."""
    known = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
    numbers = [known[name] for name, _ in FORMS[scenario.fault].numbers]
    return ":".join([str(scenario.fault), *(f"{n:g}" for n in numbers if n is not None)])
