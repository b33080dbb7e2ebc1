//! Whether a child has ended, and with which status.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

use super::sys;

/// The end of one child.
#[derive(Debug)]
pub(super) struct Exit {
    process: AsyncFd<OwnedFd>,
    /// Whether it is for us to reap it.
    own: bool,
    ended: bool,
    status: Option<i32>,
}

impl Exit {
    pub(super) fn new(process: OwnedFd, own: bool) -> io::Result<Self> {
        let process = sys::watch(process, Interest::READABLE)?;
        Ok(Self {
            process,
            own,
            ended: false,
            status: None,
        })
    }

    pub(super) const fn process(&self) -> &AsyncFd<OwnedFd> {
        &self.process
    }

    pub(super) const fn ended(&self) -> bool {
        self.ended
    }

    /// Its status, if it is known.
    pub(super) const fn status(&self) -> Option<i32> {
        self.status
    }

    /// Looks whether it has ended by now.
    pub(super) fn look(&mut self) -> bool {
        if !self.ended {
            match sys::wait(self.process.get_ref(), false) {
                Ok(None) => {}
                Ok(status) => (self.ended, self.status) = (true, status),
                // Somebody has reaped it already, or the host ignores `SIGCHLD`: the status is lost.
                Err(_) => (self.ended, self.own) = (true, false),
            }
        }
        self.ended
    }

    /// Whether its number cannot belong to anybody else: it is ours, and not reaped.
    pub(super) const fn is_ours(&self) -> bool {
        self.own
    }

    /// Reaps it, if that is for us to do. It must not be named by its number afterwards.
    pub(super) fn reap(&mut self) {
        self.look();
        if self.own && self.ended {
            drop(sys::wait(self.process.get_ref(), true));
            self.own = false;
        }
    }
}
