//! `stallwatch.aio.Timeout`: what `asyncio.timeout` gives, with its states and errors.
//!
//! Belongs to the thread of its loop, as asyncio's does; everything here happens with the GIL held. A fire
//! sets the state and hands `task.cancel` to the loop's drain ([`Timeout::expire`]).

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use pyo3::{
    PyTraverseError, PyVisit, exceptions::PyRuntimeError, intern, prelude::*, types::PyFloat,
};

use super::{
    super::{bridge, refs, running},
    done, looptime,
};
use crate::core::timer::Timer;

const CREATED: u8 = 0;
const ENTERED: u8 = 1;
const EXPIRING: u8 = 2;
const EXPIRED: u8 = 3;
const EXITED: u8 = 4;

const NAMES: [&str; 5] = ["created", "active", "expiring", "expired", "finished"];

/// Cancels the task of an `async with` block once it is overdue.
#[pyclass(frozen, module = "stallwatch.aio")]
pub(crate) struct Timeout {
    state: AtomicU8,
    cancelling: AtomicU64,
    /// Whether somebody's cancel was on its way already when the block began.
    doomed: AtomicBool,
    /// Of the loop in which it was entered. The block keeps the object alive, so the timer need not.
    timer: OnceLock<Timer>,
    when: refs::Slot,
    task: refs::Slot,
    /// A fire that waits for the loop's next turn, as the deadline had passed when it was set.
    soon: refs::Slot,
}

impl Timeout {
    fn state(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    fn unset(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(timer) = self.timer.get() {
            timer.cancel();
        }
        if let Some(soon) = self.soon.take(py) {
            soon.call_method0(py, "cancel")?;
        }
        Ok(())
    }

    fn arm(slf: &Bound<'_, Self>, event_loop: &Bound<'_, PyAny>, when: f64) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let shard = bridge::shard_of(event_loop)?;
        if when <= looptime::now(event_loop, &shard)? {
            let expire = py.import("stallwatch._bridge")?.getattr("expire")?;
            let soon = event_loop.call_method1("call_soon", (expire, slf))?;
            drop(this.soon.replace(py, Some(soon.unbind())));
            return Ok(());
        }
        let Some(due) = looptime::due(event_loop, &shard, when)? else {
            return Ok(());
        };
        match this.timer.get() {
            Some(timer) => timer.arm(due, 0)?,
            None => {
                let recently = shard.clock().recently();
                let timer = Timer::armed(&shard, refs::borrow_raw(slf), due, 0, recently)?;
                let _ = this.timer.set(timer);
            }
        }
        Ok(())
    }

    /// The block begins: from here the deadline counts.
    pub(super) fn enter(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if this.state() != CREATED {
            return Err(PyRuntimeError::new_err("Timeout has already been entered"));
        }
        let event_loop = running_loop(py)?;
        let Some(task) = running::current_task(&event_loop)? else {
            return Err(PyRuntimeError::new_err(
                "Timeout should be used inside a task",
            ));
        };
        let cancelling = task
            .call_method0(intern!(py, "cancelling"))?
            .extract::<u64>()?;
        this.cancelling.store(cancelling, Ordering::Relaxed);
        if cancelling > 0 {
            // Not every kind of task tells.
            let doomed = task.getattr_opt(intern!(py, "_must_cancel"))?;
            let doomed = doomed.map_or(Ok(false), |doomed| doomed.is_truthy())?;
            this.doomed.store(doomed, Ordering::Relaxed);
        }
        drop(this.task.replace(py, Some(task.unbind())));
        this.set(ENTERED);
        if let Some(when) = this.deadline(py)? {
            Self::arm(slf, &event_loop, when)?;
        }
        Ok(())
    }

    fn deadline(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        match self.when.get(py) {
            Some(when) => looptime::moment(when.bind(py)).map(Some),
            None => Ok(None),
        }
    }

    /// The deadline has come: what is to be called, if the block is still open.
    pub(crate) fn expire(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        if self.state() != ENTERED {
            return None;
        }
        let task = self.task.get(py)?;
        let cancel = task.getattr(py, intern!(py, "cancel")).ok()?;
        self.set(EXPIRING);
        drop(self.soon.take(py));
        Some(cancel)
    }
}

