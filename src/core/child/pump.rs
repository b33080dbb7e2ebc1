//! Moving bytes: what a child writes, what it reads, and its signs of life.

use std::{
    cell::RefCell,
    future::pending,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

use super::{
    capture::{Capture, Kept},
    shared::{Note, Shared, Stream},
    sys,
};

/// Bytes read at a time: what a pipe holds.
const CHUNK: usize = 1 << 16;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

type Watched = AsyncFd<OwnedFd>;

fn watch(fd: OwnedFd, interest: Interest) -> io::Result<Watched> {
    sys::set_nonblocking(fd.as_raw_fd())?;
    sys::watch(fd, interest)
}

/// Resolves when there may be something to read. Never without a descriptor.
pub(super) async fn readable(fd: Option<&Watched>) {
    match fd {
        Some(fd) => drop(fd.readable().await),
        None => pending().await,
    }
}

/// Resolves when there may be room to write. Never without a descriptor.
pub(super) async fn writable(fd: Option<&Watched>) {
    match fd {
        Some(fd) => drop(fd.writable().await),
        None => pending().await,
    }
}

/// What was found on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Bytes(usize),
    Nothing,
    End,
}

fn judge(read: io::Result<usize>) -> Found {
    match read {
        Ok(0) => Found::End,
        Ok(count) => Found::Bytes(count),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Found::Nothing,
        // A terminal whose other side is closed says so with an error.
        Err(_) => Found::End,
    }
}

/// One output of a child.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) fd: Option<Watched>,
    stream: Stream,
    capture: Capture,
    live: bool,
}

impl Output {
    pub(super) fn new(
        fd: Option<OwnedFd>,
        stream: Stream,
        cap: usize,
        live: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            fd: fd.map(|fd| watch(fd, Interest::READABLE)).transpose()?,
            stream,
            capture: Capture::new(cap),
            live,
        })
    }

    pub(super) const fn is_open(&self) -> bool {
        self.fd.is_some()
    }

    pub(super) const fn total(&self) -> u64 {
        self.capture.total()
    }

    pub(super) fn finish(self) -> Kept {
        self.capture.finish()
    }

    /// Takes what is there, once. Whether that was anything. `surely`: ask the system, whatever was heard
    /// from it last.
    pub(super) fn take(&mut self, shared: &Shared, surely: bool) -> bool {
        BUFFER.with_borrow_mut(|buffer| {
            let Some(fd) = &self.fd else {
                return false;
            };
            let read = if surely {
                sys::read(fd.get_ref(), buffer)
            } else {
                fd.try_io(Interest::READABLE, |fd| sys::read(fd, buffer))
            };
            match judge(read) {
                Found::Bytes(count) => {
                    self.capture.push(&buffer[..count]);
                    if self.live {
                        shared.tell(Note::Output(self.stream, buffer[..count].to_vec()));
                    }
                    return true;
                }
                Found::Nothing => {}
                Found::End => self.fd = None,
            }
            false
        })
    }
}

/// The input of a child, fed as it has room.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) fd: Option<Watched>,
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    pub(super) fn new(input: Option<(OwnedFd, Vec<u8>)>) -> io::Result<Self> {
        let (fd, bytes) = input.map_or((None, Vec::new()), |(fd, bytes)| (Some(fd), bytes));
        let fd = fd.filter(|_| !bytes.is_empty());
        Ok(Self {
            fd: fd.map(|fd| watch(fd, Interest::WRITABLE)).transpose()?,
            bytes,
            at: 0,
        })
    }

    /// Gives what there is room for, and closes it after the last byte.
    pub(super) fn feed(&mut self) {
        let Some(fd) = &self.fd else {
            return;
        };
        let rest = &self.bytes[self.at..];
        match fd.try_io(Interest::WRITABLE, |fd| sys::write(fd, rest)) {
            Ok(count) => self.at += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // It does not read any more, which is its own affair.
            Err(_) => self.at = self.bytes.len(),
        }
        if self.at == self.bytes.len() {
            *self = Self {
                fd: None,
                bytes: Vec::new(),
                at: 0,
            };
        }
    }
}

/// The descriptor on which a child shows life.
#[derive(Debug)]
pub(super) struct Touch(pub(super) Option<Watched>);

impl Touch {
    pub(super) fn new(fd: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self(
            fd.map(|fd| watch(fd, Interest::READABLE)).transpose()?,
        ))
    }

    /// Whether it has done so since the last time. `surely` as with [`Output::take`].
    pub(super) fn take(&mut self, surely: bool) -> bool {
        let Some(fd) = &self.0 else {
            return false;
        };
        let mut buffer = [0; 512];
        let read = if surely {
            sys::read(fd.get_ref(), &mut buffer)
        } else {
            fd.try_io(Interest::READABLE, |fd| sys::read(fd, &mut buffer))
        };
        match judge(read) {
            Found::Bytes(_) => true,
            Found::Nothing => false,
            Found::End => {
                self.0 = None;
                false
            }
        }
    }
}
