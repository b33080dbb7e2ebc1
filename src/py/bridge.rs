//! From the driver into an event loop: one wake-up per batch per loop.
//!
//! Each loop has one bridge, kept as an attribute of the loop, so both die together. The driver writes
//! to an eventfd that the loop watches (`add_reader`); a flag in the shard keeps it from writing twice.
//! Loops without `add_reader` are woken by a relay thread and `call_soon_threadsafe`.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd},
    sync::Arc,
};

use pyo3::{
    PyTraverseError, PyVisit, intern,
    prelude::*,
    types::{PyDict, PyString, PyWeakrefReference},
};

use super::{aio::Handle, clock, deliver, lifecycle, refs, running};
use crate::core::{
    clock::Clock,
    shard::{Claim, Fired, Overseer, Shard, Waker},
    state::NOBODY,
    stats::Stats,
    sync::{Mutex, lock},
};

/// A drain lets the loop see to other things after so many callbacks, or so long (ns).
const BURST: usize = 1024;
const BURST_NS: u64 = 1_000_000;

/// Bridges of loops that may be alive, to find the closed ones among them.
static KNOWN: Mutex<Vec<Py<PyWeakrefReference>>> = Mutex::new(Vec::new());

#[cfg(target_os = "linux")]
fn open_channel() -> io::Result<(File, File)> {
    // SAFETY: makes a descriptor, touches no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    Ok((file.try_clone()?, file))
}

#[cfg(not(target_os = "linux"))]
fn open_channel() -> io::Result<(File, File)> {
    let (reader, writer) = std::os::unix::net::UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    writer.set_nonblocking(true)?;
    let own = |s: std::os::unix::net::UnixStream| File::from(std::os::fd::OwnedFd::from(s));
    Ok((own(reader), own(writer)))
}

#[derive(Debug)]
struct Channel(File);

