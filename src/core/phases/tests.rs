//! The tracker's rules one by one, against a model, and under threads.

use super::*;
use crate::core::{
    clock::ManualTime,
    sync::{Arc, AtomicU32, Ordering, thread},
};
use proptest::prelude::*;
use std::sync::Barrier;

fn tracker(strict: bool) -> (Arc<ManualTime>, Tracker) {
    // Far from zero: restoring subtracts.
    let time = Arc::new(ManualTime::new(1_000_000));
    let tracker = Tracker::new(Clock::Manual(time.clone()), strict);
    (time, tracker)
}

fn pass(time: &ManualTime, ns: u64) {
    time.move_to(time.now() + ns);
}

fn state(phase: Phase, elapsed_ns: u64, seq: u64) -> State {
    State {
        phase,
        elapsed_ns,
        seq,
    }
}

fn borrow(tracker: &Tracker, phase: Phase, since: Since) -> Token {
    tracker.borrow(phase, since).result.unwrap()
}

#[test]
fn phases_lie_at_their_numbers() {
    for (index, phase) in Phase::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(phase.number()), index);
        assert_eq!(Phase::from_number(phase.number()), Some(phase));
        assert_eq!(phase.idle_counted(), matches!(index, 2 | 8));
    }
    assert_eq!(Phase::from_number(10), None);
}

#[test]
fn entering_the_same_phase_restarts_its_time() {
    let (time, tracker) = tracker(true);
    tracker.enter(Phase::AwaitingLlm).result.unwrap();
    pass(&time, 70);
    assert_eq!(tracker.current(), state(Phase::AwaitingLlm, 70, 1));

    let report = tracker.enter(Phase::AwaitingLlm);
    assert_eq!(
        report.change,
        Some(Change {
            before: state(Phase::AwaitingLlm, 70, 1),
            after: state(Phase::AwaitingLlm, 0, 2),
        })
    );
}

#[test]
fn borrowed_time_is_charged_only_with_keep() {
    for (since, expected) in [(Since::Pause, 10), (Since::Keep, 40)] {
        let (time, tracker) = tracker(true);
        tracker.enter(Phase::AwaitingLlm).result.unwrap();
        pass(&time, 10);
        let token = borrow(&tracker, Phase::AwaitingApproval, since);
        assert_eq!(tracker.current(), state(Phase::AwaitingApproval, 0, 2));
        pass(&time, 30);
        assert!(tracker.restore(token).result.unwrap());
        assert_eq!(tracker.current(), state(Phase::AwaitingLlm, expected, 3));
        pass(&time, 5);
        assert_eq!(tracker.current().elapsed_ns, expected + 5);
    }
}

#[test]
fn nested_transients_keep_their_own_rule() {
    let (time, tracker) = tracker(true);
    pass(&time, 1);
    let outer = borrow(&tracker, Phase::Compacting, Since::Keep);
    pass(&time, 10);
    let inner = borrow(&tracker, Phase::AwaitingApproval, Since::Pause);
    pass(&time, 100);
    tracker.restore(inner).result.unwrap();
    assert_eq!(tracker.current(), state(Phase::Compacting, 10, 3));
    tracker.restore(outer).result.unwrap();
    assert_eq!(tracker.current(), state(Phase::Init, 111, 4));
}

#[test]
fn restoring_twice_does_no_harm() {
    let (_, tracker) = tracker(true);
    let token = borrow(&tracker, Phase::Compacting, Since::Pause);
    assert!(tracker.restore(token).result.unwrap());
    let again = tracker.restore(token);
    assert!(!again.result.unwrap());
    assert_eq!(again.change, None);
    assert_eq!((tracker.seq(), tracker.depth()), (2, 0));
    assert!(!tracker.invalid());
}

#[test]
fn production_applies_an_enter_and_abandons_open_transients() {
    let (_, tracker) = tracker(false);
    let outer = borrow(&tracker, Phase::Compacting, Since::Pause);
    let inner = borrow(&tracker, Phase::AwaitingApproval, Since::Pause);
    let report = tracker.enter(Phase::Done);
    assert!(report.result.is_ok());
    assert_eq!(report.violation, tracker.violation());
    assert_eq!(
        tracker.violation().unwrap(),
        "phase done entered while awaiting_approval is still borrowed from compacting \
         (transients open: 2)"
    );
    assert_eq!(tracker.depth(), 0);
    for token in [inner, outer] {
        assert!(!tracker.restore(token).result.unwrap());
    }
    assert_eq!(tracker.current().phase, Phase::Done);
}

