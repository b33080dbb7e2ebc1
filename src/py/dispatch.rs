//! Timers made outside a loop: their shard, and the queue that one Python thread empties.
//!
//! Callbacks are handed out one by one to a loop written in Python, so that a thread which the
//! interpreter ends while it runs a callback has no Rust frame to unwind.

use std::sync::Arc;

use pyo3::prelude::*;

use super::{deliver, refs};
use crate::core::{
    clock::Clock,
    driver::Driver,
    shard::{Claim, Fired, Overseer, Shard, Waker},
    sync::{AtomicU32, Mutex, Ordering, Parker, lock},
};

#[derive(Debug, Default)]
struct Door {
    parker: Parker,
    stopped: AtomicU32,
}

#[derive(Debug)]
struct DoorWaker(Arc<Door>);

impl Waker for DoorWaker {
    fn wake(&self) {
        self.0.parker.unpark();
    }
}

/// The loopless shard of a clock.
#[derive(Debug)]
pub(crate) struct Dispatch {
    shard: Arc<Shard>,
    door: Arc<Door>,
    taken: Mutex<std::collections::VecDeque<Fired>>,
}

impl Dispatch {
    pub(crate) fn new(clock: Clock, driver: Option<&Driver>) -> Self {
        let door = Arc::new(Door::default());
        let overseer = driver.map(|driver| Box::new(driver.clone()) as Box<dyn Overseer>);
        let shard = Shard::new(clock, overseer, Box::new(DoorWaker(door.clone())));
        if let Some(driver) = driver {
            driver.adopt(&shard);
        }
        Self {
            shard,
            door,
            taken: Mutex::default(),
        }
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    pub(crate) fn stop(&self) {
        self.door.stopped.store(1, Ordering::SeqCst);
        self.door.parker.unpark();
    }

    /// The next callback that is due, bound to what it needs, or None.
    pub(crate) fn next_callback(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        loop {
            let fired = {
                let mut taken = lock(&self.taken);
                if taken.is_empty() {
                    taken.extend(self.shard.take());
                }
                taken.pop_front()?
            };
            let now = self.shard.clock().now();
            // SAFETY: the GIL is held, and an object that is gone has taken its timer with it.
            let claim = self
                .shard
                .claim(&fired, now, |object| unsafe { refs::retain(object) });
            if let Claim::Run { payload, flags } = claim {
                // SAFETY: `retain` has made this reference.
                let target = unsafe { refs::owned(py, payload) };
                if let Some(callback) = deliver::callback(&target, flags, &fired) {
                    return Some(callback);
                }
            }
        }
    }
}

/// What the dispatcher thread works on.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct DispatchQueue(pub(crate) Arc<Dispatch>);

#[pymethods]
impl DispatchQueue {
    /// Blocks, without the GIL, until something may be due. False once there will be nothing any more.
    fn wait(&self, py: Python<'_>) -> bool {
        let door = &self.0.door;
        if door.stopped.load(Ordering::SeqCst) == 0 {
            py.detach(|| door.parker.park(None));
        }
        door.stopped.load(Ordering::SeqCst) == 0
    }

    /// The next callback that is due, or None.
    fn next_callback(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.next_callback(py)
    }

    /// Ends the waiting for good.
    fn stop(&self) {
        self.0.stop();
    }
}
