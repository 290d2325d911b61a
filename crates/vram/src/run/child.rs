//! The command: its start, its end, and the end of the processes that the kernel reparented to this process.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The exit status of a shell for a command that cannot be executed, and for one that is not found.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// What a shell adds to the number of the signal that ended a command.
pub(super) const SIGNAL_BASE: i32 = 128;

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(Signal),
}

impl Ended {
    /// The exit status that a shell would show.
    pub(super) fn status(self) -> u8 {
        let status = match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => SIGNAL_BASE + signal as i32,
        };
        // Linux keeps the low 8 bits of a status.
        (status & 0xff) as u8
    }
}

/// The command could not be started.
#[derive(Debug)]
pub(super) struct NotStarted {
    pub(super) error: io::Error,
    pub(super) status: u8,
}

/// The running command.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
}

/// What [`Child::reap`] found.
#[derive(Debug)]
pub(super) struct Reaped {
    /// How the command ended, if it has ended.
    pub(super) command: Option<Ended>,
    /// Whether any child is left: the command, or a descendant whose parent ended.
    pub(super) remaining: bool,
}

impl Child {
    /// Starts the command in the process group of this process, so that the command can use the terminal. Descendants
    /// of the command become children of this process when their parents end, and therefore stay in the tree.
    /// `variables` are added to the environment.
    pub(super) fn start(command: &[OsString], variables: Vec<(&'static str, OsString)>) -> Result<Self, NotStarted> {
        let refused = |error: io::Error| {
            let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            NotStarted { error, status }
        };
        if let Err(error) = prctl::set_child_subreaper(true) {
            // This fails on Linux before 3.4. In that case, only orphaned descendants are missed.
            tracing::debug!(%error, "orphaned descendants do not stay in the tree");
        }
        let (program, arguments) = command.split_first().ok_or_else(|| refused(ErrorKind::NotFound.into()))?;
        let child = Command::new(program).args(arguments).envs(variables).spawn().map_err(refused)?;
        let pid = i32::try_from(child.id()).map_err(|error| refused(io::Error::other(error)))?;
        Ok(Self { pid: Pid::from_raw(pid) })
    }

    /// Sends a signal to the command. A command that has just ended no longer needs it.
    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = kill(self.pid, signal) {
            tracing::debug!(%error, %signal, "not forwarded");
        }
    }

    /// Collects the children that have ended, without waiting.
    pub(super) fn reap(&self) -> Reaped {
        let mut reaped = Reaped { command: None, remaining: true };
        loop {
            let (pid, ended) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => (pid, Ended::Exited(status)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Ended::Killed(signal)),
                Ok(WaitStatus::StillAlive) => return reaped,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(_) => {
                    reaped.remaining = false;
                    return reaped;
                }
            };
            if pid == self.pid {
                reaped.command = Some(ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_one_that_a_shell_shows() {
        let shown =
            [Ended::Exited(0), Ended::Exited(3), Ended::Killed(Signal::SIGKILL), Ended::Killed(Signal::SIGTERM)];
        assert_eq!(shown.map(Ended::status), [0, 3, 137, 143]);
    }
}
