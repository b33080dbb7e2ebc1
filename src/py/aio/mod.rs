//! Native halves of `stallwatch.aio`: the drop-ins for asyncio's own timers.
//!
//! Deadlines here are moments of a loop's own clock ([`looptime`] says how that maps to the wheel's), and
//! `<= 0` means "at once", as asyncio has it.

mod done;
mod handle;
mod looptime;
mod scope;
mod timers;

pub(crate) use handle::Handle;
pub(crate) use scope::{Timeout, timeout, timeout_at};
pub(crate) use timers::{LoopTimers, call_later};

pub(crate) fn register(m: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
    done::register(m.py())
}
