//! The core: plain Rust, no Python.
//!
//! Layers, each of which may only use those to its right:
//! `driver -> timer, phases, stats -> wheel -> clock, error, sync`.

pub mod clock;
pub mod error;
pub mod sync;
pub mod wheel;
