//! The `/proc` directory of one process, held open or known by its path.
//!
//! Invariant: a held directory stays bound to its process. Once the process is gone, every access through it fails,
//! even if another process has the pid by then; so if an access succeeds, start times need not be compared.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use procfs::ProcError;
use procfs::process::Process;

use super::record::{Stat, Status};
use crate::snapshot::ProcessId;

/// The maximum number of bytes read from `stat` or `status`, which are about one and two KiB long.
const LINE_LIMIT: u64 = 16 * 1024;
/// The maximum number of bytes read from the arguments; a process may have megabytes of them.
const CMDLINE_LIMIT: u64 = 64 * 1024;
/// The maximum number of bytes read from the environment. A process may have megabytes of it.
const ENVIRON_LIMIT: u64 = 256 * 1024;
/// The maximum number of bytes read from the cgroup file: enough for a dozen hierarchies with paths of maximum length.
const CGROUP_LIMIT: u64 = 64 * 1024;

/// The directory of one process.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// `None` if too many are held already, or if no descriptor was available.
    held: Option<Process>,
}

/// Why a file of a process could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("cannot read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is malformed", path.display())]
    Malformed { path: PathBuf },
}

impl ReadError {
    /// The error for a process that no longer exists.
    pub(super) fn gone(path: PathBuf) -> Self {
        Self::Io { path, source: io::ErrorKind::NotFound.into() }
    }

    /// Whether the process does not exist, no longer exists, or is hidden from the exporter.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
            || self.os_error() == Some(Errno::ESRCH)
    }

    fn lacks_descriptors(&self) -> bool {
        matches!(self.os_error(), Some(Errno::EMFILE | Errno::ENFILE))
    }

    fn os_error(&self) -> Option<Errno> {
        let Self::Io { source, .. } = self else { return None };
        source.raw_os_error().map(Errno::from_raw)
    }
}

