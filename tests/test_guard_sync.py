"""`guard_sync` on the manual clock: each clock, the verdicts of `guard`, and who comes first."""

import asyncio
import gc
import logging
import queue
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest

from guard_tools import Source, guard, play, run
from stallwatch._causes import (
    FirstChunkError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._events import StreamSlow, StreamStalled, UnboundedWait, Unresponsive
from stallwatch.testing import ManualClock
from stallwatch.wheel import wheel_stats
from sync_tools import (
    HANG,
    Background,
    Blocking,
    Recorder,
    Released,
    Seen,
    Stage,
    guard_sync,
    only,
    play_sync,
    staged,
)

PING = {"type": "ping"}
STOP = {"type": "message_stop"}
near = pytest.approx


def delta(text: str) -> dict[str, Any]:
    """An Anthropic text delta."""
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }


@pytest.fixture
def stage():
    """Threads on a manual clock."""
    with staged() as stage:
        yield stage


def guarded(stage: Stage, *steps: Any, answer: Any = None, **options: Any) -> Any:
    """A guard of a scripted source, which the stage's `abort` releases."""
    options.setdefault("abort", stage.abort)
    return guard_sync(Blocking(stage, steps, answer=answer), **options)


# --- each clock on its own ---


def test_the_unguarded_source_blocks(stage):
    """The baseline: without the guard a silent source still holds its thread after 3 limits."""
    assert play_sync(stage, Blocking(stage, ("a", HANG)), upto=3 * 90).waits


