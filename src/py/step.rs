//! `Step`: the awaitable of a guard's pull. Its `send` drives the source's own awaitable: done at once costs
//! no clock reading; the first suspension stamps the beginning of the wait.

use std::{ffi::c_void, mem::ManuallyDrop, ptr};

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyRuntimeError, PyStopAsyncIteration, PyStopIteration},
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::PyType,
};

use super::{
    guard::{PullBase, Woken},
    refs::Ref,
    running::is_cancel,
    slots::{derive, entry, guard_of, iterator_of, own, slot},
};

/// The guard's step, with the guard bound to it for the time of the pull.
#[inline]
pub(super) fn step_of<'py>(
    object: &Bound<'py, PyAny>,
    this: &PullBase,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if this.step.raw().is_null() {
        let class = STEP
            .get(py)
            .ok_or_else(|| PyRuntimeError::new_err("not initialised"))?;
        let step = class.bind(py).call0()?;
        drop(this.step.put(py, Some(step)));
    }
    // SAFETY: the step is alive, as the guard keeps it, and of our class.
    let step = unsafe { Bound::from_borrowed_ptr(py, this.step.raw()) };
    // SAFETY: as above.
    let base = unsafe { step.cast_unchecked::<StepBase>() }.get();
    drop(base.0.put(py, Some(object.clone())));
    Ok(step)
}

/// How driving the awaitable went.
enum Sent<'py> {
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
}

/// The awaitable of one pull. One a guard, used again and again.
#[pyclass(frozen, subclass, module = "stallwatch._stallwatch")]
pub(crate) struct StepBase(Ref);

// SAFETY: the module needs the GIL, and only its holder touches the cell.
unsafe impl Sync for StepBase {}
// SAFETY: as above.
unsafe impl Send for StepBase {}

impl StepBase {
    /// The pull is over: the step lets go of the guard, so that the two form no circle between pulls.
    #[inline]
    fn release(&self, py: Python<'_>) {
        drop(self.0.put(py, None));
    }
}

fn ended() -> PyErr {
    PyStopAsyncIteration::new_err(())
}

unsafe extern "C-unwind" {
    /// The interpreter ends a daemon thread, wherever it asks for the GIL, by unwinding its stack (up to
    /// 3.13). What a source runs runs below this call, so this call and its callers up to the slot have to
    /// let that pass: declared as able to unwind, and with nothing to drop in between.
    #[link_name = "PyIter_Send"]
    fn iter_send(
        iterator: *mut ffi::PyObject,
        value: *mut ffi::PyObject,
        result: *mut *mut ffi::PyObject,
    ) -> ffi::PySendResult;
}

/// Sends into the awaitable of the pull. `None` if there is none.
///
/// # Safety
/// The GIL is held and `value` is alive.
#[inline]
unsafe fn drive(
    base: &StepBase,
    value: *mut ffi::PyObject,
) -> Option<(ffi::PySendResult, *mut ffi::PyObject)> {
    let object = base.0.raw();
    if object.is_null() {
        return None;
    }
    // SAFETY: a step is bound to guards only, and keeps the one it is bound to.
    let this = unsafe {
        &*ptr::from_ref(guard_of(&ManuallyDrop::new(Bound::from_owned_ptr(
            Python::assume_attached(),
            object,
        ))))
    };
    let inner = this.inner.raw();
    if inner.is_null() {
        return None;
    }
    let mut result = ptr::null_mut();
    // SAFETY: objects alive; references are added for the time of the call, in which anything can happen.
    unsafe {
        ffi::Py_IncRef(object);
        ffi::Py_IncRef(inner);
        let how = iter_send(inner, value, &raw mut result);
        ffi::Py_DecRef(inner);
        ffi::Py_DecRef(object);
        Some((how, result))
    }
}

