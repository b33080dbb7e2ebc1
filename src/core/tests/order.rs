//! Who comes first: by deadline, then by arm, whatever way an entry took through the wheel.

use super::*;
use proptest::prelude::*;

#[test]
fn equal_deadlines_fire_first_in_first_out_across_batches() {
    let rig = Rig::at(0);
    let _timers: Vec<_> = (0..2_000).map(|i| rig.armed(i, 500)).collect();
    assert!(rig.advance(500).into_iter().eq(0..2_000));
}

#[test]
fn equal_deadlines_fire_first_in_first_out_across_levels() {
    // Armed from farther and farther away in the wheel's terms: the early ones cascade, the late ones
    // are filed straight into the last slot, ahead of them.
    let rig = Rig::at(0);
    let due = 64 * 64 * 64 + 70;
    let mut timers = Vec::new();
    for (i, now) in [0, 64 * 64, 64 * 64 * 64, 64 * 64 * 64 + 64, due - 1]
        .into_iter()
        .enumerate()
    {
        assert_eq!(rig.advance(now), NONE);
        for j in 0..300 {
            timers.push(rig.armed(i * 300 + j, due));
        }
    }
    assert!(rig.advance(due).into_iter().eq(0..1_500));
}

#[test]
fn earlier_deadlines_come_first_when_the_wheel_is_late() {
    let rig = Rig::at(0);
    let _timers: Vec<_> = (0..1_000)
        .map(|i| rig.armed(i, 100_000 - 100 * (i as u64 % 37)))
        .collect();
    let mut expected: Vec<usize> = (0..1_000).collect();
    expected.sort_by_key(|i| std::cmp::Reverse(i % 37));
    assert_eq!(rig.advance(10_000_000), expected);
}

#[test]
fn a_touch_does_not_change_the_place_among_equals() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..3).map(|i| rig.armed(i, 100)).collect();
    timers[0].touch(200);
    rig.find(150);
    let _late = rig.armed(3, 200);
    assert_eq!(rig.deliver(), [1, 2]);
    assert_eq!(rig.advance(200), [0, 3]);
}

#[test]
fn arming_anew_is_going_to_the_end_of_the_queue() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..3).map(|i| rig.armed(i, 100)).collect();
    timers[0].arm(100, 0).unwrap();
    assert_eq!(rig.advance(100), [1, 2, 0]);
}

#[test]
fn deadlines_already_past_fire_at_the_next_pass() {
    let rig = Rig::at(1_000);
    let _timers = [rig.armed(0, 1_000), rig.armed(1, 0), rig.armed(2, 999)];
    assert_eq!(rig.shard.next_wake(), 1_000, "at once");
    assert_eq!(rig.advance(1_000), [1, 2, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn never_early_and_always_in_order(
        start in prop_oneof![Just(0_u64), (30_u32..62).prop_map(|b| (1 << b) - 2)],
        aheads in proptest::collection::vec(0_u64..100_000, 1..400),
        steps in proptest::collection::vec(1_u64..20_000, 1..40),
    ) {
        let rig = Rig::at(start);
        let dues: Vec<_> = aheads.iter().map(|ahead| start + ahead).collect();
        let _timers: Vec<_> = dues.iter().enumerate().map(|(i, &due)| rig.armed(i, due)).collect();
        let mut all = Vec::new();
        for step in steps {
            let now = rig.time.now() + step;
            let fired = rig.advance(now);
            for &i in &fired {
                prop_assert!(dues[i] <= now, "early by {}", dues[i] - now);
                prop_assert!(dues[i] > now - step || dues[i] == start, "late by {}", now - dues[i]);
            }
            all.extend(fired);
        }
        let mut expected: Vec<_> = (0..dues.len()).collect();
        expected.sort_by_key(|&i| dues[i]);
        expected.truncate(all.len());
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn rounding_to_real_ticks_never_makes_a_timer_early() {
    // 10^5 deadlines anywhere between the ticks of the real clock, passes anywhere too.
    let shard = Shard::new(Clock::Real, None, Box::new(Bell::default()));
    let begin = Clock::Real.now();
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 20) % below
    };
    let dues: Vec<_> = (0..100_000).map(|_| begin + random(1 << 33)).collect();
    let timers: Vec<_> = (0..dues.len()).map(|i| Timer::new(&shard, i)).collect();
    for (timer, &due) in timers.iter().zip(&dues) {
        timer.arm(due, 0).unwrap();
    }
    let tick = 1 << crate::core::clock::TICK_SHIFT;
    let (mut before, mut now, mut fired) = (begin, Clock::Real.now(), 0);
    while fired < dues.len() {
        now = shard.next_wake().max(now) + random(3 * tick);
        shard.process(now, 0);
        for found in shard.take() {
            let Claim::Run { payload, .. } = shard.claim(&found, now, |_| ()) else {
                panic!("found early: {found:?} at {now}");
            };
            assert!(dues[payload] <= now, "early by {}", dues[payload] - now);
            assert!(
                dues[payload] + tick > before,
                "missed by the pass at {before}"
            );
            fired += 1;
        }
        before = now;
    }
    assert_eq!(shard.stats().armed, 0);
}
