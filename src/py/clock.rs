//! Which clock new timers and trackers get: the real one, or the manual one that a test has put in place.

use std::sync::{
    Weak,
    atomic::{AtomicBool, Ordering},
};

use pyo3::{exceptions::PyRuntimeError, prelude::*};

use super::{convert, dispatch::Dispatch};
use crate::core::{
    clock::{Clock, FAR, ManualTime, ns_from_secs, secs},
    shard::Shard,
    sync::{Arc, Mutex, lock},
};

static MANUAL: Mutex<Option<Arc<Manual>>> = Mutex::new(None);

/// Whether `MANUAL` holds one: spares the hot paths the lock.
static IS_MANUAL: AtomicBool = AtomicBool::new(false);

/// A manual time and the shards that run on it.
pub(crate) struct Manual {
    time: Arc<ManualTime>,
    shards: Mutex<Vec<Weak<Shard>>>,
    /// Where timers made outside a loop go.
    pub(crate) dispatch: Dispatch,
}

impl Manual {
    pub(crate) fn clock(&self) -> Clock {
        Clock::Manual(self.time.clone())
    }

    pub(crate) fn adopt(&self, shard: &Arc<Shard>) {
        lock(&self.shards).push(Arc::downgrade(shard));
    }

    fn live(&self) -> Vec<Arc<Shard>> {
        let mut shards = lock(&self.shards);
        shards.retain(|shard| shard.strong_count() > 0);
        shards.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The manual clock in place, if one is.
pub(crate) fn manual() -> Option<Arc<Manual>> {
    lock(&MANUAL).clone()
}

/// The clock that objects made now belong to for their whole life.
pub(crate) fn current() -> Clock {
    if !IS_MANUAL.load(Ordering::Relaxed) {
        return Clock::Real;
    }
    lock(&MANUAL)
        .as_ref()
        .map_or(Clock::Real, |manual| manual.clock())
}

/// Whether a manual clock is in place.
pub(crate) fn is_manual() -> bool {
    IS_MANUAL.load(Ordering::Relaxed)
}

/// Whether `clock` is the one that objects made now would get.
pub(crate) fn is_current(clock: &Clock) -> bool {
    if !IS_MANUAL.load(Ordering::Relaxed) {
        return matches!(clock, Clock::Real);
    }
    match (clock, &*lock(&MANUAL)) {
        (Clock::Real, None) => true,
        (Clock::Manual(time), Some(manual)) => Arc::ptr_eq(time, &manual.time),
        _ => false,
    }
}

/// A clock that moves when told: the native half of `stallwatch.testing.ManualClock`.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct ManualClock(Arc<Manual>);

#[pymethods]
impl ManualClock {
    #[new]
    fn new(start: f64) -> Self {
        let time = Arc::new(ManualTime::new(ns_from_secs(start)));
        let dispatch = Dispatch::new(Clock::Manual(time.clone()), None);
        let manual = Manual {
            time,
            shards: Mutex::default(),
            dispatch,
        };
        manual.adopt(manual.dispatch.shard());
        Self(Arc::new(manual))
    }

    /// Makes it the clock of everything made from now on.
    fn install(&self) -> PyResult<()> {
        let mut slot = lock(&MANUAL);
        if slot.is_some() {
            return Err(PyRuntimeError::new_err(
                "a manual clock is already in place",
            ));
        }
        *slot = Some(self.0.clone());
        IS_MANUAL.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes it out of place; what was made on it stays on it.
    fn uninstall(&self) {
        let mut slot = lock(&MANUAL);
        slot.take_if(|manual| Arc::ptr_eq(manual, &self.0));
        IS_MANUAL.store(slot.is_some(), Ordering::Relaxed);
    }

    /// The moment it stands at, in seconds.
    fn now(&self) -> f64 {
        secs(self.0.time.now())
    }

    /// The next moment at which it has to stop on its way, in seconds, or None.
    fn next_stop(&self) -> Option<f64> {
        let next = self.0.live().iter().map(|shard| shard.next_wake()).min()?;
        let mut at = secs(next);
        // Far from 0 seconds are coarser than nanoseconds: rounded down, they would stop short of it.
        while ns_from_secs(at) < next.min(FAR) {
            at = at.next_up();
        }
        (next != u64::MAX).then_some(at)
    }

    /// Moves on to the next stop, if that is not later than `limit` (seconds), and queues what is due
    /// there. False once there is no such stop; it then stands at `limit`.
    fn step(&self, limit: f64) -> bool {
        let limit = ns_from_secs(limit);
        let live = self.0.live();
        let next = live
            .iter()
            .map(|shard| shard.next_wake())
            .min()
            .unwrap_or(u64::MAX);
        let found = next <= limit;
        self.0.time.move_to(next.min(limit));
        let now = self.0.time.now();
        for shard in live.iter().filter(|shard| shard.next_wake() <= now) {
            shard.process(now, 0);
        }
        found
    }

    /// The next callback due of a timer made outside a loop, or None.
    fn next_callback(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.dispatch.next_callback(py)
    }
}

/// Now, in seconds, on the clock that objects made now would get.
#[pyfunction]
pub(crate) fn now() -> f64 {
    secs(current().now())
}

/// A moment in seconds as nanoseconds, or None for "never". The past is 0, minus infinity included.
pub(crate) fn moment(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u64>> {
    convert::seconds(value, name).map(|at| at.filter(|at| *at < f64::INFINITY).map(ns_from_secs))
}
