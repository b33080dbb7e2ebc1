"""Who listens to events, and what one that blocks cannot hold up."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from stallwatch._events import ToolStarted
from stallwatch._hearing import PATIENCE, heard
from stallwatch._sink import EventSink


class Gate:
    """A callable that blocks until it is opened, and notes what it hears."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.names: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, event: Any) -> None:
        """Block."""
        self.let_go.wait(20)
        self.threads.add(threading.get_ident())
        self.names.append(event.name)

    def hear(self, event: Any) -> None:
        """The same, as a method."""
        self(event)

    def wait_for(self, count: int) -> None:
        """Wait until it has heard so much. Real time, 10 s at most."""
        end = time.monotonic() + 10
        while len(self.names) < count:
            assert time.monotonic() < end, self.names
            time.sleep(0.002)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open at the end."""
    gate = Gate()
    yield gate
    gate.let_go.set()


def event(name: str) -> ToolStarted:
    """Any event."""
    return ToolStarted(at=0.0, name=name)


def seconds(work: Any) -> float:
    """How long something takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def test_a_quick_callable_has_heard_before_the_report_is_over() -> None:
    """It is called on another thread, and waited for."""
    threads: list[int] = []

    def hear(event: Any) -> None:
        time.sleep(0.02)
        threads.append(threading.get_ident())

    EventSink(hear).emit(event("a"))

    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_a_blocked_callable_is_left_behind(gate: Gate, caplog: Any) -> None:
    """It costs one patience, once; it is logged, and hears the rest in order when it is back."""
    sink = EventSink(gate)
    with caplog.at_level(logging.WARNING, "stallwatch"):
        first = seconds(lambda: sink.emit(event("0")))
        rest = seconds(lambda: [sink.emit(event(str(n))) for n in range(1, 100)])

    assert PATIENCE <= first < PATIENCE + 2
    assert rest < PATIENCE
    assert [record.message for record in caplog.records] == [
        "on_event Gate is not back from tool_started after 0.25 s: nobody waits for it any longer"
    ]
    gate.let_go.set()
    gate.wait_for(100)
    assert gate.names == [str(n) for n in range(100)]
    assert len(gate.threads) == 1


def test_a_blocked_callable_holds_up_no_other(gate: Gate) -> None:
    """The next in the list, the sink around it and other sinks have their events."""
    beside, around, other = [], [], []
    outer = EventSink(around.append)
    sink = EventSink([gate, lambda one: beside.append(one)], parent=outer)
    took = seconds(lambda: [sink.emit(event(str(n))) for n in range(5)])
    took_other = seconds(lambda: EventSink(lambda one: other.append(one)).emit(event("x")))

    assert took < PATIENCE + 2
    assert took_other < PATIENCE
    assert (len(beside), len(around), len(other)) == (5, 5, 1)
    assert gate.names == []


def test_a_method_is_the_same_however_often_it_is_looked_up(gate: Gate) -> None:
    """A hundred turns that share a method which hangs wait for it once, not a hundred times."""
    took = seconds(lambda: [EventSink(gate.hear).emit(event(str(n))) for n in range(100)])

    assert took < PATIENCE + 2
    gate.let_go.set()
    gate.wait_for(100)
    assert gate.names == [str(n) for n in range(100)]


def test_once_it_is_back_it_is_waited_for_again(gate: Gate) -> None:
    """A callable that was slow once is like any other afterwards."""
    sink = EventSink(gate)
    sink.emit(event("0"))
    gate.let_go.set()
    gate.wait_for(1)
    time.sleep(0.1)  # its thread has yet to say so
    sink.emit(event("1"))

    assert gate.names == ["0", "1"]


def test_what_a_callable_reports_is_heard_inside(gate: Gate) -> None:
    """A callable whose doing is an event again does not wait for itself."""
    names: list[str] = []

    def hear(one: Any) -> None:
        names.append(one.name)
        if len(names) < 4:
            sink.emit(event(f"inside {one.name}"))

    sink = EventSink(hear)
    took = seconds(lambda: sink.emit(event("a")))

    assert took < PATIENCE
    assert names == ["a", "inside a", "inside inside a", "inside inside inside a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_raised_where_it_was_reported(error: type[BaseException]) -> None:
    """Ctrl-C is no fault of the callable, and the next one has heard before."""
    after: list[Any] = []

    def hear(event: Any) -> None:
        raise error

    with pytest.raises(error):
        EventSink([hear, after.append]).emit(event("a"))
    assert len(after) == 1


def test_context_and_loop_are_those_of_the_report() -> None:
    """A callable may ask for the running loop, and have it call something."""
    variable: ContextVar[str] = ContextVar("variable", default="outside")
    seen: list[Any] = []

    def hear(event: Any) -> None:
        loop = asyncio.get_running_loop()
        seen.extend((variable.get(), loop))
        loop.call_soon(seen.append, "called")

    async def main() -> None:
        variable.set("inside")
        EventSink(hear).emit(event("a"))
        await asyncio.sleep(0)

        assert seen == ["inside", asyncio.get_running_loop(), "called"]

    asyncio.run(main())
    EventSink(lambda event: seen.append(asyncio._get_running_loop())).emit(event("b"))

    assert seen[-1] is None  # nothing of it stays on the thread


def test_a_loop_in_debug_mode_calls_directly() -> None:
    """There asyncio refuses `call_soon` of another thread, and tells of what is slow itself."""
    seen: list[int] = []

    def hear(event: Any) -> None:
        asyncio.get_running_loop().call_soon(seen.append, threading.get_ident())

    async def main() -> None:
        EventSink(hear).emit(event("a"))
        await asyncio.sleep(0)

    asyncio.run(main(), debug=True)

    assert seen == [threading.get_ident()]


def test_two_threads_do_not_wait_for_each_other(gate: Gate) -> None:
    """While a report of one thread is waited for, that of another goes through."""
    slow = threading.Thread(target=lambda: EventSink(gate).emit(event("a")))
    slow.start()
    time.sleep(0.02)
    took = seconds(lambda: EventSink(lambda event: None).emit(event("b")))
    slow.join()

    assert took < PATIENCE


def test_threads_are_used_again() -> None:
    """A thousand reports of one thread, one after the other, take one thread."""
    threads: set[int] = set()
    for _ in range(1_000):
        assert heard(lambda _: threads.add(threading.get_ident()), event("a")) is None

    assert len(threads) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(gate: Gate) -> None:
    """What its parent has left behind, and threads that it does not have, hold up nothing there."""
    EventSink(gate).emit(event("a"))
    child = os.fork()
    if child == 0:
        names: list[str] = []
        EventSink(lambda one: names.append(one.name)).emit(event("b"))
        os._exit(0 if names == ["b"] else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
