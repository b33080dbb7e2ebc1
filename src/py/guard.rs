//! The native half of `guard`: state and cold methods. The slots that run once a chunk are in `pull`.
//!
//! `StreamGuard` in Python derives from `Pull` and adds what happens seldom: begin, warn, cut, close. The
//! hot path calls up into it only for the first pull, for the first progress, for chunks that are no
//! plain text, and to fold a batch of chunks into text.
//!
//! # Ground rules
//!
//! Everything here is touched with the GIL held, and no Python code runs while a `&mut` is out: state is
//! in `Cell`s, and a reference is taken out of its slot before it is dropped.

use std::cell::{Cell, OnceCell, UnsafeCell};

use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::PyRuntimeError,
    ffi, intern,
    prelude::*,
    types::{PyList, PyTuple},
};

use super::{clock, lifecycle, refs};
use crate::core::{
    clock::{Clock, ns_from_secs, secs},
    stream::{Clocks, Kind, Limits, OFF, Verdict},
    timer::Timer,
};

/// Flags of a chunk, as `stallwatch._chunks` gives them.
const PROGRESS: u32 = 1;
const TERMINAL: u32 = 2;

/// Chunks kept before they are folded into text.
const KEEP: usize = 32;

/// What the next pull has to do first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The first pull: set everything up.
    Begin,
    /// Straight to the source.
    Source,
    /// A clock ran out while nobody waited: the pull is refused.
    Refuse,
    /// There is nothing more.
    Ended,
}

/// A reference that can be replaced. Not a `Py`: the slots run outside PyO3's own trampolines, where
/// dropping a `Py` only queues it; a `Bound` is dropped at once.
pub(super) struct Ref(Cell<*mut ffi::PyObject>);

impl Ref {
    pub(super) const fn empty() -> Self {
        Self(Cell::new(std::ptr::null_mut()))
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut ffi::PyObject {
        self.0.get()
    }

    /// Replaces the reference and returns the old one, for the caller to drop once its state is whole.
    #[inline]
    pub(super) fn put<'py>(
        &self,
        py: Python<'py>,
        object: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        let new = object.map_or(std::ptr::null_mut(), Bound::into_ptr);
        // SAFETY: the cell owned the reference that it gives up here.
        unsafe { Bound::from_owned_ptr_or_opt(py, self.0.replace(new)) }
    }

    #[inline]
    pub(super) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the cell owns a reference, and this adds one.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.0.get()) }
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let raw = self.raw();
        if raw.is_null() {
            Ok(())
        } else {
            refs::traverse_raw(visit, raw as usize)
        }
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // SAFETY: Python objects are freed with the GIL held.
        drop(self.put(unsafe { Python::assume_attached() }, None));
    }
}

/// See the module. The timer goes first when the object does: see `shard::Shard::claim`.
#[pyclass(frozen, subclass, module = "stallwatch._stallwatch")]
pub(crate) struct PullBase {
    pub(super) timer: OnceCell<Timer>,
    /// Whether the timer is armed or parked; false after a delivery.
    armed: Cell<bool>,
    /// The last deadline set; the timer may be moved to a later one without a lock.
    filed: Cell<u64>,
    clock: Clock,
    clocks: Cell<Clocks>,
    pub(super) next: Cell<Next>,
    pub(super) source: Ref,
    pub(super) anext: Cell<Option<ffi::unaryfunc>>,
    /// The awaitable of the present pull.
    pub(super) inner: Ref,
    pub(super) suspended: Cell<bool>,
    /// What the pull waits for, as it was given to the loop.
    waiting: Ref,
    task: Ref,
    event_loop: Ref,
    /// The task was cancelled by us: the `CancelledError` to come is ours.
    pub(super) cutting: Cell<bool>,
    /// Chunks are plain `str`, each its own text.
    plain: Cell<bool>,
    kept: UnsafeCell<Vec<Py<PyAny>>>,
    chunks: Cell<u64>,
    progress: Cell<u64>,
    first_at: Cell<u64>,
    heard_at: Cell<u64>,
    progress_at: Cell<u64>,
    largest_gap: Cell<u64>,
    pub(super) step: Ref,
}

// SAFETY: see the ground rules: the module needs the GIL, and only its holder touches these cells.
unsafe impl Sync for PullBase {}
// SAFETY: as above.
unsafe impl Send for PullBase {}

/// The task that runs in this thread's event loop.
fn current_task<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
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

impl PullBase {
    pub(super) fn update<T>(&self, act: impl FnOnce(&mut Clocks) -> T) -> T {
        let mut clocks = self.clocks.get();
        let result = act(&mut clocks);
        self.clocks.set(clocks);
        result
    }

