//! `stallwatch`: every wait of an agent turn gets an owner and its own clock.
//!
//! [`core`] knows no Python. The `python` feature adds `py`, the thin binding that becomes
//! `stallwatch._stallwatch`.

pub mod core;
#[cfg(feature = "python")]
mod py;
