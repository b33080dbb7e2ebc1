//! Synchronisation primitives: std in a build, loom under `--cfg loom`. The only place that imports either.

#[cfg(loom)]
pub use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

/// Atomics that are only ever touched under a shard's lock. They are atomics so that the slab can hand
/// out shared references without `unsafe`; loom need not explore them.
pub mod locked {
    use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

    macro_rules! cell {
        ($name:ident, $atomic:ty, $int:ty) => {
            /// A plain cell guarded by a lock elsewhere.
            #[derive(Debug)]
            pub struct $name($atomic);
            impl $name {
                /// A cell that holds `value`.
                pub const fn new(value: $int) -> Self {
                    Self(<$atomic>::new(value))
                }
                /// The value.
                pub fn get(&self) -> $int {
                    self.0.load(Ordering::Relaxed)
                }
                /// Replaces the value.
                pub fn set(&self, value: $int) {
                    self.0.store(value, Ordering::Relaxed);
                }
            }
        };
    }
    cell!(Cell16, AtomicU16, u16);
    cell!(Cell32, AtomicU32, u32);
    cell!(CellPtr, AtomicUsize, usize);
}

/// Stands where this thread stores one word and then loads another, while a second thread does it the
/// other way round, and at least one of them must see the other. The accesses are sequentially
/// consistent, which is all that is needed; loom takes those for acquire and release and knows fences
/// only, so it gets one here.
#[inline]
pub fn see_each_other() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Locks, and goes on with the data of a lock whose holder panicked: every critical section in the core
/// leaves its data consistent at each step that can panic, and the guard must not be what kills the host.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Parks one thread until another unparks it or a time has passed. An unpark that comes first is kept.
#[derive(Debug)]
pub struct Parker {
    token: Mutex<bool>,
    wake: Condvar,
}

impl Default for Parker {
    fn default() -> Self {
        Self {
            token: Mutex::new(false),
            wake: Condvar::new(),
        }
    }
}

impl Parker {
    /// Sleeps until [`Parker::unpark`] or for `limit_ns` (`None`: for ever). May wake for no reason.
    pub fn park(&self, limit_ns: Option<u64>) {
        let mut token = lock(&self.token);
        if !*token {
            token = match limit_ns {
                None => match self.wake.wait(token) {
                    Ok(guard) => guard,
                    Err(poisoned) => poisoned.into_inner(),
                },
                Some(ns) => self.wait_timeout(token, ns),
            };
        }
        *token = false;
    }

    #[cfg(not(loom))]
    fn wait_timeout<'a>(&'a self, token: MutexGuard<'a, bool>, ns: u64) -> MutexGuard<'a, bool> {
        match self
            .wake
            .wait_timeout(token, std::time::Duration::from_nanos(ns))
        {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    /// loom has no time: a timed park is a yield.
    #[cfg(loom)]
    fn wait_timeout<'a>(&'a self, token: MutexGuard<'a, bool>, _ns: u64) -> MutexGuard<'a, bool> {
        drop(token);
        thread::yield_now();
        lock(&self.token)
    }

    /// Ends the current or the next [`Parker::park`].
    pub fn unpark(&self) {
        *lock(&self.token) = true;
        self.wake.notify_one();
    }
}
