//! The timers that Python sees.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pyo3::{PyTraverseError, PyVisit, exceptions::PyTypeError, prelude::*};

use super::{bridge, clock, convert, lifecycle, refs};
use crate::core::{
    clock::{FAR, secs},
    error::Error,
    shard::Shard,
    state::{NOBODY, PAUSED, STRONG},
    timer::Timer,
};

/// "No window": the timer is switched off.
const OFF: u64 = u64::MAX;

pub(super) fn check_callable(callback: &Bound<'_, PyAny>) -> PyResult<()> {
    if callback.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "callback must be callable, not {}",
        callback.repr()?
    )))
}

pub(super) fn home(py: Python<'_>, event_loop: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<Shard>> {
    match event_loop {
        // A running loop is open; any other is worth a look.
        Some(event_loop) if event_loop.call_method0("is_closed")?.is_truthy()? => {
            Err(Error::Closed.into())
        }
        Some(event_loop) => bridge::shard_of(event_loop),
        None => lifecycle::home(py),
    }
}

/// A timer that runs already if it has a deadline. Its object does not exist yet: [`hold`] makes good for
/// that. Making an object may start a collection, which lets other threads run; until then it does not fire.
pub(super) fn start(shard: &Arc<Shard>, due: Option<u64>, now: u64) -> PyResult<Timer> {
    match due {
        Some(due) => Ok(Timer::armed(shard, NOBODY, due, STRONG, now)?),
        None => Ok(Timer::new(shard, 0)),
    }
}

/// Has the timer keep its new object alive until it has fired or is cancelled.
pub(super) fn hold<T>(object: &Bound<'_, T>, timer: &Timer, due: Option<u64>) {
    timer.set_payload(refs::borrow_raw(object));
    // Its loop may have gone since, and the timer with it.
    if due.is_some() && timer.is_active() {
        // SAFETY: the object is alive and the GIL is held. `cancel_strong` or the delivery takes it back.
        unsafe { refs::retain(refs::borrow_raw(object)) };
    }
}

/// Arms on behalf of `object`, which the timer keeps alive until it has fired or is cancelled.
pub(super) fn arm_strong<T>(object: &Bound<'_, T>, timer: &Timer, due: u64) -> PyResult<()> {
    timer.set_payload(refs::borrow_raw(object));
    // SAFETY: the object is alive and the GIL is held. `cancel_strong` or the delivery takes it back.
    unsafe { refs::retain(refs::borrow_raw(object)) };
    timer.arm(due, STRONG).map_err(|error| {
        // SAFETY: takes back what was just added.
        drop(unsafe { refs::owned(object.py(), refs::borrow_raw(object)) });
        error.into()
    })
}

pub(super) fn cancel_strong<T>(object: &Bound<'_, T>, timer: &Timer) -> bool {
    let Some(flags) = timer.cancel() else {
        return false;
    };
    if flags & STRONG != 0 {
        // SAFETY: the timer owned this reference, and a cancelled timer has given it up.
        drop(unsafe { refs::owned(object.py(), refs::borrow_raw(object)) });
    }
    true
}

pub(super) fn remaining(timer: &Timer) -> Option<f64> {
    if !timer.is_active() {
        return None;
    }
    let due = timer.due();
    let left = if due & PAUSED == 0 {
        due.saturating_sub(timer.shard().clock().now())
    } else {
        due & !PAUSED
    };
    Some(secs(left))
}

/// Calls back once nobody has touched it for a whole window.
#[pyclass(frozen, module = "stallwatch")]
pub(crate) struct IdleTimer {
    timer: Timer,
    pub(crate) callback: refs::Slot,
    window: AtomicU64,
}

#[pymethods]
impl IdleTimer {
    #[new]
    #[pyo3(signature = (window, callback, *, r#loop = None))]
    pub(super) fn new<'py>(
        py: Python<'py>,
        window: &Bound<'py, PyAny>,
        callback: &Bound<'py, PyAny>,
        r#loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let window = convert::window(window, "window")?;
        check_callable(callback)?;
        let shard = home(py, r#loop)?;
        let now = shard.clock().now();
        let due = window.map(|window| now.saturating_add(window));
        let this = Self {
            timer: start(&shard, due, now)?,
            callback: refs::Slot::new(callback.clone().unbind()),
            window: AtomicU64::new(window.unwrap_or(OFF)),
        };
        let this = Bound::new(py, this)?;
        hold(&this, &this.get().timer, due);
        Ok(this)
    }

    /// Progress: the window starts again. Lock-free; allocates nothing.
    fn touch(&self) {
        let window = self.window.load(Ordering::Relaxed);
        let old = self.timer.due();
        if old & PAUSED != 0 {
            let window = window.min(FAR);
            if window < old & !PAUSED {
                // It was extended: the wheel must come by before the end of the shorter time.
                self.timer
                    .move_to(self.timer.shard().clock().now() + window);
            }
            self.timer.pause(window);
        } else if window != OFF {
            let due = self.timer.shard().clock().now() + window;
            if due >= old {
                self.timer.touch(due);
            } else {
                // It was extended beyond a whole window.
                self.timer.move_to(due);
            }
        }
    }

    /// Stops the clock where it stands. Lock-free. Twice is harmless.
    fn pause(&self) {
        let due = self.timer.due();
        if due & PAUSED == 0 && self.timer.is_active() {
            self.timer
                .pause(due.saturating_sub(self.timer.shard().clock().now()));
        }
    }

