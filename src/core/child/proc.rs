//! Who runs: one look at `/proc`.

use std::{collections::HashMap, fs};

/// A process as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Its number.
    pub(super) pid: i32,
    /// Its parent.
    pub(super) parent: i32,
    /// Its group.
    pub(super) group: i32,
    /// Its session.
    pub(super) session: i32,
    /// When it began, in clock ticks since boot: with the number, who it is.
    pub(super) began: u64,
    /// CPU time it used, in clock ticks, with that of the children it has waited for.
    pub(super) cpu: u64,
    /// Whether it is dead, and only waits to be reaped.
    pub(super) dead: bool,
}

/// Reads one line of `/proc/PID/stat`. The name in it may hold anything, parentheses included.
#[must_use]
pub(super) fn parse(line: &str) -> Option<Process> {
    let (pid, _) = line.split_once(" (")?;
    let (_, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    let small = |at: usize| i32::try_from(number(at)?).ok();
    let cpu: i64 = (11..15).map(number).sum::<Option<i64>>()?;
    Some(Process {
        pid: pid.trim().parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
        parent: small(1)?,
        group: small(2)?,
        session: small(3)?,
        cpu: cpu.unsigned_abs(),
        began: number(19)?.unsigned_abs(),
    })
}

/// One process, if it is there.
#[must_use]
pub(super) fn look(pid: i32) -> Option<Process> {
    parse(&String::from_utf8_lossy(
        &fs::read(format!("/proc/{pid}/stat")).ok()?,
    ))
}

/// Whether a process catches or ignores TERM, so that it may end by itself after it.
#[must_use]
pub(super) fn heeds_term(pid: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(found.trim(), 16).ok()
    };
    [mask("SigCgt:"), mask("SigIgn:"), mask("SigBlk:")]
        .iter()
        .flatten()
        .any(|mask| mask >> (libc::SIGTERM - 1) & 1 == 1)
}

/// How often a process gave the processor up: it grows when the process does anything at all.
#[must_use]
pub(super) fn switches(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name))?;
        found.trim().parse::<u64>().ok()
    };
    Some(line("voluntary_ctxt_switches:")? + line("nonvoluntary_ctxt_switches:")?)
}

/// Whether a process is inside a read of its standard input; false if that cannot be seen.
#[must_use]
pub(super) fn reads_stdin(pid: i32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/syscall")) else {
        return false;
    };
    let mut words = text.split_ascii_whitespace();
    words.next() == Some(&libc::SYS_read.to_string()) && words.next() == Some("0x0")
}

/// All processes at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot(Vec<Process>);

impl Snapshot {
    /// Looks at all of them. Those that end meanwhile may be in it or not.
    #[must_use]
    pub(super) fn take() -> Self {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Self::default();
        };
        let pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(pids.filter_map(look).collect())
    }

    /// Those given.
    #[cfg(test)]
    pub(super) const fn of(processes: Vec<Process>) -> Self {
        Self(processes)
    }

    /// All that belongs to the tree of `known` (by number and beginning): itself, and whatever was begun
    /// below it; and all of `session`.
    #[must_use]
    pub(super) fn tree(&self, known: &HashMap<i32, u64>, session: Option<i32>) -> Vec<Process> {
        let mut below: HashMap<i32, Vec<usize>> = HashMap::new();
        let mut found = vec![false; self.0.len()];
        let mut next = Vec::new();
        for (at, process) in self.0.iter().enumerate() {
            below.entry(process.parent).or_default().push(at);
            if known.get(&process.pid) == Some(&process.began) || session == Some(process.session) {
                found[at] = true;
                next.push(at);
            }
        }
        while let Some(at) = next.pop() {
            for &child in below.get(&self.0[at].pid).into_iter().flatten() {
                if !found[child] {
                    found[child] = true;
                    next.push(child);
                }
            }
        }
        let all = self.0.iter().zip(found);
        all.filter_map(|(process, found)| found.then_some(*process))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32, began: u64) -> Process {
        Process {
            pid,
            parent,
            group: session,
            session,
            began,
            cpu: 0,
            dead: false,
        }
    }

    #[test]
    fn a_name_with_parentheses_is_no_trap() {
        let line = "42 (a) b (c)) S 7 42 41 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 999 1 2";
        let found = parse(line).unwrap();
        assert_eq!(
            (found.pid, found.parent, found.group, found.session),
            (42, 7, 42, 41)
        );
        assert_eq!((found.cpu, found.began, found.dead), (100, 999, false));
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse("1 (x) Z 1"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let own = i32::try_from(std::process::id()).unwrap();
        let seen = look(own).unwrap();
        let known = HashMap::from([(own, seen.began)]);
        assert!(
            Snapshot::take()
                .tree(&known, None)
                .iter()
                .any(|p| p.pid == own)
        );
        assert!(switches(own).is_some());
    }

    #[test]
    fn a_tree_goes_by_parents_and_by_session() {
        let all = Snapshot::of(vec![
            process(10, 1, 10, 5),
            process(11, 10, 10, 6),
            process(12, 11, 12, 7), // a session of its own
            process(13, 12, 12, 8),
            process(14, 1, 10, 9), // its parent has ended
            process(20, 1, 20, 5),
        ]);
        let mut pids: Vec<i32> = all
            .tree(&HashMap::from([(10, 5)]), Some(10))
            .iter()
            .map(|p| p.pid)
            .collect();
        pids.sort_unstable();
        assert_eq!(pids, [10, 11, 12, 13, 14]);
    }

    #[test]
    fn a_number_that_was_given_anew_is_somebody_else() {
        let all = Snapshot::of(vec![process(10, 1, 77, 900), process(11, 10, 77, 901)]);
        assert_eq!(all.tree(&HashMap::from([(10, 5)]), Some(10)), []);
    }
}
