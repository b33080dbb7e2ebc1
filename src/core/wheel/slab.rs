//! Storage for wheel entries: chunks at stable addresses, keys instead of pointers, memory given back.

use crate::core::sync::{
    AtomicU32, AtomicU64,
    locked::{Cell16, Cell32, CellPtr},
};
use std::sync::Arc;

/// No entry.
pub const NIL: u32 = u32::MAX;
/// Not in any slot.
pub const NOWHERE: u16 = u16::MAX;

#[cfg(not(loom))]
const CHUNK_SHIFT: u32 = 10;
#[cfg(loom)]
const CHUNK_SHIFT: u32 = 1;
const CHUNK: u32 = 1 << CHUNK_SHIFT;

/// One timer's cell: 40 bytes. `due` and `state` belong to `timer`, which says who may touch them;
/// everything else is touched under the shard's lock only.
#[derive(Debug)]
pub struct Entry {
    /// The true deadline, in nanoseconds, with the paused mark in bit 63.
    pub due: AtomicU64,
    /// What the timer stands for; opaque to the core.
    pub payload: CellPtr,
    /// Number of the arm: orders equal deadlines, and tells a queued fire from a later arm.
    pub seq: Cell32,
    /// This entry's key.
    pub index: u32,
    /// One of the states of `timer`.
    pub state: AtomicU32,
    pub(super) prev: Cell32,
    pub(super) next: Cell32,
    pub(super) place: Cell16,
}

impl Entry {
    fn new(index: u32, next_free: u32) -> Self {
        Self {
            due: AtomicU64::new(0),
            payload: CellPtr::new(0),
            seq: Cell32::new(0),
            index,
            state: AtomicU32::new(0),
            prev: Cell32::new(NIL),
            next: Cell32::new(next_free),
            place: Cell16::new(NOWHERE),
        }
    }

    /// Makes it belong to no slot, when the wheel it was filed in is gone.
    pub fn forget_place(&self) {
        self.place.set(NOWHERE);
        self.prev.set(NIL);
        self.next.set(NIL);
    }

    /// Whether the wheel holds it.
    #[must_use]
    pub fn is_filed(&self) -> bool {
        self.place.get() != NOWHERE
    }
}

#[derive(Debug)]
struct Chunk {
    /// `None` once given back. An `Arc`, as a handle's pointer must survive moves of the owner.
    entries: Option<Arc<[Entry]>>,
    free: u32,
    live: u32,
    /// Position in `available`, or `NIL` when no slot is free.
    position: u32,
}

/// Entries by key. A freed key is used again; a chunk without live entries is given back, but for one.
#[derive(Debug, Default)]
pub struct Slab {
    chunks: Vec<Chunk>,
    available: Vec<u32>,
    vacant: Vec<u32>,
    live: usize,
    /// The most chunks at once since the memory allocator was last told to give memory back.
    peak: usize,
}

