"""The four clocks of `guard`, table by table, on the manual clock; then what else users see."""

import asyncio
import contextlib
import contextvars
import logging
from datetime import timedelta
from typing import Any

import pytest

from guard_tools import (
    HANG,
    Recorder,
    Seen,
    consume,
    guard,
    on_manual_clock,
    only,
    play,
    run,
    script,
)
from stallwatch._causes import (
    FirstChunkError,
    StreamBudgetError,
    StreamIdleError,
    StreamProgressError,
)
from stallwatch._events import (
    FirstChunk,
    StreamSlow,
    StreamStalled,
    StreamTruncated,
    UnboundedWait,
)
from stallwatch._limits import Limits
from stallwatch._turn import Turn

PING = {"type": "ping"}
"""An Anthropic ping: a chunk, and no progress."""

STOP = {"type": "message_stop"}
"""The end of an Anthropic stream."""

near = pytest.approx


def delta(text: str) -> dict[str, Any]:
    """An Anthropic text delta."""
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }


# --- first_chunk ---


@pytest.mark.parametrize("limit", [0.25, 5, 300.0, 86_400, timedelta(seconds=7)])
@on_manual_clock
async def test_first_chunk_fires_at_its_limit(clock, limit):
    """A source that never starts is cut `first_chunk` seconds after the first pull, no sooner."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    source = script(HANG)
    seen = await play(clock, guard(source, **only("first_chunk", limit)), upto=seconds * 2)

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(seconds)
    assert (seen.error.idle, seen.error.limit) == (near(seconds), seconds)
    assert (seen.error.partial, seen.error.text_received) == ("", False)
    assert (source.cancels, source.finals, seen.cancelling) == (1, 1, 0)


@on_manual_clock
async def test_first_chunk_default_is_300(clock):
    """Without arguments the first wait ends after 300 s."""
    seen = await play(clock, guard(script(HANG)))

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(300)


@on_manual_clock
async def test_first_chunk_runs_from_the_first_pull(clock):
    """Time between construction and the first pull is the consumer's."""
    guarded = guard(script(HANG), first_chunk=5)
    await clock.advance(100)
    seen = await play(clock, guarded, upto=100)

    assert seen.ended_at == near(5)


@on_manual_clock
async def test_first_chunk_is_not_reset_by_chunks_without_progress(clock):
    """Pings before the answer neither disarm nor reset `first_chunk`, nor does `touch()`."""
    source = script(*[1, PING] * 20, delta("late"))
    guarded = guard(source, **only("first_chunk", 4.5))
    source.steps = (*source.steps[:2], guarded.touch, *source.steps[2:])
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(4.5)
    assert seen.chunks == [PING] * 4
    assert seen.error.since_chunk == near(0.5)
    assert seen.error.since_progress is None


@on_manual_clock
async def test_first_chunk_does_not_count_the_consumers_time(clock):
    """A consumer that takes its time with pings does not use up `first_chunk`."""
    source = script(1, PING, 1, PING, 1, delta("a"))
    seen = await play(clock, guard(source, **only("first_chunk", 4)), upto=1000, pause=50)

    assert seen.error is None
    assert seen.chunks[-1] == delta("a")


@on_manual_clock
async def test_first_chunk_is_disarmed_once(clock):
    """After the first progress no later silence is its business."""
    source = script(0.5, "a", 100, "b", 100, PING, 100, "c")
    seen = await play(clock, guard(source, **only("first_chunk", 1)), upto=1000)

    assert seen.error is None
    assert seen.chunks == ["a", "b", PING, "c"]


@pytest.mark.parametrize("first", [{"first_chunk": 1.5}, {"first_chunk": None, "budget": 3}])
@on_manual_clock
async def test_idle_never_bounds_the_first_wait(clock, first):
    """A slow start passes under a small `idle`, without a warning (case 09)."""
    record = Recorder()
    source = script(0.8, *["x", 0.05] * 10)
    seen = await play(clock, guard(source, idle=0.2, on_event=record, **first), upto=100)

    assert seen.error is None
    assert seen.chunks == ["x"] * 10
    assert record.names == ["first_chunk"]


# --- idle ---


