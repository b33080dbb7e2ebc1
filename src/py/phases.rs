//! `PhaseTracker`, `Restore` and the strict default.
//!
//! An operation runs in the core, which takes and frees its lock. Only then does [`PhaseTracker::tell`]
//! run Python code: listeners first, as they are what takes clocks out of service, the warning after.

use super::{
    clock,
    listeners::{Listeners, log_error, log_warning},
};
use crate::core::{
    phases::{Phase, Report, Since, State, Token, Tracker},
    sync::{Mutex, lock},
};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    sync::PyOnceLock,
    types::{PyBool, PyInt, PyTuple},
};

static STRICT_DEFAULT: Mutex<bool> = Mutex::new(false);

/// Make violations raise in every tracker made from now on without `strict=`.
///
/// The environment variable goes first. Returns the value before.
#[pyfunction]
pub(crate) fn set_strict_default(strict: bool) -> bool {
    std::mem::replace(&mut *lock(&STRICT_DEFAULT), strict)
}

/// The phases as the core knows them: number, label, whether idle time is counted.
#[pyfunction]
pub(crate) fn phase_table() -> Vec<(u8, &'static str, bool)> {
    Phase::ALL
        .iter()
        .map(|phase| (phase.number(), phase.label(), phase.idle_counted()))
        .collect()
}

/// A word that says neither yes nor no says nothing: a typing error must not take the host down.
fn strict_by_environment() -> bool {
    let word = std::env::var("STALLWATCH_PHASE_STRICT").unwrap_or_default();
    match word.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => true,
        "0" | "false" | "no" | "off" => false,
        _ => *lock(&STRICT_DEFAULT),
    }
}

/// A phase that came in as a member of `Phase` or as its number.
struct PhaseArg(Phase);

impl<'py> FromPyObject<'_, 'py> for PhaseArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if !object.is_instance_of::<PyInt>() || object.is_instance_of::<PyBool>() {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "phase must be a Phase or its number, not {kind}"
            )));
        }
        if let Some(phase) = object.extract().ok().and_then(Phase::from_number) {
            return Ok(Self(phase));
        }
        let shown = object.repr()?;
        Err(PyValueError::new_err(format!(
            "phase must be a number from 0 to 9, not {shown}"
        )))
    }
}

struct SinceArg(Since);

impl<'py> FromPyObject<'_, 'py> for SinceArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract()? {
            "pause" => Ok(Self(Since::Pause)),
            "keep" => Ok(Self(Since::Keep)),
            other => Err(PyValueError::new_err(format!(
                "since must be \"pause\" or \"keep\", not {other:?}"
            ))),
        }
    }
}

/// The members of `Phase` by number, and the class `PhaseState`.
struct Classes {
    members: Py<PyTuple>,
    state: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

/// Looked up at first use, as the compiled module must import with nothing above it. The imports run
/// outside the cell's own initialiser: a signal handler that comes back here would lock up in it.
fn classes(py: Python<'_>) -> PyResult<&Classes> {
    if let Some(classes) = CLASSES.get(py) {
        return Ok(classes);
    }
    let phase = py.import("stallwatch._phases")?.getattr("Phase")?;
    let members: Vec<_> = Phase::ALL
        .iter()
        .map(|known| phase.call1((known.number(),)))
        .collect::<PyResult<_>>()?;
    let found = Classes {
        members: PyTuple::new(py, members)?.unbind(),
        state: py
            .import("stallwatch._phase_state")?
            .getattr("PhaseState")?
            .unbind(),
    };
    // Another thread's is as good.
    Ok(CLASSES.get_or_init(py, || found))
}

fn state_object<'py>(py: Python<'py>, state: State) -> PyResult<Bound<'py, PyAny>> {
    let classes = classes(py)?;
    let member = classes
        .members
        .bind(py)
        .get_item(usize::from(state.phase.number()))?;
    let elapsed = crate::core::clock::secs(state.elapsed_ns);
    classes.state.bind(py).call1((member, elapsed, state.seq))
}

/// Which phase a turn is in, since when, and how often that has changed.
///
/// Thread-safe. Phases are entered one after another; a transient phase is borrowed and given back, and
/// borrows nest. Three things are violations: entering a phase while one is borrowed, giving back in the
/// wrong order, and a phase still borrowed at `assert_clean()`. The first marks the tracker invalid for
/// good, and clocks that read it then never fire. In strict mode a violation raises
/// `PhaseViolationError` before anything changes; otherwise it is logged once and the turn goes on.
///
/// `strict=None` asks the environment (`STALLWATCH_PHASE_STRICT`), then the default of the process.
#[pyclass(frozen, weakref, module = "stallwatch")]
pub(crate) struct PhaseTracker {
    core: Tracker,
    listeners: Listeners,
}

impl PhaseTracker {
    /// Tells the world what an operation did, and answers for it.
    fn conclude<T>(&self, py: Python<'_>, report: Report<T>) -> PyResult<T> {
        self.tell(py, &report)?;
        Ok(report.result?)
    }

    /// Comes back with an error only for what ends the process.
    fn tell<T>(&self, py: Python<'_>, report: &Report<T>) -> PyResult<()> {
        let mut told = Ok(());
        if (report.change.is_some() || report.violation.is_some()) && !self.listeners.is_empty() {
            told = self.call_listeners(py, report);
        }
        match &report.violation {
            Some(text) if report.result.is_ok() => told.and(log_warning(
                py,
                "phase tracker invalid, clocks that read it are off: %s",
                text,
            )),
            _ => told,
        }
    }

