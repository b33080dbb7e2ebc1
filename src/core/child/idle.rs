//! When a child has been silent for too long: a pure function of what was seen and of now.

use crate::core::clock::FAR;

/// What a child is allowed, in nanoseconds. `None` is off.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Silence after which it is cut.
    pub idle: Option<u64>,
    /// Silence after which it is looked at, and warned about.
    pub warn: Option<u64>,
    /// Its whole life, however lively it is.
    pub budget: Option<u64>,
    /// Its life after which [`Verdict::Overrun`] is due, once.
    pub max_runtime: Option<u64>,
}

/// What is to be done now. Durations are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing before this moment; [`FAR`] for never.
    Wait(u64),
    /// It has been silent for its warning share.
    Warn {
        /// The silence so far.
        idle: u64,
    },
    /// It has been silent for its whole limit.
    Idle {
        /// The silence so far.
        idle: u64,
        /// How far beyond the limit.
        late: u64,
    },
    /// Its life is over.
    Budget {
        /// Its life so far.
        elapsed: u64,
        /// How far beyond the limit.
        late: u64,
    },
    /// It has run longer than expected, which is no reason to cut it.
    Overrun,
}

/// What was seen of a child so far.
///
/// While its owner takes nothing (`hold`), the child may be waiting for the owner: that time is no
/// silence of the child.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    limits: Limits,
    began: u64,
    last: u64,
    held: bool,
    warned: bool,
    cut: bool,
    spent: bool,
    forgiven: bool,
    overran: bool,
}

impl Watch {
    /// Begins to watch at `now`.
    #[must_use]
    pub(super) const fn new(limits: Limits, now: u64) -> Self {
        Self {
            limits,
            began: now,
            last: now,
            held: false,
            warned: false,
            cut: false,
            spent: false,
            forgiven: false,
            overran: false,
        }
    }

    /// A sign of life.
    pub(super) fn progress(&mut self, now: u64) {
        self.last = self.last.max(now);
        self.warned = false;
        self.cut = false;
        self.forgiven = false;
    }

    /// Whether what the child writes is not taken at the moment.
    pub(super) fn hold(&mut self, held: bool, now: u64) {
        if self.held && !held {
            self.last = self.last.max(now);
        }
        self.held = held;
    }

    /// This process itself did not run: the silence begins anew, once.
    pub(super) fn forgive(&mut self, now: u64) -> bool {
        let first = !self.forgiven;
        if first {
            self.last = self.last.max(now);
            self.forgiven = true;
        }
        first
    }

    /// Notes that a verdict was acted upon, so that it is not given again for the same silence.
    pub(super) fn settle(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Warn { .. } => self.warned = true,
            Verdict::Idle { .. } => self.cut = true,
            Verdict::Budget { .. } => self.spent = true,
            Verdict::Overrun => self.overran = true,
            Verdict::Wait(_) => {}
        }
    }

    /// The silence at `now`.
    #[must_use]
    pub(super) const fn idle(&self, now: u64) -> u64 {
        if self.held {
            0
        } else {
            now.saturating_sub(self.last)
        }
    }

    /// The life so far.
    #[must_use]
    pub(super) const fn elapsed(&self, now: u64) -> u64 {
        now.saturating_sub(self.began)
    }

    /// What is to be done at `now`. Of two limits that are both exceeded the earlier one counts.
    #[must_use]
    pub(super) fn judge(&self, now: u64) -> Verdict {
        let after = |from: u64, limit: Option<u64>, off: bool| match limit {
            Some(limit) if !off => from.saturating_add(limit).min(FAR),
            _ => FAR,
        };
        let cut_at = after(self.last, self.limits.idle, self.cut || self.held);
        let warn_at = after(
            self.last,
            self.limits.warn,
            self.warned || self.cut || self.held,
        );
        let end_at = after(self.began, self.limits.budget, self.spent);
        let overrun_at = after(self.began, self.limits.max_runtime, self.overran);
        if end_at <= now && end_at <= cut_at {
            let late = now - end_at;
            return Verdict::Budget {
                elapsed: self.elapsed(now),
                late,
            };
        }
        if cut_at <= now {
            return Verdict::Idle {
                idle: self.idle(now),
                late: now - cut_at,
            };
        }
        if overrun_at <= now {
            return Verdict::Overrun;
        }
        if warn_at <= now {
            return Verdict::Warn {
                idle: self.idle(now),
            };
        }
        Verdict::Wait(cut_at.min(warn_at).min(end_at).min(overrun_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        idle: Some(100),
        warn: Some(50),
        budget: Some(1000),
        max_runtime: None,
    };

    #[test]
    fn a_silence_is_warned_about_once_and_then_cut() {
        let mut watch = Watch::new(LIMITS, 0);
        assert_eq!(watch.judge(49), Verdict::Wait(50));
        let warn = watch.judge(50);
        assert_eq!(warn, Verdict::Warn { idle: 50 });
        watch.settle(warn);
        assert_eq!(watch.judge(99), Verdict::Wait(100));
        assert_eq!(watch.judge(103), Verdict::Idle { idle: 103, late: 3 });
    }

    #[test]
    fn progress_starts_a_new_silence() {
        let mut watch = Watch::new(LIMITS, 0);
        watch.settle(watch.judge(50));
        watch.progress(60);
        assert_eq!(watch.judge(61), Verdict::Wait(110));
        watch.progress(10); // found late: time does not go back
        assert_eq!(watch.judge(61), Verdict::Wait(110));
    }

    #[test]
    fn the_earlier_of_two_limits_counts() {
        let mut watch = Watch::new(LIMITS, 0);
        watch.progress(950);
        assert_eq!(
            watch.judge(2000),
            Verdict::Budget {
                elapsed: 2000,
                late: 1000
            }
        );
        watch.progress(10);
        let early = Watch::new(LIMITS, 0).judge(2000);
        assert_eq!(
            early,
            Verdict::Idle {
                idle: 2000,
                late: 1900
            }
        );
    }

    #[test]
    fn a_child_that_waits_for_its_reader_is_not_silent() {
        let mut watch = Watch::new(LIMITS, 0);
        watch.hold(true, 10);
        assert_eq!(watch.judge(500), Verdict::Wait(1000));
        watch.hold(false, 500);
        assert_eq!(watch.judge(501), Verdict::Wait(550));
    }

    #[test]
    fn a_process_that_did_not_run_forgives_once_per_silence() {
        let mut watch = Watch::new(LIMITS, 0);
        assert!(watch.forgive(500));
        assert_eq!(watch.idle(500), 0);
        assert!(!watch.forgive(600));
        watch.progress(600);
        assert!(watch.forgive(700));
    }

    #[test]
    fn without_limits_there_is_nothing_to_wait_for() {
        let watch = Watch::new(Limits::default(), 0);
        assert_eq!(watch.judge(FAR - 1), Verdict::Wait(FAR));
    }
}