    fn set_due(&self, due: u64) -> PyResult<()> {
        let Some(timer) = self.timer.get() else {
            return Ok(());
        };
        if due == OFF {
            if self.armed.get() {
                timer.pause(0);
            }
            return Ok(());
        }
        if !self.armed.get() {
            timer.arm(due, 0)?;
            self.armed.set(true);
        } else if due >= self.filed.get() {
            timer.resume_at(due);
        } else {
            timer.move_to(due);
        }
        self.filed.set(due);
        Ok(())
    }

    /// The pull has to wait: its clocks run.
    pub(super) fn suspend(&self, py: Python<'_>, awaited: *mut ffi::PyObject) -> PyResult<()> {
        if self.suspended.get() {
            // A further wait of the same pull: only what it waits for has changed.
            // SAFETY: the object was just yielded and is alive.
            let awaited = unsafe { Bound::from_borrowed_ptr(py, awaited) };
            drop(self.waiting.put(py, Some(awaited)));
            // A fire found that data had come, and left it at that; the data was not a whole chunk.
            return if self.armed.get() {
                Ok(())
            } else {
                self.set_due(self.clocks.get().due())
            };
        }
        self.suspended.set(true);
        // SAFETY: as above.
        let awaited = unsafe { Bound::from_borrowed_ptr(py, awaited) };
        drop(self.waiting.put(py, Some(awaited)));
        if let Some(event_loop) = self.event_loop.get(py) {
            drop(self.task.put(py, current_task(&event_loop)?));
        }
        let now = self.clock.now();
        let due = self.update(|clocks| clocks.pull(now));
        self.set_due(due)
    }

    /// A blocking pull begins: its clocks run.
    pub(super) fn block(&self) -> PyResult<()> {
        self.suspended.set(true);
        let now = self.clock.now();
        let due = self.update(|clocks| clocks.pull(now));
        self.set_due(due)
    }

    /// The wait is over: all clocks but the budget stand still.
    pub(super) fn wake(&self, py: Python<'_>) -> u64 {
        let now = self.clock.now();
        self.suspended.set(false);
        let gap = self.update(|clocks| clocks.arrive(now));
        if self.chunks.get() > 0 {
            self.largest_gap.set(self.largest_gap.get().max(gap));
        }
        let due = self.clocks.get().due();
        // A shard that is closed or inherited by now has nothing to keep the time of.
        let _ = self.set_due(due);
        drop((self.waiting.put(py, None), self.task.put(py, None)));
        now
    }

    /// A chunk came.
    #[inline]
    pub(super) fn accept(&self, object: &Bound<'_, PyAny>, chunk: &Bound<'_, PyAny>) {
        let now = if self.suspended.get() {
            let now = self.wake(chunk.py());
            self.heard_at.set(now);
            now
        } else {
            0
        };
        // SAFETY: `chunk` is alive.
        let plain = self.plain.get() && unsafe { ffi::PyUnicode_CheckExact(chunk.as_ptr()) } != 0;
        let flags = if plain {
            // SAFETY: it is a `str`.
            u32::from(unsafe { ffi::PyUnicode_GetLength(chunk.as_ptr()) } > 0)
        } else {
            Self::ask(object, chunk)
        };
        self.chunks.set(self.chunks.get() + 1);
        let progress = flags & PROGRESS != 0;
        if progress {
            self.progress.set(self.progress.get() + 1);
            if now != 0 {
                self.progress_at.set(now);
            }
        }
        if now != 0 || self.progress.get() < 2 || !progress {
            self.update(|clocks| clocks.chunk(progress));
        }
        if flags & TERMINAL != 0 {
            self.update(Clocks::finish);
            let _ = self.set_due(OFF);
        }
        // SAFETY: no code runs between here and the end of the push.
        let kept = unsafe { &mut *self.kept.get() };
        kept.push(chunk.clone().unbind());
        let full = kept.len() >= KEEP;
        if progress && self.progress.get() == 1 {
            self.first(object, now);
        }
        if full {
            self.fold(object);
        }
    }

    #[cold]
    fn first(&self, object: &Bound<'_, PyAny>, now: u64) {
        let now = if now == 0 { self.clock.now() } else { now };
        self.first_at.set(now);
        self.progress_at.set(now);
        self.heard_at.set(now);
        Self::tell(object, "_first", (secs(now),));
    }

    #[cold]
    fn fold(&self, object: &Bound<'_, PyAny>) {
        if let Ok(list) = self.take_kept(object.py()) {
            Self::tell(object, "_fold", (list,));
        }
    }