/// What became of a send.
#[inline]
fn sent<'py>(
    py: Python<'py>,
    base: &StepBase,
    driven: Option<(ffi::PySendResult, *mut ffi::PyObject)>,
) -> PyResult<Sent<'py>> {
    let Some(object) = base.0.get(py) else {
        return Err(match driven {
            // The pull was closed from inside the source; what it said stands.
            Some((ffi::PySendResult::PYGEN_ERROR, _)) => PyErr::fetch(py),
            _ => PyRuntimeError::new_err("cannot reuse an awaited pull of a guarded stream"),
        });
    };
    // SAFETY: a step is bound to guards only.
    let this = unsafe { guard_of(&object) };
    let Some((how, result)) = driven else {
        base.release(py);
        return Err(ended());
    };
    match how {
        ffi::PySendResult::PYGEN_RETURN => {
            // SAFETY: an owned reference.
            let chunk = unsafe { Bound::from_owned_ptr(py, result) };
            Ok(returned(base, &object, this, chunk))
        }
        ffi::PySendResult::PYGEN_NEXT => {
            // SAFETY: an owned reference.
            let awaited = unsafe { Bound::from_owned_ptr(py, result) };
            this.suspend(py, awaited.as_ptr())?;
            Ok(Sent::Yielded(awaited))
        }
        ffi::PySendResult::PYGEN_ERROR => Err(failed(base, &object, this, PyErr::fetch(py))),
    }
}

/// Both in one, for the cold callers.
fn send<'py>(py: Python<'py>, base: &StepBase, value: *mut ffi::PyObject) -> PyResult<Sent<'py>> {
    // SAFETY: `py` says that the GIL is held, and callers give a live value.
    let driven = unsafe { drive(base, value) };
    sent(py, base, driven)
}

#[inline]
fn returned<'py>(
    base: &StepBase,
    object: &Bound<'py, PyAny>,
    this: &PullBase,
    chunk: Bound<'py, PyAny>,
) -> Sent<'py> {
    let py = chunk.py();
    let inner = this.inner.put(py, None);
    if this.cutting.get() {
        take_back(object, this);
    }
    this.accept(object, &chunk);
    drop(inner);
    base.release(py);
    Sent::Returned(chunk)
}

/// The source came back although a cut was asked for: whatever it waited for swallowed our cancel. Data
/// wins; what is left is to take the cancel back.
#[cold]
fn take_back(object: &Bound<'_, PyAny>, this: &PullBase) {
    this.cutting.set(false);
    if let Err(trouble) = object.call_method0("_take_back") {
        trouble.write_unraisable(object.py(), Some(object));
    }
}

#[cold]
fn failed(base: &StepBase, object: &Bound<'_, PyAny>, this: &PullBase, error: PyErr) -> PyErr {
    let py = object.py();
    let inner = this.inner.put(py, None);
    let end = error.is_instance_of::<PyStopAsyncIteration>(py);
    if this.suspended.get() {
        this.wake(py, if end { Woken::End } else { Woken::Cut });
    }
    if this.cutting.get() {
        take_back(object, this);
    }
    let told = if end {
        object.call_method0("_on_end")
    } else {
        object.call_method1("_on_error", (error.value(py),))
    };
    if let Err(trouble) = told {
        trouble.write_unraisable(py, Some(object));
    }
    drop(inner);
    base.release(py);
    error
}

#[pymethods]
impl StepBase {
    #[new]
    fn new() -> Self {
        Self(Ref::empty())
    }

    /// As of a coroutine.
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        finish(send(py, self, value.as_ptr()))
    }

    /// As of a coroutine. A `CancelledError` that the guard itself asked for goes to its cut instead.
    #[pyo3(signature = (kind, value = None, traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let Some(object) = self.0.get(py) else {
            return Err(raised(kind, value));
        };
        // SAFETY: a step is bound to guards only.
        let this = unsafe { guard_of(&object) };
        if this.inner.raw().is_null() {
            self.release(py);
            return Err(raised(kind, value));
        }
        // SAFETY: the guard keeps it; a reference of our own makes sure.
        let inner = unsafe { Bound::from_borrowed_ptr(py, this.inner.raw()) };
        if this.cutting.get() && is_cancel(py, kind)? {
            this.cutting.set(false);
            let error = raised(kind, value);
            let cut = object.call_method1("_cut", (&inner, error.value(py)))?;
            drop(this.inner.put(py, Some(iterator_of(cut)?)));
            return finish(send(py, self, py.None().as_ptr()));
        }
        if is_cancel(py, kind)? {
            this.interrupted.set(true);
        }
        let thrown = match (value, traceback) {
            (None, None) => inner.call_method1("throw", (kind,)),
            (value, traceback) => inner.call_method1("throw", (kind, value, traceback)),
        };
        match thrown {
            Ok(awaited) => {
                this.suspend(py, awaited.as_ptr())?;
                Ok(awaited.unbind())
            }
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
                let chunk = error.value(py).getattr("value")?;
                finish(Ok(returned(self, &object, this, chunk)))
            }
            Err(error) => Err(failed(self, &object, this, error)),
        }
    }

    /// As of a coroutine.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(object) = self.0.get(py) else {
            return Ok(());
        };
        // SAFETY: a step is bound to guards only.
        let this = unsafe { guard_of(&object) };
        let inner = this.inner.put(py, None);
        if this.suspended.get() {
            this.wake(py, Woken::Cut);
        }
        this.cutting.set(false);
        self.release(py);
        if let Some(inner) = inner
            && let Some(close) = inner.getattr_opt("close")?
        {
            close.call0()?;
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.release(py);
    }
}