@pytest.mark.parametrize("limit", [0.25, 5, 300.0, 86_400, timedelta(seconds=7)])
def test_first_chunk_fires_at_its_limit(stage, limit):
    """S1: a source that never starts is cut `first_chunk` seconds after the first pull."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    source = Blocking(stage, (HANG,))
    stream = guard_sync(source, abort=stage.abort, **only("first_chunk", limit))
    seen = play_sync(stage, stream, upto=seconds * 2)

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(seconds)
    assert (seen.error.idle, seen.error.limit) == (near(seconds), seconds)
    assert (seen.error.partial, seen.error.text_received) == ("", False)
    assert (source.releases, source.finals) == (1, 1)


def test_first_chunk_default_is_300(stage):
    """Without arguments the first wait ends after 300 s."""
    seen = play_sync(stage, guarded(stage, HANG))

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(300)


def test_first_chunk_counts_neither_the_consumer_nor_pings(stage):
    """Pings do not reset `first_chunk`, and what the consumer does between them is not counted."""
    stream = guarded(stage, *[1, PING] * 3, HANG, **only("first_chunk", 4.5))
    seen = play_sync(stage, stream, pause=50)

    assert type(seen.error) is FirstChunkError
    assert seen.chunks == [PING] * 3
    assert seen.ended_at == near(4.5 + 3 * 50)


@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 100])
def test_idle_fires_after_chunk_k(stage, k):
    """S2: one warning at half, the cause at the full limit, every chunk in the partial text."""
    record = Recorder()
    source = Blocking(stage, (*[0.01, "x"] * k, HANG))
    stream = guard_sync(source, abort=stage.abort, on_event=record, **only("idle", 90))
    seen = play_sync(stage, stream)

    assert type(seen.error) is StreamIdleError
    assert seen.ended_at == near(90 + k * 0.01)
    assert (seen.error.partial, stream.text) == ("x" * k, "x" * k)
    assert stream.cause is seen.error
    assert record.names == ["unbounded_wait", "first_chunk", "stream_slow", "stream_stalled"]
    assert record.of(StreamSlow)[0].idle == near(45)
    assert record.of(StreamStalled)[0].cause == "stream_idle"
    assert (source.releases, source.finals) == (1, 1)


def test_idle_is_reset_by_every_chunk(stage):
    """Case 02: an answer far longer than `idle` completes, without a warning."""
    record = Recorder()
    stream = guarded(stage, *[0.05, "x"] * 40, on_event=record, idle=0.3)
    seen = play_sync(stage, stream)

    assert (seen.error, seen.ended_at) == (None, near(2.0))
    assert record.names == ["first_chunk"]
    assert stream.is_complete


def test_a_gap_that_is_only_warned_about_loses_nothing(stage):
    """Case 22: a pull that lasts 0.7 of the limit gives one warning and then its chunk."""
    record = Recorder()
    source = Blocking(stage, ("a", 0.7, "b", "c"))
    seen = play_sync(stage, guard_sync(source, abort=stage.abort, on_event=record, idle=1.0))

    assert (seen.chunks, seen.error) == (["a", "b", "c"], None)
    assert record.names == ["first_chunk", "stream_slow"]
    assert (source.closes, source.finals, stage.aborts) == (0, 1, 0)


def test_touch_resets_idle_alone(stage):
    """`touch()` from another thread keeps `idle` quiet, and not `progress_idle`."""
    stream = guarded(stage, "a", HANG, idle=1, progress_idle=10)

    def touch() -> None:
        while stage.clock.time() < end:
            stage.wait(0.5)
            stream.touch()

    end = stage.clock.time() + 20
    stage.start(touch)
    seen = play_sync(stage, stream, upto=30)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(10)


@pytest.mark.parametrize("form", ["lines", "events", "bytes"])
def test_progress_idle_fires_among_keepalives(stage, form):
    """S7, case 05: keep-alives for ever are cut by `progress_idle`; the cause has both ages."""
    first, ping = {
        "lines": ('data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n', ": ping\n"),
        "events": (delta("a"), PING),
        "bytes": (b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n', b": p\n\n"),
    }[form]
    steps = [first, *([""] if form == "lines" else []), *[0.1, ping] * 100, HANG]
    seen = play_sync(stage, guarded(stage, *steps, idle=5, progress_idle=0.35))

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(0.35)
    assert (seen.error.since_chunk, seen.error.since_progress) == (near(0.05), near(0.35))
    assert seen.error.partial == "a"


def test_budget_fires_in_the_middle_of_a_lively_stream(stage):
    """`budget` counts from the first pull, whatever comes, and whoever is slow."""
    stream = guarded(stage, *[0.4, "x"] * 100, **only("budget", 5))
    seen = play_sync(stage, stream, pause=0.3)

    assert type(seen.error) is StreamBudgetError
    assert len(seen.chunks) == 7
    assert seen.ended_at == near(5.0)


def test_budget_fires_while_the_consumer_is_busy(stage):
    """A budget that runs out between two pulls refuses the next; the source is closed, not cut."""
    record = Recorder()
    source = Blocking(stage, ("a", "b", HANG))
    stream = guard_sync(source, abort=stage.abort, on_event=record, **only("budget", 5))
    seen = play_sync(stage, stream, pause=7)

    assert type(seen.error) is StreamBudgetError
    assert (seen.chunks, seen.ended_at) == (["a"], near(7))
    assert record.names == ["first_chunk", "stream_stalled"]
    assert (source.closes, source.finals, stage.aborts) == (1, 1, 0)


def test_budget_ends_a_source_that_never_blocks():
    """In real time, a source that never waits is cut by its budget all the same."""
    # Headroom: the consumer of an endless source ends at all.
    source = (number for number in iter(int, 1))
    stream = guard_sync(source, **only("budget", 0.2))
    seen = Seen()
    count = 0
    try:
        for _ in stream:
            count += 1
    except StreamBudgetError as error:
        seen.error = error

    assert type(seen.error) is StreamBudgetError
    assert count > 100
    assert seen.error.idle >= 0.2


def test_a_slow_consumer_is_no_silent_producer(stage):
    """S8: a consumer that takes three limits between pulls sees no warning and no cut."""
    record = Recorder()
    limits = {"idle": 1, "first_chunk": 1, "progress_idle": 1}
    stream = guarded(stage, *[0.1, "x"] * 5, on_event=record, **limits)
    seen = play_sync(stage, stream, pause=3)

    assert (seen.chunks, seen.error) == (["x"] * 5, None)
    assert record.names == ["first_chunk"]


def test_all_clocks_off_is_said_once(stage):
    """Without any clock for the first wait there is one event about that, and no cut."""
    record = Recorder()
    off = {"first_chunk": None, "idle": None, "progress_idle": None}
    seen = play_sync(stage, guarded(stage, HANG, on_event=record, **off), upto=100_000)

    assert seen.waits
    assert [type(event) for event in record.events] == [UnboundedWait]


@pytest.mark.parametrize(
    "options",
    [{"idle": 0}, {"idle": -1}, {"first_chunk": float("nan")}, {"idle": 60, "budget": 30}],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(options):
    """0, negative numbers, NaN and limits that can never fire are refused before anything runs."""
    with pytest.raises(ValueError):
        guard_sync([], **options)


@pytest.mark.parametrize("stream", [5, None, object()])
def test_what_cannot_be_iterated_is_refused(stream):
    """Neither iterable nor a context manager: refused at once."""
    with pytest.raises(TypeError, match=r"guard_sync\(\) takes an iterable"):
        guard_sync(stream)


# --- the same verdicts as `guard` ---

SCRIPTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "never starts": ((HANG,), {"first_chunk": 3, "idle": 2}),
    "late start": ((2.5, "a", 0.1, "b"), {"first_chunk": 3, "idle": 2}),
    "pings before the answer": ((*[0.4, PING] * 20,), {"first_chunk": 3.1, "idle": 1}),
    "silent after some": (("a", 0.5, "b", 0.9, "c", HANG), {"idle": 1}),
    "warned, then goes on": (("a", 0.7, "b", 0.7, "c"), {"idle": 1}),
    "no warning": (("a", 0.7, "b", HANG), {"idle": 1, "warn": None}),
    "pings only": ((delta("a"), *[0.4, PING] * 40), {"idle": 1, "progress_idle": 5.1}),
    "budget in a wait": ((*[0.4, "x"] * 40,), {"budget": 5.1, "idle": 1}),
    "lingers": ((delta("a"), STOP, HANG), {"idle": 5}),
    "lingers, short idle": ((delta("a"), STOP, HANG), {"idle": 0.5}),
    "a word after the end": ((delta("a"), STOP, 0.3, PING, HANG), {"idle": 5}),
    "truncated": ((delta("a"), 0.2, delta("b")), {"idle": 1}),
    "empty": ((), {"idle": 1}),
    "tool arguments": (
        (
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "type":
             "function", "function": {"name": "f", "arguments": '{"a'}}]}}]},
            HANG,
        ),
        {"idle": 1},
    ),
    "everything off": ((1, "a", 1000), {"first_chunk": None, "idle": None, "progress_idle": None}),
    "own predicate": (("a", 0.6, "b", 0.6, "c", HANG), {"idle": 5, "progress_idle": 1.0,
                      "is_progress": lambda chunk: chunk == "a"}),
    "own end": (("a", "END", HANG), {"idle": 0.5, "is_terminal": lambda chunk: chunk == "END"}),
    "own text": ((1j, 2j, HANG), {"idle": 1, "text_of": str}),
    "its own error": (("a", 0.5, KeyError("x")), {"idle": 1}),
}  # fmt: skip


def described(record: Recorder, seen: Seen, stream: Any, *, ages: bool) -> dict[str, Any]:
    """What can be compared of a run, with times to the tenth of a millisecond.

    `guard` reads no clock for a chunk that was there already, so that with a slow consumer the
    ages of such chunks are coarser than those of `guard_sync`: then they are left out.
    """
    aged = {"at"}
    if not ages:
        aged |= {"since_chunk", "since_progress", "last_chunk", "last_progress"}
    error = seen.error
    events = [
        {key: tidy(value) for key, value in event.to_dict().items() if key not in aged}
        for event in record.events
    ]
    stats = stream.stats
    return {
        "chunks": seen.chunks,
        "times": [tidy(time) for time in seen.times],
        "ended": tidy(seen.ended_at),
        "error": type(error),
        **{
            name: tidy(getattr(error, name, None))
            for name in ("limit", "partial", "tool_args", "since_chunk", "since_progress")
            if name not in aged
        },
        "events": events,
        "complete": stream.is_complete,
        "text": stream.text,
        "stats": [tidy(getattr(stats, name)) for name in type(stats).__slots__ if name not in aged],
    }


def tidy(value: Any) -> Any:
    """A value to compare."""
    return round(value, 4) if isinstance(value, float) else value


@pytest.mark.parametrize("case", SCRIPTS)
@pytest.mark.parametrize("pause", [0.0, 0.35])
def test_async_and_sync_agree(case, pause):
    """The same script gives the same chunks, times, cause, events and text either way."""
    steps, options = SCRIPTS[case]
    runs = []
    with staged() as stage:
        record = Recorder()
        stream = guarded(stage, *steps, on_event=record, **options)
        seen = play_sync(stage, stream, upto=2000, pause=pause)
        runs.append(described(record, seen, stream, ages=not pause))

    async def main() -> None:
        async with ManualClock() as clock:
            record = Recorder()
            stream = guard(Source(steps), on_event=record, **options)
            seen = await play(clock, stream, upto=2000, pause=pause)
            runs.append(described(record, seen, stream, ages=not pause))

    run(main)

    assert runs[0] == runs[1]


# --- who comes first ---


def test_the_sources_own_error_is_the_same_object(stage):
    """Case 18, S5: what the source raises leaves as it is, and is no cause."""
    errors = [
        TimeoutError("own"),
        ConnectionResetError(),
        ValueError(),
        ExceptionGroup("", [OSError()]),
    ]
    for error in errors:
        record = Recorder()
        stream = guarded(stage, "a", 0.5, error, idle=1, warn=None, budget=50, on_event=record)
        seen = play_sync(stage, stream, upto=100)

        assert seen.error is error
        assert stream.cause is None
        # Not the budget either, which nobody waits for now.
        assert record.names == ["first_chunk"]
        with pytest.raises(StopIteration):
            next(stream)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_a_users_interrupt_wins_over_the_cut(stage, error):
    """An interrupt that reaches the reader while it is being cut is not replaced by the cause."""

    def interrupted() -> None:
        raise error

    stream = guarded(stage, "a", HANG, idle=1, answer=interrupted)
    seen = play_sync(stage, stream)

    assert seen.error is error


def test_a_chunk_in_the_moment_of_the_fire_is_delivered(stage):
    """A chunk that comes between the fire and the release is delivered; the next pull raises."""
    source = Blocking(stage, ("a", 60, "b", "c", HANG))

    def on_event(event: Any) -> None:
        if isinstance(event, StreamStalled):
            # On the watcher's thread: the data comes now.
            stage._wake(lambda wait: True)
            stage.settle()

    stream = guard_sync(source, abort=stage.abort, on_event=on_event, **only("idle", 1))
    seen = Seen()

    def consume() -> None:
        seen.chunks.append(next(stream))
        seen.chunks.append(next(stream))
        stage.wait(0.5)
        try:
            seen.chunks.append(next(stream))
        except StreamIdleError as error:
            seen.error = error

    stage.start(consume)
    stage.advance(10)

    assert seen.chunks == ["a", "b"]
    assert type(seen.error) is StreamIdleError
    assert seen.error.partial == "ab"
    # It had come back: nothing was there to be shut down.
    assert (stage.aborts, source.closes) == (0, 1)


def test_the_end_in_the_moment_of_the_fire_completes_the_answer(stage):
    """A terminal chunk that comes as the clock fires is delivered, and the answer is a success."""

    def on_event(event: Any) -> None:
        if isinstance(event, StreamStalled):
            stage._wake(lambda wait: True)
            stage.settle()

    stream = guarded(stage, delta("a"), 60, STOP, idle=1, on_event=on_event)
    seen = play_sync(stage, stream, pause=0.5)

    assert (seen.chunks, seen.error) == ([delta("a"), STOP], None)
    assert stream.is_complete


def test_the_fragment_of_a_released_read_is_text_and_no_chunk(stage):
    """What a shut-down connection had left may be half a line: kept as text, never delivered."""
    stream = guarded(stage, "a", HANG, idle=1, answer=lambda: "half a li")
    seen = play_sync(stage, stream)

    assert (seen.chunks, type(seen.error)) == (["a"], StreamIdleError)
    assert seen.error.partial == "ahalf a li"


def test_a_released_read_that_just_ends_is_no_end(stage):
    """A reader that takes the shut-down for the end of the stream does not make it complete."""

    def end() -> None:
        return None

    stream = guarded(stage, "a", HANG, idle=1, answer=end)
    seen = play_sync(stage, stream)

    assert type(seen.error) is StreamIdleError
    assert not stream.is_complete


def test_a_lingering_answer_is_a_success(stage):
    """S3: after the terminal chunk the source gets `min(idle, 1 s)`, and nobody is blamed."""
    record = Recorder()
    source = Blocking(stage, (delta("a"), STOP, HANG))
    stream = guard_sync(source, abort=stage.abort, idle=5, on_event=record)
    seen = play_sync(stage, stream)

    assert (seen.error, seen.ended_at) == (None, near(1.0))
    assert record.names == ["first_chunk"]
    assert stream.is_complete
    assert source.finals == 1


def test_a_chunk_at_the_edge_of_the_linger_raises_nothing(stage):
    """A chunk that comes as a lingering answer is released leaves it a success."""
    stream = guarded(stage, delta("a"), STOP, HANG, idle=5, answer=lambda: PING)
    seen = play_sync(stage, stream)

    assert seen.error is None
    assert seen.chunks == [delta("a"), STOP, PING]
    assert stream.is_complete


def test_the_cause_has_no_context_of_ours(stage):
    """The reader's error after the shut-down is our own doing, and stays out of the cause."""
    seen = play_sync(stage, guarded(stage, "a", HANG, idle=1))

    assert seen.error.__cause__ is None
    assert seen.error.__suppress_context__
    assert not isinstance(seen.error.__context__, Released)


