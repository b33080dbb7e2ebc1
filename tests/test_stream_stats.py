"""Statistics of guarded streams: gaps by length, shares, and the limits that they suggest."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading

import pytest

from guard_tools import HANG, Recorder, on_manual_clock, play, run, script
from stallwatch import Gaps, StreamStalled, StreamStats, Suggestion, guard, guard_sync
from stallwatch.testing import ManualClock

PING = {"type": "ping"}
STOP = {"type": "message_stop"}


def delta(text: str) -> dict[str, object]:
    """A text fragment of an Anthropic message."""
    return {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}


def near(value: float) -> object:
    """Equal within a microsecond."""
    return pytest.approx(value, abs=1e-6)


# --- what is counted ---


@on_manual_clock
async def test_gaps_are_counted_by_length(clock):
    """p50, p99 and max are those of the silences between chunks, an eighth too high at most."""
    rng = random.Random(4)
    waits = [round(rng.lognormvariate(-2, 1.5), 4) + 0.001 for _ in range(400)]
    guarded = guard(script("a", *[step for wait in waits for step in (wait, "x")]), idle=None)
    await play(clock, guarded)

    gaps = guarded.stats.gaps
    assert gaps.count == 400
    assert gaps.max == near(max(waits)) == guarded.stats.largest_gap
    for q in (0.5, 0.9, 0.99):
        exact = statistics.quantiles(waits, n=1000, method="inclusive")[int(q * 1000) - 1]
        assert exact * 0.98 <= gaps.quantile(q) <= exact * 1.15
    assert (gaps.p50, gaps.p99) == (gaps.quantile(0.5), gaps.quantile(0.99))
    assert gaps.quantile(1) == gaps.max


@on_manual_clock
async def test_what_is_no_gap(clock):
    """The first wait, the consumer's time, ready chunks and what follows the end are none."""
    guarded = guard(script(7, PING, 2, delta("a"), delta("b"), 3, delta("c"), STOP, 0.5))
    await play(clock, guarded, upto=200, pause=20)

    stats = guarded.stats
    assert (stats.gaps.count, stats.gaps.max, stats.largest_gap) == (1, near(3), near(3))
    assert stats.first_wait == near(9)
    assert stats.time_to_first_chunk == near(29)
    assert stats.progress_share == 3 / 5


@on_manual_clock
async def test_a_silence_that_was_cut_is_no_gap(clock):
    """Nobody knows how long it would have been: it is the largest gap, but suggests nothing."""
    guarded = guard(script("a", 2, "b", HANG), idle=30)
    await play(clock, guarded, upto=100)

    stats = guarded.stats
    assert (stats.gaps.count, stats.gaps.max) == (1, near(2))
    assert stats.largest_gap == near(30)
    assert (stats.stalls, stats.whole) == (1, False)
    assert stats.suggest().idle == 4


@on_manual_clock
async def test_a_silence_in_which_the_user_left_is_no_gap(clock):
    """A cancel ends the wait, not the silence."""
    guarded = guard(script("a", 2, "b", HANG))
    await play(clock, guarded, upto=50)

    assert (guarded.stats.gaps.count, guarded.stats.gaps.max) == (1, near(2))
    assert guarded.stats.largest_gap == near(48)


@on_manual_clock
async def test_a_touch_ends_a_gap(clock):
    """Pings that only the caller sees are signs of life, and the silence before each is counted."""
    guarded = guard(script("a", 8, lambda: guarded.touch(), 1, "b"))
    await play(clock, guarded, upto=50)

    assert (guarded.stats.gaps.count, guarded.stats.gaps.max) == (2, near(8))
    assert guarded.stats.largest_gap == near(8)


@on_manual_clock
async def test_bytes_and_the_chunk_made_of_them_are_one_sign_of_life(clock):
    """What lies between hearing of bytes and their chunk is no gap of its own."""
    steps = [step for _ in range(9) for step in (2, lambda: guarded.touch(), 0.002, "b")]
    guarded = guard(script("a", *steps))
    await play(clock, guarded, upto=50)

    gaps = guarded.stats.gaps
    assert (gaps.count, gaps.max, gaps.p50) == (9, near(2), near(2))


