//! How a process ended: its exit status, or the signal that ended it. The kernel reports these to a program that holds
//! the pidfd of the process.
//!
//! Invariant: a status is returned only if it belongs to the process with the given pid and start time. This needs
//! Linux 6.15. On earlier kernels, and for a process that was listed but had ended before its pidfd could be opened, no
//! status is known.
//!
//! Source: `PIDFD_GET_INFO` with `PIDFD_INFO_EXIT` in the kernel's `include/uapi/linux/pidfd.h`. The kernel has the
//! status once the parent has waited for the process.

#![allow(unsafe_code, reason = "no crate has a safe call for PIDFD_GET_INFO; the block says why it is sound")]

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::snapshot::ProcessId;

/// The maximum number of processes that are watched.
const MAX_WATCHED: usize = 1024;

/// How a process ended. Both values are absent while the process is alive, and if the kernel does not report them.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit status, 0 to 255, if it exited.
    #[serde(rename = "exit_status")]
    pub status: Option<u8>,
    /// The number of the signal that ended it.
    pub signal: Option<u8>,
}

impl Exit {
    /// Converts a status that `wait` returned.
    fn of(wait_status: i32) -> Self {
        let status = ExitStatus::from_raw(wait_status);
        let number = |number: i32| u8::try_from(number).ok();
        Self { status: status.code().and_then(number), signal: status.signal().and_then(number) }
    }

    /// Whether the kernel reported how it ended.
    pub(crate) fn is_known(self) -> bool {
        self != Self::default()
    }

    /// `, exit status 1` or `, signal 9 (SIGKILL)`; empty if it is not known.
    pub(crate) fn suffix(self) -> String {
        let name = |signal: u8| Signal::try_from(i32::from(signal)).map_or("unknown", Signal::as_str);
        match (self.status, self.signal) {
            (_, Some(signal)) => format!(", signal {signal} ({})", name(signal)),
            (Some(status), None) => format!(", exit status {status}"),
            (None, None) => String::new(),
        }
    }
}

/// The processes that are watched until they end.
#[derive(Debug, Default)]
pub(crate) struct ExitWatch {
    watched: HashMap<ProcessId, OwnedFd>,
}

impl ExitWatch {
    /// Begins to watch a process that is alive. A process that cannot be identified is not watched.
    pub(crate) fn begin(&mut self, process: ProcessId) {
        if self.watched.len() < MAX_WATCHED
            && !self.watched.contains_key(&process)
            && let Some(pidfd) = open(process)
        {
            self.watched.insert(process, pidfd);
        }
    }

    /// How a watched process ended; `None` while that is not known.
    pub(crate) fn exit(&self, process: ProcessId) -> Option<Exit> {
        exit_of(self.watched.get(&process)?)
    }

    /// Stops watching every process for which `is_needed` is false.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(&ProcessId) -> bool) {
        self.watched.retain(|process, _| is_needed(process));
    }
}

fn open(process: ProcessId) -> Option<OwnedFd> {
    process.start_ticks?;
    let pidfd = pidfd_open(Pid::from_raw(i32::try_from(process.pid).ok()?)?, PidfdFlags::empty()).ok()?;
    // The start time is read after the pidfd has been opened: if the process with this pid is still the one that was
    // listed, the pidfd refers to it. In a pid namespace other than that of the list, the pid belongs to another
    // process or to none. Clock ticks since boot do not change when the clock is set.
    (found(process.pid) == Some(process)).then_some(pidfd)
}

/// The process that has this pid now, according to this program's own `/proc`.
fn found(pid: u32) -> Option<ProcessId> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    Some(ProcessId { pid, start_ticks: Some(stat.starttime) })
}

fn exit_of(pidfd: &OwnedFd) -> Option<Exit> {
    let mut info = MaybeUninit::<libc::pidfd_info>::zeroed();
    // SAFETY: the kernel writes no more bytes than the structure has (its size is part of the request's number), and an
    // all-zero structure of integers is valid.
    let info = unsafe {
        (*info.as_mut_ptr()).mask = u64::from(libc::PIDFD_INFO_EXIT);
        match libc::ioctl(pidfd.as_raw_fd(), libc::PIDFD_GET_INFO, info.as_mut_ptr()) {
            0 => info.assume_init(),
            _ => return None,
        }
    };
    (info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0).then(|| Exit::of(info.exit_code))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_wait_status_is_an_exit_status_or_a_signal() {
        assert_eq!(Exit::of(3 << 8), Exit { status: Some(3), signal: None });
        assert_eq!(Exit::of(0).suffix(), ", exit status 0");
        assert_eq!(Exit::of(9).suffix(), ", signal 9 (SIGKILL)");
        assert_eq!(Exit::of(11 | 0x80).suffix(), ", signal 11 (SIGSEGV)");
        assert_eq!(Exit::of(64).suffix(), ", signal 64 (unknown)");
        assert_eq!(Exit::default().suffix(), "");
    }

    /// A process that exits with status 7 when its input ends, unless it is killed before that.
    fn watched(watch: &mut ExitWatch) -> (Child, ProcessId) {
        let child = Command::new("sh").args(["-c", "read line; exit 7"]).stdin(Stdio::piped()).spawn().unwrap();
        let process = found(child.id()).unwrap();
        watch.begin(process);
        (child, process)
    }

    #[test]
    fn the_kernel_tells_how_a_process_ended() {
        let mut watch = ExitWatch::default();
        let ((mut exiting, exited), (mut killed, signaled)) = (watched(&mut watch), watched(&mut watch));
        assert_eq!((watch.exit(exited), watch.exit(signaled)), (None, None), "they are alive");
        drop(exiting.stdin.take());
        killed.kill().unwrap();
        exiting.wait().unwrap();
        killed.wait().unwrap();
        // Kernels before 6.15 do not report how a process ended.
        if let Some(exit) = watch.exit(signaled) {
            assert_eq!(exit, Exit { status: None, signal: Some(9) });
            assert_eq!(watch.exit(exited), Some(Exit { status: Some(7), signal: None }));
        } else {
            workspace_skips::skipped("this kernel does not report how a process ended");
        }
        watch.retain(|process| *process == exited);
        assert_eq!(watch.exit(signaled), None);
    }

    #[test]
    fn a_process_with_another_start_is_not_watched() {
        let mut watch = ExitWatch::default();
        let own = found(std::process::id()).unwrap();
        // Another process that had the pid one clock tick earlier, and one whose start is unknown.
        watch.begin(ProcessId { start_ticks: own.start_ticks.map(|ticks| ticks - 1), ..own });
        watch.begin(ProcessId { start_ticks: None, ..own });
        assert!(watch.watched.is_empty());
        watch.begin(own);
        assert_eq!(watch.watched.len(), 1);
    }
}
