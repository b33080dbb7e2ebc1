//! The driver: one plain thread that finds what is due in all shards on the real clock.
//!
//! It starts with the first timer, sleeps until the next deadline (for ever when there is none), and
//! never ticks. It knows nothing of Python and never waits for it.
//!
//! # Ground rules
//!
//! - Sleep against arm: before it sleeps, the driver publishes until when (`sleeping_until`), then looks
//!   at every shard's `next_wake` once more. An arm stores its shard's `next_wake`, then reads
//!   `sleeping_until`, and unparks the driver if it would come too late. Both sides are sequentially
//!   consistent: one of them sees the other. `sleeping_until` is 0 while the driver is awake, so a burst
//!   of arms costs one unpark at most.
//! - Fork: all that takes a lock runs inside `gate`, which [`Driver::hold`] takes before a fork. So at the fork no lock
//!   of a shard is held by the driver, and the child, where the driver does not exist, finds them free.
//!   The child gets a new driver; `parker` alone may be left locked, and belongs to the old one.

use super::{
    clock::{Clock, monotonic},
    error::Error,
    shard::{Overseer, Shard},
    stats::Stats,
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, Parker, lock, see_each_other, thread},
};

/// Waking up later than planned by more than this means that the process did not run.
pub const FROZEN: u64 = 250_000_000;

/// How long the driver waits after a pass that panicked.
const BACK_OFF: u64 = 10_000_000;

#[derive(Debug, Default)]
struct Shards {
    live: Vec<Arc<Shard>>,
    /// Counters of shards that are gone.
    retired: Stats,
}

/// See the module. A clone is another handle to the same driver.
#[derive(Debug, Clone, Default)]
pub struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: Mutex<Shards>,
    parker: Parker,
    sleeping_until: AtomicU64,
    /// 0: no thread; 1: running; 2: told to stop.
    running: AtomicU32,
    gate: AtomicU32,
    heartbeat: AtomicU64,
    passes: AtomicU64,
    panics: AtomicU64,
    frozen_until: AtomicU64,
    /// When the driver was last called to come at once and has not come yet; 0 for never.
    called: AtomicU64,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            shards: Mutex::new(Shards::default()),
            parker: Parker::default(),
            sleeping_until: AtomicU64::new(0),
            running: AtomicU32::new(0),
            gate: AtomicU32::new(0),
            heartbeat: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            frozen_until: AtomicU64::new(0),
            called: AtomicU64::new(0),
            thread: Mutex::new(None),
        }
    }
}

/// How the driver is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Whether its thread runs.
    pub running: bool,
    /// When it last woke, in nanoseconds; 0 before the first time.
    pub heartbeat: u64,
    /// How often it woke.
    pub passes: u64,
    /// Passes that ended in a bug of ours and were begun again.
    pub panics: u64,
    /// When this process last came back from not running for a while, as far as the driver could notice
    /// (it was to wake up meanwhile); 0 for never. What was silent since before then was not observed.
    pub frozen_until: u64,
}

impl Overseer for Driver {
    #[inline]
    fn ensure_running(&self) -> Result<(), Error> {
        if self.0.running.load(Ordering::Acquire) == 0 {
            self.start()
        } else {
            Ok(())
        }
    }

    #[inline]
    fn poke(&self, when: u64) {
        see_each_other();
        if when < self.0.sleeping_until.load(Ordering::SeqCst) {
            self.call();
            self.0.parker.unpark();
        }
    }

    fn forget(&self, shard: &Shard) {
        let stats = shard.stats();
        let mut shards = lock(&self.0.shards);
        let at = shards
            .live
            .iter()
            .position(|s| std::ptr::eq(&raw const **s, shard));
        let gone = at.map(|at| shards.live.swap_remove(at));
        if gone.is_some() {
            shards.retired.add(&stats);
        }
        drop(shards);
        // Its memory may go with it, once nobody waits for the lock.
        drop(gone);
    }
}

impl Driver {
    /// Takes over a shard, whose overseer must be (a clone of) this driver.
    pub fn adopt(&self, shard: &Arc<Shard>) {
        lock(&self.0.shards).live.push(shard.clone());
    }

