//! The handle of a drop-in timer: answers as an `asyncio.TimerHandle`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
};

use pyo3::{
    PyTraverseError, PyVisit, ffi, intern,
    prelude::*,
    pyclass::CompareOp,
    sync::PyOnceLock,
    types::{PyTuple, PyType},
};

use super::super::{
    refs,
    wheel::{cancel_strong, hold, start},
};
use crate::core::{shard::Shard, sync::Arc, timer::Timer};

/// A callback that an event loop calls at a moment of its clock.
#[pyclass(frozen, weakref, module = "stallwatch.aio", name = "TimerHandle")]
pub(crate) struct Handle {
    timer: Timer,
    when: f64,
    callback: refs::Slot,
    /// Empty for no arguments.
    args: refs::Slot,
    context: refs::Slot,
    cancelled: AtomicBool,
}

impl Handle {
    pub(super) fn make<'py>(
        py: Python<'py>,
        shard: &Arc<Shard>,
        (when, due): (f64, Option<u64>),
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let context = match context {
            Some(context) => context.clone(),
            // SAFETY: the GIL is held; an owned reference or null.
            None => unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent())? },
        };
        let args = if args.is_empty() {
            refs::Slot::empty()
        } else {
            refs::Slot::new(args.clone().into_any().unbind())
        };
        let this = Self {
            timer: start(shard, due, shard.clock().recently())?,
            when,
            callback: refs::Slot::new(callback.clone().unbind()),
            args,
            context: refs::Slot::new(context.unbind()),
            cancelled: AtomicBool::new(false),
        };
        let this = Bound::new(py, this)?;
        hold(&this, &this.get().timer, due);
        Ok(this)
    }

    /// What a fire calls: the callback with its arguments, in its context. It is given up here.
    pub(crate) fn take_call<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        static PARTIAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let partial = PARTIAL.import(py, "functools", "partial").ok()?;
        let callback = self.callback.take(py)?;
        let run = self
            .context
            .take(py)?
            .getattr(py, intern!(py, "run"))
            .ok()?;
        let Some(args) = self.args.take(py) else {
            return partial.call1((run, callback)).ok();
        };
        let args = args.into_bound(py).cast_into::<PyTuple>().ok()?;
        let mut all = vec![run.into_bound(py), callback.into_bound(py)];
        all.extend(args.iter());
        partial.call1(PyTuple::new(py, all).ok()?).ok()
    }

    fn drop_call(&self, py: Python<'_>) {
        drop((
            self.callback.take(py),
            self.args.take(py),
            self.context.take(py),
        ));
    }
}

#[pymethods]
impl Handle {
    /// Takes it back: the callback will not be called.
    fn cancel(slf: &Bound<'_, Self>) {
        let this = slf.get();
        if !this.cancelled.swap(true, Ordering::Relaxed) {
            cancel_strong(slf, &this.timer);
            this.drop_call(slf.py());
        }
    }

    /// Whether `cancel` was called.
    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The moment on the loop's clock, in seconds.
    fn when(&self) -> f64 {
        self.when
    }

    #[getter(_cancelled)]
    fn is_cancelled(&self) -> bool {
        self.cancelled()
    }

    #[getter(_when)]
    fn moment(&self) -> f64 {
        self.when
    }

    /// asyncio's own `call_later` looks at it, which somebody may have kept from before `install`.
    #[getter(_source_traceback)]
    fn source(&self) {}

    /// `isinstance(handle, asyncio.TimerHandle)` is true.
    #[getter(__class__)]
    fn class(&self, py: Python<'_>) -> PyResult<Py<PyType>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        CLASS
            .import(py, "asyncio", "TimerHandle")
            .map(|class| class.clone().unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let cancelled = if self.cancelled() { " cancelled" } else { "" };
        let what = match self.callback.get(py) {
            Some(callback) => format!(" {}", callback.bind(py).repr()?),
            None => String::new(),
        };
        Ok(format!("<TimerHandle{cancelled} when={}{what}>", self.when))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.when.to_bits().hash(&mut hasher);
        hasher.finish()
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        how: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let same = slf.as_any().is(other);
        let no = || py.NotImplemented().into_bound(py);
        let Some(theirs) = other.getattr_opt(intern!(py, "_when"))? else {
            return Ok(no());
        };
        let (ours, theirs) = (slf.get().when, theirs.extract::<f64>()?);
        let answer = match how {
            CompareOp::Lt => ours < theirs,
            CompareOp::Le => ours < theirs || same,
            CompareOp::Gt => ours > theirs,
            CompareOp::Ge => ours > theirs || same,
            CompareOp::Eq => same,
            CompareOp::Ne => !same,
        };
        Ok(answer.into_pyobject(py)?.to_owned().into_any())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callback.traverse(&visit)?;
        self.args.traverse(&visit)?;
        self.context.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.drop_call(py);
    }
}