@pytest.mark.parametrize("limit", [0.3, 5, 90.0, 3600])
@on_manual_clock
async def test_idle_fires_at_its_limit(clock, limit):
    """A silence after the first chunk is cut after `idle` seconds, with the text so far."""
    source = script(0.1, "ab", 0.1, "c", HANG)
    seen = await play(clock, guard(source, **only("idle", limit)), upto=limit * 3)

    assert type(seen.error) is StreamIdleError
    assert seen.ended_at == near(0.2 + limit)
    assert (seen.error.idle, seen.error.limit) == (near(limit), limit)
    assert (seen.error.partial, seen.error.text_received) == ("abc", True)
    assert (seen.error.since_chunk, seen.error.since_progress) == (near(limit), near(limit))
    assert (source.cancels, source.finals, seen.cancelling) == (1, 1, 0)


@pytest.mark.parametrize("kind", ["x", "", PING, b"", ("tuple",), None])
@on_manual_clock
async def test_idle_is_reset_by_every_chunk(clock, kind):
    """Any chunk proves the transport alive, whether it is progress or not."""
    source = script("a", *[0.9, kind] * 30, "z")
    seen = await play(clock, guard(source, **only("idle", 1)), upto=100)

    assert seen.error is None
    assert seen.chunks[-1] == "z"


@on_manual_clock
async def test_idle_is_reset_by_touch(clock):
    """A caller that sees pings the guard cannot see reports them (case 06)."""
    source = script()
    guarded = guard(source, **only("idle", 0.3))
    source.steps = ("a", *[0.1, guarded.touch] * 10, "text", HANG)
    seen = await play(clock, guarded, upto=100)

    assert seen.chunks == ["a", "text"]
    assert seen.ended_at == near(1.3)
    assert seen.error.since_chunk == near(0.3)


@on_manual_clock
async def test_idle_does_not_count_the_consumers_time(clock):
    """A slow consumer is not a silent producer (S8)."""
    source = script(0.1, "a", 0.1, "b", 0.1, "c", HANG)
    record = Recorder()
    seen = await play(clock, guard(source, idle=1, on_event=record), upto=100, pause=3)

    assert seen.chunks == ["a", "b", "c"]
    assert seen.ended_at == near(0.3 + 9 + 1)
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]


@on_manual_clock
async def test_a_touch_between_pulls_changes_nothing(clock):
    """With no pull pending there is no silence to reset."""
    source = script("a", HANG)
    guarded = guard(source, **only("idle", 1))
    iterator = aiter(guarded)
    assert await anext(iterator) == "a"
    await clock.advance(50)
    guarded.touch()
    seen = await play(clock, guarded, upto=10)

    assert seen.ended_at == near(1)


# --- progress_idle ---


@pytest.mark.parametrize("limit", [0.3, 5, 300.0, 3600])
@on_manual_clock
async def test_progress_idle_fires_at_its_limit(clock, limit):
    """Pings for ever are cut `progress_idle` seconds after the last progress (S7)."""
    every = limit / 7.5
    source = script(0.1, delta("ab"), *[every, PING] * 50)
    seen = await play(clock, guard(source, **only("progress_idle", limit)), upto=limit * 3)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(0.1 + limit)
    assert (seen.error.idle, seen.error.limit) == (near(limit), limit)
    assert seen.error.since_chunk == near(limit / 15)
    assert seen.error.since_progress == near(limit)
    assert seen.error.partial == "ab"
    assert (source.cancels, source.finals, seen.cancelling) == (1, 1, 0)


@on_manual_clock
async def test_progress_idle_is_not_reset_by_touch(clock):
    """A sign of life is no progress."""
    source = script()
    guarded = guard(source, **only("progress_idle", 1.05))
    source.steps = ("a", *[0.1, guarded.touch] * 100)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(1.05)


@on_manual_clock
async def test_progress_idle_does_not_count_the_consumers_time(clock):
    """Only pending time adds up between two chunks with progress."""
    source = script("a", *[0.1, PING] * 9, 0.05, "b", HANG)
    seen = await play(clock, guard(source, **only("progress_idle", 1)), upto=1000, pause=20)

    assert seen.chunks[-1] == "b"
    assert seen.ended_at == near(0.95 + 11 * 20 + 1)


@on_manual_clock
async def test_progress_idle_may_be_below_idle(clock):
    """`progress_idle` below `idle` is legal, and cuts a pure silence first."""
    seen = await play(clock, guard(script("a", HANG), idle=10, progress_idle=2), upto=100)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(2)


