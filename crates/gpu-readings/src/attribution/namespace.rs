//! Which pid namespace a procfs shows.
//!
//! Invariant: a procfs of another pid namespace is never used to identify a process, because a pid there means a
//! different process.

use std::fs;
use std::path::{Path, PathBuf};

/// The pid namespace that the kernel starts with: its number is fixed (`PROC_PID_INIT_INO`).
const MACHINE_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The pids in a procfs are not those that the driver reports to the exporter.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} belongs to a different pid namespace from the exporter, whose pid is {own}, but {} there: a pid there means \
     another process, so no process is identified; mount the procfs of the exporter's own namespace, or give the \
     exporter the host's pid namespace (hostPID: true, docker run --pid=host)",
    procfs.display(),
    shown.as_ref().map_or("none".into(), |shown| shown.display().to_string())
)]
pub struct ForeignProcfs {
    procfs: PathBuf,
    own: u32,
    /// `None` if the procfs does not show this process at all.
    shown: Option<PathBuf>,
}

/// Checks that the procfs shows this process under its pid `own`.
///
/// Every mount of the kernel's procfs has a link `self`. A folder without one is not the kernel's (the simulator's, for
/// example): there is nothing to compare, and it is accepted.
///
/// # Errors
/// If `self` points to a different pid, or has no target.
pub fn check(procfs: &Path, own: u32) -> Result<(), ForeignProcfs> {
    let link = procfs.join("self");
    let shown = match fs::read_link(&link) {
        Ok(shown) if shown.as_os_str() == own.to_string().as_str() => return Ok(()),
        Ok(shown) => Some(shown),
        // For a process outside the namespace, the link exists but has no target.
        Err(_) if fs::symlink_metadata(&link).is_ok_and(|link| link.is_symlink()) => None,
        Err(_) => return Ok(()),
    };
    Err(ForeignProcfs { procfs: procfs.to_owned(), own, shown })
}

/// Whether the exporter is in the machine's own pid namespace. In another namespace it sees only the processes of
/// that namespace, and the driver reports only those processes to it. `None` if the procfs does not show the namespace,
/// as is the case for a simulated procfs.
pub fn sees_host_processes(procfs: &Path) -> Option<bool> {
    let namespace = fs::read_link(procfs.join("self/ns/pid")).ok()?;
    Some(namespace.as_os_str() == MACHINE_PID_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_kernels_procfs_is_accepted_if_it_shows_the_own_pid() {
        let own = std::process::id();
        assert!(check(Path::new("/proc"), own).is_ok());
        let foreign = check(Path::new("/proc"), own + 1).unwrap_err();
        assert!(foreign.to_string().contains(&format!("is {}, but {own} there:", own + 1)), "{foreign}");
    }

    #[test]
    fn a_folder_without_the_link_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(folder.path(), 1).is_ok());
        assert!(check(&folder.path().join("none"), 1).is_ok());
        fs::create_dir(folder.path().join("self")).unwrap();
        assert!(check(folder.path(), 1).is_ok());
    }

    #[test]
    fn a_link_to_another_pid_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        symlink("4711", folder.path().join("self")).unwrap();
        assert!(check(folder.path(), 4711).is_ok());
        assert!(check(folder.path(), 471).is_err());
    }
}
