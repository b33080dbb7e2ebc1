//! Faults that other people's wheels really had. Each test says what failed there.

use super::*;
use crate::core::clock::FAR;

const MS: u64 = 1_000_000;
const YEAR: u64 = 365 * 86_400 * 1_000 * MS;

/// Where uptimes have gone wrong: around powers of two in milliseconds and nanoseconds.
fn uptimes() -> impl Iterator<Item = u64> {
    [1 << 30, 1 << 36, (1 << 30) * MS, 1 << 52, 1 << 61]
        .into_iter()
        .flat_map(|edge| [edge - 1, edge, edge + 1])
}

#[test]
fn tokio_8334_the_top_level_does_not_wrap_after_days_of_uptime() {
    // Failed there: after about 12 days the top level of the wheel wrapped, and the driver panicked.
    for start in uptimes() {
        let rig = Rig::at(start);
        for ahead in [1, 5 * MS, 90_000 * MS, 13 * 86_400_000 * MS, 2 * YEAR] {
            let _timer = rig.armed(1, start + ahead);
            let _second = rig.armed(2, rig.time.now() + ahead);
            rig.time.move_to(start + ahead - 1);
            assert!(
                !rig.advance(start + ahead - 1).contains(&1),
                "early: {start} {ahead}"
            );
            assert!(
                rig.advance(start + ahead).contains(&1),
                "late: {start} {ahead}"
            );
        }
    }
}

#[test]
fn tokio_6682_an_arm_during_a_pass_is_not_lost_from_the_next_wake() {
    // Failed there: the next wake-up was computed from a shard before another thread armed in it, and
    // the timer never fired.
    let rig = Rig::at(0);
    let _first = rig.armed(1, 100);
    let _far = rig.armed(2, 1_000_000);
    rig.find(100);
    let _between = rig.armed(3, 101);
    assert!(rig.shard.next_wake() <= 101);
    assert_eq!(rig.advance(101), [1, 3]);
}

#[test]
fn tokio_8252_a_timer_cancelled_at_once_leaves_nothing_behind() {
    // Failed there: cancelled before the worker had registered it, the entry stayed up to two years.
    let rig = Rig::at(0);
    for i in 0..10_000 {
        drop(rig.armed(i, 2 * YEAR));
    }
    rig.find(1);
    assert_eq!(rig.armed_count(), 0);
    assert_eq!(rig.shard.next_wake(), u64::MAX);
}

#[test]
fn tokio_3229_a_drop_on_the_very_tick_of_the_deadline_is_harmless() {
    // Failed there: dropping an entry in the millisecond it expired panicked.
    for found in [false, true] {
        let rig = Rig::at(0);
        let (timer, _other) = (rig.armed(1, 64), rig.armed(2, 64));
        rig.time.move_to(64);
        if found {
            rig.find(64);
        }
        drop(timer);
        assert_eq!(rig.advance(64), [2]);
    }
}

#[test]
fn tokio_3270_a_reset_of_an_expired_entry_not_yet_taken_counts() {
    // Failed there: the entry sat in the list of the expired, and resetting it broke the list.
    let rig = Rig::at(0);
    let (timer, _other) = (rig.armed(1, 10), rig.armed(2, 10));
    rig.find(10);
    timer.move_to(20);
    timer.arm(30, 0).unwrap();
    assert_eq!(rig.deliver(), [2]);
    assert_eq!(rig.advance(29), NONE);
    assert_eq!(rig.advance(30), [1]);
}

#[test]
fn tokio_2473_a_deadline_that_is_exactly_now_fires_at_once() {
    // Failed there: an entry with elapsed == when went to a slot a whole turn away.
    for now in [0, 64, 4_096, 12_345] {
        let rig = Rig::at(now);
        let _timer = rig.armed(1, now);
        assert!(rig.shard.next_wake() <= now);
        assert_eq!(rig.advance(now), [1]);
    }
}

#[test]
fn tokio_timer_14_any_nanosecond_is_a_deadline() {
    // Failed there: with a tick that was no multiple of a millisecond timers never fired.
    for odd in [1, 3, 999_999, 1_000_001, 262_143, 262_144, 262_145] {
        let rig = Rig::at(17);
        let _timer = rig.armed(1, 17 + odd);
        assert_eq!(rig.advance(16 + odd), NONE);
        assert_eq!(rig.advance(17 + odd), [1]);
    }
}

#[test]
fn theine_go_64_no_lateness_builds_up_over_many_arms() {
    // Failed there: a missing +1 tick made each round late, for ever.
    let rig = Rig::at(0);
    let timer = rig.timer(1);
    for round in 1..=1_000 {
        timer.arm(round * 100, 0).unwrap();
        assert_eq!(rig.advance(round * 100 - 1), NONE);
        assert_eq!(rig.advance(round * 100), [1], "late in round {round}");
    }
    assert_eq!(rig.shard.stats().delivered.max, 0);
}

#[test]
fn rpc_perf_180_a_deadline_beyond_the_wheel_is_not_early() {
    // Failed there: a timeout longer than the wheel wrapped round and fired early.
    let rig = Rig::at(0);
    let dues = [300 * YEAR / 2, 100 * YEAR, 2 * YEAR, FAR];
    let _timers: Vec<_> = dues
        .iter()
        .enumerate()
        .map(|(i, &due)| rig.armed(i, due.min(FAR)))
        .collect();
    for year in 1..140 {
        let fired = rig.advance(year * YEAR);
        assert!(
            fired.iter().all(|&i| dues[i] <= year * YEAR),
            "early in year {year}"
        );
    }
    assert_eq!(rig.armed_count(), 2);
    assert_eq!(rig.advance(FAR), [0, 3], "saturated to the same moment");
}

#[test]
fn time_that_goes_back_delays_old_timers_and_leaves_new_ones_right() {
    // A step of less than a second is no more than a stale reading.
    const S: u64 = 1_000_000_000;
    // A monotonic clock does not go back, but under some hypervisors and libfaketime. The wheel stood at
    // 10 * S 000 * S; entries due before that on the new clock were taken for past ones.
    let rig = Rig::at(0);
    let _old = rig.armed(1, 20_000 * S);
    let paused = rig.armed(2, 15_000 * S);
    paused.pause(100 * S);
    rig.shard.process(10_000 * S, 0);
    // For the shard, its clock shows 0 again from here on.
    let _new = rig.armed(3, 90 * S);
    let _far = rig.armed(4, 5_000 * S);
    assert!(rig.shard.next_wake() <= 90 * S);
    assert_eq!(rig.advance(89 * S), NONE);
    assert_eq!(rig.advance(90 * S), [3]);
    assert_eq!(rig.advance(4_999 * S), NONE);
    assert_eq!(rig.advance(5_000 * S), [4]);
    paused.resume_at(5_100 * S);
    assert_eq!(rig.advance(5_100 * S), [2]);
    assert_eq!(rig.advance(19_999 * S), NONE);
    assert_eq!(rig.advance(20_000 * S), [1]);
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn a_fire_decided_before_time_went_back_waits_for_its_deadline() {
    // A step of less than a second is no more than a stale reading.
    const S: u64 = 1_000_000_000;
    let rig = Rig::at(0);
    let _timer = rig.armed(1, 500 * S);
    rig.shard.process(1_000 * S, 0);
    assert_eq!(rig.deliver(), NONE, "by the clock it is not due yet");
    assert!(rig.shard.next_wake() <= 500 * S && rig.shard.next_wake() > 0);
    assert_eq!(rig.advance(499 * S), NONE);
    assert_eq!(rig.advance(500 * S), [1]);
}
