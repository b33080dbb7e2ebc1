//! What a fire calls in Python.

use pyo3::{prelude::*, sync::PyOnceLock};

use super::{
    aio::{Handle, Timeout},
    alarm::Alarm,
    guard::PullBase,
    wheel::{Deadline, IdleTimer},
};
use crate::core::{clock::secs, shard::Fired, state::STRONG};

/// The callback of a fire, as something to call without arguments. `None` if it was taken back.
pub(crate) fn callback(target: &Bound<'_, PyAny>, flags: u32, fired: &Fired) -> Option<Py<PyAny>> {
    let py = target.py();
    if flags & STRONG != 0 {
        // SAFETY: a strong timer owns one reference to its object; firing gives it up.
        drop(unsafe { super::refs::owned(py, super::refs::borrow_raw(target)) });
    }
    if let Ok(timer) = target.cast_exact::<IdleTimer>() {
        return timer.get().callback.take(py);
    }
    if let Ok(timer) = target.cast_exact::<Deadline>() {
        return timer.get().callback.take(py);
    }
    if let Ok(handle) = target.cast_exact::<Handle>() {
        return handle.get().take_call(py).map(Bound::unbind);
    }
    if let Ok(timeout) = target.cast_exact::<Timeout>() {
        return timeout.get().expire(py);
    }
    let call = if let Ok(alarm) = target.cast_exact::<Alarm>() {
        alarm.get().callback.get(py)?
    } else {
        target.cast::<PullBase>().ok()?.get().note_delivery();
        target.getattr("_on_due").ok()?.unbind()
    };
    // A judge has to know when it was due, when that was found, and by how much the timer thread itself
    // had overslept then.
    static PARTIAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let partial = PARTIAL.import(py, "functools", "partial").ok()?;
    let times = (secs(fired.due), secs(fired.decided), secs(fired.overslept));
    partial
        .call1((call, times.0, times.1, times.2))
        .ok()
        .map(Bound::unbind)
}
