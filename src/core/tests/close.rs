//! The end of a shard: closed with its loop, or left over from before a fork.

use super::*;
use crate::core::{error::Error, state::STRONG};

#[test]
fn close_drops_and_counts_everything_and_hands_back_the_strong_payloads() {
    let rig = Rig::at(0);
    let timers: Vec<_> = (0..6).map(|i| rig.timer(i)).collect();
    for (i, timer) in timers.iter().enumerate() {
        timer
            .arm(100 * (1 + i as u64), if i % 2 == 0 { STRONG } else { 0 })
            .unwrap();
    }
    let idle = rig.timer(99);
    timers[2].pause(50);
    rig.find(300);
    assert_eq!(timers[4].cancel(), Some(STRONG));
    let mut dropped = rig.shard.close();
    dropped.sort_unstable();
    assert_eq!(dropped, [0, 2]);
    let stats = rig.shard.stats();
    assert_eq!(
        (stats.armed, stats.dropped, stats.cancelled, stats.fired),
        (0, 5, 1, 0)
    );
    assert_eq!(rig.deliver(), NONE);
    assert!(rig.shard.is_closed());
    assert!(timers.iter().chain([&idle]).all(|timer| !timer.is_active()));
}

#[test]
fn a_closed_shard_is_neutral() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    let parked = rig.armed(2, 50);
    parked.pause(10);
    rig.find(50);
    rig.shard.close();
    assert_eq!(rig.shard.close(), NONE);
    assert_eq!(timer.arm(200, 0), Err(Error::Closed));
    timer.touch(300);
    timer.move_to(60);
    parked.resume_at(60);
    assert_eq!(timer.cancel(), None);
    assert_eq!(rig.shard.next_wake(), u64::MAX);
    assert_eq!(rig.advance(1_000), NONE);
    assert_eq!(rig.bell.rung(), 0);
    drop((timer, parked));
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn a_fire_taken_before_the_close_does_not_run_after_it() {
    let rig = Rig::at(0);
    let _timer = rig.armed(1, 100);
    rig.find(100);
    let taken = rig.shard.take();
    rig.shard.close();
    assert_eq!(rig.claim(&taken[0]), None);
    assert!(!rig.shard.put_back(taken), "nobody is there to be woken");
}

#[test]
fn strong_payloads_are_shown_while_their_timers_are_active() {
    let rig = Rig::at(0);
    let shown = || {
        let mut seen = Vec::new();
        rig.shard.each_strong(|payload| seen.push(payload));
        seen.sort_unstable();
        seen
    };
    let timers: Vec<_> = (0..5).map(|i| rig.timer(i)).collect();
    for (timer, flags) in timers.iter().zip([STRONG, 0, STRONG, STRONG, STRONG]) {
        timer.arm(100, flags).unwrap();
    }
    timers[2].pause(1);
    timers[3].cancel();
    assert_eq!(shown(), [0, 2, 4]);
    rig.find(100);
    assert_eq!(shown(), [0, 2, 4], "queued and parked ones too");
    assert_eq!(rig.deliver(), [0, 1, 4]);
    assert_eq!(shown(), [2]);
    rig.shard.close();
    assert_eq!(shown(), NONE);
}

#[test]
fn the_strong_are_shown_even_if_the_lock_is_held_for_a_moment() {
    // A collector asks twice, and takes an object that was shown the first time only for garbage.
    let rig = Rig::at(0);
    let timer = rig.timer(7);
    timer.arm(u64::MAX >> 2, STRONG).unwrap();
    let shard = rig.shard.clone();
    let stop = Arc::new(AtomicUsize::new(0));
    let busy = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while stop.load(Ordering::Relaxed) == 0 {
                let _ = shard.stats();
            }
        }
    });
    for _ in 0..20_000 {
        let mut seen = 0;
        rig.shard.each_strong(|payload| seen = payload);
        assert_eq!(seen, 7);
    }
    stop.store(1, Ordering::Relaxed);
    busy.join().unwrap();
}

#[test]
fn an_inherited_shard_refuses_arms_and_is_neutral_otherwise() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    let parked = rig.armed(2, 50);
    let strong = rig.timer(3);
    strong.arm(500, STRONG).unwrap();
    parked.pause(10);
    rig.find(50);
    rig.shard.inherit();
    assert!(rig.shard.is_inherited());
    assert_eq!(rig.timer(4).arm(100, 0), Err(Error::Inherited));
    assert_eq!(timer.arm(100, 0), Err(Error::Inherited));
    assert!(!timer.is_active(), "it will never fire");
    timer.touch(10);
    timer.move_to(10);
    parked.resume_at(60);
    let mut seen = Vec::new();
    rig.shard.each_strong(|payload| seen.push(payload));
    assert_eq!(seen, NONE);
    assert_eq!(
        timer.cancel(),
        Some(0),
        "what the caller holds for it is the caller's again"
    );
    assert_eq!(strong.cancel(), Some(STRONG));
    assert_eq!(timer.cancel(), None);
    assert_eq!(rig.shard.close(), NONE);
    drop((timer, parked, strong));
}

#[test]
fn handles_outlive_the_shards_owner() {
    let rig = Rig::at(0);
    let timer = rig.armed(1, 100);
    drop(rig);
    assert!(timer.is_active());
    assert_eq!(timer.cancel(), Some(0));
}
