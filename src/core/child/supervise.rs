//! Watching one child: pump, judge, decide. What follows is in `end`.

use std::{io, time::Duration};

use tokio::{select, time::sleep};

use super::{
    exit::Exit,
    idle::{Limits, Verdict, Watch},
    pump::{Input, Output, Touch, readable, writable},
    shared::{Ended, Note, Shared, Stream},
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
    pub(super) plan: Plan,
    pub(super) shared: Arc<Shared>,
    pub(super) watch: Watch,
    pub(super) exit: Exit,
    pub(super) tree: Tree,
    pub(super) output: [Output; 2],
    pub(super) input: Input,
    pub(super) touch: Touch,
    pub(super) pid: i32,
    pub(super) turns: u32,
    pub(super) probe_at: u64,
    pub(super) cpu: u64,
    pub(super) before: Option<Activity>,
    pub(super) overran: bool,
    pub(super) survivors: Vec<i32>,
    pub(super) drained: bool,
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

    /// Until it has ended, or is to be cut.
    pub(super) async fn watch_over(&mut self) -> (Ended, Option<Note>) {
        while !self.exit.ended() {
            if self.shared.must_end() {
                return (Ended::Cancelled, None);
            }
            let now = monotonic();
            self.watch.hold(self.shared.is_full(), now);
            let verdict = self.watch.judge(now);
            if let Verdict::Wait(until) = verdict {
                self.step(until.min(self.probe_at)).await;
                self.probe();
            } else if !self.look_again()
                && let Some((ended, note)) = self.act(verdict, now)
            {
                return (ended, Some(note));
            }
        }
        (Ended::Exited, None)
    }

    /// A limit is over: whether something has happened after all that nobody has told us of yet.
    fn look_again(&mut self) -> bool {
        self.exit.look() | self.pump(true) | (self.probe_at < FAR && self.probe_cpu())
    }

    fn act(&mut self, verdict: Verdict, now: u64) -> Option<(Ended, Note)> {
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
        match ended {
            Some(ended) if cut => Some((ended, note)),
            _ => {
                self.shared.tell(note);
                None
            }
        }
    }

    /// Waits until something happens, or until a moment, and moves what there is to move.
    pub(super) async fn step(&mut self, until: u64) {
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
    pub(super) fn pump(&mut self, surely: bool) -> bool {
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
}
