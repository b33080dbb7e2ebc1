//! A day of virtual time with a million random operations on thousands of timers, beside an ordered set.

use super::*;
use std::collections::BTreeSet;

const TIMERS: usize = 10_000;
const OPERATIONS: usize = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

/// A small generator, so that a failure can be run again from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// From nanoseconds to hours, every order of magnitude as likely as any other.
    fn distance(&mut self) -> u64 {
        let bits = self.below(44);
        self.below((1 << bits) + 1)
    }
}

/// What is armed, by deadline and then by the order of arming.
#[derive(Default)]
struct Model {
    queue: BTreeSet<(u64, u64, usize)>,
    places: Vec<Option<(u64, u64)>>,
    seq: u64,
}

impl Model {
    fn arm(&mut self, i: usize, due: u64) {
        self.take(i);
        self.seq += 1;
        self.place(i, due, self.seq);
    }

    fn place(&mut self, i: usize, due: u64, seq: u64) {
        self.queue.insert((due, seq, i));
        self.places[i] = Some((due, seq));
    }

    fn take(&mut self, i: usize) -> Option<(u64, u64)> {
        let place = self.places[i].take();
        if let Some((due, seq)) = place {
            assert!(self.queue.remove(&(due, seq, i)));
        }
        place
    }

    fn due(&mut self, now: u64) -> Vec<usize> {
        let mut due = Vec::new();
        while let Some(&(at, _, i)) = self.queue.first()
            && at <= now
        {
            self.take(i);
            due.push(i);
        }
        due
    }
}

#[test]
fn a_day_with_a_million_operations_fires_what_the_model_fires() {
    let mut dice = Dice(0x5eed_0fad_a400_0001);
    let start = 12 * DAY + 7;
    let rig = Rig::at(start);
    let timers: Vec<_> = (0..TIMERS).map(|i| rig.timer(i)).collect();
    let mut model = Model {
        places: vec![None; TIMERS],
        ..Model::default()
    };
    let (mut now, mut fired) = (start, 0);
    for operation in 1..=OPERATIONS {
        let i = usize::try_from(dice.below(TIMERS as u64)).unwrap();
        match dice.below(10) {
            0..4 => {
                let due = now + dice.distance();
                timers[i].arm(due, 0).unwrap();
                model.arm(i, due);
            }
            4..6 => {
                // A touch never makes a deadline earlier, and keeps the place among equals.
                if let Some((due, seq)) = model.take(i) {
                    let later = due.max(now + dice.distance());
                    timers[i].touch(later);
                    model.place(i, later, seq);
                }
            }
            6 => {
                let due = now + dice.distance();
                timers[i].move_to(due);
                if let Some((_, seq)) = model.take(i) {
                    model.place(i, due, seq);
                }
            }
            7 => assert_eq!(timers[i].cancel().is_some(), model.take(i).is_some()),
            _ => {
                let end = DAY / OPERATIONS as u64 * operation as u64;
                now = now.max(start + end - dice.below(SECOND).min(end));
                let expected = model.due(now);
                assert_eq!(rig.advance(now), expected, "after operation {operation}");
                fired += expected.len() as u64;
            }
        }
    }
    now = start + 2 * DAY;
    let rest = model.due(now);
    assert_eq!(rig.advance(now), rest);
    assert!(model.queue.is_empty());
    assert_eq!(rig.armed_count(), 0);
    assert_eq!(rig.shard.stats().fired, fired + rest.len() as u64);
    assert!(
        fired > 100_000,
        "a day in which next to nothing happens proves nothing: {fired}"
    );
}
