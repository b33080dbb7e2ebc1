//! The wheel against an ordered map.

// clippy.toml allows this in tests, but does not see that this is one.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A wheel whose entries carry their tick in `due`, beside the plainest thing that could be right.
struct Pair {
    slab: Slab,
    wheel: Wheel,
    model: BTreeMap<(u64, u32), u32>,
    now: u64,
    seq: u32,
}

impl Pair {
    fn new(start: u64) -> Self {
        let (slab, wheel) = (Slab::default(), Wheel::new(start));
        Self {
            slab,
            wheel,
            model: BTreeMap::new(),
            now: start,
            seq: 0,
        }
    }

    fn insert(&mut self, tick: u64) -> (u64, u32) {
        self.seq += 1;
        let entry = self.slab.acquire();
        entry.due.store(tick, std::sync::atomic::Ordering::Relaxed);
        entry.seq.set(self.seq);
        let key = entry.index;
        self.wheel.insert(&self.slab, key, tick);
        self.model.insert((tick, self.seq), key);
        (tick, self.seq)
    }

    fn remove(&mut self, id: (u64, u32)) {
        if let Some(key) = self.model.remove(&id) {
            self.wheel.remove(&self.slab, key);
            self.slab.release(key);
        }
    }

    fn due(&self, key: u32) -> u64 {
        self.slab
            .entry(key)
            .due
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Advances both, and compares what came due and in which order.
    fn advance(&mut self, to: u64) {
        self.now = self.now.max(to);
        let mut fired = Vec::new();
        while let Some(key) = self.wheel.pop(&self.slab, self.now) {
            let due = self.due(key);
            if due > self.now {
                self.wheel.insert(&self.slab, key, due);
            } else {
                fired.push((due, self.slab.entry(key).seq.get()));
                self.slab.release(key);
            }
        }
        fired.sort_unstable();
        let expected: Vec<_> = self
            .model
            .keys()
            .copied()
            .take_while(|&(tick, _)| tick <= self.now)
            .collect();
        for id in &expected {
            self.model.remove(id);
        }
        assert_eq!(fired, expected);
        assert_eq!(self.wheel.len(), self.model.len());
        if let Some((&(tick, _), _)) = self.model.first_key_value() {
            let next = self.wheel.next_tick().unwrap();
            assert!(
                next > self.now && next <= tick,
                "{} < {next} <= {tick}",
                self.now
            );
        } else {
            assert_eq!(self.wheel.next_tick(), None);
        }
    }
}

#[test]
fn every_level_border_fires_on_its_tick() {
    for start in [0, 1, 63, 64, 12_345] {
        for level in 0..10 {
            for base in [1_u64 << (6 * level), 63 << (6 * level)] {
                for delta in [-1_i64, 0, 1] {
                    let mut pair = Pair::new(start);
                    let tick = start.saturating_add(base).saturating_add_signed(delta);
                    pair.insert(tick);
                    if tick > start {
                        pair.advance(tick - 1);
                        assert_eq!(pair.model.len(), 1, "early: {start} {tick}");
                    }
                    pair.advance(tick);
                    assert!(pair.model.is_empty(), "late: {start} {tick}");
                }
            }
        }
    }
}

#[test]
fn starts_at_the_edges_of_uptime() {
    // tokio#8334: a wheel that wrapped after days of uptime. Two ticks in u64 are left at the last edge.
    for edge in [1_u64 << 30, 1 << 36, 1 << 46, 1 << 63, u64::MAX] {
        for back in [2, 1, 0] {
            let start = edge - back;
            let mut pair = Pair::new(start);
            for ahead in [0, 1, 2, 3, 63, 64, 65, 4_095, 4_096, 1 << 20] {
                pair.insert(start.saturating_add(ahead));
            }
            for step in [0, 1, 2, 3, 64, 4_096, 1 << 21] {
                pair.advance(start.saturating_add(step));
            }
            assert!(pair.model.is_empty());
        }
    }
}

#[test]
fn an_empty_wheel_jumps_hours_in_one_step() {
    let mut pair = Pair::new(5);
    pair.advance(3_600 * 4_000 * 24);
    pair.insert(3_600 * 4_000 * 24 + 7);
    pair.advance(3_600 * 4_000 * 24 + 6);
    assert_eq!(pair.model.len(), 1);
    pair.advance(3_600 * 4_000 * 24 + 7);
}

#[test]
fn equal_ticks_leave_first_in_first_out_after_sorting_by_arm() {
    let mut pair = Pair::new(0);
    for _ in 0..1_000 {
        pair.insert(70);
    }
    pair.advance(69);
    for _ in 0..1_000 {
        pair.insert(70);
    }
    pair.advance(70);
}

#[test]
fn a_tick_that_has_come_is_ready_at_once() {
    // tokio#2473: elapsed == when.
    let mut pair = Pair::new(100);
    pair.insert(100);
    pair.insert(3);
    assert_eq!(pair.wheel.next_tick(), Some(100));
    pair.advance(100);
}

#[test]
fn an_entry_left_in_a_begun_slot_is_not_forgotten() {
    // Two entries share a slot of level 1; the first goes down to level 0, the second is due now.
    let (mut slab, mut wheel) = (Slab::default(), Wheel::new(0));
    let (a, b) = (slab.acquire().index, slab.acquire().index);
    wheel.insert(&slab, a, 100);
    wheel.insert(&slab, b, 64);
    assert_eq!(wheel.pop(&slab, 64), Some(a));
    wheel.insert(&slab, a, 100);
    assert_eq!(wheel.next_tick(), Some(64));
    assert_eq!(wheel.pop(&slab, 64), Some(b));
    assert_eq!(wheel.pop(&slab, 99), None);
    assert_eq!(wheel.pop(&slab, 100), Some(a));
}

#[test]
fn time_that_goes_back_is_clamped() {
    let mut pair = Pair::new(1_000);
    pair.insert(1_010);
    assert_eq!(pair.wheel.pop(&pair.slab, 10), None);
    pair.advance(1_010);
}

#[test]
fn a_slot_that_was_emptied_is_an_ordinary_slot_again() {
    // The slot that has begun is empty, the wheel moves on by a whole turn of it, and an entry lands in
    // the same slot: it must wait for its tick. (It once came at once, and again for ever.)
    let (mut slab, mut wheel) = (Slab::default(), Wheel::new(0));
    let key = slab.acquire().index;
    wheel.insert(&slab, key, 1);
    assert_eq!(wheel.pop(&slab, 1), Some(key));
    wheel.catch_up(64);
    wheel.insert(&slab, key, 65);
    assert_eq!(wheel.next_tick(), Some(65));
    assert_eq!(wheel.pop(&slab, 64), None);
    assert_eq!(wheel.pop(&slab, 65), Some(key));
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64),
    Remove(usize),
    Advance(u64),
    AdvanceToNext,
}