    fn take_kept<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // SAFETY: no code runs while the reference is out.
        let kept = std::mem::take(unsafe { &mut *self.kept.get() });
        PyList::new(py, kept)
    }

    /// Calls up. What goes wrong up there is a bug of ours or of a user's function: it is shown and
    /// never reaches the stream.
    fn tell<'py>(
        object: &Bound<'py, PyAny>,
        name: &str,
        args: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) {
        let call = || object.call_method1(name, args.into_pyobject(object.py())?);
        if let Err(error) = call() {
            error.write_unraisable(object.py(), Some(object));
        }
    }

    /// Asks above, by name: a kept reference to the method would make the guard keep itself alive.
    fn ask(object: &Bound<'_, PyAny>, chunk: &Bound<'_, PyAny>) -> u32 {
        let flags = object.call_method1(intern!(object.py(), "_classify"), (chunk,));
        match flags.and_then(|flags| flags.extract()) {
            Ok(flags) => flags,
            Err(error) => {
                error.write_unraisable(chunk.py(), Some(chunk));
                PROGRESS
            }
        }
    }

    /// The timer has fired and is idle now.
    pub(super) fn note_delivery(&self) {
        self.armed.set(false);
    }
}

fn limit(value: Option<f64>) -> u64 {
    value.map_or(OFF, ns_from_secs)
}

fn kind(number: u8) -> Kind {
    [
        Kind::First,
        Kind::Idle,
        Kind::Progress,
        Kind::Budget,
        Kind::Linger,
    ][usize::from(number.min(4))]
}

fn or_none(at: u64) -> Option<f64> {
    (at != 0).then(|| secs(at))
}

#[pymethods]
impl PullBase {
    #[new]
    #[pyo3(signature = (first, idle, warn, progress, progress_warn, budget))]
    fn new(
        first: Option<f64>,
        idle: Option<f64>,
        warn: Option<f64>,
        progress: Option<f64>,
        progress_warn: Option<f64>,
        budget: Option<f64>,
    ) -> Self {
        let limits = Limits {
            first: limit(first),
            idle: limit(idle),
            warn: limit(warn),
            progress: limit(progress),
            progress_warn: limit(progress_warn),
            budget: limit(budget),
        };
        Self {
            timer: OnceCell::new(),
            armed: Cell::new(false),
            filed: Cell::new(0),
            clock: clock::current(),
            clocks: Cell::new(Clocks::new(limits)),
            next: Cell::new(Next::Begin),
            source: Ref::empty(),
            anext: Cell::new(None),
            inner: Ref::empty(),
            suspended: Cell::new(false),
            waiting: Ref::empty(),
            task: Ref::empty(),
            event_loop: Ref::empty(),
            cutting: Cell::new(false),
            plain: Cell::new(false),
            kept: UnsafeCell::new(Vec::new()),
            chunks: Cell::new(0),
            progress: Cell::new(0),
            first_at: Cell::new(0),
            heard_at: Cell::new(0),
            progress_at: Cell::new(0),
            largest_gap: Cell::new(0),
            step: Ref::empty(),
        }
    }

    /// Every further `str` is its own text, and `_classify` is not asked about it.
    fn _set_plain(&self) {
        self.plain.set(true);
    }

    /// Sets the asynchronous iterator that is pulled from.
    fn _set_source(&self, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let anext = super::pull::anext_of(source)?;
        self.anext.set(Some(anext));
        drop(self.source.put(source.py(), Some(source.clone())));
        Ok(())
    }

    /// Sets the iterator that is pulled from, of a blocking stream.
    fn _set_iterator(&self, source: &Bound<'_, PyAny>) {
        drop(self.source.put(source.py(), Some(source.clone())));
    }

    /// As `_start`, with a timer of the dispatcher thread.
    fn _start_blocking(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let this = slf.get();
        if this.timer.get().is_none() {
            let shard = lifecycle::loopless(slf.py())?;
            let _ = this.timer.set(Timer::new(&shard, refs::borrow_raw(slf)));
        }
        let now = this.clock.now();
        this.update(|clocks| clocks.start(now));
        this.next.set(Next::Source);
        Ok(secs(now))
    }

    /// Starts the budget, and gives the clocks a timer of the running loop. Returns the moment.
    fn _start(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let (py, this) = (slf.py(), slf.get());
        let event_loop = super::running::running_loop(py)?;
        if this.timer.get().is_none() {
            let shard = match &event_loop {
                Some(event_loop) => super::bridge::shard_of(event_loop)?,
                None => lifecycle::loopless(py)?,
            };
            // Borrowed: the timer goes with the guard, see `shard::Shard::claim`.
            let _ = this.timer.set(Timer::new(&shard, refs::borrow_raw(slf)));
        }
        drop(this.event_loop.put(py, event_loop));
        let now = this.clock.now();
        this.update(|clocks| clocks.start(now));
        this.next.set(Next::Source);
        Ok(secs(now))
    }