@on_manual_clock
async def test_is_progress_of_the_caller_decides(clock):
    """A given `is_progress` replaces the known kinds."""
    source = script(0, "yes", *[0.1, "no"] * 100)
    guarded = guard(source, is_progress=lambda chunk: chunk == "yes", **only("progress_idle", 0.95))
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is StreamProgressError
    assert seen.ended_at == near(0.95)


# --- budget ---


@pytest.mark.parametrize("limit", [0.35, 5, 300.0, 3600])
@on_manual_clock
async def test_budget_fires_at_its_limit(clock, limit):
    """A lively answer longer than `budget` is cut there, whatever comes."""
    source = script(*[limit / 20, "x"] * 50)
    guarded = guard(source, **only("budget", limit * 1.01))
    source.steps = (*source.steps[:8], guarded.touch, *source.steps[8:])
    seen = await play(clock, guarded, upto=limit * 3)

    assert type(seen.error) is StreamBudgetError
    assert seen.ended_at == near(limit * 1.01)
    assert (seen.error.idle, seen.error.limit) == (near(limit * 1.01), limit * 1.01)
    assert seen.error.partial == "x" * 20
    assert (source.cancels, source.finals, seen.cancelling) == (1, 1, 0)


@on_manual_clock
async def test_budget_bounds_the_first_wait_too(clock):
    """With every other clock off, `budget` alone ends a wait for a first chunk."""
    record = Recorder()
    seen = await play(clock, guard(script(HANG), **only("budget", 3, on_event=record)), upto=100)

    assert type(seen.error) is StreamBudgetError
    assert seen.ended_at == near(3)
    assert record.names == ["stream_stalled"]


@on_manual_clock
async def test_budget_counts_the_consumers_time(clock):
    """The budget runs between pulls too; used up there, the next pull is refused."""
    record = Recorder()
    source = script(*["x"] * 50)
    guarded = guard(source, **only("budget", 10.5, on_event=record))
    seen = await play(clock, guarded, upto=1000, pause=3)

    assert type(seen.error) is StreamBudgetError
    assert seen.chunks == ["x"] * 4
    assert seen.ended_at == near(12)
    assert record.of(StreamStalled)[0].at == near(1_000_010.5)
    assert source.closes == source.finals == 1


@on_manual_clock
async def test_budget_starts_with_the_first_pull(clock):
    """Time before the first pull is not charged."""
    guarded = guard(script(*[1, "x"] * 50), **only("budget", 10.5))
    await clock.advance(1000)
    seen = await play(clock, guarded, upto=100)

    assert seen.ended_at == near(10.5)


@on_manual_clock
async def test_budget_cuts_a_source_that_never_lets_the_loop_run(clock):
    """Chunks that are always ready keep the loop busy: the next pull looks at the budget itself."""
    clock_step = [0]

    def busy() -> None:
        clock_step[0] += 1
        clock._step(clock.time() + 1)

    source = script(*[busy, "x"] * 50)
    guarded = guard(source, **only("budget", 5.5))
    seen = Seen()
    await consume(guarded, seen=seen, clock=clock)

    assert type(seen.error) is StreamBudgetError
    assert len(seen.chunks) < 10


# --- each clock by itself, and none ---


@pytest.mark.parametrize(
    ("clock_name", "limit"),
    [("first_chunk", 2), ("idle", 2), ("progress_idle", 2), ("budget", 100)],
)
@on_manual_clock
async def test_a_healthy_slow_stream_passes(clock, clock_name, limit):
    """40 chunks a second apart are no stall for any clock (case 02)."""
    record = Recorder()
    guarded = guard(script(*[1, "x"] * 40), **only(clock_name, limit, on_event=record, warn=None))
    seen = await play(clock, guarded, upto=1000)

    assert seen.error is None
    assert seen.chunks == ["x"] * 40
    assert seen.ended_at == near(40)
    assert set(record.names) <= {"first_chunk", "unbounded_wait"}
    assert guarded.text == "x" * 40


@on_manual_clock
async def test_a_stream_longer_than_idle_is_not_cut(clock):
    """`idle` only measures silence: collected in one go there is no warning either (case 02)."""
    record = Recorder()
    guarded = guard(script(*[0.05, "x"] * 40), idle=0.3, on_event=record)

    async def collect() -> list[str]:
        return [chunk async for chunk in guarded]

    task = asyncio.create_task(collect())
    await clock.advance(10)

    assert await task == ["x"] * 40
    assert record.names == ["first_chunk"]


