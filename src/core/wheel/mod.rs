//! A hierarchical timing wheel: pure data. It knows ticks and entries, never reads a clock, and asks
//! nothing of its entries but their links.
//!
//! Level `L` has 64 slots of `64^L` ticks. An entry lies at the level of the highest base-64 digit in
//! which its tick differs from `elapsed`; so within a level every filed slot is ahead of the current
//! one, nothing wraps, and eleven levels reach the whole of `u64`. Ticks that have already come go to
//! the `READY` slot.
//!
//! [`Wheel::pop`] hands out entries slot by slot. The caller looks at the true deadline and either takes
//! the entry or inserts it again: this is the cascade and the lazy re-filing of touched timers in one.

#[cfg(all(test, not(loom)))]
mod model;
mod slab;

pub use slab::{Entry, NIL, NOWHERE, Slab};

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 11;
const READY: u16 = (LEVELS * SLOTS) as u16;

#[derive(Debug, Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
}

/// The wheel. See the module.
#[derive(Debug)]
pub struct Wheel {
    elapsed: u64,
    filed: usize,
    /// The slot that has begun and is being emptied. It is left before any other slot is looked at, as
    /// what comes out of it may be filed again at a lower level. Nothing is ever filed into it.
    begun: u16,
    /// Bit `L` is set when level `L` holds anything.
    levels: u16,
    occupied: [u64; LEVELS],
    slots: Box<[Slot]>,
}

impl Wheel {
    /// An empty wheel that stands at `tick`.
    #[must_use]
    pub fn new(tick: u64) -> Self {
        let empty = Slot {
            head: NIL,
            tail: NIL,
        };
        Self {
            elapsed: tick,
            filed: 0,
            begun: READY,
            levels: 0,
            occupied: [0; LEVELS],
            slots: vec![empty; LEVELS * SLOTS + 1].into_boxed_slice(),
        }
    }

    /// How many entries are filed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filed
    }

    /// Whether no entry is filed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filed == 0
    }

    /// The tick it stands at: all entries filed under earlier ones have been handed out.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.elapsed
    }

    /// Files an entry under `tick`, behind all that are there already.
    pub fn insert(&mut self, slab: &Slab, key: u32, tick: u64) {
        let place = self.place(tick);
        let entry = slab.entry(key);
        debug_assert!(!entry.is_filed(), "filed twice");
        let slot = &mut self.slots[place as usize];
        entry.place.set(place);
        entry.next.set(NIL);
        entry.prev.set(slot.tail);
        if slot.tail == NIL {
            slot.head = key;
            self.mark(place);
        } else {
            slab.entry(slot.tail).next.set(key);
        }
        self.slots[place as usize].tail = key;
        self.filed += 1;
    }

    /// Takes an entry out; nothing happens if it is not filed.
    pub fn remove(&mut self, slab: &Slab, key: u32) {
        let entry = slab.entry(key);
        let place = entry.place.get();
        if place == NOWHERE {
            return;
        }
        let (prev, next) = (entry.prev.get(), entry.next.get());
        let slot = &mut self.slots[place as usize];
        if prev == NIL {
            slot.head = next;
        } else {
            slab.entry(prev).next.set(next);
        }
        if next == NIL {
            slot.tail = prev;
        } else {
            slab.entry(next).prev.set(prev);
        }
        let empty = slot.head == NIL;
        entry.place.set(NOWHERE);
        entry.prev.set(NIL);
        entry.next.set(NIL);
        self.filed -= 1;
        if empty {
            self.unmark(place);
        }
    }

    /// The next entry whose slot has begun by `now`, taken out of the wheel, or `None` once there is
    /// none; the wheel then stands at `now`. The entry may be due later than `now` (its slot is wide, or
    /// it was touched): insert it again then. A `now` behind the wheel counts as the wheel's own time.
    pub fn pop(&mut self, slab: &Slab, now: u64) -> Option<u32> {
        let now = now.max(self.elapsed);
        if self.slots[self.begun as usize].head == NIL {
            self.begun = READY;
            if self.slots[READY as usize].head == NIL {
                let Some((start, place)) = self.next_slot().filter(|&(start, _)| start <= now)
                else {
                    self.elapsed = now;
                    return None;
                };
                self.elapsed = self.elapsed.max(start);
                self.begun = place;
            }
        }
        let key = self.slots[self.begun as usize].head;
        self.remove(slab, key);
        Some(key)
    }

    /// Moves the wheel's own time on to `now`, if nothing has begun by then. Entries filed from here on
    /// land at the level of their real distance.
    pub fn catch_up(&mut self, now: u64) {
        if now > self.elapsed && self.next_tick().is_none_or(|next| next > now) {
            self.elapsed = now;
            // It is empty; at the new time it may be a slot of the future.
            self.begun = READY;
        }
    }

    /// The tick at which the wheel has to be looked at next.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        if self.slots[READY as usize].head != NIL || self.slots[self.begun as usize].head != NIL {
            return Some(self.elapsed);
        }
        self.next_slot().map(|(start, _)| start)
    }

    fn next_slot(&self) -> Option<(u64, u16)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros();
        let slot = self.occupied[level as usize].trailing_zeros();
        let shift = level * BITS;
        // The digits above this level are those of `elapsed`, those below are zero.
        let above = self.elapsed.checked_shr(shift + BITS).unwrap_or(0);
        let above = above.checked_shl(shift + BITS).unwrap_or(0);
        Some((
            above | (u64::from(slot) << shift),
            (level * SLOTS as u32 + slot) as u16,
        ))
    }

    fn place(&self, tick: u64) -> u16 {
        if tick <= self.elapsed {
            return READY;
        }
        let level = (63 - (tick ^ self.elapsed).leading_zeros()) / BITS;
        let slot = (tick >> (level * BITS)) as usize & (SLOTS - 1);
        (level as usize * SLOTS + slot) as u16
    }

    fn mark(&mut self, place: u16) {
        if place != READY {
            let (level, slot) = (place as usize / SLOTS, place as usize % SLOTS);
            self.occupied[level] |= 1 << slot;
            self.levels |= 1 << level;
        }
    }

    fn unmark(&mut self, place: u16) {
        if place != READY {
            let (level, slot) = (place as usize / SLOTS, place as usize % SLOTS);
            self.occupied[level] &= !(1 << slot);
            if self.occupied[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }
}