    fn call_listeners<T>(&self, py: Python<'_>, report: &Report<T>) -> PyResult<()> {
        let change = report.change;
        let after = change.map_or_else(|| self.core.current(), |change| change.after);
        let before = change.map(|change| state_object(py, change.before));
        match (before.transpose(), state_object(py, after)) {
            (Ok(before), Ok(after)) => self
                .listeners
                .call(py, (before, after, report.violation.as_deref())),
            (Err(error), _) | (_, Err(error)) => {
                let none = py.None();
                log_error(py, "cannot tell of a phase: %r", none.bind(py), error)
            }
        }
    }
}

#[pymethods]
impl PhaseTracker {
    #[new]
    #[pyo3(signature = (*, strict = None))]
    fn new(strict: Option<bool>) -> Self {
        let strict = strict.unwrap_or_else(strict_by_environment);
        Self {
            core: Tracker::new(clock::current(), strict),
            listeners: Listeners::default(),
        }
    }

    /// Enter a phase. Its time starts anew and `seq` grows, also when it is the current one.
    fn enter(&self, py: Python<'_>, phase: PhaseArg) -> PyResult<()> {
        self.conclude(py, self.core.enter(phase.0))
    }

    /// Borrow a phase until the returned `Restore` is called or its `with` block ends.
    ///
    /// With `since="pause"` the borrowed time is not charged to the outer phase; with `since="keep"` the
    /// outer phase's time runs on.
    #[pyo3(signature = (phase, *, since = SinceArg(Since::Pause)))]
    #[pyo3(text_signature = "($self, phase, *, since='pause')")]
    fn enter_transient(
        slf: &Bound<'_, Self>,
        phase: PhaseArg,
        since: SinceArg,
    ) -> PyResult<Restore> {
        let (py, this) = (slf.py(), slf.get());
        let report = this.core.borrow(phase.0, since.0);
        let told = this.tell(py, &report);
        let restore = Restore {
            tracker: slf.clone().unbind(),
            token: report.result?,
        };
        if let Err(fatal) = told {
            // The caller never sees the `Restore`, so nobody else can give the phase back.
            let _ = this.core.restore(restore.token);
            return Err(fatal);
        }
        Ok(restore)
    }

    /// Phase, seconds in it and `seq`, as of one moment.
    fn current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_object(py, self.core.current())
    }

    /// The number of transitions so far.
    #[getter]
    fn seq(&self) -> u64 {
        self.core.seq()
    }

    /// The number of phases borrowed and not yet given back.
    #[getter]
    fn depth(&self) -> usize {
        self.core.depth()
    }

    /// Whether there was a violation. It never becomes false again.
    #[getter]
    fn invalid(&self) -> bool {
        self.core.invalid()
    }

    /// The text of the first violation.
    #[getter]
    fn violation(&self) -> Option<String> {
        self.core.violation()
    }

    /// Whether violations raise.
    #[getter]
    fn strict(&self) -> bool {
        self.core.strict()
    }

    /// Whether there was a transition or a mark since the last `take_dirty()`.
    #[getter]
    fn is_dirty(&self) -> bool {
        self.core.dirty()
    }

    /// Mark the tracker as changed.
    fn mark_dirty(&self) {
        self.core.mark_dirty();
    }

    /// Read and clear the mark. Checkpoint code peeks at `is_dirty`, saves, and only then takes.
    fn take_dirty(&self) -> bool {
        self.core.take_dirty()
    }

    /// The end of a run: no phase may still be borrowed.
    ///
    /// In strict mode it also raises an earlier violation again, in case somebody swallowed it.
    fn assert_clean(&self, py: Python<'_>) -> PyResult<()> {
        self.conclude(py, self.core.assert_clean())
    }

    /// Call `callback(previous, state, violation)` after each transition and at the first violation.
    fn _watch(&self, callback: Py<PyAny>) {
        self.listeners.add(callback);
    }

    /// Stop calling it.
    fn _unwatch(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.listeners.remove(callback)
    }

    fn __repr__(&self) -> String {
        let state = self.core.current();
        let invalid = if self.core.invalid() { " invalid" } else { "" };
        format!(
            "<PhaseTracker {} seq={}{invalid}>",
            state.phase.label(),
            state.seq
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.listeners.traverse(&visit)
    }

    fn __clear__(&self) {
        self.listeners.clear();
    }
}

/// Gives a borrowed phase back: call it, or use it as a context manager. Doing so twice does no harm.
#[pyclass(frozen, weakref, module = "stallwatch")]
pub(crate) struct Restore {
    tracker: Py<PhaseTracker>,
    token: Token,
}

#[pymethods]
impl Restore {
    /// Bring the outer phase back.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let tracker = self.tracker.get();
        tracker
            .conclude(py, tracker.core.restore(self.token))
            .map(drop)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Bring the outer phase back. An exception of the block always goes on: it may be a cancel, and a
    /// violation that took its place would swallow it. The violation is then logged instead.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        _exc: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.__call__(py) {
            Err(error) if !exc_type.is_none() => {
                log_error(py, "phase violation beside %r", exc_type, error)
            }
            result => result,
        }
    }

    // The tracker's own `__clear__` breaks every cycle through here.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tracker)
    }
}