@on_manual_clock
async def test_everything_off_waits_for_ever(clock):
    """With every clock off nothing is cut, and the unbounded wait is said once."""
    record = Recorder()
    off = {"first_chunk": None, "idle": None, "progress_idle": None}
    seen = await play(clock, guard(script("a", "b", HANG), on_event=record, **off), upto=1e6)

    assert seen.waits
    assert record.names == ["unbounded_wait", "first_chunk"]


@on_manual_clock
async def test_inf_is_off(clock):
    """`inf` is the same as None."""
    inf = float("inf")
    guarded = guard(script("a", HANG), first_chunk=inf, idle=inf, progress_idle=inf, budget=inf)
    seen = await play(clock, guarded, upto=1e6)

    assert seen.waits


@on_manual_clock
async def test_a_huge_limit_saturates(clock):
    """A limit of 1e308 s is far away, and no overflow."""
    guarded = guard(script("a", HANG), first_chunk=1e308, idle=1e308, progress_idle=1e308)
    seen = await play(clock, guarded, upto=1e6)

    assert seen.waits


@on_manual_clock
async def test_the_clock_that_ran_out_first_is_named(clock):
    """Of several clocks the earliest gives the cause."""
    limits = {"first_chunk": 10, "idle": 7, "progress_idle": 9, "budget": 11}
    silent = await play(clock, guard(script(1, "a", HANG), **limits), upto=100)
    pings = await play(clock, guard(script(1, delta("a"), *[1, PING] * 99), **limits), upto=100)
    lively = await play(clock, guard(script(*[1, "x"] * 99), **limits), upto=100)

    assert (type(silent.error), silent.ended_at) == (StreamIdleError, near(8))
    assert (type(pings.error), pings.ended_at) == (StreamProgressError, near(10))
    assert (type(lively.error), lively.ended_at) == (StreamBudgetError, near(11))


# --- warnings ---


@pytest.mark.parametrize(("warn", "at"), [(0.5, [0.5]), (0.25, [0.25]), (1.0, []), (None, [])])
@on_manual_clock
async def test_one_warning_a_silence(clock, warn, at):
    """At `warn * idle` one `StreamSlow`, and the pull goes on untouched (case 22)."""
    record = Recorder()
    source = script("a", 0.7, "b", "c")
    seen = await play(clock, guard(source, idle=1.0, warn=warn, on_event=record), upto=100)

    assert seen.chunks == ["a", "b", "c"]
    assert [event.idle for event in record.of(StreamSlow)] == [near(moment) for moment in at]
    assert (source.cancels, source.closes, source.finals) == (0, 0, 1)


@on_manual_clock
async def test_each_silence_is_warned_about_anew(clock):
    """Three silences beyond half of `idle` give three warnings."""
    record = Recorder()
    source = script("a", 0.7, "b", 0.2, "c", 0.7, PING, 0.7, "d")
    seen = await play(clock, guard(source, idle=1.0, on_event=record), upto=100)

    assert seen.error is None
    assert len(record.of(StreamSlow)) == 3
    assert {event.clock for event in record.of(StreamSlow)} == {"idle"}


@on_manual_clock
async def test_the_warning_says_which_clock_is_late(clock):
    """While only pings come it is `progress_idle` that is late, and the warning says so once."""
    record = Recorder()
    source = script(delta("a"), *[0.1, PING] * 100)
    guarded = guard(source, idle=5, progress_idle=1.05, on_event=record)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is StreamProgressError
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]
    (slow,) = record.of(StreamSlow)
    assert (slow.clock, slow.limit) == ("progress_idle", 1.05)
    assert slow.idle == near(0.525, abs=0.11)


# --- events ---


@on_manual_clock
async def test_events_in_order_with_their_fields(clock):
    """A stall reports first chunk, warning and stall, each with its measurements."""
    record = Recorder()
    source = script(0.25, "a", HANG)
    await play(clock, guard(source, idle=2, name="answer", on_event=record), upto=100)

    first, slow, stalled = record.events
    assert type(first) is FirstChunk
    assert (first.stream, first.elapsed, first.turn) == ("answer", near(0.25), None)
    assert type(slow) is StreamSlow
    assert (slow.stream, slow.clock, slow.idle, slow.limit) == ("answer", "idle", near(1), 2)
    assert type(stalled) is StreamStalled
    assert (stalled.stream, stalled.clock, stalled.cause) == ("answer", "idle", "stream_idle")
    assert (stalled.idle, stalled.limit, stalled.lateness) == (near(2), 2, near(0, abs=1e-6))
    assert (stalled.since_chunk, stalled.since_progress) == (near(2), near(2))
    assert stalled.would_have_fired is False
    assert [e.at for e in record.events] == [near(1_000_000 + t) for t in (0.25, 1.25, 2.25)]


