//! Tests of the timer core: timers, shards and the driver together. Those of one structure alone sit
//! beside it.

// clippy.toml allows this in tests, but does not see that this is one.
#![allow(clippy::unwrap_used)]

mod close;
mod day;
mod deliver;
mod driver;
mod lazy;
mod order;
mod race;
mod random;
mod regress;
mod scale;

use super::{
    clock::{Clock, ManualTime},
    shard::{Claim, Fired, Shard, Waker},
    timer::Timer,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// No payloads. A bare `[]` has no type once PyO3, with its own comparisons, is in the build.
const NONE: [usize; 0] = [];

/// A waker that counts.
#[derive(Debug, Default, Clone)]
struct Bell(Arc<AtomicUsize>);

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Waker for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A shard on a manual clock, whose overseer and owner is the test.
struct Rig {
    time: Arc<ManualTime>,
    shard: Arc<Shard>,
    bell: Bell,
}

impl Rig {
    fn at(ns: u64) -> Self {
        let time = Arc::new(ManualTime::new(ns));
        let bell = Bell::default();
        let shard = Shard::new(Clock::Manual(time.clone()), None, Box::new(bell.clone()));
        Self { time, shard, bell }
    }

    fn timer(&self, payload: usize) -> Timer {
        Timer::new(&self.shard, payload)
    }

    /// A timer that is armed already.
    fn armed(&self, payload: usize, due: u64) -> Timer {
        let timer = self.timer(payload);
        timer.arm(due, 0).unwrap();
        timer
    }

    /// Moves the clock and lets the wheel find what is due, without delivering it.
    fn find(&self, to: u64) {
        self.time.move_to(to);
        self.shard.process(self.time.now(), 0);
    }

    /// Claims everything queued; the payloads that are to run, in order.
    fn deliver(&self) -> Vec<usize> {
        let fires = self.shard.take();
        fires.iter().filter_map(|fired| self.claim(fired)).collect()
    }

    fn claim(&self, fired: &Fired) -> Option<usize> {
        match self.shard.claim(fired, self.time.now(), |_| ()) {
            Claim::Run { payload, .. } => Some(payload),
            Claim::Void => None,
        }
    }

    /// Moves the clock, and delivers what is due then.
    fn advance(&self, to: u64) -> Vec<usize> {
        self.find(to);
        self.deliver()
    }

    fn armed_count(&self) -> u64 {
        self.shard.stats().armed
    }
}