def test_an_error_while_closing_does_not_replace_the_cause(stage):
    """A source that fails to close after the cut changes nothing about the cause."""

    class Bad(Blocking):
        def close(self) -> None:
            raise OSError("cannot close")

    stream = guard_sync(Bad(stage, ("a", HANG)), abort=stage.abort, idle=1)
    seen = play_sync(stage, stream)

    assert type(seen.error) is StreamIdleError


def test_after_the_cause_the_stream_is_over(stage):
    """A guard that has raised its cause ends at every further pull, closed once."""
    source = Blocking(stage, ("a", HANG))
    stream = guard_sync(source, abort=stage.abort, idle=1)
    play_sync(stage, stream)

    assert list(stream) == []
    stream.close()
    assert source.finals == 1
    assert stream.stats.ended


# --- what cannot be released ---


class Deaf:
    """A source that waits on a queue, which nothing but the queue can end."""

    def __init__(self, *chunks: Any) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()
        for chunk in chunks:
            self.queue.put(chunk)
        self.pulls = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.pulls += 1
        chunk = self.queue.get()
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk


def pulled(source: Deaf, times: int) -> None:
    """Waits until the source was pulled from so often."""
    limit = threading.Event()
    for _ in range(3000):
        if source.pulls >= times:
            break
        limit.wait(0.01)
    assert source.pulls >= times
    limit.wait(0.05)


