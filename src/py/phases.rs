//! The core of `PhaseTracker`, and the strict default.
//!
//! Nothing in this file runs Python code. An operation answers with a report, and `stallwatch._tracker`,
//! from a Python frame, calls listeners, logs and raises. From here that would be fatal at interpreter
//! exit: CPython ends a daemon thread by unwinding it (`pthread_exit` when it next wants the GIL), and
//! with a Rust frame on its stack that aborts the process. So the classes behind the results are handed
//! in by [`bind_phases`], not imported, and a `PhaseState` is made by `tuple.__new__`, which is C.

use super::clock;
use crate::core::{
    clock::secs,
    phases::{Phase, Report, Since, State, Token, Tracker},
    sync::{Mutex, lock},
};
use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError, PyValueError},
    intern,
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

/// The members of `Phase` in order, and the class `PhaseState`.
static CLASSES: PyOnceLock<(Vec<Py<PyAny>>, Py<PyAny>)> = PyOnceLock::new();

/// Hand in the members of `Phase` in order and the class `PhaseState`; the first call counts.
#[pyfunction]
pub(crate) fn bind_phases(
    py: Python<'_>,
    members: Vec<Py<PyAny>>,
    state: Py<PyAny>,
) -> PyResult<()> {
    if members.len() != Phase::ALL.len() {
        return Err(PyValueError::new_err("one member for each phase"));
    }
    CLASSES.get_or_init(py, || (members, state));
    Ok(())
}

fn state_object(py: Python<'_>, state: State) -> PyResult<Bound<'_, PyAny>> {
    let number = usize::from(state.phase.number());
    let Some((Some(member), class)) = CLASSES
        .get(py)
        .map(|(members, class)| (members.get(number), class))
    else {
        return Err(PyRuntimeError::new_err("bind_phases() was not called"));
    };
    py.get_type::<PyTuple>().call_method1(
        intern!(py, "__new__"),
        (class, (member, secs(state.elapsed_ns), state.seq)),
    )
}

/// What an operation did, for Python: the states before and after, if it made a transition; the text of
/// the violation, if it was the first; the text of the refusal, if it was refused.
type Told<'py> = (
    Option<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
    Option<String>,
    Option<String>,
);

/// The core of a phase tracker: all its rules and its state.
#[pyclass(frozen, subclass, module = "stallwatch._stallwatch")]
pub(crate) struct TrackerCore(Tracker);

impl TrackerCore {
    fn told<'py, T>(&self, py: Python<'py>, report: Report<T>) -> PyResult<Told<'py>> {
        let after = report
            .change
            .map_or_else(|| self.0.current(), |change| change.after);
        Ok((
            report
                .change
                .map(|change| state_object(py, change.before))
                .transpose()?,
            state_object(py, after)?,
            report.violation,
            report.result.err().map(|error| error.to_string()),
        ))
    }
}

#[pymethods]
impl TrackerCore {
    #[new]
    #[pyo3(signature = (*, strict = None))]
    fn new(strict: Option<bool>) -> Self {
        let strict = strict.unwrap_or_else(strict_by_environment);
        Self(Tracker::new(clock::current(), strict))
    }

    /// Enter a phase.
    fn _enter<'py>(&self, py: Python<'py>, phase: PhaseArg) -> PyResult<Told<'py>> {
        self.told(py, self.0.enter(phase.0))
    }

    /// Borrow a phase. The token comes first.
    fn _borrow<'py>(
        &self,
        py: Python<'py>,
        phase: PhaseArg,
        since: SinceArg,
    ) -> PyResult<(u64, Told<'py>)> {
        let report = self.0.borrow(phase.0, since.0);
        let token = match report.result {
            Ok(Token(number)) => number,
            Err(error) => return Err(error.into()),
        };
        Ok((token, self.told(py, report)?))
    }

    /// Give a borrowed phase back.
    fn _restore<'py>(&self, py: Python<'py>, token: u64) -> PyResult<Told<'py>> {
        self.told(py, self.0.restore(Token(token)))
    }

    /// Check that no phase is borrowed.
    fn _assert_clean<'py>(&self, py: Python<'py>) -> PyResult<Told<'py>> {
        self.told(py, self.0.assert_clean())
    }

    /// Phase, seconds in it and `seq`, as of one moment.
    fn current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_object(py, self.0.current())
    }

    /// The number of transitions so far.
    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq()
    }

    /// The number of phases borrowed and not yet given back.
    #[getter]
    fn depth(&self) -> usize {
        self.0.depth()
    }

    /// Whether there was a violation. It never becomes false again.
    #[getter]
    fn invalid(&self) -> bool {
        self.0.invalid()
    }

    /// The text of the first violation.
    #[getter]
    fn violation(&self) -> Option<String> {
        self.0.violation()
    }

    /// Whether violations raise.
    #[getter]
    fn strict(&self) -> bool {
        self.0.strict()
    }

    /// Whether there was a transition or a mark since the last `take_dirty()`.
    #[getter]
    fn is_dirty(&self) -> bool {
        self.0.dirty()
    }

    /// Mark the tracker as changed.
    fn mark_dirty(&self) {
        self.0.mark_dirty();
    }

    /// Read and clear the mark. Checkpoint code peeks at `is_dirty`, saves, and only then takes.
    fn take_dirty(&self) -> bool {
        self.0.take_dirty()
    }

    fn __repr__(&self) -> String {
        let state = self.0.current();
        let invalid = if self.0.invalid() { " invalid" } else { "" };
        format!(
            "<PhaseTracker {} seq={}{invalid}>",
            state.phase.label(),
            state.seq
        )
    }
}
