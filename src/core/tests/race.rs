//! Threads against each other, for real: what loom proves in the small, in the large.

use super::*;
use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
};

/// Lets two threads go on together, and fails on one side when the other has.
#[derive(Default)]
struct Gate {
    arrived: AtomicUsize,
    broken: AtomicBool,
}

impl Gate {
    fn wait(&self) {
        let both = (self.arrived.fetch_add(1, Ordering::SeqCst) | 1) + 1;
        while self.arrived.load(Ordering::SeqCst) < both {
            assert!(
                !self.broken.load(Ordering::SeqCst),
                "the other side has failed"
            );
            thread::yield_now();
        }
    }
}

struct Breaks<'a>(&'a Gate);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::SeqCst);
        }
    }
}

/// Two threads that meet `rounds` times: `left` here, `right` there, `after` here again.
fn meet(
    rounds: usize,
    mut left: impl FnMut(usize),
    mut right: impl FnMut(usize) + Send,
    mut after: impl FnMut(usize),
) {
    let gate = Gate::default();
    thread::scope(|scope| {
        let _breaks = Breaks(&gate);
        scope.spawn(|| {
            let _breaks = Breaks(&gate);
            for round in 0..rounds {
                gate.wait();
                right(round);
                gate.wait();
            }
        });
        for round in 0..rounds {
            gate.wait();
            left(round);
            gate.wait();
            after(round);
        }
    });
}

#[test]
fn a_cancel_raced_with_the_fire_prevents_it_or_says_that_it_was_late() {
    let rig = Rig::at(0);
    let timer = rig.timer(1);
    let (mut cancels, mut fires) = (0, 0);
    let cancelled = AtomicBool::new(false);
    // One side finds and delivers as driver and loop would, the other cancels from a third thread.
    let gate = Gate::default();
    thread::scope(|scope| {
        let _breaks = Breaks(&gate);
        scope.spawn(|| {
            let _breaks = Breaks(&gate);
            for _ in 0..100_000 {
                gate.wait();
                cancelled.store(timer.cancel().is_some(), Ordering::SeqCst);
                gate.wait();
            }
        });
        for round in 1..=100_000 {
            timer.arm(round, 0).unwrap();
            rig.time.move_to(round);
            gate.wait();
            let ran = rig.advance(round);
            gate.wait();
            let was_cancelled = cancelled.load(Ordering::SeqCst);
            assert!(
                was_cancelled ^ (ran == [1]),
                "round {round}: cancelled {was_cancelled}, ran {ran:?}"
            );
            assert_eq!(rig.deliver(), NONE, "nothing is left over");
            cancels += u64::from(was_cancelled);
            fires += ran.len() as u64;
        }
    });
    let stats = rig.shard.stats();
    assert_eq!(
        (stats.armed, stats.cancelled, stats.fired),
        (0, cancels, fires)
    );
    assert_eq!(cancels + fires, 100_000);
}

#[test]
fn a_touch_raced_with_the_pass_is_never_lost() {
    // The owner touches and delivers, the driver makes passes at its own pace. With the touch before
    // the delivery the timer must not run, and with the touches over it must.
    let rig = Rig::at(0);
    let timer = rig.timer(1);
    let now = AtomicU64::new(0);
    meet(
        50_000,
        |round| {
            let base = 10 * round as u64;
            if round % 2 == 0 {
                timer.arm(base + 5, 0).unwrap();
            }
            timer.touch(base + 15);
            assert_eq!(rig.deliver(), NONE, "touched until {}", base + 15);
            now.store(base + 5, Ordering::SeqCst);
        },
        |round| {
            let base = 10 * round as u64;
            rig.time.move_to(base + 5);
            rig.shard.process(base + 5, 0);
        },
        |round| {
            let base = 10 * round as u64;
            assert_eq!(
                rig.deliver(),
                NONE,
                "a fire found before the touch is taken back"
            );
            assert!(timer.is_active() && rig.shard.next_wake() <= base + 15);
        },
    );
    assert_eq!(rig.advance(10 * 49_999 + 15), [1]);
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn a_resume_raced_with_the_parking_visit_is_never_lost() {
    let rig = Rig::at(0);
    let timer = rig.timer(1);
    meet(
        50_000,
        |round| {
            let base = 10 * round as u64;
            timer.arm(base + 3, 0).unwrap();
            timer.pause(4);
            timer.resume_at(base + 7);
        },
        |round| {
            let base = 10 * round as u64;
            rig.time.move_to(base + 3);
            rig.shard.process(base + 3, 0);
        },
        |round| {
            let base = 10 * round as u64;
            assert_eq!(rig.advance(base + 6), NONE);
            assert!(rig.shard.next_wake() <= base + 7, "nobody will come");
            assert_eq!(rig.advance(base + 7), [1]);
        },
    );
    assert_eq!(rig.armed_count(), 0);
}

#[test]
fn drops_raced_with_passes_leave_the_books_straight() {
    let rig = Rig::at(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut now = 0;
            while !done.load(Ordering::SeqCst) {
                now += 1;
                rig.find(now);
            }
        });
        let mut delivered = 0;
        for round in 0..20_000 {
            let now = rig.time.now();
            let timers: Vec<_> = (0..8)
                .map(|i| rig.armed(i, now + (i as u64 * 7) % 20))
                .collect();
            if round % 2 == 0 {
                delivered += rig.deliver().len() as u64;
            }
            drop(timers);
        }
        delivered += rig.deliver().len() as u64;
        done.store(true, Ordering::SeqCst);
        let stats = rig.shard.stats();
        assert_eq!(stats.armed, 0);
        assert_eq!(stats.fired, delivered);
        assert_eq!(stats.cancelled + stats.fired, stats.started);
    });
}