@pytest.mark.parametrize("comes", ["late", OSError("late"), StopIteration()], ids=repr)
@pytest.mark.parametrize("abort", [None, "nothing", "raises"])
def test_what_nothing_releases_is_unresponsive(comes, abort, caplog):
    """S9: reported once, never called stopped; the cause is raised when it comes back by itself."""

    def raises() -> None:
        raise ValueError("no socket")

    record = Recorder()
    source = Deaf("a")
    with ManualClock() as clock:
        how = {"nothing": lambda: None, "raises": raises}.get(abort)
        stream = guard_sync(source, abort=how, on_event=record, idle=1)
        consumer = Background(stream)
        pulled(source, 2)
        with caplog.at_level(logging.ERROR, "stallwatch"):
            clock.advance(100)

        assert [event.what for event in record.of(Unresponsive)] == ["stream"]
        assert len(record.of(StreamStalled)) == 1
        assert ("raised" in caplog.text) == (abort == "raises")
        assert "pending" in repr(stream)
        assert consumer.blocks(0.05)
        source.queue.put(comes)
        if comes == "late" and abort != "nothing":
            # A chunk, and no fragment: nothing was shut down.
            assert consumer.result().chunks == ["a", "late"]
        seen = consumer.result()
        assert type(seen.error) is StreamIdleError


