//! What can go wrong in the core, as data. The binding turns it into Python exceptions.

use std::fmt;

/// An error of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The driver thread could not be started; nothing was armed. The text is the system's reason.
    NoThread(String),
    /// The shard belongs to a closed loop.
    Closed,
    /// The shard was made before a fork, in the parent process.
    Inherited,
    /// A structural violation of the phase tracker (strict mode).
    Violation(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoThread(why) => write!(f, "cannot start the timer thread: {why}"),
            Self::Closed => f.write_str("the event loop of this timer is closed"),
            Self::Inherited => {
                f.write_str("this timer was made in the parent process, before a fork")
            }
            Self::Violation(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
