//! The states of an entry, and the ground rules of everything that touches one.
//!
//! # Ground rules
//!
//! An entry ([`super::wheel::Entry`]) has two shared words. Everything else in it belongs to whoever holds the shard's lock.
//!
//! `due` (nanoseconds; bit 63 = [`PAUSED`], the rest then is what was left)
//! : written by the owner at any time, without a lock; read by the driver when it visits the entry and
//!   by the delivery before it runs anything. An owner that moves `due` later (every touch does) tells
//!   nobody: the entry stays filed under an older, earlier tick and is filed anew at the next visit. So
//!   *the tick an entry is filed under is never later than its due*, and one entry is enough however
//!   often it is touched. Moving `due` earlier than it last was (`Timer::move_to`) is the one move
//!   that takes the lock and files at once.
//!
//! `state` (low bits: one of the below; [`STRONG`] is a note of the binding's)
//! : written under the lock only; read without it by `Timer::resume_at`.
//!   - `IDLE`: never armed, fired and delivered, or cancelled.
//!   - `ARMED`: filed in the wheel.
//!   - `PARKED`: a visit found it paused and took it out of the wheel; resuming files it.
//!   - `FIRED`: found due, and queued for delivery. The queue names the entry by key and arm number, so
//!     a cancel or a drop needs not search the queue.
//!
//! Races, and what settles each:
//! - touch against visit: the visit may read an old `due` and queue the fire. The delivery reads `due`
//!   again: moved on, it is rescued (filed again) and never runs.
//! - resume against visit: the visit stores `PARKED`, then reads `due` again; resuming stores `due`,
//!   then reads `state`. Both orders are sequentially consistent, so at least one of them sees the
//!   other, and filing is done under the lock by whoever comes first.
//! - cancel against fire: both under the lock. A cancel that returned `true` means the callback never
//!   runs, even if the fire was queued already.
//! - drop against the queue: the slot is released under the lock with state `IDLE`; a queued fire then
//!   names an idle entry, or one with another arm number, and is passed over.

/// Bit 63 of `due`: the clock stands still, and the low bits say what was left of it.
pub const PAUSED: u64 = 1 << 63;

/// Never armed, fired and delivered, or cancelled.
pub const IDLE: u32 = 0;
/// Filed in the wheel.
pub const ARMED: u32 = 1;
/// Paused, and out of the wheel.
pub const PARKED: u32 = 2;
/// Found due, and queued for delivery.
pub const FIRED: u32 = 3;
/// Mask of the states.
pub const STATE: u32 = 7;
/// The binding holds a reference to the payload while the timer is not idle.
pub const STRONG: u32 = 8;

/// The payload of a timer that runs before there is anybody to call: its fire waits for another payload.
pub const NOBODY: usize = usize::MAX;