#[test]
fn production_restores_an_outer_phase_and_abandons_what_was_inside() {
    let (time, tracker) = tracker(false);
    pass(&time, 7);
    let outer = borrow(&tracker, Phase::Compacting, Since::Pause);
    let inner = borrow(&tracker, Phase::AwaitingApproval, Since::Pause);
    pass(&time, 50);
    assert!(tracker.restore(outer).result.unwrap());
    assert_eq!(tracker.current(), state(Phase::Init, 7, 3));
    assert_eq!(tracker.depth(), 0);
    assert!(tracker.invalid());
    assert!(!tracker.restore(inner).result.unwrap());
    assert_eq!(tracker.seq(), 3);
}

#[test]
fn strict_mode_refuses_before_anything_changes() {
    let (time, tracker) = tracker(true);
    let outer = borrow(&tracker, Phase::Compacting, Since::Pause);
    let inner = borrow(&tracker, Phase::AwaitingApproval, Since::Pause);
    pass(&time, 9);
    tracker.take_dirty();
    let before = tracker.current();
    let first = tracker.restore(outer);
    assert!(first.violation.is_some());
    for result in [
        first.result.map(drop),
        tracker.enter(Phase::Done).result,
        tracker.assert_clean().result,
    ] {
        assert!(matches!(result, Err(Error::Violation(_))));
        assert_eq!(tracker.current(), before);
        assert_eq!(tracker.depth(), 2);
        assert!(!tracker.dirty());
        // Only the first text is kept.
        assert!(tracker.violation().unwrap().contains("given back"));
    }
    // The right order still works, and the tracker stays invalid.
    assert!(tracker.restore(inner).result.unwrap());
    assert!(tracker.restore(outer).result.unwrap());
    assert!(tracker.invalid());
}

#[test]
fn assert_clean_leaves_everything_in_place() {
    let (_, tracker) = tracker(false);
    assert!(tracker.assert_clean().violation.is_none());
    let token = borrow(&tracker, Phase::Compacting, Since::Pause);
    let report = tracker.assert_clean();
    assert!(report.result.is_ok());
    assert_eq!(
        report.violation.unwrap(),
        "the run ended with phases still borrowed: compacting"
    );
    assert!(tracker.assert_clean().violation.is_none());
    assert!(tracker.restore(token).result.unwrap());
}

#[test]
fn strict_assert_clean_shows_a_swallowed_violation() {
    let (_, tracker) = tracker(true);
    let token = borrow(&tracker, Phase::Compacting, Since::Pause);
    let swallowed = tracker.enter(Phase::Done).result.unwrap_err();
    tracker.restore(token).result.unwrap();
    let report = tracker.assert_clean();
    assert_eq!(report.result, Err(swallowed));
    assert_eq!(report.violation, None);
}

#[test]
fn every_transition_is_dirty_and_a_peek_is_not_a_take() {
    let (_, tracker) = tracker(true);
    assert!(!tracker.dirty());
    tracker.enter(Phase::Setup).result.unwrap();
    assert!(tracker.dirty() && tracker.dirty() && tracker.take_dirty() && !tracker.take_dirty());
    let token = borrow(&tracker, Phase::Compacting, Since::Keep);
    assert!(tracker.take_dirty());
    tracker.restore(token).result.unwrap();
    assert!(tracker.take_dirty());
    tracker.restore(token).result.unwrap();
    assert!(!tracker.dirty());
    tracker.mark_dirty();
    assert!(tracker.take_dirty());
}

/// The plainest thing that could be right: a pile of phases, each with a stopwatch that is moved by hand.
/// A covered one runs only if the phase right above it was borrowed with `Keep`.
struct Model {
    strict: bool,
    pile: Vec<(Phase, u64, Since, usize)>,
    seq: u64,
    issued: usize,
    invalid: bool,
}

impl Model {
    fn pass(&mut self, ns: u64) {
        for at in 0..self.pile.len() {
            let above = self.pile.get(at + 1);
            if above.is_none_or(|above| above.2 == Since::Keep) {
                self.pile[at].1 += ns;
            }
        }
    }

    fn state(&self) -> State {
        let top = self.pile.last().unwrap();
        state(top.0, top.1, self.seq)
    }

    /// Whether the operation goes ahead.
    fn fault(&mut self, fault: bool) -> bool {
        self.invalid |= fault;
        !(fault && self.strict)
    }

    fn enter(&mut self, phase: Phase) -> bool {
        let ahead = self.fault(self.pile.len() > 1);
        if ahead {
            self.pile = vec![(phase, 0, Since::Pause, 0)];
            self.seq += 1;
        }
        ahead
    }

    fn borrow(&mut self, phase: Phase, since: Since) {
        self.issued += 1;
        self.pile.push((phase, 0, since, self.issued));
        self.seq += 1;
    }

