//! The end of one child: cut, drain, reap, tell.

use super::{
    proc,
    pump::Output,
    shared::{Ended, Note, Report},
    supervise::Supervised,
    sys,
};
use crate::core::clock::{FAR, monotonic};

/// After KILL it can only be inside the kernel; this long is waited for that (ns).
const AFTER_KILL: u64 = 2_000_000_000;
/// How long the dead may wait for the one who reaps orphans (ns). That is not always done at all.
const REAPERS: u64 = 20_000_000;
/// The first and the longest pause between two looks at a tree that is ending (ns).
const LOOKS: (u64, u64) = (2_000_000, 50_000_000);
/// What it was doing when it was found silent.
struct Found {
    idle: u64,
    busy: bool,
    reads_stdin: bool,
}

fn after(now: u64, span: Option<u64>) -> u64 {
    span.map_or(FAR, |span| now.saturating_add(span).min(FAR))
}

impl Supervised {
    /// Its whole life.
    pub(super) async fn run(mut self) {
        let (mut ended, note) = self.watch_over().await;
        let mut found = Found {
            idle: self.watch.idle(monotonic()),
            busy: false,
            reads_stdin: false,
        };
        if ended != Ended::Exited && !self.cut(note, &mut found).await {
            ended = Ended::Exited;
        }
        self.drain().await;
        self.exit.reap();
        if self.exit.ended() && self.tree.leads() && sys::group_exists(self.pid) {
            // It is over, but for what it has left behind in its own group.
            self.end_tree().await;
        }
        self.report(ended, &found);
    }

    /// Cuts it, unless it turns out to have ended by itself: then false. Without a note it is its owner
    /// who ends it.
    async fn cut(&mut self, note: Option<Note>, found: &mut Found) -> bool {
        let activity = self.tree.activity();
        found.busy = self.before.is_some_and(|before| before != activity);
        found.reads_stdin = self.tree.reads_stdin();
        let heeds = proc::heeds_term(self.pid);
        // The look took a moment: an exit in it is an exit.
        if note.is_some() && self.exit.look() {
            return false;
        }
        let by_clock = note.is_some();
        if let Some(note) = note {
            self.shared.tell(note);
        }
        self.end_tree().await;
        // One that was on its way out is not ended by a signal that it would have died of.
        !(by_clock && !heeds && self.exit.status().is_some_and(|status| status >= 0))
    }

    /// TERM, a grace, KILL, and a bounded wait, for whatever is in the tree.
    async fn end_tree(&mut self) {
        let began = monotonic();
        self.signal(libc::SIGTERM);
        // One that is stopped cannot heed it.
        self.signal(libc::SIGCONT);
        if self
            .until_gone(after(began, self.plan.kill_grace), false)
            .await
        {
            return;
        }
        let killed = monotonic();
        if !self.until_gone(after(killed, Some(AFTER_KILL)), true).await {
            self.survivors = self.tree.alive();
            let at = monotonic();
            let waited = at - began;
            self.shared.tell(Note::Unresponsive { at, waited });
        }
    }

    fn signal(&mut self, signal: i32) {
        self.tree.look();
        self.tree
            .signal(self.exit.process().get_ref(), signal, self.exit.is_ours());
    }

    /// Whether nobody is left, by `until` at the latest. `kill`: sees to it.
    async fn until_gone(&mut self, until: u64, kill: bool) -> bool {
        let (mut pause, longest) = LOOKS;
        let mut gone = None;
        loop {
            if kill {
                self.signal(libc::SIGKILL);
            } else {
                self.tree.look();
            }
            let now = monotonic();
            if self.exit.look() && self.tree.is_gone() {
                let since = *gone.get_or_insert(now);
                if !self.tree.is_unreaped() || now - since >= REAPERS {
                    return true;
                }
            }
            if now >= until || (!kill && self.shared.must_end_at_once()) {
                return false;
            }
            let next = until.min(now + pause);
            pause = longest.min(pause * 2);
            while monotonic() < next {
                self.step(next).await;
                if !kill && self.shared.must_end_at_once() {
                    break;
                }
            }
        }
    }

    /// What it has written and nobody has read yet.
    async fn drain(&mut self) {
        let mut until = after(monotonic(), self.plan.drain_grace);
        while self.output.iter().any(Output::is_open) {
            let now = monotonic();
            if now >= until || self.shared.must_end_at_once() {
                break;
            }
            if self.shared.is_full() {
                // It is the owner who takes his time.
                until = after(now, self.plan.drain_grace);
            }
            self.step(until).await;
        }
        self.drained = !self.output.iter().any(Output::is_open);
    }

    /// Closes everything, then tells.
    fn report(self, ended: Ended, found: &Found) {
        let [stdout, stderr] = self.output;
        let report = Report {
            ended,
            status: self.exit.status(),
            gone: self.exit.ended(),
            total: [stdout.total(), stderr.total()],
            kept: [stdout.finish(), stderr.finish()],
            drained: self.drained,
            idle: found.idle,
            elapsed: self.watch.elapsed(monotonic()),
            escaped: self.tree.escaped(),
            survivors: self.survivors,
            busy: found.busy,
            reads_stdin: found.reads_stdin,
            overran: self.overran,
        };
        drop((self.exit, self.input, self.touch));
        self.shared.finish(report);
    }
}