@on_manual_clock
async def test_on_event_that_raises_stops_nothing(clock, caplog):
    """A callable that raises is logged; the others and the clocks go on."""
    record = Recorder()

    def broken(event):
        raise LookupError("mine")

    guarded = guard(script("a", HANG), idle=2, on_event=[broken, record])
    with caplog.at_level(logging.ERROR, "stallwatch"):
        seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is StreamIdleError
    assert record.names == ["first_chunk", "stream_slow", "stream_stalled"]
    assert len(caplog.records) == 3


@on_manual_clock
async def test_without_listeners_the_loud_events_are_logged(clock, caplog):
    """Stalls and warnings reach the `stallwatch` logger when nobody listens."""
    with caplog.at_level(logging.WARNING, "stallwatch"):
        await play(clock, guard(script("a", HANG), idle=2), upto=100)

    assert [r.getMessage().split()[0] for r in caplog.records] == ["stream_slow", "stream_stalled"]


@pytest.mark.parametrize("chunk", [None, PING])
@on_manual_clock
async def test_unbounded_wait_is_said_once(clock, chunk):
    """`first_chunk=None` without a budget is said at the first pull, once a stream."""
    record = Recorder()
    source = script(5, *([chunk] if chunk else []), 5, "a", 1, STOP)
    guarded = guard(source, first_chunk=None, on_event=record, name="n")
    await play(clock, guarded, upto=100)

    assert record.names == ["unbounded_wait", "first_chunk"]
    assert record.of(UnboundedWait)[0].stream == "n"


@on_manual_clock
async def test_a_bounded_first_wait_says_nothing(clock):
    """With a budget the first wait is bounded."""
    record = Recorder()
    await play(clock, guard(script("a"), first_chunk=None, budget=9, on_event=record), upto=100)

    assert record.names == ["first_chunk"]


@pytest.mark.parametrize(
    ("steps", "limits", "clocks"),
    [
        ((9, "a"), {"first_chunk": 2}, ["first_chunk"]),
        (("a", 9, "b"), {"stream_idle": 4}, ["idle", "idle"]),
        ((delta("a"), *[1, PING] * 10, delta("b")), {"progress_idle": 4.25}, ["progress_idle"] * 2),
        (tuple([1, "x"] * 9), {"stream_budget": 4.5}, ["budget"]),
    ],
)
@on_manual_clock
async def test_observe_only_reports_and_cuts_nothing(clock, steps, limits, clocks):
    """Each clock that would have fired says so, and the stream goes through whole."""
    record = Recorder()
    off = {"first_chunk": None, "stream_idle": None, "progress_idle": None, "warn": None}
    limit = Limits(**{**off, **limits}, soft_idle=None, hard_idle=None, observe_only=True)
    source = script(*steps)
    async with Turn(limit, on_event=record) as turn:
        seen = await play(clock, turn.stream(source), upto=100)

    assert seen.error is None
    assert seen.chunks == [chunk for chunk in steps if not isinstance(chunk, (int, float))]
    stalls = record.of(StreamStalled)
    assert [event.clock for event in stalls] == clocks
    assert all(event.would_have_fired for event in stalls)
    assert source.cancels == 0


# --- the end ---


@pytest.mark.parametrize("idle", [0.2, 90, None])
@on_manual_clock
async def test_a_terminal_chunk_ends_it_although_the_source_lingers(clock, idle):
    """After the terminal chunk the source gets `min(idle, 1 s)`; then it is a success (S3)."""
    record = Recorder()
    source = script(delta("a"), STOP, HANG)
    guarded = guard(source, idle=idle, on_event=record)
    seen = await play(clock, guarded, upto=100)

    assert seen.error is None
    assert seen.ended_at == near(min(idle or 1, 1))
    assert seen.cancelling == 0
    assert record.names == ["first_chunk"]
    assert source.finals == 1
    assert guarded.stats.terminal
    assert guarded.is_complete
    assert guarded.cause is None