def test_a_deaf_source_whose_answer_completes_late_is_a_success():
    """A source that was reported, and then brings its terminal chunk, has completed."""
    source = Deaf(delta("a"))
    with ManualClock() as clock:
        stream = guard_sync(source, idle=1)
        consumer = Background(stream)
        pulled(source, 2)
        clock.advance(100)
        source.queue.put(STOP)
        seen = consumer.result()

    assert (seen.chunks, seen.error) == ([delta("a"), STOP], None)


# --- close, with, and other threads ---


def test_close_from_another_thread_neither_blocks_nor_claims(stage):
    """`close()` beside a pull that waits releases it; the waiting thread closes, and just ends."""
    source = Blocking(stage, ("a", HANG))
    stream = guard_sync(source, abort=stage.abort, idle=90, budget=500)
    seen = Seen()
    stage.start(lambda: [seen.chunks.append(chunk) for chunk in stream])
    stage.settle()
    stream.close()
    stage.settle()

    assert seen.chunks == ["a"]
    assert (source.releases, source.finals, stage.threads) == (1, 1, 0)
    assert stream.cause is None
    assert not stream.is_complete


@pytest.mark.parametrize("comes", ["late", StopIteration(), None], ids=repr)
def test_close_beside_a_deaf_source_is_reported(comes):
    """`close()` that can release nothing returns at once and says so; a late chunk is dropped."""
    error = OSError("its own")
    record = Recorder()
    source = Deaf("a")
    with ManualClock() as clock:
        stream = guard_sync(source, on_event=record, budget=500)
        consumer = Background(stream)
        pulled(source, 2)
        stream.close()
        assert [event.what for event in record.of(Unresponsive)] == ["stream"]
        assert consumer.blocks(0.05)
        source.queue.put(error if comes is None else comes)
        seen = consumer.result()
        clock.advance(1000)
        assert len(record.events) == 2
        assert wheel_stats().armed == 0

    assert seen.chunks == ["a"]
    assert seen.error is (error if comes is None else None)