@on_manual_clock
async def test_the_wait_for_progress_goes_through_pings(clock):
    """`largest_progress_gap` counts what `progress_idle` does: from progress to progress or end."""
    steps = [delta("a"), 5, PING, 5, PING, 5, delta("b"), 4, delta("c"), 3, PING, 10]
    guarded = guard(script(*steps, STOP))
    unfinished = guard(script(*steps, delta("d"), 20))
    await play(clock, guarded, upto=100)
    await play(clock, unfinished, upto=100)

    assert guarded.stats.largest_progress_gap == near(15)
    assert guarded.stats.gaps.max == near(10)
    assert unfinished.stats.largest_progress_gap == near(20)


@on_manual_clock
async def test_ready_progress_ends_a_wait_that_a_ping_began(clock):
    """A ping that was waited for and text in the same packet: the text resets `progress_idle`."""
    steps = [step for _ in range(10) for step in (8, PING, delta("x"))]
    guarded = guard(script(delta("a"), *steps), progress_idle=20, idle=None)
    seen = await play(clock, guarded, upto=200)

    assert seen.error is None
    assert guarded.stats.largest_progress_gap == near(8)


def test_statistics_of_a_blocking_stream():
    """The same numbers come from `guard_sync`, in real time.

    Headroom: the waits are 50 ms, and only lower bounds and a loose upper one are asserted.
    """

    def source():
        for _ in range(5):
            threading.Event().wait(0.05)
            yield "x"

    with guard_sync(source()) as stream:
        assert list(stream) == ["x"] * 5

    stats = stream.stats
    assert stats.gaps.count >= 4
    assert 0.05 <= stats.gaps.p50 <= stats.gaps.max < 5
    assert stats.first_wait is not None
    assert stats.first_wait >= 0.05
    assert (stats.whole, stats.progress_share) == (True, 1)


# --- suggestions ---


