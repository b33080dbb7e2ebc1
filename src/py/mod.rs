//! The binding: unpack, call the core, pack.

use pyo3::prelude::*;

mod aio;
mod alarm;
mod bridge;
#[cfg(target_os = "linux")]
mod child;
mod clock;
mod construct;
mod convert;
mod deliver;
mod dispatch;
mod errors;
mod guard;
mod lifecycle;
mod phases;
mod pull;
mod pull_sync;
mod refs;
mod running;
mod slots;
mod step;
mod wheel;

// The cells of `guard` need the GIL. Nobody has tested this module without it, so it is not claimed.
#[pymodule(gil_used = true)]
#[pyo3(name = "_stallwatch")]
mod stallwatch_native {
    use super::*;

    #[pymodule_export]
    use super::aio::{Handle, LoopTimers, Timeout, call_later, timeout, timeout_at};

    #[pymodule_export]
    use super::{
        alarm::{Alarm, raw_stats},
        bridge::Bridge,
        clock::{ManualClock, now},
        dispatch::DispatchQueue,
        guard::{PullBase, gap_edges},
        lifecycle::frozen_until,
        wheel::{Deadline, IdleTimer},
    };

    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::child::{ChildHandle, ChildPlan};

    #[pymodule_export]
    use super::phases::{TrackerCore, bind_phases, phase_table, set_strict_default};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        super::lifecycle::register(m)?;
        super::step::register(m.py())?;
        super::pull::register(m)?;
        super::pull_sync::register(m)?;
        super::construct::register(m.py());
        super::aio::register(m)?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
