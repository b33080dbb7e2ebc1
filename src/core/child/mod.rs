//! Child processes, supervised by what they show of themselves. Linux only; knows no Python.
//!
//! One thread with a tokio runtime watches all children of the process (`runtime`), one task each
//! (`supervise`, and `end` for what comes after). Deciding and killing happen there, so they wait for no interpreter. tokio's own
//! `process` is not used: it reaps on `SIGCHLD`, which belongs to the host program. A process descriptor
//! tells of the exit instead, and only that one child is reaped.
//!
//! # Ground rules
//!
//! - A child that was started here is reaped by its task and nobody else, as the last thing done to it.
//!   Until then its number, and that of its group and session, cannot be given to somebody else, so both
//!   can be signalled. A child that was adopted is reaped by whoever started it, so it is signalled
//!   through its descriptor only.
//! - Any other process is signalled through a descriptor that was opened first and compared by the
//!   process's beginning afterwards (`tree`).
//! - `Shared` is all that the task and its owner have in common. Its lock is held for moves of data only.
//!   Whoever changes it tells the other side after the unlock: the task rings the bell (an eventfd), the
//!   owner notifies.
//! - When everything has ended, all descriptors are closed and the child is reaped *before* the report
//!   becomes visible.

mod capture;
mod end;
mod exit;
mod idle;
mod proc;
mod pump;
mod runtime;
mod shared;
mod spawn;
mod supervise;
mod sys;
mod tree;

pub use capture::Kept;
pub use idle::Limits;
pub use runtime::Runtime;
pub use shared::{Ended, Handle, Note, Report, Stream};
pub use spawn::{Launch, Spawned, Stdin, spawn};
pub use supervise::{Plan, signs};
