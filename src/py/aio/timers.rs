//! What `stallwatch.aio.install` puts in the place of a loop's `call_later` and `call_at`.
//!
//! What is due at once, and everything in debug mode, goes to the loop's own methods, which are kept: the
//! order among callbacks of one turn is the loop's business, and its checks are too.

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyRuntimeError, PyTypeError},
    intern,
    prelude::*,
    types::{PyDict, PyTuple},
};

use super::{
    super::{bridge, refs},
    handle::Handle,
    looptime,
};

/// The timers of one loop.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct LoopTimers {
    event_loop: refs::Slot,
    call_later: refs::Slot,
    call_at: refs::Slot,
    /// Whether the loop keeps these two as attributes, which are quicker to ask than its methods.
    plain: bool,
}

impl LoopTimers {
    fn event_loop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = self.event_loop.get(py).map(|found| found.into_bound(py));
        event_loop.ok_or_else(|| PyRuntimeError::new_err("Event loop is closed"))
    }

    /// Whether the loop's own method is to be asked instead; an error if the loop is closed.
    fn is_theirs(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = event_loop.py();
        let (debug, closed) = if self.plain {
            (
                event_loop.getattr(intern!(py, "_debug"))?.is_truthy()?,
                event_loop.getattr(intern!(py, "_closed"))?.is_truthy()?,
            )
        } else {
            (
                event_loop
                    .call_method0(intern!(py, "get_debug"))?
                    .is_truthy()?,
                event_loop
                    .call_method0(intern!(py, "is_closed"))?
                    .is_truthy()?,
            )
        };
        if closed {
            return Err(PyRuntimeError::new_err("Event loop is closed"));
        }
        Ok(debug)
    }
}

fn pass_on<'py>(
    py: Python<'py>,
    method: &refs::Slot,
    first: &Bound<'py, PyAny>,
    callback: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    context: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let method = method
        .get(py)
        .ok_or_else(|| PyRuntimeError::new_err("Event loop is closed"))?;
    let mut all = vec![first.clone(), callback.clone()];
    all.extend(args.iter());
    let keywords = PyDict::new(py);
    if let Some(context) = context {
        keywords.set_item("context", context)?;
    }
    method
        .bind(py)
        .call(PyTuple::new(py, all)?, Some(&keywords))
}

#[pymethods]
impl LoopTimers {
    #[new]
    fn new(
        event_loop: &Bound<'_, PyAny>,
        call_later: &Bound<'_, PyAny>,
        call_at: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        // The loop hears of the wheel with its first timer, not before.
        Ok(Self {
            event_loop: refs::Slot::of(event_loop),
            call_later: refs::Slot::of(call_later),
            call_at: refs::Slot::of(call_at),
            plain: event_loop.hasattr("_debug")? && event_loop.hasattr("_closed")?,
        })
    }

    /// As the loop's `call_later`, on the wheel.
    #[pyo3(signature = (delay, callback, *args, context = None))]
    fn call_later<'py>(
        &self,
        py: Python<'py>,
        delay: &Bound<'py, PyAny>,
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if delay.is_none() {
            return Err(PyTypeError::new_err("delay must not be None"));
        }
        let event_loop = self.event_loop(py)?;
        let shard = bridge::shard_of(&event_loop)?;
        let now = looptime::now(&event_loop, &shard)?;
        let when = looptime::later(now, delay)?;
        if when <= now || self.is_theirs(&event_loop)? {
            return pass_on(py, &self.call_later, delay, callback, args, context);
        }
        let due = looptime::due(&event_loop, &shard, when)?;
        Handle::make(py, &shard, (when, due), callback, args, context).map(Bound::into_any)
    }

    /// As the loop's `call_at`, on the wheel.
    #[pyo3(signature = (when, callback, *args, context = None))]
    fn call_at<'py>(
        &self,
        py: Python<'py>,
        when: &Bound<'py, PyAny>,
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if when.is_none() {
            return Err(PyTypeError::new_err("when cannot be None"));
        }
        let event_loop = self.event_loop(py)?;
        let shard = bridge::shard_of(&event_loop)?;
        let moment = looptime::moment(when)?;
        if moment <= looptime::now(&event_loop, &shard)? || self.is_theirs(&event_loop)? {
            return pass_on(py, &self.call_at, when, callback, args, context);
        }
        let due = looptime::due(&event_loop, &shard, moment)?;
        Handle::make(py, &shard, (moment, due), callback, args, context).map(Bound::into_any)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.event_loop.traverse(&visit)?;
        self.call_later.traverse(&visit)?;
        self.call_at.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        drop((
            self.event_loop.take(py),
            self.call_later.take(py),
            self.call_at.take(py),
        ));
    }
}

/// A timer of a loop, whether or not its own methods were replaced. `delay` is above 0.
#[pyfunction]
#[pyo3(signature = (event_loop, delay, callback, *args))]
pub(crate) fn call_later<'py>(
    event_loop: &Bound<'py, PyAny>,
    delay: &Bound<'py, PyAny>,
    callback: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, Handle>> {
    let shard = bridge::shard_of(event_loop)?;
    let when = looptime::later(looptime::now(event_loop, &shard)?, delay)?;
    let due = looptime::due(event_loop, &shard, when)?;
    Handle::make(event_loop.py(), &shard, (when, due), callback, args, None)
}