def test_a_second_pull_beside_a_pending_one_is_refused():
    """Two threads cannot pull at once; the first is not disturbed."""
    source = Deaf("a")
    stream = guard_sync(source)
    consumer = Background(stream)
    pulled(source, 2)
    with pytest.raises(RuntimeError, match="already being pulled"):
        next(stream)
    source.queue.put(StopIteration())

    assert consumer.result().chunks == ["a"]


class Manager:
    """A context manager that yields a source."""

    def __init__(self, source: Any, *, swallow: bool = False) -> None:
        self.source = source
        self.swallow = swallow
        self.log: list[Any] = []

    def __enter__(self) -> Any:
        self.log.append("enter")
        if isinstance(self.source, BaseException):
            raise self.source
        return self.source

    def __exit__(self, kind: Any, *_: Any) -> bool:
        self.log.append(kind and kind.__name__)
        return self.swallow


def test_a_context_manager_is_entered_and_left():
    """`with guard_sync(manager)` enters and leaves what it guards, once, and passes errors on."""
    manager = Manager(["a", "b"])
    with guard_sync(manager) as stream:
        assert list(stream) == ["a", "b"]
    assert manager.log == ["enter", None]

    manager = Manager(["a", "b"], swallow=True)
    with guard_sync(manager) as stream:
        next(stream)
        raise LookupError
    assert manager.log == ["enter", "LookupError"]


def test_a_context_manager_is_entered_by_the_first_pull(stage):
    """Without `with`, the first pull enters it, and the cut leaves it."""
    manager = Manager(Blocking(stage, ("a", HANG)))
    seen = play_sync(stage, guard_sync(manager, abort=stage.abort, idle=1))

    assert type(seen.error) is StreamIdleError
    assert manager.log == ["enter", None]


def test_a_manager_that_cannot_be_entered_is_not_left():
    """An error of `__enter__` is the caller's, as it is; nothing is left that was not entered."""
    for enter in (next, lambda stream: stream.__enter__()):
        error = OSError("refused")
        manager = Manager(error)
        stream = guard_sync(manager, budget=100)
        with pytest.raises(OSError) as caught:
            enter(stream)
        stream.close()

        assert caught.value is error
        assert manager.log == ["enter"]
        assert list(stream) == []


def test_a_manager_of_something_else_is_left_at_once():
    """What a manager yields has to be iterable; else it is left, and the error says what to do."""
    manager = Manager(object())
    with pytest.raises(TypeError, match="not iterable"):
        guard_sync(manager).__enter__()

    assert manager.log == ["enter", "TypeError"]


