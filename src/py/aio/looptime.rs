//! What a moment of a loop's clock is on the wheel's.
//!
//! Never early by either clock, so the rounding is up, by as much as the loop's clock is coarse.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use pyo3::{exceptions::PyValueError, ffi, intern, prelude::*, types::PyFloat};

use super::super::clock;
use crate::core::{
    clock::{FAR, ns_from_secs, secs},
    shard::Shard,
};

/// How a loop tells time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// By `time.monotonic()`: the wheel's clock to the nanosecond.
    Monotonic = 1,
    /// By the same clock in whole milliseconds, rounded down (uvloop).
    Millis = 2,
    /// By a clock of its own, in microseconds or finer.
    Own = 3,
}

/// The last class of loops that was asked about. Written and read with the GIL held.
static CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static KIND: AtomicU8 = AtomicU8::new(0);

fn kind_of(event_loop: &Bound<'_, PyAny>) -> PyResult<Kind> {
    // SAFETY: a live object.
    let class = unsafe { ffi::Py_TYPE(event_loop.as_ptr()) };
    if class == CLASS.load(Ordering::Relaxed) {
        return Ok(match KIND.load(Ordering::Relaxed) {
            1 => Kind::Monotonic,
            2 => Kind::Millis,
            _ => Kind::Own,
        });
    }
    let kind = look_up(event_loop)?;
    KIND.store(kind as u8, Ordering::Relaxed);
    CLASS.store(class, Ordering::Relaxed);
    Ok(kind)
}

#[cold]
fn look_up(event_loop: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let py = event_loop.py();
    let class = event_loop.get_type();
    let module: String = class.getattr(intern!(py, "__module__"))?.extract()?;
    if module == "uvloop" || module.starts_with("uvloop.") {
        return Ok(Kind::Millis);
    }
    let asyncios = py
        .import("asyncio")?
        .getattr("BaseEventLoop")?
        .getattr("time")?;
    let own = class.getattr(intern!(py, "time"))?;
    Ok(if own.is(&asyncios) {
        Kind::Monotonic
    } else {
        Kind::Own
    })
}

/// The loop's clock: now, in seconds.
#[inline]
pub(super) fn now(event_loop: &Bound<'_, PyAny>, shard: &Shard) -> PyResult<f64> {
    if !clock::is_manual() && kind_of(event_loop)? == Kind::Monotonic {
        return Ok(secs(shard.clock().now()));
    }
    let py = event_loop.py();
    event_loop.call_method0(intern!(py, "time"))?.extract()
}

/// A moment of the loop's clock on the wheel's. None for never.
#[inline]
pub(super) fn due(
    event_loop: &Bound<'_, PyAny>,
    shard: &Shard,
    when: f64,
) -> PyResult<Option<u64>> {
    const MILLI: u64 = 1_000_000;
    const MICRO: u64 = 1_000;
    if when == f64::INFINITY {
        return Ok(None);
    }
    let kind = if clock::is_manual() {
        Kind::Own
    } else {
        kind_of(event_loop)?
    };
    Ok(Some(match kind {
        Kind::Monotonic => ns_from_secs(when),
        Kind::Millis => (ns_from_secs(when).div_ceil(MILLI) * MILLI).min(FAR),
        Kind::Own => {
            let left = ns_from_secs(when - now(event_loop, shard)?);
            let coarse = if clock::is_manual() { 0 } else { MICRO };
            (shard.clock().now().saturating_add(left) + coarse).min(FAR)
        }
    }))
}

/// `time + delay` as asyncio computes it, for whatever can be added to a float.
#[inline]
pub(super) fn later(time: f64, delay: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(delay) = delay.cast_exact::<PyFloat>() {
        return checked(time + delay.value());
    }
    moment(&PyFloat::new(delay.py(), time).as_any().add(delay)?)
}

/// A moment that somebody gave.
pub(super) fn moment(when: &Bound<'_, PyAny>) -> PyResult<f64> {
    checked(when.extract()?)
}

#[inline]
fn checked(when: f64) -> PyResult<f64> {
    if when.is_nan() {
        return Err(PyValueError::new_err(
            "a deadline must be a number, not NaN",
        ));
    }
    Ok(when)
}
