//! Random operations, callbacks that meddle included, against the plainest thing that could be right.

use super::*;
use crate::core::{
    clock::FAR,
    state::{PAUSED, STRONG},
};
use proptest::prelude::*;

const TIMERS: usize = 6;
const YEAR: u64 = 365 * 86_400 * 1_000_000_000;

/// What somebody does to one timer; times are distances.
#[derive(Debug, Clone, Copy)]
enum Act {
    Arm(u64, bool),
    Touch(u64),
    Pause,
    Resume,
    MoveTo(u64),
    Cancel,
    Replace,
}

#[derive(Debug, Clone)]
enum Op {
    Do(usize, Act),
    /// From now on, when the first timer runs, do this to the second.
    OnFire(usize, usize, Act),
    Advance(u64),
    /// As the driver does.
    AdvanceToWake,
    Deliver,
    /// Takes the queue, claims some of it, puts the rest back.
    DeliverSome(usize),
}

#[derive(Debug, Clone, Copy)]
struct Clockwork {
    due: u64,
    /// What was left when it was paused.
    paused: Option<u64>,
    seq: u64,
    queued: bool,
    strong: bool,
}

/// The model: no wheel, no slots, no laziness.
#[derive(Debug, Default)]
struct Model {
    timers: [Option<Clockwork>; TIMERS],
    queue: Vec<(usize, u64)>,
    now: u64,
    seq: u64,
    ran: u64,
    cancelled: u64,
}

impl Model {
    fn find(&mut self, now: u64) {
        self.now = now;
        let mut due: Vec<_> = (0..TIMERS)
            .filter_map(|i| Some((i, self.timers[i]?)))
            .filter(|(_, t)| !t.queued && t.paused.is_none() && t.due <= now)
            .collect();
        due.sort_by_key(|(_, t)| (t.due, t.seq));
        for (i, t) in due {
            self.timers[i].as_mut().unwrap().queued = true;
            self.queue.push((i, t.seq));
        }
    }

    /// Whether the fire of timer `i`, arm `seq`, runs now.
    fn claim(&mut self, (i, seq): (usize, u64)) -> bool {
        let Some(timer) = self.timers[i].as_mut().filter(|t| t.seq == seq && t.queued) else {
            return false;
        };
        timer.queued = false;
        let runs = timer.paused.is_none() && timer.due <= self.now;
        if runs {
            self.timers[i] = None;
            self.ran += 1;
        }
        runs
    }

    fn take_out(&mut self, i: usize) -> Option<u32> {
        let timer = self.timers[i].take()?;
        self.cancelled += 1;
        Some(if timer.strong { STRONG } else { 0 })
    }

    /// The earliest moment at which something must be looked at.
    fn earliest(&self) -> u64 {
        let running = self
            .timers
            .iter()
            .flatten()
            .filter(|t| !t.queued && t.paused.is_none());
        running.map(|t| t.due).min().unwrap_or(u64::MAX)
    }
}

struct Pair {
    rig: Rig,
    model: Model,
    timers: Vec<Timer>,
    scripts: [Option<(usize, Act)>; TIMERS],
}

impl Pair {
    fn at(start: u64) -> Self {
        let rig = Rig::at(start);
        let timers = (0..TIMERS).map(|i| rig.timer(i)).collect();
        let model = Model {
            now: start,
            ..Model::default()
        };
        let scripts = [None; TIMERS];
        Self {
            rig,
            model,
            timers,
            scripts,
        }
    }

    fn act(&mut self, i: usize, act: Act) {
        let now = self.model.now;
        let (timer, model) = (&self.timers[i], &mut self.model);
        match act {
            Act::Arm(ahead, strong) => {
                model.seq += 1;
                timer
                    .arm(now + ahead, if strong { STRONG } else { 0 })
                    .unwrap();
                model.timers[i] = Some(Clockwork {
                    due: (now + ahead).min(FAR),
                    paused: None,
                    seq: model.seq,
                    queued: false,
                    strong,
                });
            }
            Act::Touch(ahead) => {
                // The contract: not paused, not earlier.
                if let Some(t) = model.timers[i].as_mut().filter(|t| t.paused.is_none()) {
                    t.due = t.due.max((now + ahead).min(FAR));
                    timer.touch(t.due);
                }
            }
            Act::Pause => {
                if let Some(t) = model.timers[i].as_mut().filter(|t| t.paused.is_none()) {
                    t.paused = Some(t.due.saturating_sub(now));
                    timer.pause(t.due.saturating_sub(now));
                }
            }
            Act::Resume => {
                if let Some(t) = &mut model.timers[i]
                    && let Some(rest) = t.paused.take()
                {
                    t.due = (now + rest).min(FAR);
                    timer.resume_at(now + rest);
                }
            }
            Act::MoveTo(ahead) => {
                timer.move_to(now + ahead);
                if let Some(t) = &mut model.timers[i] {
                    t.due = (now + ahead).min(FAR);
                    t.paused = None;
                }
            }
            Act::Cancel => assert_eq!(timer.cancel(), model.take_out(i)),
            Act::Replace => {
                // The new one may well get the slot of another that went before.
                drop(self.timers.remove(i));
                model.take_out(i);
                self.timers.insert(i, self.rig.timer(i));
            }
        }
    }

