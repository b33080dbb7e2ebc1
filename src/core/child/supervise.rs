//! The life of one child: pump, judge, cut, drain, reap.

use std::{io, time::Duration};

use tokio::{select, time::sleep};

use super::{
    exit::Exit,
    idle::{Limits, Verdict, Watch},
    pump::{Input, Output, Touch, readable, writable},
    shared::{Ended, Note, Report, Shared, Stream},
    spawn::Spawned,
    tree::{Activity, Tree},
};
use crate::core::{
    clock::{FAR, monotonic},
    driver::FROZEN,
    sync::Arc,
};

/// What counts as a sign of life, as bits.
pub mod signs {
    /// Bytes on standard output.
    pub const STDOUT: u32 = 1;
    /// Bytes on standard error.
    pub const STDERR: u32 = 2;
    /// CPU time of the tree.
    pub const CPU: u32 = 4;
    /// A write to the descriptor of `STALLWATCH_TOUCH_FD`.
    pub const TOUCH: u32 = 8;
}

/// After KILL it can only be inside the kernel; this long is waited for that (ns).
const AFTER_KILL: u64 = 2_000_000_000;
/// How long the dead may wait for the one who reaps orphans (ns). That is not always done at all.
const REAPERS: u64 = 20_000_000;
/// The first and the longest pause between two looks at a tree that is ending (ns).
const LOOKS: (u64, u64) = (2_000_000, 50_000_000);
/// The shortest and the longest pause between two looks at CPU time (ns).
const PROBES: (u64, u64) = (20_000_000, 5_000_000_000);

/// How a child is watched. Durations are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What it is allowed.
    pub limits: Limits,
    /// What counts as progress: [`signs`].
    pub progress: u32,
    /// Between TERM and KILL; `None` waits for as long as it takes.
    pub kill_grace: Option<u64>,
    /// For its output, after it has ended; `None` waits for as long as it takes.
    pub drain_grace: Option<u64>,
    /// Bytes kept of each stream.
    pub cap: usize,
    /// Whether the owner gets every byte as it comes.
    pub live: bool,
    /// Whether nothing is ever cut.
    pub observe_only: bool,
}

pub(super) struct Supervised {
    plan: Plan,
    shared: Arc<Shared>,
    watch: Watch,
    exit: Exit,
    tree: Tree,
    output: [Output; 2],
    input: Input,
    touch: Touch,
    pid: i32,
    turns: u32,
    probe_at: u64,
    cpu: u64,
    before: Option<Activity>,
    overran: bool,
    survivors: Vec<i32>,
    drained: bool,
}

fn after(now: u64, span: Option<u64>) -> u64 {
    span.map_or(FAR, |span| now.saturating_add(span).min(FAR))
}

impl Supervised {
    /// Takes a child over. Inside the runtime only.
    pub(super) fn new(child: Spawned, plan: Plan, shared: Arc<Shared>) -> io::Result<Self> {
        let [stdout, stderr] = child.output;
        let now = monotonic();
        let mut this = Self {
            watch: Watch::new(plan.limits, now),
            exit: Exit::new(child.process, child.own)?,
            tree: Tree::new(child.pid, child.own),
            output: [
                Output::new(stdout, Stream::Stdout, plan.cap, plan.live)?,
                Output::new(stderr, Stream::Stderr, plan.cap, plan.live)?,
            ],
            input: Input::new(child.input)?,
            touch: Touch::new(child.touch)?,
            pid: child.pid,
            turns: 0,
            probe_at: FAR,
            cpu: 0,
            before: None,
            overran: false,
            survivors: Vec::new(),
            drained: false,
            plan,
            shared,
        };
        this.plan_probe(now);
        Ok(this)
    }

    /// Its whole life.
    pub(super) async fn run(mut self) {
        let ended = self.watch_over().await;
        let idle = self.watch.idle(monotonic());
        let (mut busy, mut reads_stdin) = (false, false);
        let mut ended = ended;
        if ended != Ended::Exited {
            let activity = self.tree.activity();
            busy = self.before.is_some_and(|before| before != activity);
            reads_stdin = self.tree.reads_stdin();
            // The look took a moment: an exit in it is an exit.
            if self.exit.look() && ended != Ended::Cancelled {
                ended = Ended::Exited;
            } else {
                self.end_tree().await;
            }
        }
        self.drain().await;
        self.exit.reap();
        if self.exit.ended() && self.tree.leads() && super::sys::group_exists(self.pid) {
            // It is over, but for what it has left behind in its own group.
            self.end_tree().await;
        }
        self.report(ended, idle, busy, reads_stdin);
    }

