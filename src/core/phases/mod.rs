//! The phase tracker: which stage a turn is in, since when, and how often that has changed.
//!
//! # Ground rules
//!
//! - One mutex guards everything in [`Books`]. Whoever holds it calls nothing that can block, wait or
//!   run foreign code, so any thread may take it at any time, the timer's included.
//! - The clock is read once per operation and under the lock: transitions are then in order of time, and
//!   a [`State`] is coherent, as nothing can come between its three fields.
//! - Every rule is a method of [`Books`] that takes `now`: no clock, no lock, no thread inside.
//! - An operation answers with a [`Report`], and whoever listens is told from that, after the unlock.
//!   Two threads may therefore tell in the other order than they wrote; `seq` says which came first.
//!
//! # Transients
//!
//! `open` is a stack of [`Loan`]s, the innermost last. A loan keeps the outer phase and its time: as an
//! elapsed time that stands still ([`Since::Pause`]), or as a starting moment, which runs on by itself
//! ([`Since::Keep`]). A [`Token`] names one loan for good; it is spent by its restore, by the restore of
//! an outer loan, or by a top-level `enter`. A spent token restores nothing and does no harm, which also
//! settles two threads that restore at once: the first finds the loan, the second does not.
//!
//! # Violations
//!
//! | fault | what is done in production |
//! |---|---|
//! | `enter` while loans are open | the phase is entered; all loans are abandoned |
//! | an outer loan restored before an inner one | its outer phase is back; the inner loans are abandoned |
//! | `assert_clean` while loans are open | nothing; they stay open |
//!
//! A thread that meddles with another's turn shows up as one of these. In strict mode each is refused
//! with [`Error::Violation`] before anything changes. In both modes the first one marks the tracker
//! invalid for good, and only its text is kept.
#![forbid(unsafe_code)]

use super::{
    clock::Clock,
    error::Error,
    sync::{Mutex, lock},
};

mod phase;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use phase::Phase;

/// What becomes of the outer phase's time while its phase is borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// It stands still: the borrowed time is not charged to the outer phase.
    Pause,
    /// It runs on.
    Keep,
}

/// One coherent reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The phase the turn is in.
    pub phase: Phase,
    /// How long that phase has run, in nanoseconds.
    pub elapsed_ns: u64,
    /// The number of transitions so far.
    pub seq: u64,
}

/// A transition, read from both sides at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The state that ended.
    pub before: State,
    /// The state that began.
    pub after: State,
}

/// What one operation did.
#[derive(Debug)]
#[must_use]
pub struct Report<T> {
    /// The transition, if it made one.
    pub change: Option<Change>,
    /// The text of the violation, if this was the tracker's first.
    pub violation: Option<String>,
    /// The answer; an error is a refusal (strict mode), with nothing changed but the validity.
    pub result: Result<T, Error>,
}

impl<T> Report<T> {
    const fn plain(value: T) -> Self {
        Self {
            change: None,
            violation: None,
            result: Ok(value),
        }
    }
}

/// Names one borrowed phase of one tracker. Numbers never repeat, and one that was never issued names
/// nothing, so a number from outside can at worst restore another of the same tracker's phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