impl Waker for Channel {
    fn wake(&self) {
        // A full channel is a wake-up too.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

/// The way of one event loop to its timers.
#[pyclass(frozen, weakref, module = "stallwatch._stallwatch")]
pub(crate) struct Bridge {
    pub(crate) shard: Arc<Shard>,
    reader: File,
    event_loop: refs::Slot,
    burst: Mutex<Burst>,
    /// The handle whose callback runs now, for the report of an error.
    running: refs::Slot,
}

/// The drain under way.
#[derive(Debug, Default)]
struct Burst {
    fires: VecDeque<Fired>,
    left: usize,
    until: u64,
}

impl Bridge {
    /// Whether timers made now belong here.
    fn is_usable(&self) -> bool {
        !self.shard.is_inherited() && clock::is_current(self.shard.clock())
    }

    fn close(&self, py: Python<'_>) {
        LAST.forget(&self.shard);
        for payload in self.shard.close() {
            if payload == NOBODY {
                continue; // its object is being made right now
            }
            // SAFETY: a strong timer owned one reference; the shard gave it up. No lock is held.
            drop(unsafe { refs::owned(py, payload) });
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // SAFETY: Python objects are freed with the GIL held.
        self.close(unsafe { Python::assume_attached() });
    }
}

#[pymethods]
impl Bridge {
    /// Begins a drain: empties the descriptor and takes what has fired.
    fn begin(&self) {
        if self.shard.is_inherited() {
            return;
        }
        let _ = (&self.reader).read(&mut [0; 64]);
        let fires = self.shard.take();
        let mut burst = lock(&self.burst);
        burst.until = self.shard.clock().now().saturating_add(BURST_NS);
        burst.left = BURST;
        burst.fires.extend(fires);
    }

    /// The next callback that is due, or None: there is none, or other things have waited long enough.
    fn next_callback(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        loop {
            let now = self.shard.clock().now();
            let fired = {
                let mut burst = lock(&self.burst);
                burst.left = burst.left.saturating_sub(1);
                if burst.left == 0 || now > burst.until {
                    drop(burst);
                    self.put_back();
                    return None;
                }
                burst.fires.pop_front()?
            };
            // SAFETY: the GIL is held, and an object that is gone has taken its timer with it.
            let claim = self
                .shard
                .claim(&fired, now, |object| unsafe { refs::retain(object) });
            if let Claim::Run { payload, flags } = claim {
                // SAFETY: `retain` has made this reference.
                let target = unsafe { refs::owned(py, payload) };
                if let Some(callback) = deliver::callback(&target, flags, &fired) {
                    let handle = target.cast_exact::<Handle>().is_ok().then_some(target);
                    drop(self.running.replace(py, handle.map(Bound::unbind)));
                    return Some(callback);
                }
            }
        }
    }

    /// The handle whose callback was handed out last, if that was a handle's.
    fn handle(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.running.take(py)
    }

    /// Ends a drain early: the rest waits for the loop's next turn.
    fn put_back(&self) {
        let rest: Vec<_> = lock(&self.burst).fires.drain(..).collect();
        if self.shard.put_back(rest) {
            self.shard.wake();
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.running.traverse(&visit)?;
        let mut result = self.event_loop.traverse(&visit);
        self.shard.each_strong(|payload| {
            if result.is_ok() && payload != NOBODY {
                result = refs::traverse_raw(&visit, payload);
            }
        });
        result
    }

    fn __clear__(&self, py: Python<'_>) {
        self.close(py);
        drop(self.event_loop.take(py));
    }
}

/// The last loop asked for and the shard of its bridge. Read and written with the GIL held.
///
/// A bridge keeps its loop alive and takes itself out of here when it goes, so the address of a loop in
/// here is the address of that loop and no other.
static LAST: LastLoop = LastLoop(UnsafeCell::new((0, None)));

struct LastLoop(UnsafeCell<(usize, Option<Arc<Shard>>)>);

// SAFETY: the module needs the GIL, and only its holder touches the cell.
unsafe impl Sync for LastLoop {}

impl LastLoop {
    fn get(&self, event_loop: &Bound<'_, PyAny>) -> Option<Arc<Shard>> {
        // SAFETY: the GIL is held, and no code runs while the reference is out.
        let (address, shard) = unsafe { &*self.0.get() };
        if *address != refs::borrow_raw(event_loop) {
            return None;
        }
        shard
            .clone()
            .filter(|shard| !shard.is_inherited() && clock::is_current(shard.clock()))
    }

    fn set(&self, event_loop: usize, shard: Option<Arc<Shard>>) {
        // SAFETY: as above; the old shard is dropped once the reference is gone.
        drop(std::mem::replace(
            unsafe { &mut *self.0.get() },
            (event_loop, shard),
        ));
    }

    fn forget(&self, shard: &Arc<Shard>) {
        // SAFETY: as above.
        let is_it =
            unsafe { (*self.0.get()).1.as_ref() }.is_some_and(|last| Arc::ptr_eq(last, shard));
        if is_it {
            self.set(0, None);
        }
    }
}

/// The shard of an event loop, made at its first timer.
#[inline]
pub(crate) fn shard_of(event_loop: &Bound<'_, PyAny>) -> PyResult<Arc<Shard>> {
    if let Some(shard) = LAST.get(event_loop) {
        return Ok(shard);
    }
    let shard = look_up(event_loop)?;
    LAST.set(refs::borrow_raw(event_loop), Some(shard.clone()));
    Ok(shard)
}

/// The attribute of a loop in which its bridge is kept. One on a manual clock has a place of its own, so
/// that a test does not take the place of the real one.
fn place(py: Python<'_>) -> &Bound<'_, PyString> {
    if clock::manual().is_some() {
        intern!(py, "_stallwatch_manual_bridge")
    } else {
        intern!(py, "_stallwatch_bridge")
    }
}

fn kept<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Bridge>>> {
    let known = event_loop.getattr_opt(place(event_loop.py()))?;
    Ok(known.and_then(|known| known.cast_into_exact::<Bridge>().ok()))
}

fn look_up(event_loop: &Bound<'_, PyAny>) -> PyResult<Arc<Shard>> {
    match kept(event_loop)? {
        Some(bridge) if bridge.get().is_usable() => Ok(bridge.get().shard.clone()),
        _ => make(event_loop),
    }
}

#[cold]
fn make(event_loop: &Bound<'_, PyAny>) -> PyResult<Arc<Shard>> {
    let py = event_loop.py();
    reap(py);
    let (reader, writer) = open_channel()?;
    let descriptor = reader.as_raw_fd();
    let channel = Box::new(Channel(writer));
    let shard = match clock::manual() {
        Some(manual) => {
            let shard = Shard::new(manual.clock(), None, channel);
            manual.adopt(&shard);
            shard
        }
        None => {
            let driver = lifecycle::driver();
            let overseer: Box<dyn Overseer> = Box::new(driver.clone());
            let shard = Shard::new(Clock::Real, Some(overseer), channel);
            driver.adopt(&shard);
            shard
        }
    };
    let bridge = Bridge {
        shard: shard.clone(),
        reader,
        event_loop: refs::Slot::new(event_loop.clone().unbind()),
        burst: Mutex::default(),
        running: refs::Slot::empty(),
    };
    let bridge = Bound::new(py, bridge)?;
    // All of the above may have let another thread run, and that one have made a bridge for this loop.
    let old = kept(event_loop)?;
    if let Some(old) = old.as_ref().filter(|old| old.get().is_usable()) {
        return Ok(old.get().shard.clone());
    }
    event_loop.setattr(place(py), &bridge)?;
    let weak = PyWeakrefReference::new(bridge.as_any())?.unbind();
    lock(&KNOWN).push(weak);
    // One inherited through a fork is in the parent's selector too, which is not ours to change.
    let stale = old
        .filter(|old| !old.get().shard.is_inherited())
        .map(|old| old.get().reader.as_raw_fd());
    if let Err(error) = watch(&bridge, event_loop, descriptor, stale) {
        bridge.get().close(py);
        event_loop.delattr(place(py))?;
        return Err(error);
    }
    Ok(shard)
}

/// Has the loop call `drain` when the descriptor is readable; in a context of its own, since whatever
/// context happens to make the first timer must not be kept, nor seen by other timers' callbacks. Loops
/// may be changed in their own thread only; until it gets there, the channel keeps the wake-ups.
fn watch(
    bridge: &Bound<'_, Bridge>,
    event_loop: &Bound<'_, PyAny>,
    fd: i32,
    stale: Option<i32>,
) -> PyResult<()> {
    let py = bridge.py();
    let context = py.import("contextvars")?.getattr("Context")?.call0()?;
    let attach = py.import("stallwatch._bridge")?.getattr("attach")?;
    if running::running_loop(py)?.is_some_and(|running| running.is(event_loop)) {
        context.call_method1("run", (attach, bridge, event_loop, fd, stale))?;
    } else {
        let keywords = PyDict::new(py);
        keywords.set_item("context", context)?;
        let call = (attach, bridge, event_loop, fd, stale);
        event_loop.call_method("call_soon_threadsafe", call, Some(&keywords))?;
    }
    Ok(())
}

fn each_known(py: Python<'_>, mut act: impl FnMut(&Bound<'_, Bridge>)) {
    let known: Vec<_> = lock(&KNOWN).iter().map(|weak| weak.clone_ref(py)).collect();
    for weak in known {
        if let Some(bridge) = weak.bind(py).upgrade()
            && let Ok(bridge) = bridge.cast_exact::<Bridge>()
        {
            act(bridge);
        }
    }
}

/// Ends the shards of closed loops: what they still held is dropped and counted.
pub(crate) fn reap(py: Python<'_>) {
    each_known(py, |bridge| {
        let event_loop = bridge.get().event_loop.get(py);
        let closed = event_loop.is_some_and(|event_loop| {
            event_loop
                .call_method0(py, "is_closed")
                .is_ok_and(|is| is.is_truthy(py).unwrap_or(false))
        });
        if closed && !bridge.get().shard.is_closed() {
            bridge.get().close(py);
        }
    });
    let alive = |weak: &Py<PyWeakrefReference>| {
        weak.bind(py).upgrade().is_some_and(|bridge| {
            bridge
                .cast_exact::<Bridge>()
                .is_ok_and(|bridge| !bridge.get().shard.is_closed())
        })
    };
    let (live, dead): (Vec<_>, Vec<_>) = std::mem::take(&mut *lock(&KNOWN))
        .into_iter()
        .partition(alive);
    lock(&KNOWN).extend(live);
    drop(dead);
}

/// The counters of everything in this process.
pub(crate) fn stats(py: Python<'_>) -> Stats {
    reap(py);
    lifecycle::driver().stats()
}

/// In the child of a fork: the parent's bridges are not ours to look after.
pub(crate) fn forget_all() {
    LAST.set(0, None);
    running::forked();
    std::mem::forget(std::mem::take(&mut *lock(&KNOWN)));
}
