//! The core: plain Rust, no Python.
//!
//! Layers, each of which may only use those to its right:
//! `driver -> timer, wheel, phases, stats -> clock, error, sync`.
