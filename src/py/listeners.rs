//! Python callbacks that are told of something and must not disturb it, and the `stallwatch` logger.
//!
//! # Ground rules
//!
//! - The lock of the list is held only to copy or to change the list. No callback runs, no comparison
//!   runs and no reference drops under it: each can run any Python code, which may come back here.
//! - No Python object is made under it either, so the garbage collector cannot start on a thread that
//!   holds it, and [`Listeners::traverse`] may take it.

use super::errors::ends_the_process;
use crate::core::sync::{Mutex, lock};
use pyo3::{
    PyTraverseError, PyVisit,
    call::PyCallArgs,
    intern,
    prelude::*,
    types::{IntoPyDict, PyString},
};

/// Callbacks, in the order in which they came.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Py<PyAny>>>);

impl Listeners {
    /// Adds a callback. One that is added twice is called twice.
    pub(crate) fn add(&self, callback: Py<PyAny>) {
        lock(&self.0).push(callback);
    }

    /// Removes the first callback that equals this one (bound methods are made anew at each access, so
    /// identity would not find them). One that is not there is nothing to remove.
    pub(crate) fn remove(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = callback.py();
        for known in self.snapshot(py) {
            if !known.bind(py).eq(callback)? {
                continue;
            }
            let mut list = lock(&self.0);
            let at = list.iter().position(|entry| entry.is(&known));
            let removed = at.map(|at| list.remove(at));
            // The reference may be the last one: unlock before it drops.
            drop(list);
            drop(removed);
            break;
        }
        Ok(())
    }

    /// Whether there is nobody to tell.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn snapshot(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        lock(&self.0)
            .iter()
            .map(|entry| entry.clone_ref(py))
            .collect()
    }

    /// Calls all of them. What one raises is logged and keeps nothing from the others; only what ends the
    /// process comes out, after the last.
    pub(crate) fn call<'py, A>(&self, py: Python<'py>, args: A) -> PyResult<()>
    where
        A: PyCallArgs<'py> + Clone,
    {
        let mut result = Ok(());
        for callback in self.snapshot(py) {
            if let Err(error) = callback.call1(py, args.clone()) {
                let callback = callback.bind(py);
                if let Err(fatal) = log_error(py, "a listener raised: %r", callback, error) {
                    result = Err(fatal);
                }
            }
        }
        result
    }

    /// Shows the references to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        lock(&self.0)
            .iter()
            .try_for_each(|callback| visit.call(callback))
    }

    /// Forgets all callbacks.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *lock(&self.0));
        // Only now, with the lock free.
        drop(dropped);
    }
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import(intern!(py, "logging"))?
        .call_method1(intern!(py, "getLogger"), (intern!(py, "stallwatch"),))
}

/// Logs an exception that goes no further; one that ends the process is handed back instead.
pub(crate) fn log_error(
    py: Python<'_>,
    message: &str,
    subject: &Bound<'_, PyAny>,
    error: PyErr,
) -> PyResult<()> {
    if ends_the_process(py, &error) {
        return Err(error);
    }
    let logged = logger(py).and_then(|logger| {
        let options = [("exc_info", error.value(py))].into_py_dict(py)?;
        logger.call_method("error", (message, subject), Some(&options))
    });
    unless_fatal(py, logged)
}

/// Logs a warning. A logger that raises does not disturb the caller.
pub(crate) fn log_warning(py: Python<'_>, message: &str, detail: &str) -> PyResult<()> {
    let logged = logger(py).and_then(|logger| {
        logger.call_method1(intern!(py, "warning"), (message, PyString::new(py, detail)))
    });
    unless_fatal(py, logged)
}

fn unless_fatal(py: Python<'_>, logged: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
    match logged {
        Err(error) if ends_the_process(py, &error) => Err(error),
        Err(error) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
