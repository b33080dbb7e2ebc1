//! Supervised children.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStringExt,
    },
};

use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyOSError, PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict},
};

use super::lifecycle;
use crate::core::{
    child::{Ended, Handle, Launch, Limits, Note, Plan, Report, Spawned, Stdin, spawn},
    clock::{ns_from_secs, secs},
};

/// How a child is watched.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct ChildPlan(Plan);

#[pymethods]
impl ChildPlan {
    #[new]
    #[pyo3(signature = (
        *, idle, warn, budget, max_runtime, kill_grace, drain_grace, progress, cap, live, observe_only
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        idle: Option<f64>,
        warn: Option<f64>,
        budget: Option<f64>,
        max_runtime: Option<f64>,
        kill_grace: Option<f64>,
        drain_grace: Option<f64>,
        progress: u32,
        cap: usize,
        live: bool,
        observe_only: bool,
    ) -> Self {
        Self(Plan {
            limits: Limits {
                idle: idle.map(ns_from_secs),
                warn: warn.map(ns_from_secs),
                budget: budget.map(ns_from_secs),
                max_runtime: max_runtime.map(ns_from_secs),
            },
            progress,
            kill_grace: kill_grace.map(ns_from_secs),
            drain_grace: drain_grace.map(ns_from_secs),
            cap,
            live,
            observe_only,
        })
    }
}

/// A child under supervision. Ends it when it is dropped.
#[pyclass(frozen, module = "stallwatch._stallwatch")]
pub(crate) struct ChildHandle {
    handle: Handle,
    #[pyo3(get)]
    pid: i32,
}

#[pymethods]
impl ChildHandle {
    /// Starts a child. `stdin`: None for nothing, True for what this process reads, or bytes.
    #[staticmethod]
    #[pyo3(signature = (plan, args, *, cwd, env, stdin, pty, touch))]
    #[allow(clippy::too_many_arguments)]
    fn start(
        py: Python<'_>,
        plan: &ChildPlan,
        args: Vec<Vec<u8>>,
        cwd: Option<Vec<u8>>,
        env: Option<Vec<(Vec<u8>, Vec<u8>)>>,
        stdin: &Bound<'_, PyAny>,
        pty: bool,
        touch: bool,
    ) -> PyResult<Self> {
        let plan = plan.0;
        let name = args.first().cloned().unwrap_or_default();
        let stdin = if stdin.is_none() {
            Stdin::Closed
        } else if let Ok(bytes) = stdin.cast::<PyBytes>() {
            Stdin::Feed(bytes.as_bytes().to_vec())
        } else {
            Stdin::Inherit
        };
        let launch = Launch {
            args: args.into_iter().map(OsString::from_vec).collect(),
            cwd: cwd.clone().map(OsString::from_vec),
            env: env.map(|env| {
                let own = |(name, value)| (OsString::from_vec(name), OsString::from_vec(value));
                env.into_iter().map(own).collect()
            }),
            stdin,
            pty,
            touch,
        };
        let runtime = lifecycle::children()?;
        let (handle, pid) = py
            .detach(|| {
                let child = spawn(launch)?;
                let pid = child.pid;
                runtime.supervise(child, plan).map(|handle| (handle, pid))
            })
            .map_err(|error| as_subprocess(py, &error, &name, cwd.as_deref()))?;
        Ok(Self { handle, pid })
    }

    /// Takes over a child that runs, and the given descriptors of its output (-1: none), which it owns
    /// from here.
    #[staticmethod]
    fn adopt(py: Python<'_>, plan: &ChildPlan, pid: i32, fds: (RawFd, RawFd)) -> PyResult<Self> {
        // SAFETY: the caller gives them up.
        let own = |fd: RawFd| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        let output = [own(fds.0), own(fds.1)];
        let plan = plan.0;
        let runtime = lifecycle::children()?;
        let handle = py.detach(|| {
            let child = Spawned::adopt(pid, output)?;
            runtime.supervise(child, plan)
        })?;
        Ok(Self { handle, pid })
    }

    /// A descriptor that is readable when there is something to take.
    #[getter]
    fn bell(&self) -> RawFd {
        self.handle.bell()
    }

    /// Silences the bell. Then look once more.
    fn hush(&self) -> PyResult<()> {
        self.home()?.hush();
        Ok(())
    }