    /// Lets the clock run on with what was left of it. Without a pause it does nothing.
    fn resume(&self) {
        let due = self.timer.due();
        if due & PAUSED != 0 {
            self.timer
                .resume_at(self.timer.shard().clock().now() + (due & !PAUSED));
        }
    }

    /// Moves the present deadline `seconds` later, once; the window stays.
    fn extend(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let more = convert::window(seconds, "seconds")?.unwrap_or(FAR);
        let due = self.timer.due();
        let moved = ((due & !PAUSED) + more).min(FAR);
        if due & PAUSED == 0 {
            self.timer.touch(moved);
        } else {
            self.timer.pause(moved);
        }
        Ok(())
    }

    /// Stops it for good. True if it was running or paused: the callback will not run then.
    fn cancel(slf: &Bound<'_, Self>) -> bool {
        let this = slf.get();
        let cancelled = cancel_strong(slf, &this.timer);
        drop(this.callback.take(slf.py()));
        cancelled
    }

    /// Seconds until it fires, or None when it is off, has fired or is cancelled.
    #[getter]
    fn remaining(&self) -> Option<f64> {
        remaining(&self.timer)
    }

    /// The window in seconds, or None when it is off.
    #[getter]
    fn window(&self) -> Option<f64> {
        let window = self.window.load(Ordering::Relaxed);
        (window != OFF).then(|| secs(window))
    }

    /// Whether it can still fire.
    #[getter]
    fn active(&self) -> bool {
        self.timer.is_active()
    }

    /// Whether its clock stands still.
    #[getter]
    fn paused(&self) -> bool {
        self.timer.is_active() && self.timer.due() & PAUSED != 0
    }

    /// Whether it was made by the parent process, before a fork: it never fires here.
    #[getter]
    fn inherited(&self) -> bool {
        self.timer.shard().is_inherited()
    }

    fn __repr__(&self) -> String {
        let window = self.window().map_or("off".to_owned(), |w| format!("{w} s"));
        format!("<IdleTimer {window}{}>", describe(&self.timer))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callback.traverse(&visit)
    }

    fn __clear__(slf: &Bound<'_, Self>) {
        drop(slf.get().callback.take(slf.py()));
    }
}

fn describe(timer: &Timer) -> String {
    match remaining(timer) {
        Some(left) if timer.due() & PAUSED != 0 => format!(" paused, {left:.3} s left"),
        Some(left) => format!(" fires in {left:.3} s"),
        None if timer.shard().is_inherited() => " inherited through a fork".to_owned(),
        None => " idle".to_owned(),
    }
}

/// Calls back once, at a moment of `time.monotonic()`.
#[pyclass(frozen, module = "stallwatch")]
pub(crate) struct Deadline {
    timer: Timer,
    pub(crate) callback: refs::Slot,
    when: AtomicU64,
}

#[pymethods]
impl Deadline {
    #[new]
    #[pyo3(signature = (when, callback, *, r#loop = None))]
    pub(super) fn new<'py>(
        py: Python<'py>,
        when: &Bound<'py, PyAny>,
        callback: &Bound<'py, PyAny>,
        r#loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let when = clock::moment(when, "when")?;
        check_callable(callback)?;
        let shard = home(py, r#loop)?;
        let this = Self {
            timer: start(&shard, when, shard.clock().recently())?,
            callback: refs::Slot::new(callback.clone().unbind()),
            when: AtomicU64::new(when.unwrap_or(OFF)),
        };
        let this = Bound::new(py, this)?;
        hold(&this, &this.get().timer, when);
        Ok(this)
    }

    /// Stops it for good. True if it was running: the callback will not run then.
    fn cancel(slf: &Bound<'_, Self>) -> bool {
        let this = slf.get();
        let cancelled = cancel_strong(slf, &this.timer);
        drop(this.callback.take(slf.py()));
        cancelled
    }

    /// Moves it to another moment. No effect once it has fired or is cancelled.
    fn reschedule(slf: &Bound<'_, Self>, when: &Bound<'_, PyAny>) -> PyResult<()> {
        let this = slf.get();
        let when = clock::moment(when, "when")?;
        if this.callback.is_empty() {
            return Ok(());
        }
        match when {
            // Later needs no lock: the wheel finds out when it comes by.
            Some(due) if this.timer.is_active() && due >= this.when.load(Ordering::Relaxed) => {
                this.timer.touch(due);
            }
            Some(due) if this.timer.is_active() => this.timer.move_to(due),
            Some(due) => arm_strong(slf, &this.timer, due)?,
            None => {
                cancel_strong(slf, &this.timer);
            }
        }
        this.when.store(when.unwrap_or(OFF), Ordering::Relaxed);
        Ok(())
    }

    /// The moment it is set to, or None for never.
    #[getter]
    fn when(&self) -> Option<f64> {
        let when = self.when.load(Ordering::Relaxed);
        (when != OFF).then(|| secs(when))
    }

    /// Seconds until it fires, or None when it never will.
    #[getter]
    fn remaining(&self) -> Option<f64> {
        remaining(&self.timer)
    }

    /// Whether it can still fire.
    #[getter]
    fn active(&self) -> bool {
        self.timer.is_active()
    }

    /// Whether it was made by the parent process, before a fork: it never fires here.
    #[getter]
    fn inherited(&self) -> bool {
        self.timer.shard().is_inherited()
    }

    fn __repr__(&self) -> String {
        format!("<Deadline{}>", describe(&self.timer))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callback.traverse(&visit)
    }

    fn __clear__(slf: &Bound<'_, Self>) {
        drop(slf.get().callback.take(slf.py()));
    }
}