impl Directory {
    /// The directory of the pid, held open if `hold` is set and a descriptor is available.
    pub(super) fn open(procfs: &Path, pid: u32, hold: bool) -> Result<Self, ReadError> {
        let path = procfs.join(pid.to_string());
        if !hold {
            return Ok(Self { path, held: None });
        }
        match Process::new_with_root(path.clone()).map_err(|error| read_error(&path, error)) {
            Err(error) if !error.lacks_descriptors() => Err(error),
            process => Ok(Self { path, held: process.ok() }),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether this is still the process that started at `start`. Takes about 2 µs for a held directory: `stat` is
    /// opened but not read. The kernel has to visit all threads of the process to generate the content, and does so
    /// only on a read.
    pub(super) fn is_still(&mut self, start: u64) -> Result<bool, ReadError> {
        if self.is_held() {
            match self.open_file("stat") {
                Ok(_) => return Ok(true),
                // Closing the held descriptor frees one for access by path.
                Err(error) if error.lacks_descriptors() => self.held = None,
                Err(error) if error.is_gone() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        match self.stat() {
            Ok(stat) => Ok(stat.start == start),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn stat(&self) -> Result<Stat, ReadError> {
        Stat::parse(&self.read("stat", LINE_LIMIT)?).ok_or_else(|| self.malformed("stat"))
    }

    pub(super) fn status(&self) -> Result<Status, ReadError> {
        Status::parse(&self.read("status", LINE_LIMIT)?).ok_or_else(|| self.malformed("status"))
    }

    /// The arguments, each terminated by a zero byte.
    pub(super) fn cmdline(&self) -> Result<Vec<u8>, ReadError> {
        self.read("cmdline", CMDLINE_LIMIT)
    }

    /// The variables with which the process was started, each terminated by a zero byte. The kernel refuses them to other
    /// users.
    pub(super) fn environ(&self) -> Result<Vec<u8>, ReadError> {
        self.read("environ", ENVIRON_LIMIT)
    }

    /// The cgroups, one line for each hierarchy.
    pub(super) fn cgroup(&self) -> Result<Vec<u8>, ReadError> {
        self.read("cgroup", CGROUP_LIMIT)
    }

    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, ReadError> {
        let file = self.open_file(name)?;
        read_bounded(file, limit).map_err(|source| ReadError::Io { path: self.path.join(name), source })
    }

    fn open_file(&self, name: &str) -> Result<File, ReadError> {
        match &self.held {
            Some(process) => process.open_relative(name).map_err(|error| read_error(&self.path.join(name), error)),
            None => {
                let path = self.path.join(name);
                // In a folder that only looks like `/proc`, opening a pipe must not wait for a writer.
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(nix::libc::O_NONBLOCK);
                options.open(&path).map_err(|source| ReadError::Io { path, source })
            }
        }
    }

    fn malformed(&self, name: &str) -> ReadError {
        ReadError::Malformed { path: self.path.join(name) }
    }
}

/// The process that currently has the pid; `None` if the procfs does not show the process or belongs to another pid
/// namespace. Does not wait: the kernel generates the file without taking
/// any of the process's locks.
pub fn process(procfs: &Path, pid: u32) -> Option<ProcessId> {
    super::namespace::check(procfs, std::process::id()).ok()?;
    Some(ProcessId { pid, start_ticks: Some(stat(procfs, pid)?.start) })
}

/// Whether the process exists and is not ending: the kernel gives back what it holds before it is a zombie. Does not wait.
pub fn is_alive(procfs: &Path, process: ProcessId) -> bool {
    stat(procfs, process.pid)
        .is_some_and(|stat| !stat.ending && process.start_ticks.is_none_or(|start| start == stat.start))
}

fn stat(procfs: &Path, pid: u32) -> Option<Stat> {
    Directory::open(procfs, pid, false).ok()?.stat().ok()
}

/// The exporter's own cgroup file; empty if it cannot be read, as in a simulated `/proc`.
pub(super) fn own_cgroup(procfs: &Path) -> Vec<u8> {
    let file = File::open(procfs.join("self/cgroup")).ok();
    file.and_then(|file| read_bounded(file, CGROUP_LIMIT).ok()).unwrap_or_default()
}

/// Reads at most `limit` bytes of a file.
pub(super) fn read_bounded(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_error(path: &Path, error: ProcError) -> ReadError {
    let source = match error {
        ProcError::Io(source, _) => source,
        ProcError::NotFound(_) => io::ErrorKind::NotFound.into(),
        ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied.into(),
        other => io::Error::other(other.to_string()),
    };
    ReadError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_that_of_the_procfs_and_of_no_other_namespace() {
        let own = std::process::id();
        assert!(process(Path::new("/proc"), own).is_some_and(|process| process.start_ticks > Some(0)));
        assert_eq!(process(Path::new("/proc"), u32::MAX), None);
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("4711", folder.path().join("self")).unwrap();
        std::os::unix::fs::symlink(format!("/proc/{own}"), folder.path().join(own.to_string())).unwrap();
        assert_eq!(process(folder.path(), own), None, "a procfs of another pid namespace");
    }

    #[test]
    fn a_process_that_is_ending_is_not_alive() {
        let procfs = tempfile::tempdir().unwrap();
        std::fs::create_dir(procfs.path().join("7")).unwrap();
        let id = |start| ProcessId { pid: 7, start_ticks: start };
        let is = |state: &str, flags: u32, start| {
            let line = format!("7 (python) {state} 1 42 42 0 -1 {flags} 10 0 0 0 1 2 0 0 20 0 1 0 99 10000 5");
            std::fs::write(procfs.path().join("7/stat"), line).unwrap();
            is_alive(procfs.path(), id(start))
        };
        assert!(is("R", 0x40_0100, Some(99)) && is("R", 0x40_0100, None));
        assert!(!is("R", 0x40_0104, Some(99)) && !is("Z", 0x40_0104, None) && !is("R", 0x40_0100, Some(98)));
        assert!(!is_alive(procfs.path(), ProcessId { pid: 8, start_ticks: None }));
    }
}
