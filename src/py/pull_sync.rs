//! The slot of a blocking stream: what runs once a chunk in `for chunk in guard_sync(...)`.
//!
//! A blocking pull cannot be known not to block, so each one stamps its beginning and its end. The clocks
//! are judged on the dispatcher thread meanwhile; a source that is cut there comes back with an error or
//! an end, which `_back` then replaces by the cause.
//!
//! # Ground rules
//!
//! Up to 3.13 the interpreter ends a daemon thread by unwinding its stack wherever it asks for the GIL,
//! and a blocked read in a daemon thread is what a blocking guard is for. So all that can run Python is
//! called from `iternext` or from a function below it that is declared as able to unwind and has nothing
//! to drop: only raw pointers live there, and are leaked with the thread. What needs more is done in
//! between, in [`native`], where no Python runs.

use std::ptr;

use pyo3::{
    Borrowed,
    exceptions::{PyRuntimeError, PyTypeError},
    ffi, intern,
    prelude::*,
    types::{PyString, PyType},
};

use super::{
    guard::{Next, PROGRESS, PullBase, Woken, busy},
    slots::{derive, entry, guard_of, own, slot},
};

type Raw = *mut ffi::PyObject;

unsafe extern "C-unwind" {
    #[link_name = "PyIter_Next"]
    fn iter_next(iterator: Raw) -> Raw;
    #[link_name = "PyObject_VectorcallMethod"]
    fn vectorcall_method(name: Raw, args: *const Raw, count: usize, names: Raw) -> Raw;
}

/// What a pull does next.
#[derive(Clone, Copy)]
enum Ready {
    /// Calls this method, and looks again.
    Call(Raw),
    /// Asks the source, of which this is an owned reference.
    Pull(Raw),
    /// Returns: at the end, or with an error set.
    Done,
}

/// Runs what needs the guard and no Python. An error (a panic too) is set, and the default returned.
fn native<T: Copy>(
    object: Raw,
    default: T,
    body: impl FnOnce(&Bound<'_, PyAny>, &PullBase) -> PyResult<T>,
) -> T {
    let mut result = default;
    slot(|py| {
        // SAFETY: slots get a live object of their own class, and their callers keep it.
        let object = unsafe { Borrowed::from_ptr(py, object) };
        // SAFETY: as above.
        result = body(&object, unsafe { guard_of(&object) })?;
        Ok(ptr::null_mut())
    });
    result
}

fn ready(object: Raw) -> Ready {
    native(object, Ready::Done, |object, this| {
        let py = object.py();
        if this.suspended.get() {
            return Err(busy());
        }
        Ok(match this.next.get() {
            Next::Begin => Ready::Call(intern!(py, "_begin").as_ptr()),
            Next::Refuse => Ready::Call(intern!(py, "_refuse").as_ptr()),
            Next::Ended => Ready::Done,
            Next::Source => match this.source.get(py) {
                None => {
                    return Err(PyRuntimeError::new_err(
                        "the guarded stream is being opened",
                    ));
                }
                Some(source) => {
                    // SAFETY: a type's slots live as long as the object.
                    if unsafe { (*ffi::Py_TYPE(source.as_ptr())).tp_iternext }.is_none() {
                        return Err(PyTypeError::new_err("the guarded stream is no iterator"));
                    }
                    this.block()?;
                    Ready::Pull(source.into_ptr())
                }
            },
        })
    })
}

/// Calls a method of the guard by its (interned) name, with up to two arguments.
///
/// # Safety
/// The GIL is held, no error is set, and all objects are alive; null arguments are left out.
unsafe extern "C-unwind" fn call(object: Raw, name: Raw, first: Raw, second: Raw) -> Raw {
    let args = [object, first, second];
    let count = 1 + usize::from(!first.is_null()) + usize::from(!second.is_null());
    // SAFETY: as promised by the caller.
    unsafe { vectorcall_method(name, args.as_ptr(), count, ptr::null_mut()) }
}

/// As [`call`], for what must not disturb the stream: an error is shown, and goes no further.
///
/// # Safety
/// As of [`call`].
unsafe extern "C-unwind" fn tell(object: Raw, name: Raw, argument: Raw) {
    // SAFETY: as promised by the caller.
    let told = unsafe { call(object, name, argument, ptr::null_mut()) };
    if told.is_null() {
        show(object);
    } else {
        // SAFETY: an owned reference.
        unsafe { ffi::Py_DecRef(told) };
    }
}

fn show(object: Raw) {
    native(object, (), |object, _| {
        if let Some(error) = PyErr::take(object.py()) {
            error.write_unraisable(object.py(), Some(object));
        }
        Ok(())
    });
}

/// An interned name.
fn name(object: Raw, pick: for<'py> fn(Python<'py>) -> &'py Bound<'py, PyString>) -> Raw {
    native(object, ptr::null_mut(), |object, _| {
        Ok(pick(object.py()).as_ptr())
    })
}

