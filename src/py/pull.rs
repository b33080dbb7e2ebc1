//! The slots that run once a chunk: `async for` reaches the source through these and nothing else.
//!
//! PyO3 has no `am_send`, and its `__anext__` costs a trampoline and a `StopIteration` object a chunk; so
//! the two types here are made with `PyType_FromSpec`, each on a PyO3 base class that holds the state and
//! the cold methods. Both add slots only, no fields.
//!
//! `Pull.__anext__` asks the source for its awaitable, keeps it, and returns the guard's one `Step`.
//! `Step.send` drives the awaitable: done at once costs no clock reading; the first suspension stamps the
//! beginning of the wait.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::ManuallyDrop,
    ptr,
};

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyRuntimeError, PyStopAsyncIteration, PyStopIteration, PyTypeError},
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::{PyTuple, PyType},
};

use super::{
    guard::{Next, PullBase, busy},
    refs::Ref,
};

/// The state of a guard, from the object.
///
/// # Safety
/// `object` is alive and an instance of a class derived from `PullBase`.
pub(super) unsafe fn guard_of<'py>(object: &'py Bound<'py, PyAny>) -> &'py PullBase {
    // SAFETY: as promised by the caller; the class is frozen, so `get` checks nothing.
    unsafe { object.cast_unchecked::<PullBase>() }.get()
}

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

/// The iterator of an awaitable, as `await` gets it.
#[inline]
fn iterator_of<'py>(awaitable: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
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

/// The guard's step, with the guard bound to it for the time of the pull.
#[inline]
fn step_of<'py>(object: &Bound<'py, PyAny>, this: &PullBase) -> PyResult<Bound<'py, PyAny>> {
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
    this.accept(object, &chunk);
    drop(inner);
    base.release(py);
    Sent::Returned(chunk)
}

#[cold]
fn failed(base: &StepBase, object: &Bound<'_, PyAny>, this: &PullBase, error: PyErr) -> PyErr {
    let py = object.py();
    let inner = this.inner.put(py, None);
    if this.suspended.get() {
        this.wake(py);
    }
    this.cutting.set(false);
    let end = error.is_instance_of::<PyStopAsyncIteration>(py);
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
            this.wake(py);
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

fn is_cancel(py: Python<'_>, kind: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CANCELLED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let cancelled = CANCELLED.import(py, "asyncio.exceptions", "CancelledError")?;
    match kind.cast::<PyType>() {
        Ok(class) => class.is_subclass(cancelled),
        Err(_) => kind.is_instance(cancelled),
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

unsafe extern "C" fn pull_anext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        prepare(&object, unsafe { guard_of(&object) }).map(Bound::into_ptr)
    })
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

/// Makes the classes and adds `Pull` to the module.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let mut step = [
        entry(ffi::Py_am_await, own as *mut c_void),
        entry(ffi::Py_am_send, step_send as *mut c_void),
        entry(ffi::Py_tp_iter, own as *mut c_void),
        entry(ffi::Py_tp_iternext, step_iternext as *mut c_void),
        entry(0, ptr::null_mut()),
    ];
    let step = derive(
        py,
        c"stallwatch._stallwatch.Step",
        &py.get_type::<StepBase>(),
        &mut step,
    )?;
    let _ = STEP.set(py, step.unbind());
    let mut pull = [
        entry(ffi::Py_am_aiter, own as *mut c_void),
        entry(ffi::Py_am_anext, pull_anext as *mut c_void),
        entry(0, ptr::null_mut()),
    ];
    let pull = derive(
        py,
        c"stallwatch._stallwatch.Pull",
        &py.get_type::<PullBase>(),
        &mut pull,
    )?;
    m.add("Pull", pull)
}
