//! Which process is at the other end of a connection.
//!
//! Invariant: the pid comes from the kernel, and the start time is that of the process that connected, even if its pid
//! has been reused in the meantime.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use tokio::net::UnixStream;

use crate::snapshot::ProcessId;

/// Reads which process has a given pid; `None` if no such process is visible.
#[derive(Clone)]
pub struct StartTicks(Arc<dyn Fn(u32) -> Option<ProcessId> + Send + Sync>);

impl StartTicks {
    /// Wraps the function. It is called on a thread that may wait.
    pub fn new(read: impl Fn(u32) -> Option<ProcessId> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for StartTicks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartTicks")
    }
}

/// The process at the other end, as the kernel recorded it when the process connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// The pid in the exporter's pid namespace; `None` if the namespace does not contain the process.
    pub(super) pid: Option<u32>,
    /// The uid in the exporter's user namespace.
    pub(super) uid: u32,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        // The kernel writes 0 for a process that the namespace does not contain.
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid > 0);
        Ok(Self { pid, uid: credentials.uid() })
    }
}

/// When a process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// The process with its start time, as far as that is visible.
    Known(ProcessId),
    /// The process ended before its start time was read for certain.
    Ended,
    /// No such process is visible.
    Unknown,
}

/// When the process that connected started. `permit` is held until the read has returned, even if nobody waits for it
/// any longer.
pub(super) async fn start_ticks<P: Send + 'static>(
    stream: &UnixStream,
    pid: u32,
    read: &StartTicks,
    permit: P,
) -> Start {
    let Some(held) = hold(stream) else { return Start::Ended };
    let read = read.clone();
    let reading = move || {
        let start = (read.0)(pid);
        drop(permit);
        start
    };
    let start = tokio::task::spawn_blocking(reading).await;
    // While the process exists, no other process has its pid.
    let has_ended = held.is_some_and(|held| !is_running(&held));
    match start {
        _ if has_ended => Start::Ended,
        Ok(Some(start)) => Start::Known(start),
        Ok(None) | Err(_) => Start::Unknown,
    }
}

/// A descriptor that refers to the process itself. `Some(None)` if the kernel does not provide one, which is the case
/// before Linux 6.5; `None` if the process no longer exists.
fn hold(stream: &UnixStream) -> Option<Option<OwnedFd>> {
    match getsockopt(stream, sockopt::PeerPidfd) {
        Ok(process) => Some(Some(process)),
        Err(Errno::ESRCH | Errno::ENODATA | Errno::EINVAL) => None,
        Err(_) => Some(None),
    }
}

fn is_running(process: &OwnedFd) -> bool {
    // It becomes readable when the process ends.
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_belongs_to_the_process_that_made_it() {
        let (own, _other) = UnixStream::pair().unwrap();
        let pid = std::process::id();
        let uid = nix::unistd::getuid().as_raw();
        assert_eq!(Peer::of(&own).unwrap(), Peer { pid: Some(pid), uid });
        let process = ProcessId { pid, start_ticks: Some(5) };
        let read = StartTicks::new(move |asked| (asked == pid).then_some(process));
        assert_eq!(start_ticks(&own, pid, &read, ()).await, Start::Known(process));
        assert_eq!(start_ticks(&own, pid, &StartTicks::new(|_| None), ()).await, Start::Unknown);
    }
}