fn op() -> impl Strategy<Value = Op> {
    let distance = prop_oneof![
        0_u64..200,
        0_u64..(1 << 14),
        0_u64..(1 << 40),
        (0_u32..46, -2_i64..3).prop_map(|(bit, d)| (1_u64 << bit).saturating_add_signed(d)),
    ];
    prop_oneof![
        4 => distance.clone().prop_map(Op::Insert),
        2 => any::<usize>().prop_map(Op::Remove),
        2 => distance.prop_map(Op::Advance),
        2 => Just(Op::AdvanceToNext),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    #[test]
    fn random_operations_agree_with_the_model(
        start in prop_oneof![Just(0_u64), any::<u32>().prop_map(u64::from), (30_u32..64).prop_map(|b| (1_u64 << b) - 1)],
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(start);
        let mut ids = Vec::new();
        for op in ops {
            match op {
                Op::Insert(ahead) => ids.push(pair.insert(pair.now.saturating_add(ahead))),
                Op::Remove(at) if !ids.is_empty() => {
                    let id = ids.swap_remove(at % ids.len());
                    pair.remove(id);
                }
                Op::Remove(_) => {}
                Op::Advance(by) => pair.advance(pair.now.saturating_add(by)),
                Op::AdvanceToNext => {
                    if let Some(tick) = pair.wheel.next_tick() {
                        pair.advance(tick);
                    }
                }
            }
        }
        pair.advance(u64::MAX);
        prop_assert_eq!(pair.wheel.len(), 0);
    }
}
