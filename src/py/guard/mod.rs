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

mod methods;
mod seen;

pub(crate) use seen::gap_edges;

use std::cell::{Cell, OnceCell, UnsafeCell};

use pyo3::{
    exceptions::PyRuntimeError,
    ffi, intern,
    prelude::*,
    types::{PyList, PyTuple},
};

use super::{refs::Ref, running::current_task};
use crate::core::{
    clock::{Clock, secs},
    gaps::Gaps,
    stream::{Clocks, OFF},
    timer::Timer,
};

/// Flags of a chunk, as `stallwatch._chunks` gives them.
pub(in crate::py) const PROGRESS: u32 = 1;
const TERMINAL: u32 = 2;

/// Chunks kept before they are folded into text.
const KEEP: usize = 32;

/// What a client takes at most to make a chunk of bytes that have come (ns).
const AT_ONCE: u64 = 5_000_000;

/// What the next pull has to do first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::py) enum Next {
    /// The first pull: set everything up.
    Begin,
    /// Straight to the source.
    Source,
    /// A clock ran out while nobody waited: the pull is refused.
    Refuse,
    /// There is nothing more.
    Ended,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::py) enum Woken {
    /// A chunk came.
    Chunk,
    /// The source has ended by itself.
    End,
    /// An error, a cancel, or the end of the pull itself: nobody knows how long it would have gone on.
    Cut,
}

impl Woken {
    /// Bytes that were heard of, and the chunk made of them at once, are one sign of life: what lies
    /// between them is no silence to count.
    fn after_touch(self, gap: u64) -> Self {
        if self == Self::Chunk && gap < AT_ONCE {
            Self::Cut
        } else {
            self
        }
    }
}

/// See the module. The timer goes first when the object does: see `shard::Shard::claim`.
#[pyclass(frozen, subclass, module = "stallwatch._stallwatch")]
pub(crate) struct PullBase {
    pub(in crate::py) timer: OnceCell<Timer>,
    /// Whether the timer is armed or parked; false after a delivery.
    armed: Cell<bool>,
    /// The last deadline set; the timer may be moved to a later one without a lock.
    filed: Cell<u64>,
    clock: Clock,
    clocks: Cell<Clocks>,
    pub(in crate::py) next: Cell<Next>,
    pub(in crate::py) source: Ref,
    pub(in crate::py) anext: Cell<Option<ffi::unaryfunc>>,
    /// The awaitable of the present pull.
    pub(in crate::py) inner: Ref,
    pub(in crate::py) suspended: Cell<bool>,
    /// What the pull waits for, as it was given to the loop.
    waiting: Ref,
    task: Ref,
    event_loop: Ref,
    /// A cancel of somebody else's went down into the pull that is pending.
    pub(in crate::py) interrupted: Cell<bool>,
    /// The task was cancelled by us: the `CancelledError` to come is ours.
    pub(in crate::py) cutting: Cell<bool>,
    /// Chunks are plain `str`, each its own text.
    plain: Cell<bool>,
    kept: UnsafeCell<Vec<Py<PyAny>>>,
    chunks: Cell<u64>,
    progress: Cell<u64>,
    first_at: Cell<u64>,
    heard_at: Cell<u64>,
    progress_at: Cell<u64>,
    largest_gap: Cell<u64>,
    /// Something that is no progress came since the last progress.
    chatter: Cell<bool>,
    /// Made at the first wait that is counted.
    gaps: UnsafeCell<Option<Box<Gaps>>>,
    pub(in crate::py) step: Ref,
}

// SAFETY: see the ground rules: the module needs the GIL, and only its holder touches these cells.
unsafe impl Sync for PullBase {}
// SAFETY: as above.
unsafe impl Send for PullBase {}

impl PullBase {
    pub(in crate::py) fn update<T>(&self, act: impl FnOnce(&mut Clocks) -> T) -> T {
        let mut clocks = self.clocks.get();
        let result = act(&mut clocks);
        self.clocks.set(clocks);
        result
    }