    /// Until it has ended, or is to be cut.
    async fn watch_over(&mut self) -> Ended {
        while !self.exit.ended() {
            if self.shared.must_end() {
                return Ended::Cancelled;
            }
            let now = monotonic();
            self.watch.hold(self.shared.is_full(), now);
            let verdict = self.watch.judge(now);
            if let Verdict::Wait(until) = verdict {
                self.step(until.min(self.probe_at)).await;
                self.probe();
            } else if !self.look_again()
                && let Some(ended) = self.act(verdict, now)
            {
                return ended;
            }
        }
        Ended::Exited
    }

    /// A limit is over: whether something has happened after all that nobody has told us of yet.
    fn look_again(&mut self) -> bool {
        self.exit.look() | self.pump(true) | (self.probe_at < FAR && self.probe_cpu())
    }

    fn act(&mut self, verdict: Verdict, now: u64) -> Option<Ended> {
        if let Verdict::Idle { late, .. } = verdict
            && late > FROZEN
            && self.watch.forgive(now)
        {
            self.shared.tell(Note::Overslept { at: now, late });
            return None;
        }
        self.watch.settle(verdict);
        let cut = !self.plan.observe_only;
        let (note, ended) = match verdict {
            Verdict::Wait(_) => return None,
            Verdict::Warn { idle } => {
                self.before = Some(self.tree.activity());
                (Note::Quiet { at: now, idle }, None)
            }
            Verdict::Overrun => {
                self.overran = true;
                let elapsed = self.watch.elapsed(now);
                (Note::Overrun { at: now, elapsed }, None)
            }
            Verdict::Idle { idle, late } => (
                Note::Idle {
                    at: now,
                    idle,
                    late,
                    cut,
                },
                Some(Ended::Idle(idle, late)),
            ),
            Verdict::Budget { elapsed, late } => (
                Note::Budget {
                    at: now,
                    elapsed,
                    late,
                    cut,
                },
                Some(Ended::Budget(elapsed, late)),
            ),
        };
        self.shared.tell(note);
        ended.filter(|_| cut)
    }

    /// Waits until something happens, or until a moment, and moves what there is to move.
    async fn step(&mut self, until: u64) {
        let open = |output: &Output| output.is_open() && !self.shared.is_full();
        let (first, second) = (open(&self.output[0]), open(&self.output[1]));
        let pause = Duration::from_nanos(until.saturating_sub(monotonic()));
        select! {
            biased;
            () = readable(Some(self.exit.process())), if !self.exit.ended() => { self.exit.look(); }
            () = readable(self.output[0].fd.as_ref()), if first => {}
            () = readable(self.output[1].fd.as_ref()), if second => {}
            () = writable(self.input.fd.as_ref()) => {}
            () = readable(self.touch.0.as_ref()) => {}
            () = self.shared.changed.notified() => {}
            () = sleep(pause), if until < FAR => {}
        }
        self.pump(false);
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(16) {
            // One that floods is not the only child.
            tokio::task::yield_now().await;
        }
    }

    /// Moves what there is, once. Whether any of it was a sign of life.
    fn pump(&mut self, surely: bool) -> bool {
        self.input.feed();
        let mut found = 0;
        for (output, sign) in self.output.iter_mut().zip([signs::STDOUT, signs::STDERR]) {
            if !self.shared.is_full() && output.take(&self.shared, surely) {
                found |= sign;
            }
        }
        if self.touch.take(surely) {
            found |= signs::TOUCH;
        }
        let alive = found & self.plan.progress != 0;
        if alive {
            self.progress();
        }
        alive
    }

    fn progress(&mut self) {
        self.watch.progress(monotonic());
        self.before = None;
    }

    fn plan_probe(&mut self, now: u64) {
        if self.plan.progress & signs::CPU != 0 {
            let pause = self.plan.limits.idle.unwrap_or(FAR) / 8;
            self.probe_at = now + pause.clamp(PROBES.0, PROBES.1);
        }
    }

    fn probe(&mut self) {
        let now = monotonic();
        if now >= self.probe_at {
            self.probe_cpu();
            self.plan_probe(now);
        }
    }

    /// Whether the tree has used CPU time since the last look.
    fn probe_cpu(&mut self) -> bool {
        let cpu = self.tree.activity().cpu;
        let grown = cpu > self.cpu;
        self.cpu = cpu;
        if grown {
            self.progress();
        }
        grown
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
    fn report(self, ended: Ended, idle: u64, busy: bool, reads_stdin: bool) {
        let [stdout, stderr] = self.output;
        let report = Report {
            ended,
            status: self.exit.status(),
            gone: self.exit.ended(),
            total: [stdout.total(), stderr.total()],
            kept: [stdout.finish(), stderr.finish()],
            drained: self.drained,
            idle,
            elapsed: self.watch.elapsed(monotonic()),
            escaped: self.tree.escaped(),
            survivors: self.survivors,
            busy,
            reads_stdin,
            overran: self.overran,
        };
        drop((self.exit, self.input, self.touch));
        self.shared.finish(report);
    }
}
