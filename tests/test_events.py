import copy
import dataclasses
import functools
import json
import logging
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

import stallwatch
from stallwatch import _events
from stallwatch._events import EVENT_NAMES, Event, PhaseChanged, SoftIdle, StreamStalled, ToolEnded
from stallwatch._phases import Phase
from stallwatch._sink import EventSink

NAMES = [
    "PhaseChanged",
    "SoftIdle",
    "HardIdle",
    "FirstChunk",
    "StreamSlow",
    "StreamStalled",
    "StreamTruncated",
    "UnboundedWait",
    "ToolStarted",
    "ToolEnded",
    "ChildIdle",
    "BudgetExceeded",
    "ObserverStalled",
    "HostSuspended",
    "CoverageLost",
    "Unresponsive",
    "LateResult",
    "Settled",
]

QUIET = {"phase_changed", "first_chunk", "tool_started", "tool_ended", "late_result", "settled"}

SAMPLES: dict[str, Any] = {"phase": Phase.AWAITING_LLM, "previous": Phase.SETUP}
BY_TYPE: dict[Any, Any] = {float: 1.5, int: 3, str: "word", bool: True, str | None: "word"}


def sample(cls: type[Event]) -> Event:
    values = {
        f.name: SAMPLES.get(f.name, BY_TYPE.get(f.type, 0.5)) for f in dataclasses.fields(cls)
    }
    return cls(**values)


def soft(**changes: Any) -> SoftIdle:
    return SoftIdle(
        **{"at": 1.0, "phase": Phase.AWAITING_LLM, "seq": 3, "idle": 90.5, "limit": 90.0} | changes
    )


@pytest.fixture(autouse=True)
def public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle looks classes up by their public name."""
    for cls in (*EVENT_NAMES.values(), Phase):
        monkeypatch.setattr(stallwatch, cls.__name__, cls, raising=False)


def test_registry_and_dataclasses_agree_both_ways() -> None:
    """The eighteen events of the contract, the registry and the module's classes are one set."""
    declared = {
        cls.__name__
        for cls in vars(_events).values()
        if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
    }

    assert [cls.__name__ for cls in EVENT_NAMES.values()] == NAMES
    assert declared == set(NAMES)
    assert declared <= set(_events.__all__)


@pytest.mark.parametrize("cls", EVENT_NAMES.values())
def test_event_names_are_the_class_names_in_snake_case(cls: type[Event]) -> None:
    """An event's name follows from its class name."""
    assert cls.event == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    assert EVENT_NAMES[cls.event] is cls
    assert cls.__module__ == "stallwatch"
    assert cls.__doc__