@on_manual_clock
async def test_a_source_that_ends_after_its_terminal_chunk_is_left_alone(clock):
    """What follows the terminal chunk in time is delivered, and the source ends by itself."""
    source = script("a", "END", 0.5, "usage", 0.5)
    guarded = guard(source, is_terminal=lambda chunk: chunk == "END", budget=0.7, idle=0.6)
    seen = await play(clock, guarded, upto=100)

    assert seen.error is None
    assert seen.chunks == ["a", "END", "usage"]
    assert (source.cancels, source.finals) == (0, 1)


@pytest.mark.parametrize("steps", [(delta("a"),), ()])
@on_manual_clock
async def test_an_end_without_the_terminal_event_is_reported(clock, steps):
    """A known stream that ends without its end event is `StreamTruncated`, not an error."""
    record = Recorder()
    guarded = guard(script(0.1, PING, *steps), on_event=record)
    seen = await play(clock, guarded, upto=100)

    assert seen.error is None
    (event,) = record.of(StreamTruncated)
    assert event.chunks == 1 + len(steps)
    assert not guarded.stats.terminal
    assert guarded.stats.ended
    assert not guarded.is_complete


@on_manual_clock
async def test_a_stream_without_end_events_is_not_truncated(clock):
    """Plain text has no end event to miss."""
    record = Recorder()
    guarded = guard(script("a", "b"), on_event=record)
    await play(clock, guarded, upto=100)

    assert record.names == ["first_chunk"]
    assert guarded.is_complete


@on_manual_clock
async def test_nothing_follows_the_end(clock):
    """Pulls after the end, the cut or the close give StopAsyncIteration, again and again."""
    ended, cut, closed = (guard(script("a", *more), idle=1) for more in ([], [HANG], [HANG]))
    await play(clock, ended, upto=10)
    await play(clock, cut, upto=10)
    assert await anext(closed) == "a"
    await closed.aclose()

    for guarded in (ended, cut, closed):
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await anext(guarded)
        assert [chunk async for chunk in guarded] == []


# --- stats ---


@on_manual_clock
async def test_stats(clock):
    """Counts, gaps and ages are those of the script, and the consumer's time is not a gap."""
    source = script(2, PING, 1, delta("ab"), 4, PING, 0.5, delta("c"), 6, STOP)
    guarded = guard(source)
    assert guarded.stats.chunks == 0
    assert guarded.stats.time_to_first_chunk is None
    assert guarded.stats.elapsed == 0
    await play(clock, guarded, upto=100, pause=10)

    stats = guarded.stats
    assert (stats.chunks, stats.progress_chunks, stats.text) == (5, 2, 3)
    assert stats.time_to_first_chunk == near(13)
    assert stats.largest_gap == near(6)
    assert stats.elapsed == near(63.5)
    assert (stats.terminal, stats.ended) == (True, True)
    assert stats.last_chunk == near(10)
    assert stats.last_progress == near(26)
    assert stats.to_dict()["chunks"] == 5


@on_manual_clock
async def test_stats_while_it_runs(clock):
    """The ages grow while the consumer waits."""
    guarded = guard(script(1, delta("a"), 1, PING, HANG))
    task = asyncio.create_task(consume(guarded))
    await clock.advance(10)

    stats = guarded.stats
    assert (stats.last_chunk, stats.last_progress, stats.elapsed) == (near(8), near(9), near(10))
    assert not stats.ended
    task.cancel()
    await task


# --- passing through ---


class Response:
    """A stream with things of its own, and `close` alone."""

    response = "the response"
    headers = {"x": "1"}

    def __init__(self, source):
        self.source = source
        self.calls = []

    def __aiter__(self):
        return aiter(self.source)

    async def close(self):
        self.calls.append("close")

    def parse(self):
        return "parsed"


def test_attributes_of_the_stream_pass_through():
    """What the guard does not define is the stream's own; what nobody has is an AttributeError."""

    async def main():
        stream = Response(script("a"))
        guarded = guard(stream)
        assert guarded.response == "the response"
        assert guarded.headers == {"x": "1"}
        assert guarded.parse() == "parsed"
        with pytest.raises(AttributeError):
            _ = guarded.nothing_like_it
        with pytest.raises(AttributeError):
            _ = guarded._private

    run(main)


@pytest.mark.parametrize("way", ["close", "aclose", "exit"])
def test_closing_reaches_the_stream_whatever_it_calls_it(way):
    """`close`, `aclose` and leaving the block all close the source, once."""

    async def main():
        source = script("a", HANG)
        stream = Response(source)
        guarded = guard(stream)
        async with guarded as chunks:
            assert await anext(chunks) == "a"
            if way != "exit":
                await getattr(guarded, way)()
        await guarded.aclose()

        assert stream.calls == ["close"]
        assert source.finals == 1

    run(main)