impl Slab {
    /// How many entries are handed out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether none is handed out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// How many entries the memory in use could hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        (self.chunks.len() - self.vacant.len()) * CHUNK as usize
    }

    /// The entry of a key that is handed out.
    ///
    /// # Panics
    /// If the key never existed or its chunk was given back.
    #[must_use]
    pub fn entry(&self, key: u32) -> &Entry {
        self.get(key).expect("key of a live entry")
    }

    /// The entry of a key, if its memory is still there. It may have been handed out anew since.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&Entry> {
        let chunk = self.chunks.get((key >> CHUNK_SHIFT) as usize)?;
        chunk.entries.as_ref()?.get((key & (CHUNK - 1)) as usize)
    }

    /// Hands out an entry. Its address stays until [`Slab::release`].
    pub fn acquire(&mut self) -> &Entry {
        let id = match self.available.last() {
            Some(&id) => id,
            None => self.add_chunk(),
        };
        let chunk = &mut self.chunks[id as usize];
        let entries = chunk
            .entries
            .as_ref()
            .expect("an available chunk has memory");
        let entry = &entries[(chunk.free & (CHUNK - 1)) as usize];
        chunk.free = entry.next.get();
        chunk.live += 1;
        self.live += 1;
        entry.next.set(NIL);
        if chunk.free == NIL {
            chunk.position = NIL;
            self.available.pop();
        }
        entry
    }

    /// Takes an entry back. It must be in no slot. True if so much memory has been given back since the
    /// last time that it is worth telling the memory allocator.
    pub fn release(&mut self, key: u32) -> bool {
        let id = key >> CHUNK_SHIFT;
        let chunk = &mut self.chunks[id as usize];
        let Some(entries) = chunk.entries.as_ref() else {
            return false;
        };
        let entry = &entries[(key & (CHUNK - 1)) as usize];
        debug_assert!(!entry.is_filed(), "released while filed");
        entry.next.set(chunk.free);
        chunk.free = key;
        chunk.live -= 1;
        self.live -= 1;
        if chunk.position == NIL {
            chunk.position = self.available.len() as u32;
            self.available.push(id);
        }
        if chunk.live == 0 && self.available.len() > 1 {
            self.give_back(id);
            return self.has_shrunk();
        }
        false
    }

    /// Keys of all entries that have memory; the caller tells the live ones by their state.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks
            .iter()
            .filter_map(|chunk| chunk.entries.as_ref())
            .flat_map(|e| e.iter())
    }

    fn has_shrunk(&mut self) -> bool {
        const MANY: usize = 256;
        let chunks = self.chunks.len() - self.vacant.len();
        self.peak = self.peak.max(chunks);
        let shrunk = self.peak >= MANY && chunks <= self.peak / 16;
        if shrunk {
            self.peak = chunks;
        }
        shrunk
    }

    fn add_chunk(&mut self) -> u32 {
        let id = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        let base = id << CHUNK_SHIFT;
        let entries = (0..CHUNK)
            .map(|i| Entry::new(base + i, if i + 1 == CHUNK { NIL } else { base + i + 1 }))
            .collect();
        let position = self.available.len() as u32;
        let chunk = Chunk {
            entries: Some(entries),
            free: base,
            live: 0,
            position,
        };
        if id as usize == self.chunks.len() {
            self.chunks.push(chunk);
        } else {
            self.chunks[id as usize] = chunk;
        }
        self.available.push(id);
        self.peak = self.peak.max(self.chunks.len() - self.vacant.len());
        id
    }

    fn give_back(&mut self, id: u32) {
        let position = self.chunks[id as usize].position as usize;
        self.available.swap_remove(position);
        if let Some(&moved) = self.available.get(position) {
            self.chunks[moved as usize].position = position as u32;
        }
        let chunk = &mut self.chunks[id as usize];
        chunk.entries = None;
        chunk.position = NIL;
        self.vacant.push(id);
        if self.chunks.len() == self.vacant.len() {
            self.chunks = Vec::new();
            self.vacant = Vec::new();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_forty_bytes() {
        assert_eq!(size_of::<Entry>(), 40);
    }

    #[test]
    fn keys_are_unique_and_memory_comes_back() {
        let mut slab = Slab::default();
        let keys: Vec<u32> = (0..100_000).map(|_| slab.acquire().index).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), keys.len());
        assert_eq!(slab.len(), 100_000);
        for key in keys {
            slab.release(key);
        }
        assert!(slab.is_empty());
        assert!(
            slab.capacity() <= CHUNK as usize,
            "all but one chunk is given back"
        );
    }

    #[test]
    fn a_released_key_is_used_again() {
        let mut slab = Slab::default();
        let first = slab.acquire().index;
        slab.release(first);
        assert_eq!(slab.acquire().index, first);
        assert_eq!(slab.capacity(), CHUNK as usize);
    }

    #[test]
    fn random_churn_keeps_the_books() {
        let mut slab = Slab::default();
        let mut held = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if seed >> 63 == 0 || held.is_empty() {
                held.push(slab.acquire().index);
            } else {
                let at = (seed >> 33) as usize % held.len();
                slab.release(held.swap_remove(at));
            }
            assert_eq!(slab.len(), held.len());
        }
        assert!(slab.capacity() >= held.len());
    }
}
