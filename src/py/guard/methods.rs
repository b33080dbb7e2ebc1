//! What Python sees of the native half of a guard: cold, and for `Watched` alone.

use std::cell::{Cell, OnceCell, UnsafeCell};

use pyo3::{PyTraverseError, PyVisit, intern, prelude::*, types::PyList};

use super::{Next, PullBase, Woken};
use crate::{
    core::{
        clock::{ns_from_secs, secs},
        stream::{Clocks, Kind, Limits, OFF, Verdict},
        timer::Timer,
    },
    py::{
        bridge, clock, lifecycle,
        refs::{self, Ref},
        running,
    },
};

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
            interrupted: Cell::new(false),
            cutting: Cell::new(false),
            plain: Cell::new(false),
            kept: UnsafeCell::new(Vec::new()),
            chunks: Cell::new(0),
            progress: Cell::new(0),
            first_at: Cell::new(0),
            heard_at: Cell::new(0),
            progress_at: Cell::new(0),
            largest_gap: Cell::new(0),
            chatter: Cell::new(false),
            gaps: UnsafeCell::new(None),
            step: Ref::empty(),
        }
    }

    /// Every further `str` is its own text, and `_classify` is not asked about it.
    fn _set_plain(&self) {
        self.plain.set(true);
    }

    /// Sets the asynchronous iterator that is pulled from.
    fn _set_source(&self, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let anext = crate::py::pull::anext_of(source)?;
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
        let event_loop = running::running_loop(py)?;
        if this.timer.get().is_none() {
            let shard = match &event_loop {
                Some(event_loop) => bridge::shard_of(event_loop)?,
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

    /// Notes that a warning about this clock is given. False if there is nothing to warn of any more.
    fn _warned(&self, clock: u8) -> bool {
        let over = matches!(self.clocks.get().judge(self.clock.now()), Verdict::Wait(_));
        if !over {
            self.update(|clocks| clocks.warn(kind(clock)));
        }
        !over
    }

    /// Judges once more, and if this clock has still run out, has the verdict carried out: kept as
    /// `_doom`, and the pull that is pending taken for one to cut, or else the next one refused. In one
    /// step, so that the thread which pulls cannot come in between.
    fn _claim(slf: &Bound<'_, Self>, clock: u8, verdict: &Bound<'_, PyAny>) -> PyResult<bool> {
        let this = slf.get();
        let found = this.clocks.get().judge(this.clock.now());
        let stands = this.next.get() == Next::Source
            && !this.cutting.get()
            && matches!(found, Verdict::Fire(kind, ..) if kind as u8 == clock);
        if stands {
            slf.setattr(intern!(slf.py(), "_doom"), verdict)?;
            if this.suspended.get() {
                this.cutting.set(true);
            } else {
                this.next.set(Next::Refuse);
            }
        }
        Ok(stands)
    }

    /// Ends it as `_end` does. If a pull is pending, it is one to cut now, and the result is true.
    fn _hold(&self) -> bool {
        let pending = self.suspended.get();
        if pending {
            self.cutting.set(true);
        }
        self._end();
        pending
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

    /// As `_forgive`, of a silence that is the source's own: the statistics tell it whole.
    fn _overlook(&self) {
        let now = self.clock.now();
        self.update(|clocks| clocks.overlook(now));
    }

    /// Reports a sign of life that is no chunk: a ping which only the caller sees. It resets `idle`, and
    /// nothing else.
    fn touch(&self) {
        let now = self.clock.now();
        if let Some(gap) = self.update(|clocks| clocks.touch(now)) {
            self.saw_gap(gap, Woken::Chunk);
        }
        self.heard_at.set(now);
        // A cut under way has set the timer for its own end.
        if self.suspended.get() && self.armed.get() && !self.cutting.get() {
            let _ = self.set_due(self.clocks.get().due());
        }
    }

    /// Ends it: no clock runs any more, and there is no further chunk.
    fn _end(&self) {
        if self.suspended.get() && self.next.get() != Next::Ended {
            self.saw_gap(self.clocks.get().silence(self.clock.now()), Woken::Cut);
        }
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

    /// Whether somebody else's cancel went down into the pull that is pending.
    #[getter]
    fn _interrupted(&self) -> bool {
        self.interrupted.get()
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

    /// `(first, progress, longest, counts)`: times waited for the first progress and between any two, the
    /// longest silence counted, and how many lie in each bucket, without the empty ones at the end.
    fn _seen(&self) -> (f64, f64, f64, Vec<u32>) {
        self.seen()
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