#[derive(Debug, Clone, Copy)]
enum OuterTime {
    Stopped { elapsed_ns: u64 },
    Running { since: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Loan {
    token: Token,
    borrowed: Phase,
    outer: Phase,
    time: OuterTime,
}

/// The tracker's whole state: plain data and the rules on it.
#[derive(Debug)]
struct Books {
    phase: Phase,
    /// The moment from which the phase's time counts. Not always when it began: see [`OuterTime`].
    since: u64,
    seq: u64,
    open: Vec<Loan>,
    tokens: u64,
    dirty: bool,
    violation: Option<String>,
}

impl Books {
    const fn new(now: u64) -> Self {
        Self {
            phase: Phase::Init,
            since: now,
            seq: 0,
            open: Vec::new(),
            tokens: 0,
            dirty: false,
            violation: None,
        }
    }

    const fn state(&self, now: u64) -> State {
        State {
            phase: self.phase,
            elapsed_ns: now.saturating_sub(self.since),
            seq: self.seq,
        }
    }

    const fn switch(&mut self, phase: Phase, since: u64, now: u64) -> Change {
        let before = self.state(now);
        self.phase = phase;
        self.since = since;
        self.seq += 1;
        self.dirty = true;
        Change {
            before,
            after: self.state(now),
        }
    }

    /// Marks the tracker invalid. The text comes back if it is the first of its kind.
    fn invalidate(&mut self, text: &str) -> Option<String> {
        if self.violation.is_some() {
            return None;
        }
        self.violation = Some(text.to_owned());
        self.violation.clone()
    }

    /// Books a fault: strict mode refuses the operation, production goes on with `value` as its answer.
    fn fault<T>(&mut self, text: String, strict: bool, value: T) -> Report<T> {
        Report {
            change: None,
            violation: self.invalidate(&text),
            result: if strict {
                Err(Error::Violation(text))
            } else {
                Ok(value)
            },
        }
    }

    fn enter(&mut self, phase: Phase, strict: bool, now: u64) -> Report<()> {
        let mut report = Report::plain(());
        if let Some(inner) = self.open.last() {
            let text = format!(
                "phase {} entered while {} is still borrowed from {} (transients open: {})",
                phase.label(),
                inner.borrowed.label(),
                inner.outer.label(),
                self.open.len(),
            );
            report = self.fault(text, strict, ());
        }
        if report.result.is_ok() {
            self.open.clear();
            report.change = Some(self.switch(phase, now, now));
        }
        report
    }

    fn borrow(&mut self, phase: Phase, since: Since, now: u64) -> Report<Token> {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.open.push(Loan {
            token,
            borrowed: phase,
            outer: self.phase,
            time: match since {
                Since::Pause => OuterTime::Stopped {
                    elapsed_ns: self.state(now).elapsed_ns,
                },
                Since::Keep => OuterTime::Running { since: self.since },
            },
        });
        let mut report = Report::plain(token);
        report.change = Some(self.switch(phase, now, now));
        report
    }

    fn restore(&mut self, token: Token, strict: bool, now: u64) -> Report<bool> {
        let Some(at) = self.open.iter().rposition(|loan| loan.token == token) else {
            return Report::plain(false);
        };
        let loan = self.open[at];
        let mut report = Report::plain(true);
        if let Some(inner) = self.open.get(at + 1) {
            let text = format!(
                "phase {} given back to {} before {}, which was borrowed inside it",
                loan.borrowed.label(),
                loan.outer.label(),
                inner.borrowed.label(),
            );
            report = self.fault(text, strict, true);
        }
        if report.result.is_ok() {
            self.open.truncate(at);
            let since = match loan.time {
                OuterTime::Stopped { elapsed_ns } => now.saturating_sub(elapsed_ns),
                OuterTime::Running { since } => since,
            };
            report.change = Some(self.switch(loan.outer, since, now));
        }
        report
    }

    /// Open loans are a fault. In strict mode an earlier one that somebody swallowed is shown again.
    fn assert_clean(&mut self, strict: bool) -> Report<()> {
        if !self.open.is_empty() {
            let names: Vec<_> = self.open.iter().map(|loan| loan.borrowed.label()).collect();
            let text = format!(
                "the run ended with phases still borrowed: {}",
                names.join(", ")
            );
            return self.fault(text, strict, ());
        }
        let mut report = Report::plain(());
        if let (true, Some(text)) = (strict, &self.violation) {
            report.result = Err(Error::Violation(text.clone()));
        }
        report
    }
}

/// The phase tracker of one turn. See the module.
#[derive(Debug)]
pub struct Tracker {
    books: Mutex<Books>,
    clock: Clock,
    strict: bool,
}

impl Tracker {
    /// A tracker in [`Phase::Init`], with `seq` 0, that is not dirty.
    #[must_use]
    pub fn new(clock: Clock, strict: bool) -> Self {
        Self {
            books: Mutex::new(Books::new(clock.now())),
            clock,
            strict,
        }
    }

    /// Runs a rule under the lock with the time of this operation.
    fn with<T>(&self, rule: impl FnOnce(&mut Books, u64) -> T) -> T {
        let mut books = lock(&self.books);
        let now = self.clock.now();
        rule(&mut books, now)
    }

    /// Sets the phase and restarts its time, also when it is the current one.
    pub fn enter(&self, phase: Phase) -> Report<()> {
        self.with(|books, now| books.enter(phase, self.strict, now))
    }

    /// Borrows a phase until the token is restored.
    pub fn borrow(&self, phase: Phase, since: Since) -> Report<Token> {
        self.with(|books, now| books.borrow(phase, since, now))
    }

    /// Brings back the phase that was current before the borrow. False: the token was spent before.
    pub fn restore(&self, token: Token) -> Report<bool> {
        self.with(|books, now| books.restore(token, self.strict, now))
    }

    /// The end of a run: no phase may still be borrowed.
    pub fn assert_clean(&self) -> Report<()> {
        lock(&self.books).assert_clean(self.strict)
    }

    /// Phase, elapsed time and seq, as of one moment.
    #[must_use]
    pub fn current(&self) -> State {
        self.with(|books, now| books.state(now))
    }

    /// The number of transitions so far.
    #[must_use]
    pub fn seq(&self) -> u64 {
        lock(&self.books).seq
    }

    /// The number of phases borrowed and not yet given back.
    #[must_use]
    pub fn depth(&self) -> usize {
        lock(&self.books).open.len()
    }

    /// The text of the first violation: with one, nothing that this tracker says may end a turn.
    #[must_use]
    pub fn violation(&self) -> Option<String> {
        lock(&self.books).violation.clone()
    }

    /// Whether there was a violation.
    #[must_use]
    pub fn invalid(&self) -> bool {
        lock(&self.books).violation.is_some()
    }

    /// Whether violations are refused.
    #[must_use]
    pub const fn strict(&self) -> bool {
        self.strict
    }

    /// Whether there was a transition or a mark since [`Tracker::take_dirty`].
    #[must_use]
    pub fn dirty(&self) -> bool {
        lock(&self.books).dirty
    }

    /// Marks the tracker as changed.
    pub fn mark_dirty(&self) {
        lock(&self.books).dirty = true;
    }

    /// Reads and clears the mark; of two takers only one sees it.
    pub fn take_dirty(&self) -> bool {
        std::mem::take(&mut lock(&self.books).dirty)
    }
}