@on_manual_clock
async def test_suggested_limits_are_the_longest_waits_times_the_headroom(clock):
    """Each limit is what its own clock would have measured, doubled, rounded up to two digits."""
    guarded = guard(script(6.02, delta("a"), 3, PING, 4, delta("b"), 1.1, STOP))
    await play(clock, guarded, upto=100)

    suggestion = guarded.stats.suggest()
    assert suggestion.for_guard() == {
        "first_chunk": 13,
        "idle": 8,
        "progress_idle": 14,
        "budget": 29,
    }
    assert suggestion.for_limits().keys() == {
        "first_chunk",
        "stream_idle",
        "progress_idle",
        "stream_budget",
    }
    assert suggestion.headroom == 2
    assert str(suggestion).splitlines() == [
        "limits with a headroom of 2, from 1 stream",
        "  first_chunk = 13 s (longest wait for the first progress: 6.02 s)",
        "  idle = 8 s (longest silence: 4 s)",
        "  progress_idle = 14 s (longest wait for further progress: 7 s)",
        "  budget = 29 s (longest whole stream: 14.1 s)",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_suggested_limits_let_the_same_stream_through(seed):
    """With a headroom barely above 1, no clock fires and nothing is even warned of at `warn=1`."""
    rng = random.Random(seed)
    kinds = (PING, delta("x"), delta("y"))
    steps = [
        step for _ in range(60) for step in (rng.choice((0, 0, 1.5, 9, 40)), rng.choice(kinds))
    ]
    source = (rng.choice((0, 200)), *steps, rng.choice((STOP, 70)))
    pause = rng.choice((0, 3))

    async def main():
        with ManualClock() as clock:
            record = Recorder()
            observed = guard(script(*source), observe_only=True, idle=20, progress_idle=30)
            await play(clock, observed, pause=pause)
            limits = observed.stats.suggest(headroom=1.001).for_guard()
            again = guard(script(*source), **limits, on_event=record)
            seen = await play(clock, again, pause=pause)
            assert seen.error is None
            assert record.of(StreamStalled) == []
            assert again.stats.chunks == observed.stats.chunks
            for limit in limits.values():
                assert limit >= 1

    run(main)


@on_manual_clock
async def test_observing_counts_a_silence_whole(clock):
    """A silence in which clocks would have fired several times is one gap, of its full length."""
    record = Recorder()
    source = script(50, delta("a"), 100, delta("b"), STOP, 30)
    guarded = guard(source, first_chunk=20, idle=40, observe_only=True, on_event=record)
    seen = await play(clock, guarded, upto=1000)

    assert seen.error is None
    assert seen.ended_at == near(180)
    assert source.cancels == 0
    stats = guarded.stats
    assert [event.clock for event in record.of(StreamStalled)] == ["first_chunk", "idle", "idle"]
    assert all(event.would_have_fired for event in record.of(StreamStalled))
    assert (stats.stalls, stats.first_wait, stats.gaps.max) == (3, near(50), near(100))
    assert (stats.suggest().first_chunk, stats.suggest().idle) == (100, 200)
    assert "3 clocks fired or would have" in str(stats.suggest())


@on_manual_clock
async def test_observing_never_cuts_the_entering(clock):
    """A slow entrance is reported and waited for, and is part of the first wait."""
    record = Recorder()

    class Slow:
        async def __aenter__(self):
            await asyncio.sleep(30)
            return script(2, "a")

        async def __aexit__(self, *_):
            return None

    async def read():
        async with guard(Slow(), first_chunk=10, observe_only=True, on_event=record) as stream:
            return [chunk async for chunk in stream], stream.stats

    task = asyncio.create_task(read())
    await clock.advance(100)

    chunks, stats = await task
    assert chunks == ["a"]
    assert [event.would_have_fired for event in record.of(StreamStalled)] == [True]
    assert stats.first_wait == near(30)
    assert stats.suggest().first_chunk == 60


def test_nothing_seen_suggests_nothing():
    """Without waits, progress or a whole stream the limits are None, and no keyword is given."""
    suggestion = StreamStats().suggest()

    assert suggestion.for_guard() == {}
    assert str(suggestion).count("nothing seen to go by") == 4


@pytest.mark.parametrize("headroom", [0.99, 0, -1, float("inf"), float("nan")])
def test_a_headroom_below_one_is_refused(headroom):
    """Limits below what was seen would have cut it."""
    with pytest.raises(ValueError, match="headroom must be 1 or more"):
        StreamStats().suggest(headroom=headroom)


@on_manual_clock
async def test_merged_statistics_suggest_limits_that_are_safe_for_all(clock):
    """Counts add up, times are the longest, and the suggestion says what it rests on."""
    first = guard(script(1, "a", 6, "b", 1, "c"))
    second = guard(script(9, "a", 2, "b"))
    third = guard(script("a", 3, HANG), idle=20)
    for guarded in (first, second, third):
        await play(clock, guarded, upto=100)
    every = [first.stats, second.stats, third.stats]

    merged = StreamStats.merge(every)
    assert (merged.streams, merged.chunks, merged.stalls) == (3, 6, 1)
    assert merged.gaps.count == 3
    assert (merged.gaps.max, merged.first_wait, merged.largest_gap) == (near(6), near(9), near(20))
    assert (merged.ended, merged.whole) == (True, False)
    suggestion = merged.suggest()
    assert isinstance(suggestion, Suggestion)
    assert (suggestion.first_chunk, suggestion.idle, suggestion.budget) == (18, 12, 22)
    assert "from 3 streams in which 1 clock fired or would have" in str(suggestion)
    assert StreamStats.merge([StreamStats.merge(every[:2]), every[2]]) == merged


def test_merging_nothing_is_refused():
    """There is no longest wait of no stream."""
    with pytest.raises(ValueError, match="at least one stream"):
        StreamStats.merge([])


def test_statistics_as_plain_values():
    """`to_dict` has plain values only, quantiles included."""
    stats = StreamStats(chunks=4, progress_chunks=1, gaps=Gaps((0, 0, 3), 0.0003))

    plain = stats.to_dict()
    assert plain["gaps"] == {
        "count": 3,
        "p50": pytest.approx(0.0003),
        "p99": pytest.approx(0.0003),
        "max": 0.0003,
        "buckets": [0, 0, 3],
    }
    assert plain["progress_share"] == 0.25


def test_a_quantile_outside_of_the_unit_is_refused():
    """Quantiles lie between 0 and 1."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        Gaps().quantile(1.5)