/// A chunk came. Returns it, or null at the end or with an error set.
///
/// # Safety
/// As of [`call`]; `chunk` is an owned reference.
unsafe extern "C-unwind" fn came(object: Raw, chunk: Raw) -> Raw {
    let (now, plain) = native(object, (0, None), |object, this| {
        // SAFETY: the caller's reference.
        let chunk = unsafe { Borrowed::from_ptr(object.py(), chunk) };
        Ok((this.hear(object.py()), this.plain_flags(&chunk)))
    });
    let flags = match plain {
        Some(flags) => flags,
        // SAFETY: as promised by the caller.
        None => unsafe { ask(object, chunk) },
    };
    let (first, kept) = native(
        object,
        (ptr::null_mut(), ptr::null_mut()),
        |object, this| {
            let py = object.py();
            // SAFETY: the caller's reference.
            let chunk = unsafe { Borrowed::from_ptr(py, chunk) };
            let (first, full) = this.note(&chunk, flags, now);
            let mut out: (Raw, Raw) = (ptr::null_mut(), ptr::null_mut());
            if first {
                out.0 = this.note_first(now).into_pyobject(py)?.into_ptr();
            }
            if full {
                out.1 = this.take_kept(py)?.into_ptr();
            }
            Ok(out)
        },
    );
    // SAFETY: as promised by the caller, and owned references.
    unsafe {
        if !first.is_null() {
            tell(object, name(object, |py| intern!(py, "_first")), first);
            ffi::Py_DecRef(first);
        }
        if !kept.is_null() {
            tell(object, name(object, |py| intern!(py, "_fold")), kept);
            ffi::Py_DecRef(kept);
        }
        if !cut(object) {
            return chunk;
        }
        // Too late to take the fire back. Whether it is too good to throw away is decided above.
        let (none, yes) = (ffi::Py_None(), ffi::Py_True());
        let deliver = call(object, name(object, |py| intern!(py, "_back")), none, yes);
        if deliver == yes {
            ffi::Py_DecRef(deliver);
            return chunk;
        }
        ffi::Py_DecRef(chunk);
        if !deliver.is_null() {
            ffi::Py_DecRef(deliver);
        }
    }
    ptr::null_mut()
}

/// The flags of a chunk, from above.
///
/// # Safety
/// As of [`call`].
unsafe extern "C-unwind" fn ask(object: Raw, chunk: Raw) -> u32 {
    let method = name(object, |py| intern!(py, "_classify"));
    // SAFETY: as promised by the caller.
    let flags = unsafe { call(object, method, chunk, ptr::null_mut()) };
    if flags.is_null() {
        show(object);
        return PROGRESS;
    }
    native(object, PROGRESS, |object, _| {
        // SAFETY: an owned reference.
        unsafe { Bound::from_owned_ptr(object.py(), flags) }.extract()
    })
}

/// Whether the pull that has come back was one to cut.
fn cut(object: Raw) -> bool {
    native(object, false, |_, this| Ok(this.cutting.replace(false)))
}

/// The source has ended or raised. Leaves the error set that the consumer is to see, if any.
///
/// # Safety
/// As of [`call`], but for the error.
unsafe extern "C-unwind" fn stopped(object: Raw) {
    let error = native(object, ptr::null_mut(), |object, this| {
        let py = object.py();
        let error = PyErr::take(py);
        this.wake(
            py,
            if error.is_none() {
                Woken::End
            } else {
                Woken::Cut
            },
        );
        Ok(error.map_or(ptr::null_mut(), |error| error.into_value(py).into_ptr()))
    });
    // SAFETY: as promised by the caller; `error` is owned or null.
    unsafe {
        if cut(object) {
            let none = ffi::Py_None();
            let what = if error.is_null() { none } else { error };
            let method = name(object, |py| intern!(py, "_back"));
            let answer = call(object, method, what, ffi::Py_False());
            if !error.is_null() {
                ffi::Py_DecRef(error);
            }
            if !answer.is_null() {
                ffi::Py_DecRef(answer);
            }
        } else if error.is_null() {
            tell(object, name(object, |py| intern!(py, "_on_end")), error);
        } else {
            native(object, (), |_, this| {
                this.rest();
                Ok(())
            });
            tell(object, name(object, |py| intern!(py, "_on_error")), error);
            native(object, (), |object, _| {
                Err(PyErr::from_value(Bound::from_owned_ptr(object.py(), error)))
            });
        }
    }
}

unsafe extern "C-unwind" fn iternext(object: Raw) -> Raw {
    loop {
        // SAFETY: a slot gets a live object of its own class, with the GIL held; references are owned.
        unsafe {
            match ready(object) {
                Ready::Done => return ptr::null_mut(),
                Ready::Call(method) => {
                    let done = call(object, method, ptr::null_mut(), ptr::null_mut());
                    if done.is_null() {
                        return ptr::null_mut();
                    }
                    ffi::Py_DecRef(done);
                }
                Ready::Pull(source) => {
                    let chunk = iter_next(source);
                    ffi::Py_DecRef(source);
                    if chunk.is_null() {
                        stopped(object);
                        return ptr::null_mut();
                    }
                    return came(object, chunk);
                }
            }
        }
    }
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
