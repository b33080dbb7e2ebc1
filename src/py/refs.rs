//! Python references in places where PyO3's own do not fit: swapped by a shared method, or known to the
//! core as a number.

use std::{
    cell::Cell,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use pyo3::{PyTraverseError, PyVisit, ffi, prelude::*};

/// A reference that can be cleared through a shared reference, in 8 bytes. Used with the GIL held only.
#[derive(Debug)]
pub(crate) struct Slot(AtomicPtr<ffi::PyObject>);

impl Slot {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(AtomicPtr::new(object.into_ptr()))
    }

    pub(crate) const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Of an object; None is empty.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Self {
        if object.is_none() {
            Self::empty()
        } else {
            Self::new(object.clone().unbind())
        }
    }

    /// Puts another reference in and takes the old one out. Dropping it may run any code: hold no lock.
    pub(crate) fn replace(&self, py: Python<'_>, object: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        let new = object.map_or(ptr::null_mut(), Py::into_ptr);
        // SAFETY: the slot owned the old reference, and owns the new one from here.
        unsafe { Bound::from_owned_ptr_or_opt(py, self.0.swap(new, Ordering::AcqRel)) }
            .map(Bound::unbind)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }

    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        // SAFETY: the pointer is null or an owned reference, and nobody clears it while the GIL is held
        // here.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.0.load(Ordering::Acquire)) }
            .map(Bound::unbind)
    }

    /// Takes the reference out. Dropping it may run any code: hold no lock.
    pub(crate) fn take(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let taken = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the reference was owned by the slot, and the swap moved it here.
        unsafe { Bound::from_owned_ptr_or_opt(py, taken) }.map(Bound::unbind)
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match NonNull::new(self.0.load(Ordering::Acquire)) {
            Some(object) => traverse_raw(visit, object.as_ptr() as usize),
            None => Ok(()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(object) = NonNull::new(*self.0.get_mut()) {
            // SAFETY: the reference was owned by the slot, and Python objects are freed with the GIL held.
            drop(unsafe { Bound::from_owned_ptr(Python::assume_attached(), object.as_ptr()) });
        }
    }
}

/// Shows the collector a reference that the core keeps as a number.
pub(crate) fn traverse_raw(visit: &PyVisit<'_>, object: usize) -> Result<(), PyTraverseError> {
    // SAFETY: the caller owns a reference to the object; this copy of it is never dropped.
    let object = unsafe { ManuallyDrop::new(std::mem::transmute::<usize, Py<PyAny>>(object)) };
    visit.call(&*object)
}

/// A reference for the core to keep as a number.
pub(crate) fn borrow_raw<T>(object: &Bound<'_, T>) -> usize {
    object.as_ptr() as usize
}

/// How many references there are.
pub(crate) fn count(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: a live object, with the GIL held.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// Adds a reference to an object the core names; runs no Python code.
///
/// # Safety
/// The GIL is held and the object is alive.
pub(crate) unsafe fn retain(object: usize) {
    // SAFETY: as promised by the caller.
    unsafe { ffi::Py_IncRef(object as *mut ffi::PyObject) }
}

/// The owned reference behind a number.
///
/// # Safety
/// The number stands for a reference that the caller owns, and gives up here.
pub(crate) unsafe fn owned(py: Python<'_>, object: usize) -> Bound<'_, PyAny> {
    // SAFETY: as promised by the caller.
    unsafe { Bound::from_owned_ptr(py, object as *mut ffi::PyObject) }
}

/// A reference that can be replaced. Not a `Py`: the slots run outside PyO3's own trampolines, where
/// dropping a `Py` only queues it; a `Bound` is dropped at once.
pub(crate) struct Ref(Cell<*mut ffi::PyObject>);

impl Ref {
    pub(crate) const fn empty() -> Self {
        Self(Cell::new(std::ptr::null_mut()))
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut ffi::PyObject {
        self.0.get()
    }

    /// Replaces the reference and returns the old one, for the caller to drop once its state is whole.
    #[inline]
    pub(crate) fn put<'py>(
        &self,
        py: Python<'py>,
        object: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        let new = object.map_or(std::ptr::null_mut(), Bound::into_ptr);
        // SAFETY: the cell owned the reference that it gives up here.
        unsafe { Bound::from_owned_ptr_or_opt(py, self.0.replace(new)) }
    }

    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the cell owns a reference, and this adds one.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.0.get()) }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let raw = self.raw();
        if raw.is_null() {
            Ok(())
        } else {
            traverse_raw(visit, raw as usize)
        }
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // SAFETY: Python objects are freed with the GIL held.
        drop(self.put(unsafe { Python::assume_attached() }, None));
    }
}