def test_leaving_early_closes_the_source():
    """`with` closes a generator that was not read to its end."""
    closed = []

    def source():
        try:
            yield "a"
            yield "b"
        finally:
            closed.append(True)

    with guard_sync(source()) as stream:
        next(stream)
    assert closed == [True]
    assert list(stream) == []


def test_errors_of_closing_come_after_all_is_closed():
    """On `close()` an error of the source reaches the caller, and the manager is left."""

    class Bad(list):
        def close(self) -> None:
            raise OSError("cannot")

    manager = Manager(Bad("ab"))
    stream = guard_sync(manager)
    next(stream)
    with pytest.raises(OSError, match="cannot"):
        stream.close()

    assert manager.log == ["enter", None]


def test_attributes_pass_through():
    """What the guard does not define is the stream's."""

    class Stream(list):
        response = "the response"
        headers = {"a": "b"}

        def parse(self) -> str:
            return "parsed"

    stream = guard_sync(Stream("ab"), name="answer")

    assert (stream.response, stream.headers, stream.parse()) == (
        "the response",
        {"a": "b"},
        "parsed",
    )
    assert stream.name == "answer"
    assert "answer" in repr(stream)
    with pytest.raises(AttributeError):
        _ = stream.nothing


def test_text_and_stats_while_it_runs(stage):
    """`text` and `stats` can be read from another thread at any time."""
    stream = guarded(stage, 0.5, "a", 2, "b", HANG, idle=5)
    stage.start(lambda: play_none(stream))
    stage.advance(3)

    assert stream.text == "ab"
    stats = stream.stats
    assert (stats.chunks, stats.progress_chunks, stats.text, stats.ended) == (2, 2, 2, False)
    assert (stats.time_to_first_chunk, stats.largest_gap) == (near(0.5), near(2))
    assert (stats.elapsed, stats.last_chunk) == (near(3), near(0.5))


def play_none(stream: Any) -> None:
    """Reads a stream, and ignores how it ends."""
    try:
        for _ in stream:
            pass
    except Exception:
        return


def test_text_read_beside_the_consumer_loses_nothing():
    """Reading `text` from other threads all the time neither loses nor reorders a word."""
    words = [f"{number} " for number in range(20_000)]
    stream = guard_sync(iter(words))
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            text = stream.text
            assert "".join(words[: text.count(" ")]) == text

    readers = [Background(iter(read, None)) for _ in range(2)]
    for _ in stream:
        pass
    stop.set()
    del readers

    assert stream.text == "".join(words)


# --- events ---


def test_an_on_event_that_raises_stops_nothing(stage, caplog):
    """A callable that raises is logged; the cut and the cause are the same."""

    def bad(event: Any) -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR, "stallwatch"):
        seen = play_sync(stage, guarded(stage, "a", HANG, idle=1, on_event=bad))
    assert type(seen.error) is StreamIdleError
    assert "broken" in caplog.text


@pytest.mark.slow
def test_a_callable_that_ends_its_thread_ends_no_clock():
    """It is called on a thread for callables, so the watcher's thread goes on."""
    # Headroom: the consumer comes back at all.
    threads: list[tuple[str, str]] = []

    def on_event(event: Any) -> None:
        threads.append((event.event, threading.current_thread().name))
        if event.event != "first_chunk":
            raise SystemExit

    released = threading.Event()

    def source():
        yield "a"
        released.wait(30)
        raise Released

    stream = guard_sync(source(), idle=0.2, abort=released.set, on_event=on_event)
    consumer = Background(stream)
    seen = consumer.result()

    assert type(seen.error) is StreamIdleError
    names = [pair for pair in threads if pair[0] != "observer_stalled"]
    assert [name for name, _ in names] == ["first_chunk", "stream_slow", "stream_stalled"]
    assert {thread for _, thread in names} == {"stallwatch events"}