/// The exception that `throw` was given.
fn raised(kind: &Bound<'_, PyAny>, value: Option<&Bound<'_, PyAny>>) -> PyErr {
    match value {
        Some(value) if !value.is_none() => {
            if value.is_instance_of::<pyo3::exceptions::PyBaseException>() {
                PyErr::from_value(value.clone())
            } else {
                match kind.call1((value,)) {
                    Ok(error) => PyErr::from_value(error),
                    Err(error) => error,
                }
            }
        }
        _ => PyErr::from_value(kind.clone()),
    }
}

/// The outcome of a step as a generator method gives it. The value is wrapped in a tuple, since
/// `StopIteration` takes a bare tuple apart.
fn finish(sent: PyResult<Sent<'_>>) -> PyResult<Py<PyAny>> {
    match sent? {
        Sent::Yielded(awaited) => Ok(awaited.unbind()),
        Sent::Returned(chunk) => Err(PyStopIteration::new_err((chunk.unbind(),))),
    }
}

unsafe extern "C-unwind" fn step_send(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: a slot gets a live object of its own class, with the GIL held.
    let base = unsafe { &*step_base(object) };
    // SAFETY: as above. Nothing above this line and below the slot's caller has anything to drop.
    let driven = unsafe { drive(base, value) };
    let mut how = ffi::PySendResult::PYGEN_ERROR;
    let object = slot(|py| match sent(py, base, driven)? {
        Sent::Yielded(awaited) => {
            how = ffi::PySendResult::PYGEN_NEXT;
            Ok(awaited.into_ptr())
        }
        Sent::Returned(chunk) => {
            how = ffi::PySendResult::PYGEN_RETURN;
            Ok(chunk.into_ptr())
        }
    });
    // SAFETY: the caller gives a place for the result.
    unsafe { *result = object };
    how
}

/// The state of a step, from the object.
///
/// # Safety
/// `object` is alive, an instance of a class derived from `StepBase`, and the GIL is held.
unsafe fn step_base(object: *mut ffi::PyObject) -> *const StepBase {
    // SAFETY: as promised by the caller; the reference is only looked at.
    unsafe {
        let object = ManuallyDrop::new(Bound::from_owned_ptr(Python::assume_attached(), object));
        ptr::from_ref(object.cast_unchecked::<StepBase>().get())
    }
}

unsafe extern "C" fn step_iternext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        let base = unsafe { object.cast_unchecked::<StepBase>() }.get();
        finish(send(py, base, py.None().as_ptr())).map(Py::into_ptr)
    })
}

static STEP: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Makes the class.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    let mut slots = [
        entry(ffi::Py_am_await, own as *mut c_void),
        entry(ffi::Py_am_send, step_send as *mut c_void),
        entry(ffi::Py_tp_iter, own as *mut c_void),
        entry(ffi::Py_tp_iternext, step_iternext as *mut c_void),
        entry(0, ptr::null_mut()),
    ];
    let class = derive(
        py,
        c"stallwatch._stallwatch.Step",
        &py.get_type::<StepBase>(),
        &mut slots,
    )?;
    let _ = STEP.set(py, class.unbind());
    Ok(())
}