    fn restore(&mut self, id: usize) -> Option<bool> {
        let Some(at) = self.pile.iter().position(|level| level.3 == id) else {
            return Some(false);
        };
        if !self.fault(at + 1 < self.pile.len()) {
            return None;
        }
        self.pile.truncate(at);
        self.seq += 1;
        Some(true)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enter(Phase),
    Borrow(Phase, Since),
    /// Restores the token issued this many borrows ago; spent ones too.
    Restore(usize),
    Pass(u64),
    AssertClean,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let phase = || (0..10u8).prop_map(|number| Phase::from_number(number).unwrap());
    let since = prop_oneof![Just(Since::Pause), Just(Since::Keep)];
    let step = prop_oneof![
        2 => phase().prop_map(Step::Enter),
        4 => (phase(), since).prop_map(|(phase, since)| Step::Borrow(phase, since)),
        // Mostly the innermost, or every run would soon be invalid.
        5 => prop_oneof![6 => Just(0usize), 1 => 1..5usize].prop_map(Step::Restore),
        4 => (0..1_000u64).prop_map(Step::Pass),
        1 => Just(Step::AssertClean),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn the_tracker_does_what_the_model_does(strict: bool, steps in steps()) {
        let (time, tracker) = tracker(strict);
        let mut model = Model {
            strict,
            pile: vec![(Phase::Init, 0, Since::Pause, 0)],
            seq: 0,
            issued: 0,
            invalid: false,
        };
        let mut tokens = Vec::new();
        let mut first = None;
        for step in steps {
            let before = tracker.current();
            let (change, violation) = match step {
                Step::Enter(phase) => {
                    let report = tracker.enter(phase);
                    prop_assert_eq!(report.result.is_ok(), model.enter(phase));
                    (report.change, report.violation)
                }
                Step::Borrow(phase, since) => {
                    model.borrow(phase, since);
                    let report = tracker.borrow(phase, since);
                    tokens.push(report.result.unwrap());
                    (report.change, report.violation)
                }
                Step::Restore(ago) => {
                    let Some(at) = tokens.len().checked_sub(ago + 1) else { continue };
                    let report = tracker.restore(tokens[at]);
                    prop_assert_eq!(report.result.ok(), model.restore(at + 1));
                    (report.change, report.violation)
                }
                Step::Pass(ns) => {
                    pass(&time, ns);
                    model.pass(ns);
                    continue;
                }
                Step::AssertClean => {
                    let report = tracker.assert_clean();
                    let ahead = model.fault(model.pile.len() > 1);
                    prop_assert_eq!(report.result.is_ok(), ahead && !(strict && model.invalid));
                    (report.change, report.violation)
                }
            };
            if let Some(change) = change {
                prop_assert_eq!(change.before, before);
                prop_assert_eq!(change.after, tracker.current());
            }
            // Reported once, kept for good.
            prop_assert!(first.is_none() || violation.is_none());
            first = first.or(violation);
            prop_assert_eq!(&tracker.violation(), &first);
            prop_assert_eq!(tracker.invalid(), model.invalid);
            prop_assert_eq!(tracker.current(), model.state());
            prop_assert_eq!(tracker.depth(), model.pile.len() - 1);
        }
    }
}

#[test]
fn readers_never_see_a_torn_triple() {
    const ROUNDS: u64 = 20_000;
    let time = Arc::new(ManualTime::new(0));
    let tracker = Tracker::new(Clock::Manual(time.clone()), true);
    let done = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while done.load(Ordering::Acquire) == 0 {
                    let seen = tracker.current();
                    // The writer enters phase n % 10 as number n at moment 1000 n, and moves the clock
                    // to the next moment just before the next phase.
                    assert_eq!(u64::from(seen.phase.number()), seen.seq % 10);
                    assert!(seen.elapsed_ns == 0 || seen.elapsed_ns == 1_000);
                    assert!(seen.seq >= last);
                    last = seen.seq;
                }
            });
        }
        for round in 1..=ROUNDS {
            time.move_to(round * 1_000);
            let phase = Phase::ALL[usize::try_from(round % 10).unwrap()];
            tracker.enter(phase).result.unwrap();
        }
        done.store(1, Ordering::Release);
    });
    assert_eq!(tracker.seq(), ROUNDS);
}

#[test]
fn of_two_threads_that_restore_exactly_one_wins() {
    for _ in 0..200 {
        let (_, tracker) = tracker(true);
        let token = borrow(&tracker, Phase::Compacting, Since::Pause);
        let start = Barrier::new(2);
        let restore = || {
            start.wait();
            tracker.restore(token).result.unwrap()
        };
        let wins = thread::scope(|scope| {
            let (a, b) = (scope.spawn(restore), scope.spawn(restore));
            [a.join().unwrap(), b.join().unwrap()]
        });
        assert!(wins[0] ^ wins[1]);
        assert_eq!((tracker.seq(), tracker.depth()), (2, 0));
    }
}