@pytest.mark.slow
def test_a_callable_that_blocks_holds_up_no_other_stream():
    """While one hangs at its first warning, its own stream and others are cut on time.

    Limits 0.4 s; headroom 2 s, and the callable blocks for 20.
    """
    let_go, started = threading.Event(), time.monotonic()

    def hang(event: Any) -> None:
        if event.event == "stream_slow":
            let_go.wait(20)

    def source(released: threading.Event):
        yield "a"
        released.wait(30)
        raise Released

    gates = [threading.Event() for _ in range(3)]
    consumers = [
        Background(guard_sync(source(gate), idle=0.4, abort=gate.set, on_event=hang))
        for gate in gates
    ]
    seen = [consumer.result() for consumer in consumers]
    took = time.monotonic() - started
    let_go.set()

    assert [type(one.error) for one in seen] == [StreamIdleError] * 3
    assert took < 2.4


# --- many, and after ---


@pytest.mark.slow
def test_fifty_guards_in_fifty_threads():
    """Fifty blocked readers are all cut, each with its own cause and text, in about one limit."""
    # Headroom: 1.5 s.
    gates = [threading.Event() for _ in range(50)]

    def source(number: int):
        yield str(number)
        gates[number].wait(30)
        raise Released

    before = wheel_stats().armed
    streams = [guard_sync(source(n), idle=0.5, abort=gates[n].set) for n in range(50)]
    consumers = [Background(stream) for stream in streams]
    for number, consumer in enumerate(consumers):
        seen = consumer.result()
        assert type(seen.error) is StreamIdleError
        assert seen.error.partial == str(number)
        assert 0.5 <= seen.ended_at < 2.0
    assert wheel_stats().armed == before


@pytest.mark.parametrize("how", ["end", "cut", "error", "early", "close"])
def test_nothing_stays_armed_and_nothing_is_kept(stage, how):
    """Whichever way it ends, no timer is armed and the guard goes without the garbage collector."""
    before = wheel_stats().armed
    last = {"cut": HANG, "error": OSError()}.get(how, "b")
    source = Blocking(stage, ("a", 0.1, last))
    stream = guard_sync(source, abort=stage.abort, idle=1, budget=50)
    seen, holder = Seen(), [stream]

    def consume() -> None:
        try:
            for _ in holder[0]:
                if how in ("early", "close"):
                    break
        except (OSError, StreamIdleError) as error:
            seen.error = error.with_traceback(None)

    if how == "early":
        with stream:
            consume()
    else:
        stage.start(consume)
        stage.advance(5)
    if how == "close":
        stream.close()
    if how != "error":
        assert wheel_stats().armed == before
    gone = weakref.ref(stream)
    holder.clear()
    gc.disable()
    try:
        seen.error = None
        del stream
        assert gone() is None
        assert wheel_stats().armed == before
    finally:
        gc.enable()


def test_memory_of_many_chunks_is_what_their_text_takes():
    """A hundred thousand empty waits leave nothing behind but the counts."""
    import tracemalloc

    stream = guard_sync("" for _ in range(120_000))
    for _ in range(20_000):
        next(stream)
    tracemalloc.start()
    try:
        for _ in stream:
            pass
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert stream.stats.chunks == 120_000
    assert grown < 200_000


def test_races_between_chunks_and_fires_lose_no_chunk():
    """Real time, chunks right at the limit, many times over: all chunks in order, or a cause."""
    # No timed claim: whatever wins, the account has to be right.
    for round_number in range(30):
        source: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def read(source: queue.SimpleQueue[Any] = source):
            while (chunk := source.get()) is not None:
                yield chunk

        record = Recorder()
        stream = guard_sync(read(), idle=0.01, warn=None, on_event=record, abort=lambda: None)
        consumer = Background(stream)
        pace = threading.Event()
        for number in range(5):
            source.put(f"{number} ")
            pace.wait(0.0095 + round_number * 0.00003)
        source.put(None)
        seen = consumer.result()

        assert seen.chunks == [f"{number} " for number in range(len(seen.chunks))]
        assert (seen.error is not None) == bool(record.of(StreamStalled))
        if seen.error is None:
            assert len(seen.chunks) == 5
        else:
            assert type(seen.error) is StreamIdleError
            assert seen.error.partial.startswith("".join(seen.chunks))


def test_a_guard_of_asyncs_thread_has_its_own_clock():
    """Used in a thread of an event loop's pool, it takes nothing from the loop."""

    async def main() -> list[str]:
        return await asyncio.to_thread(lambda: list(guard_sync(["a", "b"], idle=1)))

    assert asyncio.run(main()) == ["a", "b"]