#[pymethods]
impl Timeout {
    #[new]
    fn new(when: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !when.is_none() {
            looptime::moment(when)?;
        }
        Ok(Self {
            state: AtomicU8::new(CREATED),
            cancelling: AtomicU64::new(0),
            doomed: AtomicBool::new(false),
            timer: OnceLock::new(),
            when: refs::Slot::of(when),
            task: refs::Slot::empty(),
            soon: refs::Slot::empty(),
        })
    }

    /// The deadline on the loop's clock, or None.
    fn when(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.when.get(py)
    }

    /// Moves the deadline; None takes it away.
    fn reschedule(slf: &Bound<'_, Self>, when: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        match this.state() {
            ENTERED => {}
            CREATED => return Err(PyRuntimeError::new_err("Timeout has not been entered")),
            state => {
                let name = NAMES[usize::from(state)];
                return Err(PyRuntimeError::new_err(format!(
                    "Cannot change state of {name} Timeout"
                )));
            }
        }
        let moment = if when.is_none() {
            None
        } else {
            Some(looptime::moment(when)?)
        };
        let given = (!when.is_none()).then(|| when.clone().unbind());
        drop(this.when.replace(py, given));
        this.unset(py)?;
        match moment {
            Some(moment) => Self::arm(slf, &running_loop(py)?, moment),
            None => Ok(()),
        }
    }

    /// Whether the deadline has come while the block was open.
    fn expired(&self) -> bool {
        matches!(self.state(), EXPIRING | EXPIRED)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.state();
        let mut info = String::new();
        if state == ENTERED {
            info = match self.when.get(py) {
                Some(when) => {
                    let round = py.import("builtins")?.getattr("round")?;
                    format!(" when={}", round.call1((when, 3))?.str()?)
                }
                None => " when=None".to_owned(),
            };
        }
        Ok(format!("<Timeout [{}]{info}>", NAMES[usize::from(state)]))
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        done::entering(slf)
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        kind: &Bound<'py, PyAny>,
        error: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        this.unset(py)?;
        match this.state() {
            EXPIRING => {
                this.set(EXPIRED);
                let task = this.task.take(py);
                let before = this.cancelling.load(Ordering::Relaxed);
                let Some(task) = task else {
                    return done::nothing(py);
                };
                let left = task
                    .call_method0(py, intern!(py, "uncancel"))?
                    .extract::<u64>(py)?;
                // A cancel that was there before the block is what leaves it, unless it was taken
                // back meanwhile: asyncio takes it for the deadline's, and it is lost.
                let doomed = this.doomed.load(Ordering::Relaxed) && left == before;
                if left <= before && !doomed && !kind.is_none() {
                    // What becomes of the cancel differs between versions of asyncio.
                    py.import("stallwatch._bridge")?
                        .getattr("convert")?
                        .call1((kind, error))?;
                }
            }
            ENTERED => {
                this.set(EXITED);
                drop(this.task.take(py));
            }
            _ => return Err(PyRuntimeError::new_err("Timeout has not been entered")),
        }
        done::nothing(py)
    }

    /// For a deadline that had passed when it was set: what the loop is to call now, or None.
    fn _expire(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.expire(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.when.traverse(&visit)?;
        self.task.traverse(&visit)?;
        self.soon.traverse(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        drop((self.when.take(py), self.task.take(py), self.soon.take(py)));
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    running::running_loop(py)?.ok_or_else(|| PyRuntimeError::new_err("no running event loop"))
}

/// As `asyncio.timeout`, on the wheel: an `async with` block that is to be over in so many seconds.
#[pyfunction]
pub(crate) fn timeout<'py>(delay: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Timeout>> {
    let py = delay.py();
    let event_loop = running_loop(py)?;
    if delay.is_none() {
        return Bound::new(py, Timeout::new(delay)?);
    }
    let shard = bridge::shard_of(&event_loop)?;
    let when = looptime::later(looptime::now(&event_loop, &shard)?, delay)?;
    Bound::new(py, Timeout::new(PyFloat::new(py, when).as_any())?)
}

/// As `asyncio.timeout_at`, on the wheel: the deadline is a moment of the loop's clock.
#[pyfunction]
pub(crate) fn timeout_at<'py>(when: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Timeout>> {
    Bound::new(when.py(), Timeout::new(when)?)
}