@pytest.mark.parametrize("how", ["break", "raise", "return"])
def test_leaving_the_block_early_closes_the_source(how):
    """`async with guard(...)` closes the source however the loop is left."""

    async def body(source):
        async with guard(source) as chunks:
            async for _ in chunks:
                if how == "break":
                    break
                if how == "return":
                    return
                raise LookupError("mine")

    async def main():
        source = script("a", "b", HANG)
        if how == "raise":
            with pytest.raises(LookupError, match="mine"):
                await body(source)
        else:
            await body(source)

        assert (source.closes, source.finals) == (1, 1)

    run(main)


class Manager:
    """A context manager that yields a stream, as the SDKs' `stream(...)` helpers do."""

    def __init__(self, source, *, before=None, suppress=False):
        self.source = source
        self.before = before
        self.suppress = suppress
        self.log = []

    async def __aenter__(self):
        self.log.append("enter")
        try:
            if self.before is not None:
                await self.before()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        return self.source

    async def __aexit__(self, kind, error, traceback):
        self.log.append(("exit", kind))
        return self.suppress


@pytest.mark.parametrize("entered", [True, False])
def test_a_context_manager_that_yields_a_stream(entered):
    """`guard(manager)` enters it at `async with` or at the first pull, and leaves it once."""

    async def main():
        manager = Manager(script("a", "b"))
        guarded = guard(manager)
        if entered:
            async with guarded as chunks:
                found = [chunk async for chunk in chunks]
        else:
            found = [chunk async for chunk in guarded]
            await guarded.aclose()

        assert found == ["a", "b"]
        assert manager.log == ["enter", ("exit", None)]

    run(main)


@pytest.mark.parametrize("entered", [True, False])
@on_manual_clock
async def test_entering_a_manager_is_bounded_by_first_chunk(clock, entered):
    """A manager that never opens is cut at `first_chunk`, with that cause."""
    record = Recorder()
    manager = Manager(script("a"), before=lambda: asyncio.sleep(1e6))
    guarded = guard(manager, first_chunk=3, on_event=record)

    async def enter() -> None:
        if entered:
            async with guarded:
                pytest.fail("entered")
        await anext(guarded)

    task = asyncio.create_task(enter())
    await clock.advance(100)

    assert type(task.exception()) is FirstChunkError
    assert task.cancelling() == 0
    assert task.exception().idle == near(3)
    assert manager.log == ["enter", "cancelled"]
    assert record.names == ["stream_stalled"]


@on_manual_clock
async def test_a_manager_may_clean_up_when_its_entering_is_cut(clock):
    """What the manager awaits on its way out is waited for, within `close_grace`."""
    done = []

    async def before():
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(2)
            done.append(clock.time())

    guarded = guard(Manager(script("a"), before=before), first_chunk=3)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is FirstChunkError
    assert done == [near(1_000_005)]
    assert seen.ended_at == near(5)
    assert seen.cancelling == 0


@on_manual_clock
async def test_a_manager_that_ignores_its_cancel_is_left_alone(clock):
    """Entering that swallows every cancel ends with the cause, and is called unresponsive."""
    record = Recorder()

    async def before():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e6)

    guarded = guard(Manager(script("a"), before=before), first_chunk=3, on_event=record)
    seen = await play(clock, guarded, upto=100)

    assert type(seen.error) is FirstChunkError
    assert seen.ended_at == near(13)
    assert seen.cancelling == 0
    assert record.names == ["stream_stalled", "unresponsive"]


def test_the_managers_own_error_is_the_callers():
    """What entering raises leaves as the same object, and nothing is reported."""

    async def main():
        record, error = Recorder(), TimeoutError("mine")

        async def before():
            raise error

        with pytest.raises(TimeoutError) as caught:
            async with guard(Manager(script("a"), before=before), on_event=record):
                pytest.fail("entered")

        assert caught.value is error
        assert record.names == []

    run(main)


@pytest.mark.parametrize("suppress", [True, False])
def test_the_manager_sees_the_error_and_may_suppress_it(suppress):
    """`__aexit__` of the manager gets the details, and its verdict counts."""

    async def main():
        manager = Manager(script("a"), suppress=suppress)
        try:
            async with guard(manager):
                raise LookupError("mine")
        except LookupError:
            assert not suppress
        else:
            assert suppress
        assert manager.log == ["enter", ("exit", LookupError)]

    run(main)