    /// The counters of all shards, past ones included.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (live, mut sum) = {
            let shards = lock(&self.0.shards);
            (shards.live.clone(), shards.retired)
        };
        for shard in live {
            sum.add(&shard.stats());
        }
        sum
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            running: self.0.running.load(Ordering::SeqCst) == 1,
            heartbeat: self.0.heartbeat.load(Ordering::SeqCst),
            passes: self.0.passes.load(Ordering::SeqCst),
            panics: self.0.panics.load(Ordering::SeqCst),
            frozen_until: self.0.frozen_until.load(Ordering::SeqCst),
        }
    }

    /// Notes that it is expected from now on.
    fn call(&self) {
        let now = monotonic();
        let _ = self
            .0
            .called
            .compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
    }

    #[cold]
    fn start(&self) -> Result<(), Error> {
        let mut slot = lock(&self.0.thread);
        let this = self.clone();
        if self.0.running.load(Ordering::SeqCst) == 0 && !cfg!(loom) {
            self.call();
            let thread = thread::Builder::new()
                .name("stallwatch".to_owned())
                .spawn(move || this.run())
                .map_err(|error| Error::NoThread(error.to_string()))?;
            *slot = Some(thread);
            self.0.running.store(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Ends the thread and waits for it (it is never in the middle of anything long). Timers can still
    /// be armed afterwards; they do not fire.
    pub fn stop(&self) {
        // Under the lock that a start takes: either that one sees 2, or its thread is seen here.
        let thread = {
            let mut slot = lock(&self.0.thread);
            self.0.running.store(2, Ordering::SeqCst);
            slot.take()
        };
        self.0.parker.unpark();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }

    /// Keeps the driver out of its passes until [`Driver::let_go`].
    pub fn hold(&self) {
        while self
            .0
            .gate
            .compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            thread::yield_now();
        }
    }

    /// Ends [`Driver::hold`].
    pub fn let_go(&self) {
        self.0.gate.store(0, Ordering::SeqCst);
    }

    fn enter(&self) -> Gate<'_> {
        self.hold();
        Gate(self)
    }

    /// In the child of a fork: marks every shard of this driver as inherited.
    pub fn abandon(&self) {
        for shard in &lock(&self.0.shards).live {
            shard.inherit();
        }
    }

    /// One pass over all shards at `now`; returns the next moment of interest.
    pub fn pass(&self, now: u64, overslept: u64) -> u64 {
        let _gate = self.enter();
        let live = lock(&self.0.shards).live.clone();
        let mut next = u64::MAX;
        for shard in &live {
            let mut at = shard.next_wake();
            if at <= now {
                at = shard.process(now, overslept);
            }
            next = next.min(at);
        }
        next
    }

    /// Publishes that it will sleep until `until`; false if some shard cannot wait that long.
    pub fn prepare_sleep(&self, until: u64) -> bool {
        let gate = self.enter();
        // A call that comes after this is followed by an unpark, so it is answered at once.
        self.0.called.store(0, Ordering::SeqCst);
        self.0.sleeping_until.store(until, Ordering::SeqCst);
        see_each_other();
        let earliest = lock(&self.0.shards)
            .live
            .iter()
            .map(|s| s.next_wake())
            .min()
            .unwrap_or(u64::MAX);
        drop(gate);
        let calm = earliest >= until;
        if !calm {
            self.0.sleeping_until.store(0, Ordering::SeqCst);
        }
        calm
    }

    /// Sleeps for `limit_ns` at most, or until poked.
    pub fn sleep(&self, limit_ns: Option<u64>) {
        self.0.parker.park(limit_ns);
        self.0.sleeping_until.store(0, Ordering::SeqCst);
    }

    fn run(&self) {
        sharpen_sleep();
        let mut planned = u64::MAX;
        while self.0.running.load(Ordering::SeqCst) != 2 {
            let turn =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.turn(planned)));
            match turn {
                Ok(next) => planned = next,
                Err(_) => {
                    // A bug of ours. The entry at hand is lost, everything else goes on; the count
                    // shows in the statistics.
                    self.0.panics.fetch_add(1, Ordering::SeqCst);
                    planned = u64::MAX;
                    // One that comes back at once must not take a core.
                    self.sleep(Some(BACK_OFF));
                }
            }
        }
    }

    fn turn(&self, planned: u64) -> u64 {
        let now = Clock::Real.now();
        self.0.heartbeat.store(now, Ordering::SeqCst);
        self.0.passes.fetch_add(1, Ordering::SeqCst);
        // Late for its own plan, or for a call: then it did not run, and neither did the process.
        let called = self.0.called.swap(0, Ordering::SeqCst);
        let called = if called == 0 { now } else { called };
        let overslept = now.saturating_sub(planned.min(called));
        let frozen = overslept > FROZEN;
        if frozen {
            self.0.frozen_until.store(now, Ordering::SeqCst);
        }
        let next = self.pass(now, if frozen { overslept } else { 0 });
        if !self.prepare_sleep(next) {
            return u64::MAX;
        }
        // What the pass took is no sleep.
        let now = monotonic();
        let planned = next.max(now);
        if next > now && self.0.running.load(Ordering::SeqCst) != 2 {
            self.sleep((next != u64::MAX).then(|| next - now));
        } else {
            self.0.sleeping_until.store(0, Ordering::SeqCst);
        }
        planned
    }
}

/// The driver's own hold, which ends with its scope, also when a panic ends that.
struct Gate<'a>(&'a Driver);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// The default timer slack of 50 µs would be most of our lateness.
fn sharpen_sleep() {
    #[cfg(target_os = "linux")]
    // SAFETY: sets an attribute of the calling thread; no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize);
    }
}