    fn set_due(&self, due: u64) -> PyResult<()> {
        let Some(timer) = self.timer.get() else {
            return Ok(());
        };
        // Whatever a pull or the watcher's thread still does after the end sets nothing any more.
        if due == OFF || matches!(self.next.get(), Next::Refuse | Next::Ended) {
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
    pub(in crate::py) fn suspend(
        &self,
        py: Python<'_>,
        awaited: *mut ffi::PyObject,
    ) -> PyResult<()> {
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
    pub(in crate::py) fn block(&self) -> PyResult<()> {
        let now = self.clock.now();
        let due = self.update(|clocks| clocks.pull(now));
        if let Err(error) = self.set_due(due) {
            // After a fork, or at the interpreter's exit.
            self.update(|clocks| clocks.arrive(now));
            return Err(error);
        }
        self.suspended.set(true);
        Ok(())
    }

    /// Nothing is to be timed until the next pull.
    pub(in crate::py) fn rest(&self) {
        let _ = self.set_due(OFF);
    }

    /// The wait is over: all clocks but the budget stand still.
    pub(in crate::py) fn wake(&self, py: Python<'_>, woken: Woken) -> u64 {
        let now = self.clock.now();
        self.suspended.set(false);
        self.interrupted.set(false);
        let touched = self.clocks.get().is_touched();
        let gap = self.update(|clocks| clocks.arrive(now));
        self.saw_gap(
            gap,
            if touched {
                woken.after_touch(gap)
            } else {
                woken
            },
        );
        let due = self.clocks.get().due();
        // A shard that is closed or inherited by now has nothing to keep the time of.
        let _ = self.set_due(due);
        drop((self.waiting.put(py, None), self.task.put(py, None)));
        now
    }

    /// A chunk came.
    #[inline]
    pub(in crate::py) fn accept(&self, object: &Bound<'_, PyAny>, chunk: &Bound<'_, PyAny>) {
        let now = self.hear(chunk.py());
        let flags = match self.plain_flags(chunk) {
            Some(flags) => flags,
            None => Self::ask(object, chunk),
        };
        let (first, full) = self.note(chunk, flags, now);
        if first {
            self.first(object, now);
        }
        if full {
            self.fold(object);
        }
    }

    /// The wait for a chunk is over. The moment, or 0 if there was no wait.
    #[inline]
    pub(in crate::py) fn hear(&self, py: Python<'_>) -> u64 {
        if !self.suspended.get() {
            return 0;
        }
        let now = self.wake(py, Woken::Chunk);
        self.heard_at.set(now);
        now
    }

    /// The flags of a chunk nobody has to be asked about.
    #[inline]
    pub(in crate::py) fn plain_flags(&self, chunk: &Bound<'_, PyAny>) -> Option<u32> {
        // SAFETY: `chunk` is alive.
        let plain = self.plain.get() && unsafe { ffi::PyUnicode_CheckExact(chunk.as_ptr()) } != 0;
        // SAFETY: it is a `str`.
        plain.then(|| u32::from(unsafe { ffi::PyUnicode_GetLength(chunk.as_ptr()) } > 0))
    }

    /// Takes note of a chunk. Whether it is the first progress, and whether kept chunks are to be folded.
    #[inline]
    pub(in crate::py) fn note(
        &self,
        chunk: &Bound<'_, PyAny>,
        flags: u32,
        now: u64,
    ) -> (bool, bool) {
        self.chunks.set(self.chunks.get() + 1);
        let progress = flags & PROGRESS != 0;
        if progress {
            self.progress.set(self.progress.get() + 1);
            if now != 0 {
                self.progress_at.set(now);
            }
        }
        if now != 0 || self.progress.get() < 2 || !progress || self.chatter.get() {
            self.chatter.set(!progress);
            let waited = self.update(|clocks| clocks.chunk(progress));
            self.saw_wait(waited, flags);
        }
        if flags & TERMINAL != 0 {
            self.update(Clocks::finish);
            let _ = self.set_due(OFF);
        }
        // SAFETY: no code runs between here and the end of the push.
        let kept = unsafe { &mut *self.kept.get() };
        kept.push(chunk.clone().unbind());
        (progress && self.progress.get() == 1, kept.len() >= KEEP)
    }

    #[cold]
    fn first(&self, object: &Bound<'_, PyAny>, now: u64) {
        Self::tell(object, "_first", (self.note_first(now),));
    }

    /// The first progress. Its moment, in seconds.
    pub(in crate::py) fn note_first(&self, now: u64) -> f64 {
        let now = if now == 0 { self.clock.now() } else { now };
        self.first_at.set(now);
        self.progress_at.set(now);
        self.heard_at.set(now);
        secs(now)
    }

    #[cold]
    fn fold(&self, object: &Bound<'_, PyAny>) {
        if let Ok(list) = self.take_kept(object.py()) {
            Self::tell(object, "_fold", (list,));
        }
    }

    pub(in crate::py) fn take_kept<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
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
    pub(in crate::py) fn note_delivery(&self) {
        self.armed.set(false);
    }
}

/// An error for a pull while another one waits.
pub(in crate::py) fn busy() -> PyErr {
    PyRuntimeError::new_err("the guarded stream is already being pulled by somebody else")
}