    /// Judges the clocks: `(what, clock, measured, limit)` with what 0 wait, 1 warn, 2 fire.
    fn _judge(&self) -> (u8, u8, f64, f64) {
        match self.clocks.get().judge(self.clock.now()) {
            Verdict::Wait(_) => (0, 0, 0.0, 0.0),
            Verdict::Warn(kind, waited, limit) => (1, kind as u8, secs(waited), secs(limit)),
            Verdict::Fire(kind, waited, limit) => (2, kind as u8, secs(waited), secs(limit)),
        }
    }

    /// Notes that a warning about this clock was given.
    fn _warned(&self, clock: u8) {
        self.update(|clocks| clocks.warn(kind(clock)));
    }

    /// Sets the timer to the next moment of interest.
    fn _rearm(&self) -> PyResult<()> {
        let due = self.clocks.get().due();
        self.set_due(due)
    }

    /// Switches a clock off, for a guard that only observes.
    fn _switch_off(&self, clock: u8) {
        self.update(|clocks| clocks.switch_off(kind(clock)));
    }

    /// Sets the timer to look again in so many seconds.
    fn _look_again(&self, after: f64) -> PyResult<()> {
        self.set_due(self.clock.now().saturating_add(ns_from_secs(after)))
    }

    /// The process did not run: silence counts from now.
    fn _forgive(&self) {
        let now = self.clock.now();
        self.update(|clocks| clocks.forgive(now));
    }

    /// Reports a sign of life that is no chunk: a ping which only the caller sees. It resets `idle`, and
    /// nothing else.
    fn touch(&self) {
        let now = self.clock.now();
        self.update(|clocks| clocks.touch(now));
        self.heard_at.set(now);
        if self.suspended.get() && self.armed.get() {
            let _ = self.set_due(self.clocks.get().due());
        }
    }

    /// Ends it: no clock runs any more, and there is no further chunk.
    fn _end(&self) {
        if let Some(timer) = self.timer.get() {
            timer.cancel();
        }
        self.armed.set(false);
        self.next.set(Next::Ended);
    }

    /// Has the next pull refused.
    fn _refuse_next(&self) {
        if self.next.get() != Next::Ended {
            self.next.set(Next::Refuse);
        }
    }

    /// Chunks kept since the last time; they are handed over.
    fn _take_kept<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.take_kept(py)
    }

    /// Now, in seconds, on its clock.
    fn _now(&self) -> f64 {
        secs(self.clock.now())
    }

    #[getter]
    fn _pending(&self) -> bool {
        self.suspended.get()
    }

    #[getter]
    fn _waiting<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.waiting.get(py)
    }

    #[getter]
    fn _task<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.task.get(py)
    }

    #[getter]
    fn _source<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.source.get(py)
    }

    #[getter]
    fn _ended(&self) -> bool {
        self.next.get() == Next::Ended
    }

    #[getter]
    fn _terminal(&self) -> bool {
        self.clocks.get().is_terminal()
    }

    #[getter]
    fn _cutting(&self) -> bool {
        self.cutting.get()
    }

    #[setter(_cutting)]
    fn set_cutting(&self, cutting: bool) {
        self.cutting.set(cutting);
    }

    /// `(chunks, progress, started, first, last heard, last progress, largest gap, since progress,
    /// since heard, now)`: counts, then moments and times in seconds, None where there is none.
    #[allow(clippy::type_complexity)]
    fn _numbers(
        &self,
    ) -> (
        u64,
        u64,
        Option<f64>,
        Option<f64>,
        Option<f64>,
        Option<f64>,
        f64,
        f64,
        f64,
        f64,
    ) {
        let (clocks, now) = (self.clocks.get(), self.clock.now());
        (
            self.chunks.get(),
            self.progress.get(),
            clocks.started().map(secs),
            or_none(self.first_at.get()),
            or_none(self.heard_at.get()),
            or_none(self.progress_at.get()),
            secs(self.largest_gap.get()),
            secs(clocks.since_progress(now)),
            secs(clocks.since_heard(now)),
            secs(now),
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let refs = [
            &self.source,
            &self.inner,
            &self.waiting,
            &self.task,
            &self.event_loop,
            &self.step,
        ];
        for reference in refs {
            reference.traverse(&visit)?;
        }
        // SAFETY: only looked at.
        for chunk in unsafe { &*self.kept.get() } {
            visit.call(chunk)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let refs = [
            &self.source,
            &self.inner,
            &self.waiting,
            &self.task,
            &self.event_loop,
            &self.step,
        ];
        self.next.set(Next::Ended);
        for reference in refs {
            drop(reference.put(py, None));
        }
        // SAFETY: the vector is taken out before anything in it is dropped.
        drop(std::mem::take(unsafe { &mut *self.kept.get() }));
    }
}

/// An error for a pull while another one waits.
pub(super) fn busy() -> PyErr {
    PyRuntimeError::new_err("the guarded stream is already being pulled by somebody else")
}
