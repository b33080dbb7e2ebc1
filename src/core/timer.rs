//! A timer: a handle to one entry of a shard's wheel. The ground rules are in [`super::state`].
//! Deadlines beyond [`FAR`] saturate: bit 63 is not theirs.

use super::{
    clock::FAR,
    error::Error,
    shard::Shard,
    state::{FIRED, IDLE, PARKED, PAUSED, STATE},
    sync::{Arc, Ordering, see_each_other},
    wheel::Entry,
};
use std::ptr::NonNull;

/// A handle to one entry. Dropping it takes the entry out of the wheel and gives it back.
#[derive(Debug)]
pub struct Timer {
    shard: Arc<Shard>,
    entry: NonNull<Entry>,
}

// SAFETY: the entry lives in the shard's slab, which the `Arc` keeps; the slab gives its memory back only
// after this handle released it, in `drop`. All shared fields of an entry are atomics.
unsafe impl Send for Timer {}
// SAFETY: as above.
unsafe impl Sync for Timer {}

impl Timer {
    /// An idle timer of `shard`. `payload` is what a fire hands over; opaque here.
    pub fn new(shard: &Arc<Shard>, payload: usize) -> Self {
        Self {
            shard: shard.clone(),
            entry: shard.acquire(payload),
        }
    }

    /// A timer of `shard` that is armed already: [`Timer::new`] and [`Timer::arm`] in one. `now` is a
    /// reading of the shard's clock, or of [`Clock::recently`](super::clock::Clock::recently).
    ///
    /// # Errors
    /// As of [`Timer::arm`].
    pub fn armed(
        shard: &Arc<Shard>,
        payload: usize,
        due: u64,
        flags: u32,
        now: u64,
    ) -> Result<Self, Error> {
        let entry = shard.acquire_armed(payload, due.min(FAR), flags, now)?;
        Ok(Self {
            shard: shard.clone(),
            entry,
        })
    }

    pub(super) fn entry(&self) -> &Entry {
        // SAFETY: see the `Send` note: released in `drop` only.
        unsafe { self.entry.as_ref() }
    }

    /// The shard it belongs to.
    #[must_use]
    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Sets what a fire hands over. Only for a timer that is idle.
    pub fn set_payload(&self, payload: usize) {
        self.entry().payload.set(payload);
    }

    /// Starts the clock, or sets it anew wherever it stands. `flags` is 0 or [`STRONG`](super::state::STRONG).
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Inherited`], [`Error::NoThread`]; nothing has changed then.
    pub fn arm(&self, due: u64, flags: u32) -> Result<(), Error> {
        self.shard.arm(self.entry(), due.min(FAR), flags)
    }

    /// Moves the deadline later, without a lock. Late for a `due` before the last one set; lost for a
    /// paused timer ([`Timer::pause`] anew sets what is left, [`Timer::resume_at`] lets it run).
    #[inline]
    pub fn touch(&self, due: u64) {
        self.entry().due.store(due.min(FAR), Ordering::Release);
    }

    /// Moves the deadline anywhere. No effect on an idle timer.
    pub fn move_to(&self, due: u64) {
        self.shard.move_to(self.entry(), due.min(FAR));
    }

    /// Stops the clock; `rest` is what [`Timer::due`] reports meanwhile. Lock-free.
    #[inline]
    pub fn pause(&self, rest: u64) {
        self.entry()
            .due
            .store(PAUSED | rest.min(FAR), Ordering::Release);
    }

    /// Lets a paused clock run again until `due`, which must not lie before the last unpaused due.
    /// Lock-free unless the wheel came by while it was paused.
    #[inline]
    pub fn resume_at(&self, due: u64) {
        let entry = self.entry();
        entry.due.store(due.min(FAR), Ordering::SeqCst);
        see_each_other();
        if entry.state.load(Ordering::SeqCst) & STATE == PARKED {
            self.shard.unpark(entry);
        }
    }

    /// The `due` word: nanoseconds, or [`PAUSED`] with what was left.
    #[inline]
    #[must_use]
    pub fn due(&self) -> u64 {
        self.entry().due.load(Ordering::Acquire)
    }

    /// Whether its clock runs, is paused, or has a fire under way.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.shard.is_inherited() && self.entry().state.load(Ordering::Acquire) & STATE != IDLE
    }

    /// Whether it was found due and the delivery is under way: one load, for hot paths.
    #[inline]
    #[must_use]
    pub fn has_fired(&self) -> bool {
        self.entry().state.load(Ordering::Acquire) & STATE == FIRED
    }

    /// Stops it for good. `Some(flags)` if it was active: its callback will not run, and what the
    /// caller holds on behalf of the timer ([`STRONG`](super::state::STRONG)) is the caller's to drop.
    pub fn cancel(&self) -> Option<u32> {
        self.shard.cancel(self.entry())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shard.release(self.entry());
    }
}