@pytest.mark.parametrize("cls", EVENT_NAMES.values())
def test_event_is_a_frozen_slotted_value(cls: type[Event]) -> None:
    """Events cannot be changed, compare by value, and survive copy and pickle."""
    event = sample(cls)

    with pytest.raises(dataclasses.FrozenInstanceError):
        event.at = 2.0  # type: ignore[misc]
    assert not hasattr(event, "__dict__")
    assert event == copy.deepcopy(event) == pickle.loads(pickle.dumps(event))
    assert hash(event) == hash(sample(cls))
    with pytest.raises(TypeError):
        cls(1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", EVENT_NAMES.values())
def test_to_dict_is_plain_json(cls: type[Event]) -> None:
    """to_dict holds the name and every field, phases as labels, and is the same after JSON."""
    event = sample(cls)

    data = event.to_dict()

    assert json.loads(json.dumps(data)) == data
    assert data["event"] == cls.event
    assert set(data) == {"event", *(f.name for f in dataclasses.fields(cls))}
    if "phase" in data:
        assert data["phase"] == "awaiting_llm"


def test_sink_calls_one_callable_or_many() -> None:
    """on_event may be one callable, or any iterable of them, called in order."""
    one: list[Any] = []
    two: list[Any] = []
    event = soft()

    EventSink(one.append).emit(event)
    EventSink([one.append, two.append]).emit(event)
    EventSink(iter([two.append])).emit(event)
    EventSink((two.append,))(event)

    assert (one, two) == ([event] * 2, [event] * 3)


@pytest.mark.parametrize("error", [ValueError("boom"), GeneratorExit(), BaseException("odd")])
def test_raising_callable_is_logged_and_stops_nobody(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """A callable that raises is logged, and the ones after it still get the event."""
    seen: list[Any] = []

    def broken(event: Event) -> None:
        raise error

    EventSink([broken, seen.append, broken]).emit(soft())

    assert seen == [soft()]
    assert [r.name for r in caplog.records] == ["stallwatch"] * 2
    assert caplog.records[0].levelno == logging.ERROR
    assert "broken" in caplog.records[0].getMessage()
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_end_of_the_process_is_passed_on_last(error: type[BaseException]) -> None:
    """An interrupt or exit raised by a callable leaves the sink, after all others were called."""
    seen: list[Any] = []

    def leave(event: Event) -> None:
        raise error

    with pytest.raises(error):
        EventSink([leave, seen.append], parent=EventSink(seen.append)).emit(soft())
    assert len(seen) == 2


async def asynchronous(event: Event) -> None:
    """A handler of the wrong kind."""


class Handler:
    """A handler of the wrong kind, as a method."""

    async def method(self, event: Event) -> None:
        """Never awaited."""


@pytest.mark.parametrize(
    "on_event",
    [
        1,
        "log",
        [None],
        [print, 3],
        asynchronous,
        [asynchronous],
        Handler().method,
        functools.partial(asynchronous),
    ],
)
def test_bad_handlers_are_refused(on_event: Any) -> None:
    """What cannot be called, or would only return a coroutine, is refused when the sink is made."""
    with pytest.raises(TypeError):
        EventSink(on_event)


@pytest.mark.parametrize("cls", EVENT_NAMES.values())
def test_without_callables_loud_events_reach_the_log(
    cls: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Soft events, stalls and lost coverage are logged as warnings; the others are silent."""
    event = sample(cls)

    with caplog.at_level(logging.DEBUG):
        EventSink().emit(event)
        EventSink([], parent=EventSink()).emit(event)

    expected = [] if cls.event in QUIET else [("stallwatch", logging.WARNING)] * 2
    assert [(r.name, r.levelno) for r in caplog.records] == expected
    for record in caplog.records:
        assert record.getMessage().startswith(cls.event + " ")
        assert record.stallwatch_event == event.to_dict()  # type: ignore[attr-defined]
    assert EventSink().wants(cls) is bool(expected)


def test_log_line_reads_well(caplog: pytest.LogCaptureFixture) -> None:
    """The log line names the event and its fields."""
    EventSink(turn="answer").emit(soft())

    assert caplog.messages == [
        "soft_idle turn='answer' phase='awaiting_llm' seq=3 idle=90.5 limit=90.0 "
        "lateness=0.0 would_have_fired=False"
    ]


def test_with_a_callable_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A listener anywhere on the way replaces the log."""
    seen: list[Any] = []

    EventSink(seen.append).emit(soft())
    EventSink(seen.append, parent=EventSink()).emit(soft())
    EventSink(parent=EventSink(seen.append)).emit(soft())

    assert len(seen) == 3
    assert not caplog.records
    assert EventSink(parent=EventSink(seen.append)).wants(ToolEnded)


def test_parent_gets_the_event_too() -> None:
    """A sink inside a turn delivers to its own callables first, then to the turn's."""
    order: list[str] = []
    turn = EventSink(lambda e: order.append(f"turn {e.turn}"), turn="t1")
    inner = EventSink(lambda e: order.append(f"own {e.turn}"), parent=turn)

    inner.emit(soft())

    assert order == ["own None", "turn t1"]


def test_turn_name_is_filled_in_once() -> None:
    """The sink names its turn on events that carry none, and leaves others alone."""
    seen: list[Any] = []
    sink = EventSink(seen.append, turn="t1")

    sink.emit(soft())
    sink.emit(soft(turn="other"))

    assert [e.turn for e in seen] == ["t1", "other"]


def test_defaults_of_the_larger_events() -> None:
    """Fields that a simple caller does not know have neutral defaults."""
    stalled = StreamStalled(at=0.0, clock="idle", idle=1.0, limit=1.0)
    changed = PhaseChanged(at=0.0, phase=Phase.SETUP, seq=1)

    assert (stalled.since_chunk, stalled.lateness, stalled.would_have_fired) == (None, 0.0, False)
    assert (changed.previous, changed.elapsed) == (None, 0.0)


def test_leaf_modules_import_little() -> None:
    """Limits, phases, events and the sink load neither asyncio nor logging nor dates."""
    code = (
        "import sys; import stallwatch._limits, stallwatch._events, stallwatch._sink;"
        "print([m for m in ('asyncio', 'logging', 'datetime', 'decimal') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout.strip() == "[]"
