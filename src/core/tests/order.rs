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
        assert_eq!(rig.advance(now), []);
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
