//! What a fire does to the Python object behind it.

use pyo3::{
    exceptions::{PyKeyboardInterrupt, PySystemExit},
    prelude::*,
    types::PyCFunction,
};

use super::guard::PullBase;
use super::wheel::{Alarm, Deadline, IdleTimer};
use crate::core::{clock::secs, shard::Fired, state::STRONG};

/// Deadline, decision, and by how much the timer thread overslept: seconds.
type Times = (f64, f64, f64);

/// Takes what `target` wants called, with its arguments.
fn call_of<'py>(target: &Bound<'py, PyAny>, fired: &Fired) -> Option<(Py<PyAny>, Option<Times>)> {
    let py = target.py();
    if let Ok(timer) = target.cast_exact::<IdleTimer>() {
        return timer
            .get()
            .callback
            .take(py)
            .map(|callback| (callback, None));
    }
    if let Ok(timer) = target.cast_exact::<Deadline>() {
        return timer
            .get()
            .callback
            .take(py)
            .map(|callback| (callback, None));
    }
    let alarm = target.cast::<Alarm>().ok()?;
    let times = (secs(fired.due), secs(fired.decided), secs(fired.overslept));
    alarm
        .get()
        .callback
        .get(py)
        .map(|callback| (callback, Some(times)))
}

fn settle(target: &Bound<'_, PyAny>, flags: u32) {
    if flags & STRONG != 0 {
        // SAFETY: a strong timer owns one reference to its object; firing gives it up.
        drop(unsafe { super::refs::owned(target.py(), super::refs::borrow_raw(target)) });
    }
}

/// What a callback may raise through the loop that runs it; asyncio draws the same line.
pub(crate) fn ends_the_loop(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py)
}

/// Runs the callback of a fire.
pub(crate) fn run(target: &Bound<'_, PyAny>, flags: u32, fired: &Fired) -> PyResult<()> {
    if let Ok(guard) = target.cast::<PullBase>() {
        return PullBase::deliver(target, guard.get(), fired);
    }
    let call = call_of(target, fired);
    settle(target, flags);
    match call {
        Some((callback, None)) => callback.call0(target.py()).map(drop),
        Some((callback, Some(times))) => callback.call1(target.py(), times).map(drop),
        None => Ok(()),
    }
}

/// The callback of a fire as something to call without arguments.
pub(crate) fn callback(
    target: &Bound<'_, PyAny>,
    flags: u32,
    fired: &Fired,
    _now: u64,
) -> Option<Py<PyAny>> {
    let call = call_of(target, fired);
    settle(target, flags);
    match call? {
        (callback, None) => Some(callback),
        (callback, Some(times)) => PyCFunction::new_closure(
            target.py(),
            None,
            None,
            move |args: &Bound<'_, pyo3::types::PyTuple>,
                  _kwargs: Option<&Bound<'_, pyo3::types::PyDict>>| {
                callback.call1(args.py(), times)
            },
        )
        .ok()
        .map(|bound| bound.unbind().into_any()),
    }
}
