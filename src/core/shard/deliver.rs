//! Delivery: the queue is emptied by the owner, and each fire judged once more before it runs.

use super::{Claim, Fired, Inner, Shard};
use crate::core::{
    state::{ARMED, FIRED, IDLE, NOBODY, PARKED, PAUSED, STATE, STRONG},
    sync::{Ordering, lock, see_each_other},
};

impl Shard {
    /// Takes the queued fires. Each has to be claimed before it runs.
    #[must_use]
    pub fn take(&self) -> Vec<Fired> {
        let mut inner = lock(&self.inner);
        inner.notified = false;
        std::mem::take(&mut inner.fired)
    }

    /// Puts fires back that were taken and not claimed, ahead of newer ones. Whether the owner has to
    /// be woken again.
    pub fn put_back(&self, mut rest: Vec<Fired>) -> bool {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return false;
        }
        rest.append(&mut inner.fired);
        inner.fired = rest;
        let wake = !inner.fired.is_empty() && !inner.notified;
        inner.notified |= wake;
        wake
    }

    /// Wakes the owner.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Judges a fire at the moment of delivery, `now`. `keep` is called with the payload under the lock
    /// if it is to run; it may take a reference, and nothing else. While the payload is [`NOBODY`], the
    /// fire comes again.
    pub fn claim(&self, fired: &Fired, now: u64, keep: impl FnOnce(usize)) -> Claim {
        let inner = &mut *lock(&self.inner);
        let Some(entry) = inner.slab.get(fired.index) else {
            return Claim::Void;
        };
        let state = entry.state.load(Ordering::Relaxed);
        if state & STATE != FIRED || entry.seq.get() != fired.seq {
            return Claim::Void;
        }
        let due = entry.due.load(Ordering::SeqCst);
        if due & PAUSED != 0 {
            entry
                .state
                .store(PARKED | (state & STRONG), Ordering::SeqCst);
            see_each_other();
            // Resumed in between: its owner may have looked at the state too early to see it parked.
            let due = entry.due.load(Ordering::SeqCst);
            if due & PAUSED == 0 {
                self.rescue(inner, fired.index, due);
            }
            return Claim::Void;
        }
        if due > now {
            self.rescue(inner, fired.index, due);
            return Claim::Void;
        }
        let payload = entry.payload.get();
        if payload == NOBODY {
            self.rescue(inner, fired.index, due);
            return Claim::Void;
        }
        entry.state.store(IDLE, Ordering::Release);
        inner.stats.armed -= 1;
        inner.stats.fired += 1;
        inner.stats.delivered.record(now - due);
        keep(payload);
        Claim::Run {
            payload,
            flags: state & STRONG,
        }
    }

    fn rescue(&self, inner: &mut Inner, key: u32, due: u64) {
        inner.stats.rescued += 1;
        let entry = inner.slab.entry(key);
        let flags = entry.state.load(Ordering::Relaxed) & STRONG;
        entry.state.store(ARMED | flags, Ordering::SeqCst);
        self.file(inner, key, due, self.clock.now());
    }
}
