//! The only place that makes a Python exception out of a core error.
//!
//! Exceptions are declared in Python, in `stallwatch._causes`. They are looked up when one is raised and
//! never at module load, so that the compiled module imports with nothing above it.

use crate::core::error::Error;
use pyo3::{
    exceptions::{PyKeyboardInterrupt, PyRuntimeError, PySystemExit},
    prelude::*,
};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Violation(text) => {
                Python::attach(|py| declared(py, "PhaseViolationError", text))
            }
            other => PyRuntimeError::new_err(other.to_string()),
        }
    }
}

/// An exception of `stallwatch._causes`. Where that cannot be imported (an interpreter on its way out)
/// its base class has to do, with the reason chained to it.
fn declared(py: Python<'_>, name: &str, text: String) -> PyErr {
    let found = py
        .import("stallwatch._causes")
        .and_then(|module| module.getattr(name))
        .and_then(|class| class.call1((text.as_str(),)));
    match found {
        Ok(exception) => PyErr::from_value(exception),
        Err(missing) => {
            let error = PyRuntimeError::new_err(text);
            error.set_cause(py, Some(missing));
            error
        }
    }
}

/// What even a callback that may not disturb anybody is allowed to raise; asyncio draws the same line.
pub(crate) fn ends_the_process(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py)
}
