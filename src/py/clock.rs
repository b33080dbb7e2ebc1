//! Which clock new timers and trackers get: the real one, or the manual one that a test has put in place.

use crate::core::{
    clock::{Clock, ManualTime},
    sync::{Arc, Mutex, lock},
};

static MANUAL: Mutex<Option<Arc<ManualTime>>> = Mutex::new(None);

/// The clock that objects made now belong to for their whole life.
pub(crate) fn current() -> Clock {
    match &*lock(&MANUAL) {
        Some(time) => Clock::Manual(time.clone()),
        None => Clock::Real,
    }
}
