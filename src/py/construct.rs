//! Making a timer without a detour: `IdleTimer(window, callback)` by vectorcall.
//!
//! PyO3 classes are made through `tp_new`, for which the interpreter packs the arguments into a tuple and
//! PyO3 takes them out again: a good part of what it costs to arm a timer. A type's `tp_vectorcall` gets
//! them as they are. Anything but two positional arguments goes the ordinary way.

use pyo3::{exceptions::PyRuntimeError, ffi, prelude::*, types::PyType};

use super::wheel::{Deadline, IdleTimer};

type Make<T> = for<'py> fn(
    Python<'py>,
    &Bound<'py, PyAny>,
    &Bound<'py, PyAny>,
    Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, T>>;

/// # Safety
/// As of a vectorcall: `args` holds the arguments, and the GIL is held.
#[inline]
unsafe fn call<T>(
    make: Make<T>,
    class: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the count may carry a flag.
    let given = unsafe { ffi::PyVectorcall_NARGS(count) };
    if given != 2 || !names.is_null() {
        // SAFETY: as promised by the caller.
        return unsafe { ordinary(class, args, count, names) };
    }
    // SAFETY: the GIL is held.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: there are two arguments, borrowed for the call.
    let (first, second) = unsafe {
        (
            Bound::from_borrowed_ptr(py, *args),
            Bound::from_borrowed_ptr(py, *args.add(1)),
        )
    };
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        make(py, &first, &second, None)
    }));
    let error = match made {
        Ok(Ok(object)) => return object.into_any().into_ptr(),
        Ok(Err(error)) => error,
        Err(_) => PyRuntimeError::new_err("a bug in stallwatch: making a timer panicked"),
    };
    error.restore(py);
    std::ptr::null_mut()
}

/// The call as `type.__call__` makes it.
#[cold]
unsafe fn ordinary(
    class: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: arguments of a vectorcall, with the GIL held; every object made here is checked and released.
    unsafe {
        let given = ffi::PyVectorcall_NARGS(count);
        let tuple = ffi::PyTuple_New(given);
        if tuple.is_null() {
            return std::ptr::null_mut();
        }
        for at in 0..given {
            let argument = *args.offset(at);
            ffi::Py_IncRef(argument);
            ffi::PyTuple_SetItem(tuple, at, argument);
        }
        let mut keywords = std::ptr::null_mut();
        if !names.is_null() {
            keywords = ffi::PyDict_New();
            for at in 0..ffi::PyTuple_Size(names) {
                let value = *args.offset(given + at);
                ffi::PyDict_SetItem(keywords, ffi::PyTuple_GetItem(names, at), value);
            }
        }
        let result = match (*class.cast::<ffi::PyTypeObject>()).tp_new {
            Some(new) => new(class.cast(), tuple, keywords),
            None => std::ptr::null_mut(),
        };
        ffi::Py_DecRef(tuple);
        ffi::Py_XDECREF(keywords);
        result
    }
}

unsafe extern "C" fn idle_timer(
    class: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: a vectorcall.
    unsafe { call(IdleTimer::new, class, args, count, names) }
}

unsafe extern "C" fn deadline(
    class: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: a vectorcall.
    unsafe { call(Deadline::new, class, args, count, names) }
}

fn install(class: &Bound<'_, PyType>, function: ffi::vectorcallfunc) {
    // SAFETY: the class is ours, not yet shared, and cannot be derived from.
    unsafe { (*class.as_type_ptr()).tp_vectorcall = Some(function) };
}

/// Gives the timer classes their quick constructor.
pub(crate) fn register(py: Python<'_>) {
    install(&py.get_type::<IdleTimer>(), idle_timer);
    install(&py.get_type::<Deadline>(), deadline);
}
