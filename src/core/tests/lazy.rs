//! Touch, pause, resume and move: one entry, filed anew only when the wheel comes by.

use super::*;
use crate::core::state::{PAUSED, STRONG};
use proptest::prelude::*;

#[test]
fn a_timer_is_one_entry_however_often_it_is_touched() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 1_000);
    let wake = rig.shard.next_wake();
    for at in 0..10_000 {
        timer.touch(1_000 + at);
    }
    assert_eq!(rig.shard.next_wake(), wake, "a touch tells nobody");
    assert_eq!(rig.armed_count(), 1);
    assert_eq!(rig.advance(10_998), NONE);
    let stats = rig.shard.stats();
    assert_eq!((stats.armed, stats.started), (1, 1));
    assert!(stats.rearmed <= 12, "one visit a level at most: {stats:?}");
    assert_eq!(rig.advance(10_999), [1]);
}

#[test]
fn touched_at_each_visit_it_fires_when_the_touches_end() {
    let rig = Rig::at(7);
    let timer = rig.armed(1, 107);
    for now in (57..5_007).step_by(50) {
        assert_eq!(rig.advance(now), NONE, "early at {now}");
        timer.touch(now + 100);
    }
    assert_eq!(rig.advance(5_056), NONE);
    assert_eq!(rig.advance(5_057), [1]);
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn what_is_left_survives_a_pause_whether_the_wheel_came_by_or_not() {
    for visit_while_paused in [false, true] {
        let rig = Rig::at(0);
        let timer = rig.armed(1, 100);
        rig.find(40);
        timer.pause(60);
        assert_eq!(timer.due(), PAUSED | 60);
        if visit_while_paused {
            assert_eq!(rig.advance(1_000_000), NONE);
            assert_eq!(
                rig.shard.next_wake(),
                u64::MAX,
                "parked: nothing to wait for"
            );
        } else {
            rig.time.move_to(1_000_000);
        }
        assert!(timer.is_active());
        timer.resume_at(1_000_060);
        assert_eq!(rig.advance(1_000_059), NONE);
        assert_eq!(rig.advance(1_000_060), [1]);
        assert_eq!(rig.armed_count(), 0);
    }
}

#[test]
fn resumed_timers_fire_in_the_order_of_their_arms() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..5).map(|i| rig.armed(i, 100)).collect();
    for timer in &timers {
        timer.pause(50);
    }
    rig.find(200);
    for timer in timers.iter().rev() {
        timer.resume_at(250);
    }
    assert_eq!(rig.advance(250), [0, 1, 2, 3, 4]);
}

#[test]
fn paused_and_resumed_while_its_fire_is_queued_it_waits_for_the_rest() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    assert!(timer.has_fired());
    timer.pause(30);
    timer.resume_at(130);
    assert_eq!(rig.deliver(), NONE);
    assert_eq!(rig.shard.stats().rescued, 1);
    assert_eq!(rig.advance(129), NONE);
    assert_eq!(rig.advance(130), [1]);
}

#[test]
fn paused_while_its_fire_is_queued_it_stays_paused() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    timer.pause(30);
    assert_eq!(rig.advance(5_000), NONE);
    assert!(timer.is_active() && !timer.has_fired());
    timer.resume_at(5_030);
    assert_eq!(rig.shard.next_wake(), 5_030);
    assert_eq!(rig.advance(5_030), [1]);
}

#[test]
fn pausing_twice_and_resuming_twice_changes_nothing() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    timer.pause(100);
    timer.pause(100);
    assert_eq!(rig.advance(100), NONE);
    timer.resume_at(300);
    timer.resume_at(300);
    assert_eq!(rig.advance(300), [1]);
    assert_eq!(rig.shard.stats().fired, 1);
}

#[test]
fn a_moved_deadline_counts_at_once_earlier_or_later() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 1_000_000);
    timer.move_to(50);
    assert_eq!(rig.shard.next_wake(), 50);
    timer.move_to(70);
    assert_eq!(rig.advance(69), NONE);
    assert_eq!(rig.advance(70), [1]);
}

#[test]
fn moving_a_paused_timer_starts_its_clock() {
    for park in [false, true] {
        let rig = Rig::at(0);
        let timer = rig.armed(1, 100);
        timer.pause(100);
        if park {
            rig.find(100);
        }
        timer.move_to(200);
        assert_eq!(rig.advance(199), NONE);
        assert_eq!(rig.advance(200), [1]);
    }
}

#[test]
fn moving_a_timer_whose_fire_is_queued_takes_the_fire_back() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    timer.move_to(150);
    assert_eq!(rig.deliver(), NONE);
    assert_eq!(rig.advance(150), [1]);
}

#[test]
fn moving_an_idle_timer_has_no_effect() {
    let rig = Rig::at(0);
    let timer = rig.timer(1);
    timer.move_to(10);
    assert_eq!(rig.advance(20), NONE);
    assert!(!timer.is_active());
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn flags_last_through_every_state() {
    let rig = Rig::at(0);
    let timer = rig.timer(9);
    timer.arm(100, STRONG).unwrap();
    timer.pause(100);
    rig.find(100);
    timer.resume_at(200);
    timer.move_to(150);
    rig.find(150);
    timer.touch(160);
    assert_eq!(rig.deliver(), NONE);
    rig.find(160);
    let fires = rig.shard.take();
    assert_eq!(
        rig.shard.claim(&fires[0], 160, |_| ()),
        Claim::Run {
            payload: 9,
            flags: STRONG
        }
    );
}

#[test]
fn huge_deadlines_saturate_and_are_not_taken_for_paused_ones() {
    // A deadline with bit 63 set would read as a paused clock.
    let rig = Rig::at(1 << 40);
    for due in [1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let timer = rig.armed(1, due);
        assert_eq!(timer.due() & PAUSED, 0);
        timer.move_to(due);
        assert_eq!(timer.due() & PAUSED, 0);
        assert_eq!(rig.advance(1 << 61), NONE);
        assert_eq!(timer.cancel(), Some(0));
        assert_eq!(rig.shard.process(1 << 61, 0), u64::MAX);
    }
}

/// Finds out whether `timer` fires, and when, by going from wake to wake as the driver does.
fn follow(rig: &Rig, limit: u64) -> Option<u64> {
    loop {
        let next = rig.shard.next_wake();
        if next > limit {
            return None;
        }
        if !rig.advance(next).is_empty() {
            return Some(rig.time.now());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn woken_only_when_it_asks_for_it_a_timer_fires_on_its_nanosecond(
        start in prop_oneof![Just(0_u64), any::<u32>().prop_map(u64::from), (30_u32..62).prop_map(|b| (1 << b) - 1)],
        first in 0_u64..(1 << 40),
        moves in proptest::collection::vec((0_u64..(1 << 20), 0_u64..(1 << 41)), 0..6),
    ) {
        let rig = Rig::at(start);
        let mut due = start + first;
        let timer = rig.armed(1, due);
        let mut early = None;
        for (wait, more) in moves {
            // As a driver would: never past a wake, never without one.
            let until = rig.time.now() + wait;
            early = early.or_else(|| follow(&rig, until));
            rig.time.move_to(until);
            if early.is_none() {
                due = due.max(rig.time.now() + more);
                timer.touch(due);
            }
        }
        let fired = early.or_else(|| follow(&rig, u64::MAX - 1));
        prop_assert_eq!(fired, Some(due.max(start)));
    }
}
