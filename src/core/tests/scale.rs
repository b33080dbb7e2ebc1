//! A million timers: all accounted for, and their memory given back.

use super::*;

const MANY: usize = 1_000_000;

/// A cheap sequence of numbers that look random.
fn scatter(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30
}

#[test]
fn a_million_armed_and_cancelled_leave_nothing() {
    for one_slot in [true, false] {
        let rig = Rig::at(0);
        let due = |i| if one_slot { 1 << 40 } else { 1 + scatter(i) };
        let timers: Vec<_> = (0..MANY).map(|i| rig.armed(i, due(i))).collect();
        assert_eq!(rig.armed_count(), MANY as u64);
        assert!(rig.shard.capacity() < MANY + 2_048);
        for timer in timers.iter().rev().step_by(2) {
            assert_eq!(timer.cancel(), Some(0));
        }
        assert_eq!(rig.armed_count(), MANY as u64 / 2);
        drop(timers);
        assert_eq!(rig.armed_count(), 0);
        assert_eq!(rig.shard.stats().cancelled, MANY as u64);
        assert!(
            rig.shard.capacity() <= 1_024,
            "all chunks but one are given back"
        );
        assert_eq!(rig.shard.process(1 << 50, 0), u64::MAX);
        assert_eq!(rig.bell.rung(), 0);
    }
}

#[test]
fn a_million_fire_once_each_in_order() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..MANY).map(|i| rig.armed(i, scatter(i) >> 10)).collect();
    let mut fired = Vec::new();
    for step in 1..=10 {
        fired.extend(rig.advance((1 << 24) * step / 10));
    }
    assert_eq!(fired.len(), MANY);
    assert!(fired.is_sorted_by_key(|&i| (scatter(i) >> 10, i)));
    drop(timers);
    assert!(rig.shard.capacity() <= 1_024);
}
