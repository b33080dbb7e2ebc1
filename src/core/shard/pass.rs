//! A pass: what is due is found, queued in order, and the owner told.

use super::{Fired, Inner, Shard};
use crate::core::{
    clock::Ticks,
    state::{ARMED, FIRED, PARKED, PAUSED, STRONG},
    sync::{Ordering, lock, see_each_other},
    wheel::Wheel,
};

/// Entries looked at before the lock is given up for a moment.
const BATCH: usize = 256;

impl Shard {
    /// The clock went back (it must not, but some hypervisors let it): files everything anew from there.
    /// Timers armed before then come late by the jump, later ones on time, and none early.
    #[cold]
    pub(super) fn set_back(inner: &mut Inner, ticks: Ticks, now: u64) {
        inner.wheel = Wheel::new(now);
        for entry in inner.slab.iter().filter(|entry| entry.is_filed()) {
            entry.forget_place();
            // One that is paused comes out at the next visit.
            let due = entry.due.load(Ordering::Relaxed) & !PAUSED;
            inner
                .wheel
                .insert(&inner.slab, entry.index, ticks.ceil(due));
        }
    }

    /// Finds everything due at `now`, queues it, and wakes the owner once. `overslept` is noted in each
    /// fire. Returns when to come again.
    pub fn process(&self, now: u64, overslept: u64) -> u64 {
        let ticks = self.clock.ticks();
        let tick = ticks.floor(now);
        loop {
            let mut guard = lock(&self.inner);
            let inner = &mut *guard;
            let over = (0..BATCH).any(|_| match inner.wheel.pop(&inner.slab, tick) {
                None => true,
                Some(key) => {
                    Self::visit(inner, ticks, key, now, overslept);
                    false
                }
            });
            if !over {
                continue;
            }
            let wake = Self::publish(inner);
            let next = inner
                .wheel
                .next_tick()
                .map_or(u64::MAX, |tick| ticks.start(tick));
            self.next_wake.store(next, Ordering::SeqCst);
            // The owner is told once nobody can wait for this lock on its behalf.
            drop(guard);
            if wake {
                let unheard = Unheard(self);
                self.waker.wake();
                std::mem::forget(unheard);
            }
            return next;
        }
    }

    fn visit(inner: &mut Inner, ticks: Ticks, key: u32, now: u64, overslept: u64) {
        let entry = inner.slab.entry(key);
        let flags = entry.state.load(Ordering::Relaxed) & STRONG;
        let mut due = entry.due.load(Ordering::SeqCst);
        if due & PAUSED != 0 {
            entry.state.store(PARKED | flags, Ordering::SeqCst);
            see_each_other();
            due = entry.due.load(Ordering::SeqCst);
            if due & PAUSED != 0 {
                return;
            }
            entry.state.store(ARMED | flags, Ordering::SeqCst);
        }
        // `now` may be behind the wheel, which an arm has moved on since; the wheel's time has come too.
        // Filing what has come by that time would hand it out again at once, for ever.
        if due > now && ticks.ceil(due) > inner.wheel.elapsed() {
            inner.stats.rearmed += 1;
            inner.wheel.insert(&inner.slab, key, ticks.ceil(due));
        } else {
            let now = now.max(due);
            entry.state.store(FIRED | flags, Ordering::SeqCst);
            inner.stats.decided.record(now - due);
            let seq = entry.seq.get();
            inner.found.push(Fired {
                index: key,
                seq,
                due,
                decided: now,
                overslept,
            });
        }
    }

    /// Moves what the pass found into the queue: by deadline, equal ones first in, first out.
    fn publish(inner: &mut Inner) -> bool {
        let newest = inner.seq;
        // Age instead of number: the arm counter may have wrapped.
        inner
            .found
            .sort_unstable_by_key(|f| (f.due, u32::MAX - newest.wrapping_sub(f.seq)));
        inner.fired.append(&mut inner.found);
        if inner.found.capacity() > 4 * BATCH {
            inner.found = Vec::new();
        }
        let wake = !inner.fired.is_empty() && !inner.notified;
        inner.notified |= wake;
        wake
    }
}

/// A wake-up that did not reach the owner, if it gets dropped: the next pass tries again.
struct Unheard<'a>(&'a Shard);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        lock(&self.0.inner).notified = false;
    }
}
