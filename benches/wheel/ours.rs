//! This project's timers, and their wheel alone.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use stallwatch::core::{
    clock::{Clock, ManualTime},
    shard::{self, Claim, Shard},
    timer::Timer,
    wheel,
};

use crate::peers::{Queue, timed};

/// The whole core as the binding uses it: handles, lock, counters, claims; on a manual clock, whose ticks
/// of a nanosecond cost more levels than real ones. Putting off is a touch *and* the visit that files the
/// timer anew, though in use one visit settles any number of touches.
pub(crate) struct Ours {
    time: Arc<ManualTime>,
    shard: Arc<Shard>,
    timers: Vec<Timer>,
}

#[derive(Debug)]
struct Silent;

impl shard::Waker for Silent {
    fn wake(&self) {}
}

const MS: u64 = 1_000_000;

impl Queue for Ours {
    const NAME: &str = "stallwatch timer";
    fn new(capacity: u32) -> Self {
        let time = Arc::new(ManualTime::new(0));
        let shard = Shard::new(Clock::Manual(time.clone()), None, Box::new(Silent));
        let timers = (0..capacity)
            .map(|id| Timer::new(&shard, id as usize))
            .collect();
        Self {
            time,
            shard,
            timers,
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        self.timers[id as usize].arm(due * MS, 0).unwrap();
    }
    fn cancel(&mut self, id: u32) {
        self.timers[id as usize].cancel();
    }
    fn before_put_off(&mut self, ids: &[u32]) {
        for &id in ids {
            self.timers[id as usize].move_to(self.time.now() + 1_000);
        }
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        for &id in ids {
            self.timers[id as usize].touch(due * MS);
        }
        self.time.move_to(self.time.now() + 1_000);
        self.shard.process(self.time.now(), 0);
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        timed(|| {
            self.time.move_to(now * MS);
            self.shard.process(now * MS, 0);
            for found in self.shard.take() {
                if let Claim::Run { payload, .. } = self.shard.claim(&found, now * MS, |_| ()) {
                    fired.push(payload as u32);
                }
            }
        })
    }
}

/// The wheel alone, in ticks of a millisecond. Putting off is a removal and an insertion.
pub(crate) struct Wheel {
    slab: wheel::Slab,
    wheel: wheel::Wheel,
    keys: Vec<u32>,
}

impl Queue for Wheel {
    const NAME: &str = "stallwatch wheel";
    fn new(capacity: u32) -> Self {
        Self {
            slab: wheel::Slab::default(),
            wheel: wheel::Wheel::new(0),
            keys: vec![wheel::NIL; capacity as usize],
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        let entry = self.slab.acquire();
        entry.due.store(due, Ordering::Relaxed);
        entry.payload.set(id as usize);
        let key = entry.index;
        self.keys[id as usize] = key;
        self.wheel.insert(&self.slab, key, due);
    }
    fn cancel(&mut self, id: u32) {
        let key = self.keys[id as usize];
        self.wheel.remove(&self.slab, key);
        self.slab.release(key);
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        for &id in ids {
            let key = self.keys[id as usize];
            self.slab.entry(key).due.store(due, Ordering::Relaxed);
            self.wheel.remove(&self.slab, key);
            self.wheel.insert(&self.slab, key, due);
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        timed(|| {
            while let Some(key) = self.wheel.pop(&self.slab, now) {
                let entry = self.slab.entry(key);
                let due = entry.due.load(Ordering::Relaxed);
                if due > now {
                    self.wheel.insert(&self.slab, key, due);
                } else {
                    fired.push(entry.payload.get() as u32);
                    self.slab.release(key);
                }
            }
        })
    }
}
