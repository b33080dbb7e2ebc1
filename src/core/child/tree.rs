//! A child and what it has started, and the signals sent to them.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    rc::Rc,
};

use super::{
    proc::{self, Process, Snapshot},
    sys,
};
use crate::core::clock::monotonic;

/// How old a look at all processes may be to be used again, by another child that ends at the same time.
const FRESH: u64 = 5_000_000;

thread_local! {
    static LAST: RefCell<(u64, Rc<Snapshot>)> = RefCell::default();
}

fn snapshot() -> Rc<Snapshot> {
    LAST.with_borrow_mut(|last| {
        if monotonic().saturating_sub(last.0) > FRESH {
            let found = Snapshot::take();
            *last = (monotonic(), Rc::new(found));
        }
        last.1.clone()
    })
}

/// What shows that a tree did something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Activity {
    pub(super) cpu: u64,
    switches: u64,
}

/// The tree of one child.
#[derive(Debug)]
pub(super) struct Tree {
    root: i32,
    /// Whether the root leads a session of its own.
    leads: bool,
    known: HashMap<i32, u64>,
    members: Vec<Process>,
    escaped: BTreeSet<i32>,
    /// Whether there were dead ones that wait for their parents.
    unreaped: bool,
}

impl Tree {
    pub(super) fn new(root: i32, leads: bool) -> Self {
        let known = proc::look(root).map(|found| (root, found.began));
        Self {
            root,
            leads,
            known: known.into_iter().collect(),
            members: Vec::new(),
            escaped: BTreeSet::new(),
            unreaped: false,
        }
    }

    /// Whether the root leads a session of its own.
    pub(super) const fn leads(&self) -> bool {
        self.leads
    }

    /// Looks who is in it now.
    pub(super) fn look(&mut self) {
        let session = self.leads.then_some(self.root);
        self.members = snapshot().tree(&self.known, session);
        let root = self.root;
        self.unreaped = self.members.iter().any(|p| p.dead && p.pid != root);
        self.members.retain(|process| !process.dead);
        for process in &self.members {
            self.known.insert(process.pid, process.began);
            if self.leads && process.session != self.root {
                self.escaped.insert(process.pid);
            }
        }
    }

    /// Those that are alive, by the last look.
    pub(super) fn alive(&self) -> Vec<i32> {
        self.members.iter().map(|process| process.pid).collect()
    }

    /// Whether nobody is left, by the last look.
    pub(super) fn is_gone(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether a dead descendant waits to be reaped by its parent, or by whoever took it over.
    pub(super) const fn is_unreaped(&self) -> bool {
        self.unreaped
    }

    /// Those that were found outside the child's session.
    pub(super) fn escaped(&self) -> Vec<i32> {
        self.escaped.iter().copied().collect()
    }

    /// What its members have done until now.
    pub(super) fn activity(&mut self) -> Activity {
        self.look();
        let switches = self.members.iter().filter_map(|p| proc::switches(p.pid));
        Activity {
            cpu: self.members.iter().map(|process| process.cpu).sum(),
            switches: switches.sum(),
        }
    }

    /// Whether a member waits for its standard input, by the last look.
    pub(super) fn reads_stdin(&self) -> bool {
        self.members
            .iter()
            .any(|process| proc::reads_stdin(process.pid))
    }

    /// Signals all members of the last look. `held`: the root is ours and not reaped.
    pub(super) fn signal(&self, root: &OwnedFd, signal: i32, held: bool) {
        // That it may have ended meanwhile is nothing to act upon.
        drop(sys::pidfd_signal(root, signal));
        let group = self.leads && held;
        if group {
            sys::signal_group(self.root, signal);
        }
        for process in &self.members {
            if process.pid != self.root && !(group && process.group == self.root) {
                signal_one(process, signal);
            }
        }
    }
}

/// Signals a process if it is still the same one.
fn signal_one(process: &Process, signal: i32) {
    let Ok(held) = sys::pidfd_open(process.pid) else {
        return;
    };
    // The descriptor names one process for good. If that began when ours did, it is ours.
    if proc::look(process.pid).is_some_and(|found| found.began == process.began) {
        drop(sys::pidfd_signal(&held, signal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_given_anew_is_not_signalled() {
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut process = proc::look(i32::try_from(other.id()).unwrap()).unwrap();
        process.began -= 1; // as if it had been another one when we looked
        signal_one(&process, libc::SIGKILL);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let spared = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();

        assert!(spared);
    }
}