    /// The next thing to know, or None: its name, and what belongs to it.
    fn next_note<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.home()?
            .next()
            .map(|note| note_to_py(py, note))
            .transpose()
    }

    /// What became of it, once and after all notes; None until then.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.home()?
            .report()
            .map(|report| report_to_py(py, report))
            .transpose()
    }

    /// Blocks, without the GIL, until there may be something to take. Signal handlers run meanwhile.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let bell = self.home()?.bell();
        while py.detach(|| interrupted(bell)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Closes the bell.
    fn close(&self) -> PyResult<()> {
        self.home()?.close();
        Ok(())
    }

    /// Ends the child: with a grace, or at once.
    #[pyo3(signature = (*, at_once = false))]
    fn end(&self, at_once: bool) {
        self.handle.end(at_once);
    }
}

impl ChildHandle {
    fn home(&self) -> PyResult<&Handle> {
        if self.handle.is_home() {
            Ok(&self.handle)
        } else {
            Err(PyRuntimeError::new_err(
                "this child belongs to the parent process: it was started before a fork",
            ))
        }
    }
}

/// Waits for a bell; true if a signal came first.
fn interrupted(bell: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd: bell,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` is one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, -1) < 0 }
}

/// The error that `subprocess` would raise.
fn as_subprocess(py: Python<'_>, error: &io::Error, name: &[u8], cwd: Option<&[u8]>) -> PyErr {
    let Some(code) = error.raw_os_error() else {
        return PyValueError::new_err(error.to_string());
    };
    let wrong_cwd =
        cwd.filter(|cwd| !std::path::Path::new(&OsString::from_vec(cwd.to_vec())).is_dir());
    let file = OsString::from_vec(wrong_cwd.unwrap_or(name).to_vec());
    let made = || -> PyResult<PyErr> {
        let text = py.import("os")?.call_method1("strerror", (code,))?;
        let error = py.get_type::<PyOSError>().call1((code, text, file))?;
        Ok(PyErr::from_value(error))
    };
    made().unwrap_or_else(|error| error)
}

fn note_to_py(py: Python<'_>, note: Note) -> PyResult<Bound<'_, PyAny>> {
    match note {
        Note::Output(stream, bytes) => {
            ("output", stream as u8, PyBytes::new(py, &bytes)).into_bound_py_any(py)
        }
        Note::Quiet { at, idle } => ("quiet", secs(at), secs(idle)).into_bound_py_any(py),
        Note::Idle {
            at,
            idle,
            late,
            cut,
        } => ("idle", secs(at), secs(idle), secs(late), cut).into_bound_py_any(py),
        Note::Budget {
            at,
            elapsed,
            late,
            cut,
        } => ("budget", secs(at), secs(elapsed), secs(late), cut).into_bound_py_any(py),
        Note::Overrun { at, elapsed } => ("overrun", secs(at), secs(elapsed)).into_bound_py_any(py),
        Note::Overslept { at, late } => ("overslept", secs(at), secs(late)).into_bound_py_any(py),
        Note::Unresponsive { at, waited } => {
            ("unresponsive", secs(at), secs(waited)).into_bound_py_any(py)
        }
    }
}

fn report_to_py(py: Python<'_>, report: Report) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    let (ended, measured, late) = match report.ended {
        Ended::Exited => ("exited", 0, 0),
        Ended::Idle(idle, late) => ("idle", idle, late),
        Ended::Budget(elapsed, late) => ("budget", elapsed, late),
        Ended::Cancelled => ("cancelled", 0, 0),
    };
    found.set_item("ended", ended)?;
    found.set_item("measured", secs(measured))?;
    found.set_item("late", secs(late))?;
    found.set_item("status", report.status)?;
    found.set_item("gone", report.gone)?;
    let [out, err] = report.kept;
    found.set_item("stdout", PyBytes::new(py, &out.bytes))?;
    found.set_item("stderr", PyBytes::new(py, &err.bytes))?;
    found.set_item("heads", (out.head, err.head))?;
    found.set_item("dropped", (out.dropped, err.dropped))?;
    found.set_item("total", (report.total[0], report.total[1]))?;
    found.set_item("drained", report.drained)?;
    found.set_item("idle", secs(report.idle))?;
    found.set_item("elapsed", secs(report.elapsed))?;
    found.set_item("escaped", report.escaped)?;
    found.set_item("survivors", report.survivors)?;
    found.set_item("busy", report.busy)?;
    found.set_item("reads_stdin", report.reads_stdin)?;
    found.set_item("overran", report.overran)?;
    Ok(found)
}
