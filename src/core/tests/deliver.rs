//! Between the wheel and the callback: cancel, drop, rescue, stale fires, put-backs.

use super::*;
use crate::core::state::STRONG;

#[test]
fn cancel_says_whether_the_callback_was_prevented() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    assert_eq!(timer.cancel(), Some(0), "before");
    assert_eq!(timer.cancel(), None, "twice");

    timer.arm(100, STRONG).unwrap();
    rig.find(100);
    assert_eq!(timer.cancel(), Some(STRONG), "queued");
    assert_eq!(rig.deliver(), NONE);

    timer.arm(200, 0).unwrap();
    assert_eq!(rig.advance(200), [1]);
    assert_eq!(timer.cancel(), None, "delivered");
    let stats = rig.shard.stats();
    assert_eq!((stats.armed, stats.fired, stats.cancelled), (0, 1, 2));
}

#[test]
fn a_paused_timer_can_be_cancelled_parked_or_not() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    timer.pause(10);
    assert_eq!(timer.cancel(), Some(0));
    timer.arm(100, 0).unwrap();
    timer.pause(10);
    rig.find(100);
    assert_eq!(timer.cancel(), Some(0));
    timer.resume_at(50);
    assert_eq!(rig.advance(1_000), NONE);
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn dropped_while_its_fire_is_queued_it_never_runs() {
    let rig = Rig::at(0);
    drop(rig.armed(1, 50));
    let timer = rig.armed(2, 100);
    rig.find(100);
    drop(timer);
    assert_eq!(rig.deliver(), NONE);
    let stats = rig.shard.stats();
    assert_eq!((stats.armed, stats.fired, stats.cancelled), (0, 0, 2));
}

#[test]
fn a_stale_fire_cannot_hit_the_next_user_of_the_slot() {
    let rig = Rig::at(0);
    let first = rig.armed(1, 100);
    rig.find(100);
    let stale = rig.shard.take();
    drop(first);
    // The slab hands the same slot out again.
    let second = rig.armed(2, 100);
    assert_eq!(rig.claim(&stale[0]), None, "armed");
    rig.find(100);
    assert_eq!(rig.claim(&stale[0]), None, "fired, with another number");
    assert_eq!(rig.deliver(), [2]);
    assert_eq!(rig.claim(&stale[0]), None, "idle");
    drop(second);
    assert_eq!(rig.claim(&stale[0]), None, "free");
}

#[test]
fn a_stale_fire_cannot_hit_a_later_arm_of_the_same_timer() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    timer.arm(100, 0).unwrap();
    rig.find(101);
    let fires = rig.shard.take();
    assert_eq!(fires.len(), 2);
    assert_eq!(rig.claim(&fires[0]), None);
    assert_eq!(rig.claim(&fires[1]), Some(1));
    assert_eq!(rig.claim(&fires[1]), None, "a fire runs once");
    assert_eq!(rig.shard.stats().fired, 1);
}

#[test]
fn a_stale_fire_of_memory_given_back_is_void() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..5_000).map(|i| rig.armed(i, 100)).collect();
    rig.find(100);
    drop(timers);
    assert_eq!(rig.deliver(), NONE);
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn touched_while_its_fire_is_queued_it_is_rescued() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    timer.touch(101);
    assert_eq!(rig.deliver(), NONE);
    assert_eq!(rig.shard.stats().rescued, 1);
    assert_eq!(
        rig.shard.next_wake(),
        101,
        "the rescue is filed and announced"
    );
    assert_eq!(rig.advance(101), [1]);
}

#[test]
fn data_and_deadline_in_the_same_instant_data_wins() {
    // Whatever the order of touch and visit, as long as the touch comes before the delivery.
    for touch_first in [true, false] {
        let rig = Rig::at(0);
        let timer = rig.armed(1, 100);
        rig.time.move_to(100);
        if touch_first {
            timer.touch(200);
        }
        rig.find(100);
        if !touch_first {
            timer.touch(200);
        }
        assert_eq!(rig.deliver(), NONE);
        assert_eq!(rig.advance(199), NONE);
        assert_eq!(rig.advance(200), [1]);
    }
}

#[test]
fn what_is_put_back_comes_before_newer_fires() {
    let rig = Rig::at(0);
    let _timers: Vec<_> = (0..4).map(|i| rig.armed(i, 100 + i as u64)).collect();
    rig.find(102);
    let mut taken = rig.shard.take();
    assert_eq!(rig.claim(&taken.remove(0)), Some(0));
    rig.find(103);
    assert!(!rig.shard.put_back(taken), "a wake-up is under way already");
    assert_eq!(rig.deliver(), [1, 2, 3]);
}

#[test]
fn a_put_back_without_a_wake_under_way_asks_for_one() {
    let rig = Rig::at(0);
    let _timer = rig.armed(1, 100);
    rig.find(100);
    assert!(rig.shard.put_back(rig.shard.take()));
    assert!(!rig.shard.put_back(Vec::new()), "once is enough");
    assert_eq!(rig.deliver(), [1]);
    assert!(!rig.shard.put_back(Vec::new()), "nothing to come for");
}

#[test]
fn the_owner_is_woken_once_for_a_batch_and_again_after_a_take() {
    let rig = Rig::at(0);
    let _timers: Vec<_> = (0..1_000).map(|i| rig.armed(i, i as u64)).collect();
    rig.find(500);
    rig.find(600);
    assert_eq!(rig.bell.rung(), 1);
    assert_eq!(rig.deliver().len(), 601);
    rig.find(700);
    assert_eq!(rig.bell.rung(), 2);
    assert_eq!(rig.deliver().len(), 100);
    rig.find(701);
    assert_eq!(rig.bell.rung(), 3);
    rig.find(701);
    assert_eq!(rig.bell.rung(), 3, "nothing new, nothing said");
}

#[test]
fn the_payload_is_kept_under_the_lock_and_only_if_it_runs() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    rig.find(100);
    let fires = rig.shard.take();
    timer.touch(200);
    let mut kept = Vec::new();
    rig.shard
        .claim(&fires[0], 100, |payload| kept.push(payload));
    assert_eq!(kept, NONE);
    timer.set_payload(5);
    rig.find(200);
    let fires = rig.shard.take();
    rig.shard
        .claim(&fires[0], 200, |payload| kept.push(payload));
    assert_eq!(kept, [5]);
}

#[test]
fn a_pass_with_an_old_time_neither_fires_early_nor_runs_for_ever() {
    // The driver reads the clock, then an arm reads it later and finds its deadline past already. The
    // pass is behind the wheel then. (It once filed such an entry as ready again and again.)
    let rig = Rig::at(0);
    rig.time.move_to(10);
    let _past = rig.armed(1, 8);
    let _future = rig.armed(2, 11);
    rig.shard.process(5, 0);
    assert_eq!(rig.deliver(), [1]);
    assert_eq!(rig.shard.next_wake(), 11);
    assert_eq!(rig.advance(11), [2]);
}

#[test]
fn lateness_is_counted_once_for_the_decision_and_once_for_the_delivery() {
    let rig = Rig::at(0);
    let _timer = rig.armed(1, 1_000);
    rig.find(3_000);
    rig.time.move_to(9_000);
    let fires = rig.shard.take();
    assert_eq!((fires[0].due, fires[0].decided), (1_000, 3_000));
    assert_eq!(rig.claim(&fires[0]), Some(1));
    let stats = rig.shard.stats();
    assert_eq!((stats.decided.count(), stats.decided.max), (1, 2_000));
    assert_eq!((stats.delivered.count(), stats.delivered.max), (1, 8_000));
}
