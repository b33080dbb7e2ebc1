//! `Pull`: the slots of a guard. `async for` reaches the source through these and those of `step`, and
//! nothing else: `__anext__` asks the source for its awaitable, keeps it, and returns the guard's one step.

use std::{ffi::c_void, ptr};

use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError},
    ffi,
    prelude::*,
};

use super::{
    guard::{Next, PullBase, busy},
    slots::{derive, entry, guard_of, iterator_of, own, slot},
    step::step_of,
};

/// The `am_anext` slot of an asynchronous iterator.
pub(super) fn anext_of(source: &Bound<'_, PyAny>) -> PyResult<ffi::unaryfunc> {
    // SAFETY: a type and its slot table live as long as the object.
    let slot = unsafe {
        let methods = (*ffi::Py_TYPE(source.as_ptr())).tp_as_async;
        if methods.is_null() {
            None
        } else {
            (*methods).am_anext
        }
    };
    slot.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "guard() needs an asynchronous iterable, and the iterator it got has no __anext__: {:?}",
            source.get_type()
        ))
    })
}

/// Prepares a pull and returns the step to await.
fn prepare<'py>(object: &Bound<'py, PyAny>, this: &PullBase) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if this.suspended.get() {
        return Err(busy());
    }
    let fired = this
        .timer
        .get()
        .is_some_and(crate::core::timer::Timer::has_fired);
    let awaitable = if this.next.get() == Next::Source && !fired {
        ask_source(py, this)?
    } else {
        match before(object, this, fired)? {
            Some(awaitable) => awaitable,
            None if this.next.get() == Next::Ended => {
                drop(this.inner.put(py, None));
                return step_of(object, this);
            }
            None => ask_source(py, this)?,
        }
    };
    let inner = iterator_of(awaitable)?;
    drop(this.inner.put(py, Some(inner)));
    step_of(object, this)
}

#[inline]
fn ask_source<'py>(py: Python<'py>, this: &PullBase) -> PyResult<Bound<'py, PyAny>> {
    let Some(anext) = this.anext.get() else {
        return Err(PyRuntimeError::new_err("the guarded stream has no source"));
    };
    // SAFETY: the slot belongs to the source's type, and the guard keeps the source.
    unsafe { Bound::from_owned_ptr_or_err(py, anext(this.source.raw())) }
}

/// What comes before the source is asked, when anything does: an awaitable to take its place, or nothing.
#[cold]
fn before<'py>(
    object: &Bound<'py, PyAny>,
    this: &PullBase,
    fired: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let name = match this.next.get() {
        Next::Ended => return Ok(None),
        Next::Begin => "_begin",
        Next::Refuse => "_refuse",
        Next::Source if fired => "_overdue",
        Next::Source => return Ok(None),
    };
    let awaitable = object.call_method0(name)?;
    Ok((!awaitable.is_none()).then_some(awaitable))
}

unsafe extern "C" fn pull_anext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        prepare(&object, unsafe { guard_of(&object) }).map(Bound::into_ptr)
    })
}

/// Makes the class and adds it to the module.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let mut slots = [
        entry(ffi::Py_am_aiter, own as *mut c_void),
        entry(ffi::Py_am_anext, pull_anext as *mut c_void),
        entry(0, ptr::null_mut()),
    ];
    let base = m.py().get_type::<PullBase>();
    m.add(
        "Pull",
        derive(m.py(), c"stallwatch._stallwatch.Pull", &base, &mut slots)?,
    )
}
