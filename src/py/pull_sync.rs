//! The slot of a blocking stream: what runs once a chunk in `for chunk in guard_sync(...)`.
//!
//! A blocking pull cannot be known not to block, so each one stamps its beginning and its end. The clocks
//! are judged on the dispatcher thread meanwhile; a source that is cut there comes back with an error or
//! an end, which `_cut` then replaces by the cause.

use std::ptr;

use pyo3::{
    exceptions::{PyStopIteration, PyTypeError},
    ffi,
    prelude::*,
    types::PyType,
};

use super::{
    guard::{Next, PullBase, busy},
    slots::{derive, entry, guard_of, own, slot},
};

/// One pull: a chunk, or `None` at the end.
fn pull<'py>(object: &Bound<'py, PyAny>, this: &PullBase) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    if this.suspended.get() {
        return Err(busy());
    }
    let name = match this.next.get() {
        Next::Source => "",
        Next::Begin => "_begin",
        Next::Refuse => "_refuse",
        Next::Ended => return Ok(None),
    };
    if !name.is_empty() {
        object.call_method0(name)?;
        if this.next.get() == Next::Ended {
            return Ok(None);
        }
    }
    let Some(source) = this.source.get(py) else {
        return Ok(None);
    };
    // SAFETY: a type's slots live as long as the object.
    let Some(iternext) = (unsafe { (*ffi::Py_TYPE(source.as_ptr())).tp_iternext }) else {
        return Err(PyTypeError::new_err("the guarded stream is no iterator"));
    };
    this.block()?;
    // SAFETY: the slot of the object's own type; an owned reference or null comes back.
    let chunk = unsafe { Bound::from_owned_ptr_or_opt(py, iternext(source.as_ptr())) };
    let error = if chunk.is_none() {
        PyErr::take(py)
    } else {
        None
    };
    let end = error
        .as_ref()
        .is_none_or(|error| error.is_instance_of::<PyStopIteration>(py));
    match chunk {
        Some(chunk) => {
            this.accept(object, &chunk);
            if this.cutting.replace(false) {
                // Too late to take the fire back, and too good to throw away: the next pull raises it.
                this.next.set(Next::Refuse);
            }
            Ok(Some(chunk))
        }
        None => {
            this.wake(py);
            if this.cutting.replace(false) {
                // Raises the cause, or returns where the end is nobody's fault.
                object.call_method1("_cut", (error.as_ref().map(|error| error.value(py)),))?;
                return Ok(None);
            }
            match error {
                Some(error) if !end => {
                    if let Err(trouble) = object.call_method1("_on_error", (error.value(py),)) {
                        trouble.write_unraisable(py, Some(object));
                    }
                    Err(error)
                }
                _ => {
                    if let Err(trouble) = object.call_method0("_on_end") {
                        trouble.write_unraisable(py, Some(object));
                    }
                    Ok(None)
                }
            }
        }
    }
}

unsafe extern "C" fn iternext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        let chunk = pull(&object, unsafe { guard_of(&object) })?;
        // Null without an error is the end.
        Ok(chunk.map_or(ptr::null_mut(), Bound::into_ptr))
    })
}

/// Makes `SyncPull`.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let base: Bound<'_, PyType> = m.py().get_type::<PullBase>();
    let mut slots = [
        entry(ffi::Py_tp_iter, own as *mut std::ffi::c_void),
        entry(ffi::Py_tp_iternext, iternext as *mut std::ffi::c_void),
        entry(0, ptr::null_mut()),
    ];
    let class = derive(
        m.py(),
        c"stallwatch._stallwatch.SyncPull",
        &base,
        &mut slots,
    )?;
    m.add("SyncPull", class)
}
