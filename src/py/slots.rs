//! Classes with slots that PyO3 does not offer.
//!
//! PyO3 has no `am_send`, and its `__anext__` costs a trampoline and a `StopIteration` object a chunk. So
//! each class here is made with `PyType_FromSpec` on a PyO3 base class that holds the state and the cold
//! methods, and adds slots only, no fields.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError},
    ffi,
    prelude::*,
    types::{PyTuple, PyType},
};

use super::guard::PullBase;

/// The state of a guard, from the object.
///
/// # Safety
/// `object` is alive and an instance of a class derived from `PullBase`.
pub(super) unsafe fn guard_of<'py>(object: &'py Bound<'py, PyAny>) -> &'py PullBase {
    // SAFETY: as promised by the caller; the class is frozen, so `get` checks nothing.
    unsafe { object.cast_unchecked::<PullBase>() }.get()
}

pub(super) unsafe extern "C" fn own(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a slot gets a live object.
    unsafe { ffi::Py_IncRef(object) };
    object
}

/// Runs a slot's body. A panic must not cross into the interpreter.
pub(super) fn slot(
    body: impl FnOnce(Python<'_>) -> PyResult<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    // SAFETY: slots are called with the GIL held.
    let py = unsafe { Python::assume_attached() };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(py))) {
        Ok(Ok(object)) => object,
        Ok(Err(error)) => {
            error.restore(py);
            ptr::null_mut()
        }
        Err(_) => {
            PyRuntimeError::new_err("a bug in stallwatch: the pull panicked").restore(py);
            ptr::null_mut()
        }
    }
}

/// Makes a class that adds slots to a base.
pub(super) fn derive<'py>(
    py: Python<'py>,
    name: &'static std::ffi::CStr,
    base: &Bound<'py, PyType>,
    slots: &mut [ffi::PyType_Slot],
) -> PyResult<Bound<'py, PyType>> {
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr().cast::<c_char>(),
        // The size of the base: nothing is added.
        basicsize: 0,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as std::ffi::c_uint,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [base])?;
    // SAFETY: the spec and its slots are read during the call; the name is static.
    let class = unsafe { ffi::PyType_FromSpecWithBases(&raw mut spec, bases.as_ptr()) };
    // SAFETY: an owned reference or null.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, class) }?;
    Ok(class.cast_into::<PyType>()?)
}

pub(super) const fn entry(slot: c_int, function: *mut c_void) -> ffi::PyType_Slot {
    ffi::PyType_Slot {
        slot,
        pfunc: function,
    }
}

/// The iterator of an awaitable, as `await` gets it.
#[inline]
pub(super) fn iterator_of<'py>(awaitable: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = awaitable.py();
    let raw = awaitable.as_ptr();
    // SAFETY: `raw` is alive; slots take a borrowed self and return an owned reference or null.
    unsafe {
        if ffi::PyCoro_CheckExact(raw) != 0 {
            return Ok(awaitable);
        }
        let methods = (*ffi::Py_TYPE(raw)).tp_as_async;
        if !methods.is_null()
            && let Some(slot) = (*methods).am_await
        {
            return Bound::from_owned_ptr_or_err(py, slot(raw));
        }
        if ffi::PyGen_CheckExact(raw) != 0 {
            // A generator-based coroutine.
            return Ok(awaitable);
        }
    }
    let kind = awaitable.get_type();
    Err(PyTypeError::new_err(format!(
        "the stream's __anext__ returned {kind:?}, which cannot be awaited"
    )))
}
