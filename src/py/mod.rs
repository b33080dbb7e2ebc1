//! The binding: unpack, call the core, pack.

use pyo3::prelude::*;

mod clock;
mod errors;
mod phases;

#[pymodule]
#[pyo3(name = "_stallwatch")]
mod stallwatch_native {
    use super::*;

    #[pymodule_export]
    use super::phases::{TrackerCore, bind_phases, phase_table, set_strict_default};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
