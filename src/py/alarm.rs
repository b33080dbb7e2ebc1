//! The timer that clocks written in Python use, and the counters.

use pyo3::{PyTraverseError, PyVisit, prelude::*};

use super::{
    bridge, clock, lifecycle, refs,
    wheel::{arm_strong, cancel_strong, check_callable, home},
};
use crate::core::{clock::secs, timer::Timer};

/// A clock's alarm: can be set again and again, and tells its callback what a judge has to know.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct Alarm {
    timer: Timer,
    pub(crate) callback: refs::Slot,
}

#[pymethods]
impl Alarm {
    #[new]
    #[pyo3(signature = (callback, *, r#loop = None))]
    fn new(
        py: Python<'_>,
        callback: &Bound<'_, PyAny>,
        r#loop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        check_callable(callback)?;
        let timer = Timer::new(&home(py, r#loop)?, 0);
        Ok(Self {
            timer,
            callback: refs::Slot::new(callback.clone().unbind()),
        })
    }

    /// Sets it to a moment (seconds), wherever it stood; None takes it back.
    fn set(slf: &Bound<'_, Self>, at: &Bound<'_, PyAny>) -> PyResult<()> {
        let this = slf.get();
        match clock::moment(at, "at")? {
            Some(due) if this.timer.is_active() => this.timer.move_to(due),
            Some(due) => arm_strong(slf, &this.timer, due)?,
            None => {
                cancel_strong(slf, &this.timer);
            }
        }
        Ok(())
    }

    /// Takes it back for good.
    fn close(slf: &Bound<'_, Self>) {
        let this = slf.get();
        cancel_strong(slf, &this.timer);
        drop(this.callback.take(slf.py()));
    }

    /// Now, in seconds, on its clock.
    fn now(&self) -> f64 {
        secs(self.timer.shard().clock().now())
    }

    /// Whether it is set.
    #[getter]
    fn active(&self) -> bool {
        self.timer.is_active()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callback.traverse(&visit)
    }

    fn __clear__(slf: &Bound<'_, Self>) {
        drop(slf.get().callback.take(slf.py()));
    }
}

/// Raw numbers of this process's wheels: see `stallwatch.wheel_stats`.
#[pyfunction]
pub(crate) fn raw_stats(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    let stats = bridge::stats(py);
    let health = lifecycle::driver().health();
    let out = pyo3::types::PyDict::new(py);
    for (name, value) in [
        ("armed", stats.armed),
        ("started", stats.started),
        ("fired", stats.fired),
        ("rearmed", stats.rearmed),
        ("rescued", stats.rescued),
        ("cancelled", stats.cancelled),
        ("dropped", stats.dropped),
        ("wakeups", health.passes),
        ("faults", health.panics),
    ] {
        out.set_item(name, value)?;
    }
    out.set_item("running", health.running)?;
    out.set_item("heartbeat", secs(health.heartbeat))?;
    for (name, histogram) in [("decided", stats.decided), ("delivered", stats.delivered)] {
        out.set_item(name, (histogram.buckets.to_vec(), secs(histogram.max)))?;
    }
    Ok(out)
}
