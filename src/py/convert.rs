//! Seconds as Python gives them.

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyDelta, PyFloat},
};

use crate::core::clock::ns_from_secs;

/// A number of seconds: an int, a float, or anything that is a real number. `None` passes as `None`; NaN
/// raises `ValueError`, all else `TypeError`. Integers beyond a float are infinite.
pub(crate) fn seconds(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<f64>> {
    let secs = if let Ok(float) = value.cast_exact::<PyFloat>() {
        float.value()
    } else if value.is_none() {
        return Ok(None);
    } else if value.is_instance_of::<PyDelta>() {
        value.call_method0("total_seconds")?.extract()?
    } else if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(value, name));
    } else {
        match value.extract::<f64>() {
            Ok(secs) => secs,
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(value.py()) => {
                if value.lt(0)? {
                    f64::NEG_INFINITY
                } else {
                    f64::MAX
                }
            }
            Err(_) => return Err(wrong_type(value, name)),
        }
    };
    if secs.is_nan() {
        return Err(PyValueError::new_err(format!(
            "{name} must be a number of seconds, not NaN"
        )));
    }
    Ok(Some(secs))
}

/// A duration as nanoseconds. `None` and infinity are `None` (never); 0 and less raise `ValueError`.
pub(crate) fn window(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u64>> {
    match seconds(value, name)? {
        None => Ok(None),
        Some(secs) if secs <= 0.0 => Err(PyValueError::new_err(format!(
            "{name} must be above 0 seconds (None switches it off), not {}",
            value.repr()?
        ))),
        Some(f64::INFINITY) => Ok(None),
        Some(secs) => Ok(Some(ns_from_secs(secs))),
    }
}

fn wrong_type(value: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let kind = value
        .get_type()
        .name()
        .map_or_else(|_| "?".to_owned(), |n| n.to_string());
    PyTypeError::new_err(format!(
        "{name} must be a number of seconds or a timedelta, not {kind}"
    ))
}
