//! A shard: the timers of one event loop (or of none), their wheel, and the queue of what has fired.
//!
//! One mutex guards all of it. No Python, no waker and no callback runs while it is held: what is to be
//! told to others is collected, and said after the unlock. A pass over what is due gives the lock up
//! every few hundred entries (`pass`), so that an arm never waits for a burst.

mod deliver;
mod pass;

use super::{
    clock::Clock,
    error::Error,
    state::{ARMED, IDLE, PARKED, PAUSED, STATE, STRONG},
    stats::Stats,
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock},
    wheel::{Entry, Slab, Wheel},
};
use std::ptr::NonNull;

/// A reading this far (ns) behind the wheel's own time means that the clock itself went back.
const BEHIND: u64 = 1_000_000_000;

/// Tells the owner of a shard that fires wait for it. Called from the driver thread, with no lock held;
/// must not block.
pub trait Waker: Send + Sync + std::fmt::Debug {
    /// One wake-up for all fires queued so far.
    fn wake(&self);
}

/// Comes by when something of a shard is due. The driver is one; a shard on a manual clock has none.
pub trait Overseer: Send + Sync + std::fmt::Debug {
    /// Makes sure that it will come at all.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    fn ensure_running(&self) -> Result<(), Error>;
    /// Makes sure that it comes by `when`. Called under the shard's lock: must not look at the shard.
    fn poke(&self, when: u64);
    /// Takes note that a shard is closed.
    fn forget(&self, shard: &Shard);
}

/// A fire on its way to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    index: u32,
    seq: u32,
    /// The deadline it was found past, in nanoseconds.
    pub due: u64,
    /// When that was found.
    pub decided: u64,
    /// By how much the timer thread itself had overslept: time in which this process did not run.
    pub overslept: u64,
}

/// What to do with a fire on delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// Run it. The payload and flags are those of the timer, which is idle now.
    Run {
        /// The timer's payload.
        payload: usize,
        /// [`STRONG`] or 0.
        flags: u32,
    },
    /// It was cancelled, dropped, paused or touched meanwhile; the timer has been seen to.
    Void,
}

#[derive(Debug)]
struct Inner {
    wheel: Wheel,
    slab: Slab,
    /// Found due in the pass under way; becomes part of `fired` in order, once the pass is over.
    found: Vec<Fired>,
    fired: Vec<Fired>,
    notified: bool,
    closed: bool,
    seq: u32,
    stats: Stats,
}

/// See the module.
#[derive(Debug)]
pub struct Shard {
    clock: Clock,
    overseer: Option<Box<dyn Overseer>>,
    waker: Box<dyn Waker>,
    inner: Mutex<Inner>,
    /// When the driver has to look here next; `u64::MAX` for never. Written under the lock.
    next_wake: AtomicU64,
    inherited: AtomicU32,
}

impl Shard {
    /// A shard on `clock`. Whoever oversees it calls [`Shard::process`] when [`Shard::next_wake`] comes.
    pub fn new(
        clock: Clock,
        overseer: Option<Box<dyn Overseer>>,
        waker: Box<dyn Waker>,
    ) -> Arc<Self> {
        let wheel = Wheel::new(clock.ticks().floor(clock.now()));
        Arc::new(Self {
            clock,
            overseer,
            waker,
            inner: Mutex::new(Inner {
                wheel,
                slab: Slab::default(),
                found: Vec::new(),
                fired: Vec::new(),
                notified: false,
                closed: false,
                seq: 0,
                stats: Stats::default(),
            }),
            next_wake: AtomicU64::new(u64::MAX),
            inherited: AtomicU32::new(0),
        })
    }

    /// The clock its timers run on.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// When it has to be looked at next, in nanoseconds; `u64::MAX` for never.
    #[must_use]
    pub fn next_wake(&self) -> u64 {
        self.next_wake.load(Ordering::SeqCst)
    }

    /// Marks it as left over from before a fork: nothing of it ever fires again here.
    pub fn inherit(&self) {
        self.inherited.store(1, Ordering::SeqCst);
    }

