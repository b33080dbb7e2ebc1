//! What a child's task and its owner have in common.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use tokio::sync::Notify;

use super::{capture::Kept, sys};
use crate::core::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// Bytes on their way to the owner, above which nothing more is read from the child.
const HIGH: usize = 1 << 20;

/// Which pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, and both of them in a pseudo terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something to tell the owner. Durations and moments are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// It wrote this.
    Output(Stream, Vec<u8>),
    /// It has been silent for its warning share.
    Quiet {
        /// When that was found.
        at: u64,
        /// The silence.
        idle: u64,
    },
    /// It has been silent for its whole limit.
    Idle {
        /// When that was found.
        at: u64,
        /// The silence.
        idle: u64,
        /// How far beyond the limit.
        late: u64,
        /// Whether it is being cut.
        cut: bool,
    },
    /// Its life is over.
    Budget {
        /// When that was found.
        at: u64,
        /// Its life.
        elapsed: u64,
        /// How far beyond the limit.
        late: u64,
        /// Whether it is being cut.
        cut: bool,
    },
    /// It has run longer than expected.
    Overrun {
        /// When that was found.
        at: u64,
        /// Its life.
        elapsed: u64,
    },
    /// A limit was found overdue because this process itself did not run.
    Overslept {
        /// When that was found.
        at: u64,
        /// For how long.
        late: u64,
    },
    /// It did not end after it was killed.
    Unresponsive {
        /// When that was found.
        at: u64,
        /// For how long it was waited for.
        waited: u64,
    },
}

/// Why a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Exited,
    /// It was cut: silent for this long, and this far beyond the limit.
    Idle(u64, u64),
    /// It was cut: it lived for this long, and this far beyond the limit.
    Budget(u64, u64),
    /// Its owner ended it.
    Cancelled,
}

/// What became of a child.
#[derive(Debug)]
pub struct Report {
    /// Why it ended.
    pub ended: Ended,
    /// Its status, or minus its signal; `None` if that is not known, or somebody else's to learn.
    pub status: Option<i32>,
    /// Whether it has ended at all.
    pub gone: bool,
    /// What is kept of its output, by stream.
    pub kept: [Kept; 2],
    /// Bytes it wrote, by stream.
    pub total: [u64; 2],
    /// Whether its output was read to the end.
    pub drained: bool,
    /// Its last silence.
    pub idle: u64,
    /// Its life.
    pub elapsed: u64,
    /// Descendants found outside its session.
    pub escaped: Vec<i32>,
    /// Descendants that were killed and are still there.
    pub survivors: Vec<i32>,
    /// Whether its tree did something in the second half of the silence for which it was cut.
    pub busy: bool,
    /// Whether it was cut while it waited for its standard input.
    pub reads_stdin: bool,
    /// Whether it ran longer than expected.
    pub overran: bool,
}

#[derive(Debug, Default)]
struct Inner {
    notes: VecDeque<Note>,
    queued: usize,
    report: Option<Report>,
}

/// How it is to be ended: not, as usual, at once.
const LEFT: u32 = 0;
const TERM: u32 = 1;
const KILL: u32 = 2;

#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// `None` once the owner has gone.
    bell: Mutex<Option<OwnedFd>>,
    pub(super) changed: Notify,
    ending: AtomicU32,
    /// Nobody will take anything.
    deaf: AtomicU32,
    home: u32,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            inner: Mutex::default(),
            bell: Mutex::new(Some(sys::eventfd()?)),
            changed: Notify::new(),
            ending: AtomicU32::new(LEFT),
            deaf: AtomicU32::new(0),
            home: std::process::id(),
        })
    }

    /// Tells the owner.
    pub(super) fn tell(&self, note: Note) {
        if self.deaf.load(Ordering::SeqCst) == 0 {
            let mut inner = lock(&self.inner);
            if let Note::Output(_, bytes) = &note {
                inner.queued += bytes.len();
            }
            inner.notes.push_back(note);
            drop(inner);
            self.ring();
        }
    }

    pub(super) fn finish(&self, report: Report) {
        lock(&self.inner).report = Some(report);
        self.ring();
    }

    /// Whether the owner has too much to take already.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.inner).queued >= HIGH && self.deaf.load(Ordering::SeqCst) == 0
    }

    /// Asks for its end: with a grace, or at once.
    pub(super) fn end(&self, at_once: bool) {
        let how = if at_once { KILL } else { TERM };
        self.ending.fetch_max(how, Ordering::SeqCst);
        self.changed.notify_one();
    }

    pub(super) fn must_end(&self) -> bool {
        self.ending.load(Ordering::SeqCst) != LEFT
    }

    pub(super) fn must_end_at_once(&self) -> bool {
        self.ending.load(Ordering::SeqCst) == KILL
    }

    fn ring(&self) {
        // A bell that is full has been rung.
        if let Some(bell) = &*lock(&self.bell) {
            drop(sys::write(bell, &1_u64.to_ne_bytes()));
        }
    }
}

/// The owner's side of a child. Dropping it ends the child.
#[derive(Debug)]
pub struct Handle(Arc<Shared>);

impl Handle {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// A descriptor that is readable when there is something to take; -1 once it is closed.
    #[must_use]
    pub fn bell(&self) -> RawFd {
        lock(&self.0.bell).as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes the bell: nobody will wait for it any more.
    pub fn close(&self) {
        let bell = lock(&self.0.bell).take();
        drop(bell);
    }

    /// Whether this process is the one that the child belongs to, not a fork of it.
    #[must_use]
    pub fn is_home(&self) -> bool {
        self.0.home == std::process::id()
    }

    /// The next thing to know. `None` for now.
    #[must_use]
    pub fn next(&self) -> Option<Note> {
        let mut inner = lock(&self.0.inner);
        let note = inner.notes.pop_front();
        let mut freed = false;
        if let Some(Note::Output(_, bytes)) = &note {
            let full = inner.queued >= HIGH;
            inner.queued -= bytes.len();
            freed = full && inner.queued < HIGH;
        }
        drop(inner);
        if freed {
            self.0.changed.notify_one();
        }
        note
    }

    /// Silences the bell until something new happens. Then look once more.
    pub fn hush(&self) {
        if let Some(bell) = &*lock(&self.0.bell) {
            drop(sys::read(bell, &mut [0; 8]));
        }
    }

    /// What became of it, once and after all notes were taken; `None` until then.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        let mut inner = lock(&self.0.inner);
        if inner.notes.is_empty() {
            inner.report.take()
        } else {
            None
        }
    }

    /// Ends the child: with a grace, or at once.
    pub fn end(&self, at_once: bool) {
        if self.is_home() {
            self.0.end(at_once);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_home() {
            self.0.deaf.store(1, Ordering::SeqCst);
            self.end(false);
            self.close();
        }
    }
}
