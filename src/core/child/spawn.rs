//! Starting a child in a session of its own.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
};

use super::{proc, sys};

/// What a child reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdin {
    /// Nothing: the null device.
    Closed,
    /// What this process reads.
    Inherit,
    /// These bytes, then the end.
    Feed(Vec<u8>),
}

/// What is to be started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program, looked up along the `PATH` of the child, and its arguments.
    pub args: Vec<OsString>,
    /// Where it starts.
    pub cwd: Option<OsString>,
    /// Its environment; `None` is that of this process.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// What it reads.
    pub stdin: Stdin,
    /// Whether it writes into a pseudo terminal, both streams into one.
    pub pty: bool,
    /// Whether it gets a descriptor to show life with, named by `STALLWATCH_TOUCH_FD`.
    pub touch: bool,
}

/// A child, and our ends of what it has open.
#[derive(Debug)]
pub struct Spawned {
    /// Its number.
    pub pid: i32,
    /// Itself.
    pub process: OwnedFd,
    /// Whether it was started here, in a session of its own, and is reaped here.
    pub own: bool,
    /// What it writes, by stream.
    pub output: [Option<OwnedFd>; 2],
    /// Where it reads from, and what.
    pub input: Option<(OwnedFd, Vec<u8>)>,
    /// Where it shows life.
    pub touch: Option<OwnedFd>,
}

impl Spawned {
    /// One that somebody else has started, and will reap.
    ///
    /// # Errors
    /// As the system says: it is gone already, or was never a child of this process.
    pub fn adopt(pid: i32, output: [Option<OwnedFd>; 2]) -> io::Result<Self> {
        let process = sys::pidfd_open(pid)?;
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        // The descriptor names one process for good; its number may have been given anew before.
        if proc::look(pid).is_none_or(|found| found.parent != own) {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        Ok(Self {
            pid,
            process,
            own: false,
            output,
            input: None,
            touch: None,
        })
    }
}

/// Starts it. Returns once the program runs.
///
/// # Errors
/// As the system says: no such file, no permission.
pub fn spawn(launch: Launch) -> io::Result<Spawned> {
    let mut args = launch.args.into_iter();
    let program = args.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(args);
    if let Some(cwd) = launch.cwd {
        command.current_dir(cwd);
    }
    if let Some(env) = launch.env {
        command.env_clear().envs(env);
    }
    let feed = match launch.stdin {
        Stdin::Closed => {
            command.stdin(Stdio::null());
            None
        }
        Stdin::Inherit => None,
        Stdin::Feed(bytes) => {
            command.stdin(Stdio::piped());
            Some(bytes)
        }
    };
    let mut ours = None;
    if launch.pty {
        let (near, far) = sys::openpty()?;
        ours = Some(near);
        command.stdout(far.try_clone()?).stderr(far);
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let touch = launch.touch.then(sys::pipe).transpose()?;
    let handed = touch.as_ref().map(|(_, far)| far.as_raw_fd());
    if let Some(fd) = handed {
        command.env("STALLWATCH_TOUCH_FD", fd.to_string());
    }
    let pty = launch.pty;
    // SAFETY: only system calls, which are safe between fork and exec; nothing is allocated or locked.
    unsafe { command.pre_exec(move || set_up(pty, handed)) };
    let mut child = command.spawn()?;
    // Keeps its ends of a terminal and of pipes open until here.
    drop(command);
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let process = sys::pidfd_open(pid).inspect_err(|_| {
        // Without it nothing can be supervised.
        drop(child.kill());
        drop(child.wait());
    })?;
    Ok(Spawned {
        pid,
        process,
        own: true,
        output: [
            ours.or_else(|| child.stdout.take().map(Into::into)),
            child.stderr.take().map(Into::into),
        ],
        input: child.stdin.take().map(Into::into).zip(feed),
        touch: touch.map(|(near, _)| near),
    })
}

/// Runs in the child, before its program.
fn set_up(pty: bool, handed: Option<i32>) -> io::Result<()> {
    // SAFETY: no memory is involved.
    unsafe {
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
        if pty {
            // That it has no controlling terminal is no reason to fail.
            libc::ioctl(1, libc::TIOCSCTTY, 0);
        }
        // What others in this process forgot to mark is not for the child. Kernels before 5.11 leave it.
        let (first, last) = (3_u32, u32::MAX);
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        if let Some(fd) = handed {
            libc::fcntl(fd, libc::F_SETFD, 0);
        }
    }
    Ok(())
}