# --- arguments ---


@pytest.mark.parametrize("wrong", [[1, 2], iter("ab"), "text", 5, None, object()])
def test_anything_else_is_a_type_error(wrong):
    """A blocking iterable is not silently accepted."""
    with pytest.raises(TypeError, match="guard"):
        guard(wrong)


@pytest.mark.parametrize("name", ["first_chunk", "idle", "progress_idle", "budget"])
@pytest.mark.parametrize("value", [0, -1, 0.0, float("nan"), timedelta(0), float("-inf")])
def test_limits_that_make_no_sense_are_refused(name, value):
    """0, negative and NaN raise when the guard is built, before anything is pulled."""
    source = script("a")
    with pytest.raises(ValueError, match=name):
        guard(source, **{name: value})
    assert source.opened == 0


@pytest.mark.parametrize("value", ["5", True, object(), [1]])
def test_limits_of_another_type_are_refused(value):
    """A limit is a number of seconds or a timedelta."""
    with pytest.raises(TypeError, match="idle"):
        guard(script(), idle=value)


def test_limits_that_contradict_are_refused():
    """Two given limits of which one can never fire are refused; a default gives way instead."""
    for name in ("first_chunk", "idle", "progress_idle"):
        with pytest.raises(ValueError, match="budget"):
            guard(script(), budget=5, **{name: 10})
    guard(script(), budget=5)
    guard(script(), progress_idle=5, idle=50)


# --- the consumer's own task ---


def test_the_pull_runs_in_the_consumers_task_and_context():
    """Context variables set by the source are the consumer's, and its task is the current one."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def main():
        tasks = []

        async def source():
            token = variable.set("source")
            tasks.append(asyncio.current_task())
            yield "a"
            await asyncio.sleep(0.001)
            tasks.append(asyncio.current_task())
            # The classic failure of a pull in a task of its own: the token is of another context.
            variable.reset(token)
            yield "b"

        variable.set("consumer")
        got = [(chunk, variable.get()) async for chunk in guard(source())]

        assert got == [("a", "source"), ("b", "consumer")]
        assert set(tasks) == {asyncio.current_task()}

    run(main)


@on_manual_clock
async def test_the_cut_reaches_the_source_in_the_consumers_task(clock):
    """The cancel, and the clean-up after it, run in the task and context that pulled."""
    where = []

    async def source():
        token = variable.set(1)
        try:
            yield "a"
            await asyncio.sleep(1e6)
        finally:
            variable.reset(token)
            await asyncio.sleep(0)
            where.append(asyncio.current_task())

    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    seen = await play(clock, guard(source(), idle=1), upto=100)

    assert type(seen.error) is StreamIdleError
    assert where == [seen.task]


def test_a_second_pull_at_once_is_an_error():
    """Two tasks cannot pull from one guard at a time; the first is not disturbed."""

    async def main():
        gate = asyncio.Event()
        guarded = guard(script(gate.wait, "a", "b"))
        first = asyncio.create_task(consume(guarded))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already being pulled"):
            await anext(guarded)
        gate.set()

        assert (await first).chunks == ["a", "b"]

    run(main)


def test_a_pull_is_awaited_once():
    """The awaitable of a pull that is over says so."""

    async def main():
        guarded = guard(script("a", "b"))
        pull = guarded.__anext__()
        assert await pull == "a"
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await pull
        assert await anext(guarded) == "b"

    run(main)


def test_callbacks_that_raise_do_not_end_the_stream(monkeypatch):
    """A bug in `is_progress` is shown, and the chunk counts as progress."""
    shown = []
    monkeypatch.setattr("sys.unraisablehook", lambda info: shown.append(info.exc_type))

    async def main():
        guarded = guard(script("a", "b"), is_progress=lambda chunk: 1 / 0)
        assert [chunk async for chunk in guarded] == ["a", "b"]
        assert guarded.stats.progress_chunks == 2

    run(main)
    assert shown == [ZeroDivisionError] * 2


def test_text_of_gives_the_partial_text():
    """A given `text_of` decides what text a chunk carries."""

    async def main():
        guarded = guard(script(0, {"t": "a"}, {"t": None}, {"t": "b"}), text_of=lambda c: c["t"])
        async for _ in guarded:
            pass
        assert guarded.text == "ab"

    run(main)
