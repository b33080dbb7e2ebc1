//! An awaitable that is done before anybody waits: what `__aenter__` and `__aexit__` return, so that no
//! coroutine has to be made for them. A block is entered when its awaitable is, as a coroutine would do it.

use std::{ffi::c_void, ptr};

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyRuntimeError, PyStopIteration},
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::PyType,
};

use super::super::{
    refs,
    slots::{derive, entry, own, slot},
};
use super::scope::Timeout;

/// The block to enter, which it gives; empty is None. The slots are added by the class derived from it.
#[pyclass(frozen, subclass, module = "stallwatch._stallwatch")]
pub(crate) struct DoneBase(refs::Slot);

#[pymethods]
impl DoneBase {
    #[new]
    fn new() -> Self {
        Self(refs::Slot::empty())
    }

    fn send(&self, py: Python<'_>, _value: &Bound<'_, PyAny>) -> PyErr {
        match self.finish(py) {
            Ok(value) => PyStopIteration::new_err((value,)),
            Err(error) => error,
        }
    }

    #[pyo3(signature = (kind, value = None, traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyErr {
        drop((self.0.take(py), traceback));
        PyErr::from_value(value.unwrap_or_else(|| kind.clone()))
    }

    fn close(&self, py: Python<'_>) {
        drop(self.0.take(py));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.take(py));
    }
}

impl DoneBase {
    fn finish(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(block) = self.0.take(py) else {
            return Ok(py.None());
        };
        if let Ok(block) = block.bind(py).cast_exact::<Timeout>() {
            Timeout::enter(block)?;
        }
        Ok(block)
    }
}

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
/// One of each to use again and again: they live for the length of one `await`.
static NOTHING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static SPARE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn make(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let class = CLASS
        .get(py)
        .ok_or_else(|| PyRuntimeError::new_err("not initialised"))?;
    class.bind(py).call0()
}

/// One that gives None.
pub(super) fn nothing(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let known = NOTHING.get_or_try_init(py, || make(py).map(Bound::unbind))?;
    Ok(known.bind(py).clone())
}

/// One that enters a block and gives it.
pub(super) fn entering<'py>(block: &Bound<'py, Timeout>) -> PyResult<Bound<'py, PyAny>> {
    let py = block.py();
    let spare = SPARE
        .get_or_try_init(py, || make(py).map(Bound::unbind))?
        .bind(py);
    // Nobody but the static has it: it is free.
    let done = if refs::count(spare) == 1 {
        spare.clone()
    } else {
        make(py)?
    };
    // SAFETY: an instance of the derived class.
    let base = unsafe { done.cast_unchecked::<DoneBase>() }.get();
    drop(base.0.replace(py, Some(block.clone().into_any().unbind())));
    Ok(done)
}

unsafe extern "C" fn done_send(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut how = ffi::PySendResult::PYGEN_ERROR;
    let object = slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let this = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        let base = unsafe { this.cast_unchecked::<DoneBase>() }.get();
        let value = base.finish(py)?;
        how = ffi::PySendResult::PYGEN_RETURN;
        Ok(value.into_ptr())
    });
    // SAFETY: the caller gives a place for the result.
    unsafe { *result = object };
    how
}

unsafe extern "C" fn done_next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    slot(|py| {
        // SAFETY: a slot gets a live object of its own class.
        let this = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as above.
        let base = unsafe { this.cast_unchecked::<DoneBase>() }.get();
        let value = base.finish(py)?;
        Err(PyStopIteration::new_err((value,)))
    })
}

/// Makes the class.
pub(super) fn register(py: Python<'_>) -> PyResult<()> {
    let mut slots = [
        entry(ffi::Py_am_await, own as *mut c_void),
        entry(ffi::Py_am_send, done_send as *mut c_void),
        entry(ffi::Py_tp_iter, own as *mut c_void),
        entry(ffi::Py_tp_iternext, done_next as *mut c_void),
        entry(0, ptr::null_mut()),
    ];
    let base = py.get_type::<DoneBase>();
    let class = derive(py, c"stallwatch._stallwatch.Done", &base, &mut slots)?;
    let _ = CLASS.set(py, class.unbind());
    Ok(())
}
