//! The clocks of one stream, as functions of (state, now). Knows no stream, no thread and no clock to read.
//!
//! All but `budget` count only time in which the consumer waits for a chunk (a pull is pending), so a slow
//! consumer is never taken for a silent producer. Until the first chunk that counts as progress,
//! `first` runs; from then on `idle` and `progress` do, never both kinds at once. After the terminal
//! chunk only a short `linger` is left, which ends the stream without blame.

/// Switched off.
pub const OFF: u64 = u64::MAX;

/// How long the source may take to end by itself after its terminal chunk, at most.
pub const LINGER: u64 = 1_000_000_000;

/// The limits of one stream, in nanoseconds; [`OFF`] for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// To the first chunk that counts as progress.
    pub first: u64,
    /// Between two signs of life.
    pub idle: u64,
    /// Into a silence, to the one warning about it.
    pub warn: u64,
    /// Between two chunks that count as progress.
    pub progress: u64,
    /// Into a time of chunks without progress, to the one warning about it.
    pub progress_warn: u64,
    /// From the first pull to the end.
    pub budget: u64,
}

/// The clock that a verdict speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `first_chunk`.
    First = 0,
    /// `idle`.
    Idle = 1,
    /// `progress_idle`.
    Progress = 2,
    /// `budget`.
    Budget = 3,
    /// The time after the terminal chunk.
    Linger = 4,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet; look again at this moment ([`OFF`]: never).
    Wait(u64),
    /// Say once that this clock is late: `(clock, silence so far, limit)`.
    Warn(Kind, u64, u64),
    /// This clock has run out: `(clock, measured, limit)`.
    Fire(Kind, u64, u64),
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    limits: Limits,
    /// The first pull.
    started: u64,
    /// The pull that is pending, or [`OFF`].
    pulled: u64,
    /// The last sign of life within the pending pull, or its start.
    heard: u64,
    /// Time pending in earlier pulls, since the last progress (or the start).
    waited: u64,
    /// What [`Clocks::overlook`] took out of the silence and of the wait for progress, to be told at the end.
    overlooked: (u64, u64),
    progressed: bool,
    /// Something that is no progress came since the last progress.
    chatter: bool,
    warned: bool,
    warned_progress: bool,
    terminal: bool,
}

