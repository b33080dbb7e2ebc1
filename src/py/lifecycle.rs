//! The process-wide runtime: made at the first use, made anew after a fork, ended before the interpreter.

use std::sync::Arc;

use pyo3::{prelude::*, types::PyDict};

use super::{
    bridge, clock,
    dispatch::{Dispatch, DispatchQueue},
    running,
};
use crate::core::{
    clock::{Clock, secs},
    driver::Driver,
    shard::Shard,
    sync::{Mutex, lock},
};

struct Runtime {
    driver: Driver,
    dispatch: Option<Arc<Dispatch>>,
    #[cfg(target_os = "linux")]
    children: Option<Arc<crate::core::child::Runtime>>,
}

impl Runtime {
    fn fresh() -> Self {
        Self {
            driver: Driver::default(),
            dispatch: None,
            #[cfg(target_os = "linux")]
            children: None,
        }
    }
}

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The driver of this process. Its thread starts with the first timer.
pub(crate) fn driver() -> Driver {
    lock(&RUNTIME)
        .get_or_insert_with(Runtime::fresh)
        .driver
        .clone()
}

/// What watches the children of this process. Its thread starts with the first child.
#[cfg(target_os = "linux")]
pub(crate) fn children() -> PyResult<Arc<crate::core::child::Runtime>> {
    let mut slot = lock(&RUNTIME);
    let runtime = slot.get_or_insert_with(Runtime::fresh);
    if let Some(children) = &runtime.children {
        return Ok(children.clone());
    }
    let children = Arc::new(crate::core::child::Runtime::start()?);
    Ok(runtime.children.insert(children).clone())
}

/// Where a timer made now belongs: with the running loop, else with the dispatcher.
pub(crate) fn home(py: Python<'_>) -> PyResult<Arc<Shard>> {
    match running::running_loop(py)? {
        Some(event_loop) => bridge::shard_of(&event_loop),
        None => loopless(py),
    }
}

/// The shard of timers that belong to no loop.
pub(crate) fn loopless(py: Python<'_>) -> PyResult<Arc<Shard>> {
    if let Some(manual) = clock::manual() {
        return Ok(manual.dispatch.shard().clone());
    }
    let driver = driver();
    let known = lock(&RUNTIME)
        .as_ref()
        .and_then(|runtime| runtime.dispatch.clone());
    if let Some(dispatch) = known {
        return Ok(dispatch.shard().clone());
    }
    let dispatch = Arc::new(Dispatch::new(Clock::Real, Some(&driver)));
    // Starting the thread runs Python, so no lock is held, and a second thread may come here meanwhile.
    let queue = Py::new(py, DispatchQueue(dispatch.clone()))?;
    let started = py
        .import("stallwatch._dispatch")
        .and_then(|module| module.call_method1("start", (queue,)));
    let first = match lock(&RUNTIME).as_mut() {
        Some(runtime) if started.is_ok() => {
            runtime.dispatch.get_or_insert(dispatch.clone()).clone()
        }
        _ => dispatch.clone(),
    };
    if started.is_err() || !Arc::ptr_eq(&first, &dispatch) {
        dispatch.stop();
        // It has no timers yet.
        dispatch.shard().close();
    }
    started?;
    Ok(first.shard().clone())
}

/// When this process last came back from not running, in seconds on `time.monotonic()`; 0 for never.
#[pyfunction]
pub(crate) fn frozen_until() -> f64 {
    secs(driver().health().frozen_until)
}

/// Before a fork: keeps the driver out of its locks.
#[pyfunction]
fn _before_fork() {
    let driver = lock(&RUNTIME)
        .as_ref()
        .map(|runtime| runtime.driver.clone());
    if let Some(driver) = driver {
        driver.hold();
    }
}

/// After a fork, in the parent: nothing has happened.
#[pyfunction]
fn _after_fork_in_parent() {
    if let Some(runtime) = lock(&RUNTIME).as_ref() {
        runtime.driver.let_go();
    }
}

/// After a fork, in the child: what was inherited is dead, and says so; the next timer starts afresh.
#[pyfunction]
fn _after_fork_in_child() {
    if let Some(runtime) = lock(&RUNTIME).take() {
        runtime.driver.abandon();
        // Its thread lives in the parent; its locks may be held by that thread for ever.
        std::mem::forget(runtime);
    }
    bridge::forget_all();
}

/// At interpreter exit: ends the threads while they still can be ended.
#[pyfunction]
fn _shutdown(py: Python<'_>) -> PyResult<()> {
    #[cfg(target_os = "linux")]
    if let Some(children) = lock(&RUNTIME).as_mut().and_then(|r| r.children.take()) {
        py.detach(|| children.stop());
    }
    let (driver, dispatch) = match &*lock(&RUNTIME) {
        Some(runtime) => (runtime.driver.clone(), runtime.dispatch.clone()),
        None => return Ok(()),
    };
    py.detach(|| driver.stop());
    if let Some(dispatch) = dispatch {
        dispatch.stop();
        py.import("stallwatch._dispatch")?.call_method0("join")?;
    }
    Ok(())
}

/// Registers the hooks. Starts nothing.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let os = py.import("os")?;
    if let Some(register) = os.getattr_opt("register_at_fork")? {
        let hooks = PyDict::new(py);
        hooks.set_item("before", wrap_pyfunction!(_before_fork, m)?)?;
        hooks.set_item(
            "after_in_parent",
            wrap_pyfunction!(_after_fork_in_parent, m)?,
        )?;
        hooks.set_item("after_in_child", wrap_pyfunction!(_after_fork_in_child, m)?)?;
        register.call((), Some(&hooks))?;
    }
    py.import("atexit")?
        .call_method1("register", (wrap_pyfunction!(_shutdown, m)?,))?;
    Ok(())
}
