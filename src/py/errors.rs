//! The only place that makes a Python exception out of a core error.

use crate::core::error::Error;
use pyo3::{exceptions::PyRuntimeError, prelude::*};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            // A violation travels as data and becomes a `PhaseViolationError` in Python, after the
            // listeners were told; here it is that class's base.
            Error::Violation(_) | Error::NoThread(_) | Error::Closed | Error::Inherited => {
                PyRuntimeError::new_err(error.to_string())
            }
        }
    }
}