impl Clocks {
    /// Clocks that have not started.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            started: OFF,
            pulled: OFF,
            heard: 0,
            waited: 0,
            overlooked: (0, 0),
            progressed: false,
            chatter: false,
            warned: false,
            warned_progress: false,
            terminal: false,
        }
    }

    /// Its limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The first pull begins: the budget runs.
    pub fn start(&mut self, now: u64) {
        if self.started == OFF {
            self.started = now;
        }
    }

    /// The first pull, if there was one.
    #[must_use]
    pub fn started(&self) -> Option<u64> {
        (self.started != OFF).then_some(self.started)
    }

    /// The consumer begins to wait. Returns when to look.
    pub fn pull(&mut self, now: u64) -> u64 {
        self.start(now);
        self.pulled = now;
        self.heard = now;
        self.due()
    }

    /// Whether the consumer waits.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pulled != OFF
    }

    /// A sign of life that is no chunk: a ping that the consumer does not see. Returns the silence that
    /// ended, if the consumer waits.
    pub fn touch(&mut self, now: u64) -> Option<u64> {
        let silence = self.is_pending().then(|| self.silence(now));
        if self.is_pending() {
            self.heard = now;
        }
        self.overlooked.0 = 0;
        self.warned = false;
        self.chatter = true;
        silence
    }

    /// The time waited for progress when the last wait ended, with what was overlooked of it.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.waited.saturating_add(self.overlooked.1)
    }

    /// The silence until now, with what was overlooked of it.
    #[must_use]
    pub fn silence(&self, now: u64) -> u64 {
        self.since_heard(now).saturating_add(self.overlooked.0)
    }

    /// Whether there was a sign of life within the pending pull.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        self.is_pending() && self.heard > self.pulled
    }

    /// The wait is over, with or without a chunk. Returns the silence that ended.
    pub fn arrive(&mut self, now: u64) -> u64 {
        if !self.is_pending() {
            return 0;
        }
        let silence = self.silence(now);
        self.waited = self.waited.saturating_add(now.saturating_sub(self.pulled));
        self.pulled = OFF;
        self.overlooked.0 = 0;
        self.warned = false;
        silence
    }

    /// A chunk came. To be called after [`Clocks::arrive`], if there was a wait. Returns the time waited
    /// for progress until now, whether it is any or not.
    pub fn chunk(&mut self, progress: bool) -> u64 {
        let waited = self.waited();
        if progress {
            self.waited = 0;
            self.overlooked.1 = 0;
            self.progressed = true;
            self.chatter = false;
            self.warned_progress = false;
        } else {
            self.chatter = true;
        }
        waited
    }

    /// The terminal chunk came: no stall is reported any more.
    pub fn finish(&mut self) {
        self.terminal = true;
    }

    /// Whether the terminal chunk came.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Whether `first` has been disarmed.
    #[must_use]
    pub fn has_progressed(&self) -> bool {
        self.progressed
    }

    /// The process did not run for a while: silence is counted anew from `now`, the budget is not.
    pub fn forgive(&mut self, now: u64) {
        if self.is_pending() {
            self.pulled = now;
            self.heard = now;
        }
        self.waited = 0;
        self.overlooked = (0, 0);
        self.warned = false;
        self.warned_progress = false;
    }

    /// As [`Clocks::forgive`], of a silence that is the source's own: it will be told whole when it ends.
    pub fn overlook(&mut self, now: u64) {
        let (silence, progress) = self.overlooked;
        let sum = (
            silence.saturating_add(self.since_heard(now)),
            progress.saturating_add(self.since_progress(now)),
        );
        self.forgive(now);
        self.overlooked = sum;
    }

    /// Time waited since the last progress, consumer's time left out.
    #[must_use]
    pub fn since_progress(&self, now: u64) -> u64 {
        let pending = if self.is_pending() {
            now.saturating_sub(self.pulled)
        } else {
            0
        };
        self.waited.saturating_add(pending)
    }

    /// Time waited since the last sign of life.
    #[must_use]
    pub fn since_heard(&self, now: u64) -> u64 {
        if self.is_pending() {
            now.saturating_sub(self.heard)
        } else {
            0
        }
    }

    /// The clocks that run, each with its deadline and limit.
    fn running(&self) -> [(Kind, u64, u64); 3] {
        let off = |kind| (kind, OFF, OFF);
        let pending = |kind, base: u64, limit: u64| {
            if self.is_pending() && limit != OFF {
                (kind, base.saturating_add(limit), limit)
            } else {
                off(kind)
            }
        };
        // The moment from which the time waited since the last progress counts.
        let waiting = self.pulled.saturating_sub(self.waited);
        if self.terminal {
            let limit = self.limits.idle.min(LINGER);
            return [
                pending(Kind::Linger, self.pulled, limit),
                off(Kind::Progress),
                off(Kind::Budget),
            ];
        }
        let budget = match (self.started, self.limits.budget) {
            (OFF, _) | (_, OFF) => off(Kind::Budget),
            (at, limit) => (Kind::Budget, at.saturating_add(limit), limit),
        };
        if self.progressed {
            let idle = pending(Kind::Idle, self.heard, self.limits.idle);
            [
                idle,
                pending(Kind::Progress, waiting, self.limits.progress),
                budget,
            ]
        } else {
            [
                pending(Kind::First, waiting, self.limits.first),
                off(Kind::Progress),
                budget,
            ]
        }
    }

    fn warnings(&self) -> [(Kind, u64, u64, u64); 2] {
        let armed = self.is_pending() && self.progressed && !self.terminal;
        let at = |on: bool, base: u64, after: u64| {
            if on && armed && after != OFF {
                base.saturating_add(after)
            } else {
                OFF
            }
        };
        let waiting = self.pulled.saturating_sub(self.waited);
        let limits = &self.limits;
        [
            (
                Kind::Idle,
                at(!self.warned, self.heard, limits.warn),
                self.heard,
                limits.idle,
            ),
            (
                Kind::Progress,
                at(
                    self.chatter && !self.warned_progress,
                    waiting,
                    limits.progress_warn,
                ),
                waiting,
                limits.progress,
            ),
        ]
    }

    /// When to look next.
    #[must_use]
    pub fn due(&self) -> u64 {
        let fires = self.running().into_iter().map(|(_, at, _)| at);
        let warns = self.warnings().into_iter().map(|(_, at, _, _)| at);
        fires.chain(warns).min().unwrap_or(OFF)
    }

    /// Judges the state at `now`. Among clocks that have run out, the one that did so first is named.
    #[must_use]
    pub fn judge(&self, now: u64) -> Verdict {
        let first = self
            .running()
            .into_iter()
            .filter(|&(_, at, _)| at <= now)
            .min_by_key(|c| c.1);
        if let Some((kind, at, limit)) = first {
            return Verdict::Fire(kind, limit.saturating_add(now - at), limit);
        }
        let late = self.warnings().into_iter().find(|&(_, at, _, _)| at <= now);
        if let Some((kind, _, base, limit)) = late {
            return Verdict::Warn(kind, now - base, limit);
        }
        Verdict::Wait(self.due())
    }

    /// Switches a clock off for good.
    pub fn switch_off(&mut self, kind: Kind) {
        match kind {
            Kind::First => self.limits.first = OFF,
            Kind::Idle => self.limits.idle = OFF,
            Kind::Progress => self.limits.progress = OFF,
            Kind::Budget => self.limits.budget = OFF,
            Kind::Linger => {}
        }
    }

    /// Notes that a warning was given.
    pub fn warn(&mut self, kind: Kind) {
        match kind {
            Kind::Progress => self.warned_progress = true,
            _ => self.warned = true,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const LIMITS: Limits = Limits {
        first: 300 * S,
        idle: 90 * S,
        warn: 45 * S,
        progress: 300 * S,
        progress_warn: 150 * S,
        budget: OFF,
    };

    fn progressed(limits: Limits, at: u64) -> Clocks {
        let mut clocks = Clocks::new(limits);
        clocks.pull(at);
        clocks.arrive(at);
        clocks.chunk(true);
        clocks
    }

    #[test]
    fn the_first_wait_is_bounded_by_first_alone() {
        let mut clocks = Clocks::new(LIMITS);
        assert_eq!(clocks.pull(0), 300 * S);
        assert_eq!(clocks.judge(299 * S), Verdict::Wait(300 * S));
        assert_eq!(
            clocks.judge(300 * S),
            Verdict::Fire(Kind::First, 300 * S, 300 * S)
        );
    }

    #[test]
    fn a_chunk_without_progress_does_not_disarm_first() {
        let mut clocks = Clocks::new(LIMITS);
        clocks.pull(0);
        clocks.arrive(10 * S);
        clocks.chunk(false);
        // 1000 s of the consumer's time do not count.
        assert_eq!(clocks.pull(1_010 * S), 1_300 * S);
        assert_eq!(clocks.judge(1_200 * S), Verdict::Wait(1_300 * S));
    }

    #[test]
    fn a_silence_is_warned_about_once_and_then_cut() {
        let mut clocks = progressed(LIMITS, 0);
        assert_eq!(clocks.pull(S), 46 * S);
        assert_eq!(
            clocks.judge(46 * S),
            Verdict::Warn(Kind::Idle, 45 * S, 90 * S)
        );
        clocks.warn(Kind::Idle);
        assert_eq!(clocks.judge(47 * S), Verdict::Wait(91 * S));
        assert_eq!(
            clocks.judge(92 * S),
            Verdict::Fire(Kind::Idle, 91 * S, 90 * S)
        );
    }

    #[test]
    fn chatter_keeps_idle_quiet_and_not_progress() {
        let mut clocks = progressed(LIMITS, 0);
        let mut now = 0;
        let verdict = loop {
            clocks.pull(now);
            now += 10 * S;
            match clocks.judge(now) {
                Verdict::Wait(_) => {}
                Verdict::Warn(kind, waited, limit) => {
                    assert_eq!((kind, waited, limit), (Kind::Progress, 150 * S, 300 * S));
                    clocks.warn(kind);
                }
                fire => break fire,
            }
            clocks.arrive(now);
            clocks.chunk(false);
        };
        assert_eq!(verdict, Verdict::Fire(Kind::Progress, 300 * S, 300 * S));
    }

    #[test]
    fn pure_silence_gives_no_warning_about_progress() {
        let limits = Limits {
            progress_warn: 10 * S,
            progress: 20 * S,
            ..LIMITS
        };
        let mut clocks = progressed(limits, 0);
        clocks.pull(0);
        assert_eq!(clocks.judge(15 * S), Verdict::Wait(20 * S));
    }

    #[test]
    fn the_budget_runs_with_no_pull_pending() {
        let mut clocks = progressed(
            Limits {
                budget: 5 * S,
                ..LIMITS
            },
            0,
        );
        assert_eq!(clocks.due(), 5 * S);
        assert_eq!(
            clocks.judge(5 * S),
            Verdict::Fire(Kind::Budget, 5 * S, 5 * S)
        );
        clocks.forgive(4 * S);
        assert_eq!(clocks.due(), 5 * S, "a frozen process does not renew it");
    }

    #[test]
    fn a_touch_moves_idle_and_nothing_else() {
        let mut clocks = progressed(LIMITS, 0);
        clocks.pull(0);
        clocks.touch(80 * S);
        assert_eq!(clocks.judge(100 * S), Verdict::Wait(125 * S));
        assert_eq!(clocks.since_progress(100 * S), 100 * S);
        assert_eq!(clocks.since_heard(100 * S), 20 * S);
    }

    #[test]
    fn what_was_overlooked_is_told_when_the_silence_ends() {
        let mut clocks = progressed(LIMITS, 0);
        clocks.pull(0);
        clocks.overlook(90 * S);
        assert_eq!(clocks.since_heard(100 * S), 10 * S);
        assert_eq!(clocks.touch(120 * S), Some(120 * S));
        clocks.overlook(210 * S);
        assert_eq!(clocks.arrive(220 * S), 100 * S);
        assert_eq!(clocks.chunk(true), 220 * S);
        clocks.pull(300 * S);
        assert_eq!(clocks.arrive(301 * S), S);
        assert_eq!(clocks.chunk(true), S);
        assert_eq!(clocks.touch(302 * S), None);
    }

    #[test]
    fn what_was_forgiven_is_no_silence_of_the_source() {
        let mut clocks = progressed(LIMITS, 0);
        clocks.pull(0);
        clocks.overlook(90 * S);
        clocks.forgive(200 * S);
        assert_eq!(clocks.arrive(201 * S), S);
        assert_eq!(clocks.chunk(true), S);
    }

    #[test]
    fn after_the_terminal_chunk_only_the_linger_is_left() {
        let mut clocks = progressed(
            Limits {
                budget: S / 2,
                ..LIMITS
            },
            0,
        );
        clocks.finish();
        clocks.pull(0);
        assert_eq!(clocks.judge(S - 1), Verdict::Wait(S));
        assert_eq!(clocks.judge(S), Verdict::Fire(Kind::Linger, S, S));
    }

    #[test]
    fn the_clock_that_ran_out_first_is_named() {
        let limits = Limits {
            idle: 10 * S,
            progress: 8 * S,
            warn: OFF,
            budget: 9 * S,
            ..LIMITS
        };
        let mut clocks = progressed(limits, 0);
        clocks.pull(0);
        assert_eq!(
            clocks.judge(100 * S),
            Verdict::Fire(Kind::Progress, 100 * S, 8 * S)
        );
    }

    #[test]
    fn everything_off_never_looks() {
        let off = Limits {
            first: OFF,
            idle: OFF,
            warn: OFF,
            progress: OFF,
            progress_warn: OFF,
            budget: OFF,
        };
        let mut clocks = Clocks::new(off);
        assert_eq!(clocks.pull(5), OFF);
        assert_eq!(clocks.judge(u64::MAX - 1), Verdict::Wait(OFF));
        clocks.arrive(6);
        clocks.chunk(true);
        assert_eq!(clocks.pull(7), OFF);
    }
}
