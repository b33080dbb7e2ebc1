//! The system calls that the standard library does not have.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use tokio::io::{Interest, unix::AsyncFd};

fn check(found: libc::c_long) -> io::Result<libc::c_int> {
    if found < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(libc::c_int::try_from(found).unwrap_or(0))
    }
}

fn owned(found: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: the system has just made this descriptor, and nobody else knows it.
    check(found).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the runtime watch a descriptor. Inside the runtime only.
pub(super) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// A descriptor of a process. It is closed on exec.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Signals the process of a descriptor, and never another one.
pub(super) fn pidfd_signal(process: &OwnedFd, signal: i32) -> io::Result<()> {
    let none: *const libc::siginfo_t = std::ptr::null();
    let fd = process.as_raw_fd();
    // SAFETY: a null `info` is allowed, and nothing else is a pointer.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, none, 0) }).map(drop)
}

/// Signals a group. Its number must be in use by a process that the caller keeps from being reaped.
pub(super) fn signal_group(group: i32, signal: i32) {
    // SAFETY: no memory is involved. That it may be gone is nothing to act upon.
    unsafe { libc::kill(-group, signal) };
}

/// Whether a group has a member, dead ones that wait to be reaped included.
pub(super) fn group_exists(group: i32) -> bool {
    // SAFETY: no memory is involved; signal 0 is none.
    unsafe { libc::kill(-group, 0) == 0 }
}

/// How a child ended, as `subprocess` counts it: its status, or minus its signal. `None` while it runs.
///
/// # Errors
/// `ECHILD` if somebody else has reaped it.
pub(super) fn wait(process: &OwnedFd, reap: bool) -> io::Result<Option<i32>> {
    // SAFETY: all zeros is a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let id = process.as_raw_fd().unsigned_abs();
    let how = libc::WEXITED | libc::WNOHANG | if reap { 0 } else { libc::WNOWAIT };
    loop {
        // SAFETY: `info` is valid to write to.
        let found = unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, how) };
        match check(found.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    // SAFETY: `waitid` has filled these in, or left them zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let signalled = info.si_code != libc::CLD_EXITED;
    Ok((pid != 0).then_some(if signalled { -status } else { status }))
}

/// Waits for a child of ours that was killed.
pub(super) fn reap(pid: i32) {
    // SAFETY: the status may be null.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Makes reads and writes return at once.
pub(super) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) }.into())?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }.into()).map(drop)
}

/// Reads what is there.
pub(super) fn read(fd: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    loop {
        // SAFETY: `into` is valid to write to for its whole length.
        let count = unsafe { libc::read(raw, into.as_mut_ptr().cast(), into.len()) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Writes what there is room for. The thread must block `SIGPIPE`.
pub(super) fn write(fd: impl AsFd, from: &[u8]) -> io::Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: `from` is valid to read for its whole length.
    let count = unsafe { libc::write(raw, from.as_ptr().cast(), from.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// A bell: readable once it was rung. It is closed on exec.
pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.into())
}

/// Both ends of a pipe, to read from and to write to. They are closed on exec.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    Ok((owned(ends[0].into())?, owned(ends[1].into())?))
}

/// Both ends of a pseudo terminal, ours and the child's, which alters no byte of the output.
pub(super) fn openpty() -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut ours, mut theirs) = (0, 0);
    let null: *mut libc::c_char = std::ptr::null_mut();
    // SAFETY: both descriptors are valid to write to; the rest may be null.
    let found = unsafe {
        let (name, mode, size) = (null, null.cast(), null.cast());
        libc::openpty(&raw mut ours, &raw mut theirs, name, mode, size)
    };
    check(found.into())?;
    let (ours, theirs) = (owned(ours.into())?, owned(theirs.into())?);
    for end in [&ours, &theirs] {
        // SAFETY: no memory is involved.
        check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    }
    // SAFETY: all zeros is a valid `termios` to be filled in.
    let mut mode: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `mode` is valid to write to, and then to read.
    unsafe {
        check(libc::tcgetattr(theirs.as_raw_fd(), &raw mut mode).into())?;
        mode.c_oflag &= !libc::OPOST;
        check(libc::tcsetattr(theirs.as_raw_fd(), libc::TCSANOW, &raw const mode).into())?;
    }
    Ok((ours, theirs))
}

/// Keeps the signals of the process away from this thread: they are for those who handle them.
pub(super) fn block_signals() {
    // SAFETY: `all` is filled in before it is read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
