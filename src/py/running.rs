//! Which event loop runs in this thread, asked without a system call.
//!
//! `_asyncio._get_running_loop` of CPython 3.11 calls `getpid` each time (3.12 no longer does), which is a
//! third of what it takes to arm and cancel a timer. On 3.11, whose structures no longer change, the
//! answer is read from where that function keeps it; anything that does not look as expected goes
//! to the function itself.

use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use pyo3::{ffi, intern, prelude::*, sync::PyOnceLock, types::PyType};

/// What 3.11 keeps in the thread's dictionary.
#[repr(C)]
struct Holder {
    base: ffi::PyObject,
    event_loop: *mut ffi::PyObject,
    process: libc::pid_t,
}

/// The type of a holder that was found to look as expected.
static KNOWN: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// This process, as of the first look or the last fork.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The event loop that runs in this thread, if one does.
#[inline]
pub(crate) fn running_loop(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let known = KNOWN.load(Ordering::Relaxed);
    if !known.is_null()
        && let Some(holder) = holder(py)
        // SAFETY: a live object.
        && unsafe { ffi::Py_TYPE(holder) } == known
    {
        // SAFETY: an object of this type has this layout; that was checked when the type became known.
        let (event_loop, process) = unsafe {
            (
                (*holder.cast::<Holder>()).event_loop,
                (*holder.cast::<Holder>()).process,
            )
        };
        if process == PROCESS.load(Ordering::Relaxed) {
            // SAFETY: the holder owns a reference, and this adds one.
            let event_loop = unsafe { Bound::from_borrowed_ptr_or_opt(py, event_loop) };
            return Ok(event_loop.filter(|event_loop| !event_loop.is_none()));
        }
    }
    ask(py)
}

fn holder(py: Python<'_>) -> Option<*mut ffi::PyObject> {
    let key = intern!(py, "__asyncio_running_event_loop__");
    // SAFETY: the thread's dictionary is borrowed and lives as long as the thread state.
    let holder = unsafe {
        let dict = ffi::PyThreadState_GetDict();
        if dict.is_null() {
            std::ptr::null_mut()
        } else {
            ffi::PyDict_GetItem(dict, key.as_ptr())
        }
    };
    (!holder.is_null()).then_some(holder)
}

#[cold]
fn ask(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get = match GET.get(py) {
        Some(get) => get,
        None => {
            // Without asyncio there is no loop, and it is not for us to import it.
            let modules = py.import("sys")?.getattr("modules")?;
            let Ok(events) = modules.get_item("asyncio.events") else {
                return Ok(None);
            };
            let Some(get) = events.getattr_opt("_get_running_loop")? else {
                return Ok(None);
            };
            GET.get_or_init(py, || get.unbind())
        }
    };
    let event_loop = get.bind(py).call0()?;
    if event_loop.is_none() {
        return Ok(None);
    }
    if KNOWN.load(Ordering::Relaxed).is_null() && py.version_info() < (3, 12) {
        learn(py, &event_loop);
    }
    Ok(Some(event_loop))
}

/// Looks whether the holder is what 3.11 makes, and says what the function said.
fn learn(py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
    let Some(holder) = holder(py) else { return };
    // SAFETY: a live object and its type.
    let kind = unsafe { ffi::Py_TYPE(holder) };
    // SAFETY: as above.
    let size = unsafe { (*kind).tp_basicsize };
    if usize::try_from(size) != Ok(size_of::<Holder>()) {
        return;
    }
    // SAFETY: the object has the size of a `Holder`.
    let (found, process) = unsafe {
        (
            (*holder.cast::<Holder>()).event_loop,
            (*holder.cast::<Holder>()).process,
        )
    };
    // A system call, once.
    let own = std::process::id();
    if found == event_loop.as_ptr() && u32::try_from(process) == Ok(own) {
        PROCESS.store(process, Ordering::Relaxed);
        KNOWN.store(kind, Ordering::Relaxed);
    }
}

/// In the child of a fork: what runs in the parent does not run here.
pub(crate) fn forked() {
    PROCESS.store(0, Ordering::Relaxed);
    KNOWN.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// The task that runs in this thread's event loop.
pub(crate) fn current_task<'py>(
    event_loop: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    use pyo3::{sync::PyOnceLock, types::PyDict};
    enum Way {
        Call(Py<PyAny>),
        Table(Py<PyDict>),
    }
    static WAY: PyOnceLock<Way> = PyOnceLock::new();
    let py = event_loop.py();
    let way = WAY.get_or_try_init(py, || {
        // 3.12 has a native `current_task`; before, the table behind it is what is quick.
        let tasks = py.import("asyncio.tasks")?;
        let native = py.import("_asyncio")?;
        if let Some(call) = native.getattr_opt("current_task")? {
            return Ok::<_, PyErr>(Way::Call(call.unbind()));
        }
        match tasks.getattr("_current_tasks")?.cast_into::<PyDict>() {
            Ok(table) => Ok(Way::Table(table.unbind())),
            Err(_) => Ok(Way::Call(tasks.getattr("current_task")?.unbind())),
        }
    })?;
    match way {
        Way::Call(call) => {
            let task = call.bind(py).call1((event_loop,))?;
            Ok((!task.is_none()).then_some(task))
        }
        Way::Table(table) => table.bind(py).get_item(event_loop),
    }
}

/// Whether what is thrown (a class or an instance) is a `CancelledError`.
pub(crate) fn is_cancel(py: Python<'_>, kind: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CANCELLED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let cancelled = CANCELLED.import(py, "asyncio.exceptions", "CancelledError")?;
    match kind.cast::<PyType>() {
        Ok(class) => class.is_subclass(cancelled),
        Err(_) => kind.is_instance(cancelled),
    }
}
