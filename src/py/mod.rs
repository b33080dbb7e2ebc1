//! The binding: unpack, call the core, pack.

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_stallwatch")]
mod stallwatch_native {
    use super::*;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