    /// Whether it was made before a fork, in another process.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Acquire) != 0
    }

    /// Whether [`Shard::close`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.inner).closed
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        lock(&self.inner).stats
    }

    /// How many timers its memory could hold.
    #[cfg(all(test, not(loom)))]
    pub(super) fn capacity(&self) -> usize {
        lock(&self.inner).slab.capacity()
    }

    pub(super) fn acquire(&self, payload: usize) -> NonNull<Entry> {
        let mut inner = lock(&self.inner);
        let entry = inner.slab.acquire();
        entry.payload.set(payload);
        NonNull::from(entry)
    }

    pub(super) fn release(&self, entry: &Entry) {
        if self.is_inherited() {
            return;
        }
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        if entry.state.load(Ordering::Relaxed) & STATE != IDLE {
            inner.wheel.remove(&inner.slab, entry.index);
            entry.state.store(IDLE, Ordering::Release);
            inner.stats.armed -= 1;
            inner.stats.cancelled += 1;
        }
        let shrunk = inner.slab.release(entry.index);
        drop(guard);
        if shrunk {
            give_memory_back();
        }
    }

    pub(super) fn arm(&self, entry: &Entry, due: u64, flags: u32) -> Result<(), Error> {
        self.check()?;
        let now = self.clock.now();
        let inner = &mut *lock(&self.inner);
        if inner.closed {
            return Err(Error::Closed);
        }
        if entry.state.load(Ordering::Relaxed) & STATE == IDLE {
            inner.stats.armed += 1;
        } else {
            inner.wheel.remove(&inner.slab, entry.index);
        }
        inner.stats.started += 1;
        inner.seq = inner.seq.wrapping_add(1);
        entry.seq.set(inner.seq);
        entry.due.store(due, Ordering::SeqCst);
        entry.state.store(ARMED | flags, Ordering::SeqCst);
        self.file(inner, entry.index, due, now);
        Ok(())
    }

    /// [`Shard::acquire`] and [`Shard::arm`] under one lock; `now` spares a reading of the clock.
    pub(super) fn acquire_armed(
        &self,
        payload: usize,
        due: u64,
        flags: u32,
        now: u64,
    ) -> Result<NonNull<Entry>, Error> {
        self.check()?;
        let inner = &mut *lock(&self.inner);
        if inner.closed {
            return Err(Error::Closed);
        }
        inner.stats.armed += 1;
        inner.stats.started += 1;
        inner.seq = inner.seq.wrapping_add(1);
        let entry = inner.slab.acquire();
        entry.payload.set(payload);
        entry.seq.set(inner.seq);
        // Nobody else knows the entry yet; the lock publishes it.
        entry.due.store(due, Ordering::Relaxed);
        entry.state.store(ARMED | flags, Ordering::Relaxed);
        let (key, entry) = (entry.index, NonNull::from(entry));
        self.file(inner, key, due, now);
        Ok(entry)
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Err(Error::Inherited);
        }
        match &self.overseer {
            Some(overseer) => overseer.ensure_running(),
            None => Ok(()),
        }
    }

    pub(super) fn move_to(&self, entry: &Entry, due: u64) {
        if self.is_inherited() {
            return;
        }
        let inner = &mut *lock(&self.inner);
        let state = entry.state.load(Ordering::Relaxed);
        if state & STATE == IDLE {
            return;
        }
        entry.due.store(due, Ordering::SeqCst);
        // A queued fire sees the new deadline on delivery.
        if matches!(state & STATE, ARMED | PARKED) {
            inner.wheel.remove(&inner.slab, entry.index);
            entry
                .state
                .store(ARMED | (state & STRONG), Ordering::SeqCst);
            self.file(inner, entry.index, due, self.clock.now());
        }
    }

    pub(super) fn unpark(&self, entry: &Entry) {
        if self.is_inherited() {
            return;
        }
        let inner = &mut *lock(&self.inner);
        let state = entry.state.load(Ordering::Relaxed);
        let due = entry.due.load(Ordering::Relaxed);
        if state & STATE == PARKED && due & PAUSED == 0 && !inner.closed {
            entry
                .state
                .store(ARMED | (state & STRONG), Ordering::SeqCst);
            self.file(inner, entry.index, due, self.clock.now());
        }
    }

    pub(super) fn cancel(&self, entry: &Entry) -> Option<u32> {
        if self.is_inherited() {
            // No other thread of the parent lives here, and the driver never will.
            let state = entry.state.swap(IDLE, Ordering::AcqRel);
            return (state & STATE != IDLE).then_some(state & STRONG);
        }
        let inner = &mut *lock(&self.inner);
        let state = entry.state.load(Ordering::Relaxed);
        if state & STATE == IDLE {
            return None;
        }
        inner.wheel.remove(&inner.slab, entry.index);
        entry.state.store(IDLE, Ordering::Release);
        inner.stats.armed -= 1;
        inner.stats.cancelled += 1;
        Some(state & STRONG)
    }

    /// Files an entry and tells the driver if it has to come earlier than it planned. The poke is a
    /// futex call at most and only when the driver sleeps past this deadline, so it may be made here,
    /// under the lock.
    fn file(&self, inner: &mut Inner, key: u32, due: u64, now: u64) {
        let ticks = self.clock.ticks();
        let now = ticks.floor(now);
        // A reading taken before a pass, or a coarse one, is a little behind the wheel; a clock that went
        // back is far behind.
        if now + ticks.ceil(BEHIND) < inner.wheel.elapsed() {
            Self::set_back(inner, ticks, now);
        }
        inner.wheel.catch_up(now);
        inner.wheel.insert(&inner.slab, key, ticks.ceil(due));
        let next = inner
            .wheel
            .next_tick()
            .map_or(u64::MAX, |tick| ticks.start(tick));
        if next < self.next_wake.load(Ordering::Relaxed) {
            self.next_wake.store(next, Ordering::SeqCst);
            if let Some(overseer) = &self.overseer {
                overseer.poke(next);
            }
        }
    }

    /// Ends the shard: nothing of it fires any more. Returns the payloads of the strong timers that
    /// were active, for the caller to drop, now that no lock is held.
    pub fn close(&self) -> Vec<usize> {
        let mut dropped = Vec::new();
        if !self.is_inherited() {
            let inner = &mut *lock(&self.inner);
            inner.closed = true;
            inner.wheel = Wheel::new(0);
            for entry in inner.slab.iter() {
                let state = entry.state.load(Ordering::Relaxed);
                if state & STATE == IDLE {
                    continue;
                }
                entry.forget_place();
                entry.state.store(IDLE, Ordering::SeqCst);
                inner.stats.armed -= 1;
                inner.stats.dropped += 1;
                if state & STRONG != 0 {
                    dropped.push(entry.payload.get());
                }
            }
            inner.found = Vec::new();
            inner.fired = Vec::new();
            self.next_wake.store(u64::MAX, Ordering::SeqCst);
        }
        if let Some(overseer) = self.overseer.as_ref().filter(|_| !self.is_inherited()) {
            overseer.forget(self);
        }
        dropped
    }

    /// Calls `visit` with the payload of each active strong timer (for a garbage collector). `visit`
    /// must do nothing but look. Waits for the lock: a collector asks twice, and would take for garbage
    /// what it was shown the first time only. Whoever holds the lock allocates no Python object, so no
    /// collection can begin under it.
    pub fn each_strong(&self, mut visit: impl FnMut(usize)) {
        if self.is_inherited() {
            return;
        }
        let inner = lock(&self.inner);
        for entry in inner.slab.iter() {
            let state = entry.state.load(Ordering::Relaxed);
            if state & STATE != IDLE && state & STRONG != 0 {
                visit(entry.payload.get());
            }
        }
    }
}

/// Has the allocator return what it holds to the system. The chunks of a burst of timers lie below newer
/// allocations, so glibc by itself would keep them.
#[cold]
fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: looks at the allocator's own books only.
    unsafe {
        libc::malloc_trim(0);
    }
}
