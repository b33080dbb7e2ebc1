//! The core: plain Rust, no Python.
//!
//! Layers, each of which may only use those to its right:
//! `child -> driver, timer -> shard, phases, stream -> wheel, state, stats, gaps -> clock, error, sync`.

#[cfg(all(target_os = "linux", not(loom)))]
pub mod child;
pub mod clock;
pub mod driver;
pub mod error;
pub mod gaps;
pub mod phases;
pub mod shard;
pub mod state;
pub mod stats;
pub mod stream;
pub mod sync;
pub mod timer;
pub mod wheel;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