    fn find(&mut self, to: u64) {
        let to = to.max(self.model.now);
        self.rig.find(to);
        self.model.find(to);
        let next = self.rig.shard.next_wake();
        assert!(
            next > to || to >= FAR && next == u64::MAX,
            "{next} after a pass at {to}"
        );
    }

    fn deliver(&mut self, at_most: usize) {
        let mut fires = self.rig.shard.take();
        let mut queue = std::mem::take(&mut self.model.queue);
        assert_eq!(fires.len(), queue.len());
        let rest = fires.split_off(at_most.min(fires.len()));
        let rest_queue = queue.split_off(fires.len());
        for (fired, queued) in fires.iter().zip(queue) {
            let ran = self.rig.claim(fired);
            assert_eq!(ran, self.model.claim(queued).then_some(queued.0));
            if let Some((other, act)) = ran.and_then(|i| self.scripts[i]) {
                self.act(other, act);
            }
        }
        self.rig.shard.put_back(rest);
        self.model.queue.splice(0..0, rest_queue);
    }

    fn check(&self) {
        let stats = self.rig.shard.stats();
        let active = self.model.timers.iter().flatten().count() as u64;
        assert_eq!(
            (stats.armed, stats.started, stats.fired, stats.cancelled),
            (active, self.model.seq, self.model.ran, self.model.cancelled)
        );
        for (timer, model) in self.timers.iter().zip(self.model.timers) {
            assert_eq!(timer.is_active(), model.is_some());
            assert_eq!(timer.has_fired(), model.is_some_and(|t| t.queued));
            if let Some(model) = model {
                let due = model
                    .paused
                    .map_or(model.due, |rest| PAUSED | rest.min(FAR));
                assert_eq!(timer.due(), due);
            }
        }
        assert!(
            self.rig.shard.next_wake() <= self.model.earliest(),
            "nobody will come in time"
        );
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Do(i, act) => self.act(i, act),
            Op::OnFire(i, other, act) => self.scripts[i] = Some((other, act)),
            Op::Advance(by) => self.find(self.model.now.saturating_add(by)),
            Op::AdvanceToWake => {
                let next = self.rig.shard.next_wake();
                if next != u64::MAX {
                    self.find(next);
                }
            }
            Op::Deliver => self.deliver(usize::MAX),
            Op::DeliverSome(count) => self.deliver(count),
        }
        self.check();
    }
}

fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0_u64..5,
        3 => 0_u64..300,
        2 => 0_u64..(1 << 20),
        1 => 0_u64..(1 << 45),
        1 => (1_u64..3).prop_map(|years| years * YEAR),
        1 => (0_u32..40, 0_u64..3).prop_map(|(bit, d)| (1_u64 << bit) + d - 1),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (distance(), any::<bool>()).prop_map(|(ahead, strong)| Act::Arm(ahead, strong)),
        3 => distance().prop_map(Act::Touch),
        2 => Just(Act::Pause),
        3 => Just(Act::Resume),
        2 => distance().prop_map(Act::MoveTo),
        1 => Just(Act::Cancel),
        1 => Just(Act::Replace),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..TIMERS, act()).prop_map(|(i, act)| Op::Do(i, act)),
        2 => (0..TIMERS, 0..TIMERS, act()).prop_map(|(i, other, act)| Op::OnFire(i, other, act)),
        3 => distance().prop_map(Op::Advance),
        3 => Just(Op::AdvanceToWake),
        2 => Just(Op::Deliver),
        1 => (0_usize..3).prop_map(Op::DeliverSome),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (
            prop_oneof![Just(30_u32), Just(36), Just(52), Just(61)],
            0_u64..3
        )
            .prop_map(|(bit, d)| (1 << bit) + d - 1),
        (0..YEAR).prop_map(|back| FAR - back),
    ]
}

proptest! {
    // A longer run: PROPTEST_CASES=100000.
    #[test]
    fn timers_agree_with_the_model(
        start in start(),
        ops in proptest::collection::vec(op(), 1..250),
    ) {
        let mut pair = Pair::at(start);
        for op in ops {
            pair.run(op);
        }
        pair.timers.clear();
        prop_assert_eq!(pair.rig.armed_count(), 0);
        prop_assert_eq!(pair.rig.deliver(), NONE);
    }
}
