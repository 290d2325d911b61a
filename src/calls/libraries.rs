//! Attaches the probes to every driver library that is in use.
//!
//! Invariant: a file that cannot be watched is reported once; the number of files is bounded.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cuda_probe::{Error, Library, Probes, find_libraries};

use crate::snapshot::ProcessId;

/// Where the driver is installed. A process is on a GPU before a list shows it, so the probes are on these files from the
/// start.
const PLACES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/run/nvidia/driver/usr/lib64/libcuda.so.1",
];
/// Once so many files are watched, those that are in use no more are given up.
const MOST: usize = 32;

/// The files, and the processes that have been looked at.
#[derive(Debug)]
pub(super) struct Libraries {
    procfs: PathBuf,
    looked: HashSet<ProcessId>,
    reported: HashSet<PathBuf>,
}

impl Libraries {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, looked: HashSet::new(), reported: HashSet::new() }
    }

    /// Attaches the probes to the installed driver. Returns what went wrong. A file that is absent, or is none of the
    /// driver's, is no error.
    pub(super) fn attach_installed(&mut self, probes: &mut Probes) -> Vec<Error> {
        let open = |path: &&str| Library::open(Path::new(path)).ok();
        let libraries: Vec<Library> = PLACES.iter().filter_map(open).collect();
        let attached = libraries.into_iter().filter_map(|library| attach(probes, &library).err());
        attached.filter(|error| !matches!(error, Error::Library { .. })).collect()
    }

    /// Attaches the probes to the libraries of processes that have not been looked at. Returns what went wrong, each file
    /// once.
    pub(super) fn attach(&mut self, probes: &mut Probes, processes: &[ProcessId]) -> Vec<Error> {
        self.looked.retain(|known| processes.contains(known));
        let new: Vec<u32> = processes.iter().filter(|id| self.looked.insert(**id)).map(|id| id.pid).collect();
        if new.is_empty() {
            return Vec::new();
        }
        let found = find_libraries(&self.procfs, new, |id| probes.is_attached(id));
        let failed = found.failed.into_iter().map(|(_, error)| error);
        let attached = found.libraries.iter().filter_map(|library| attach(probes, library).err());
        let mut errors: Vec<Error> = failed.chain(attached).collect();
        errors.retain(|error| match error {
            Error::Library { path, .. } => self.reported.len() < MOST && self.reported.insert(path.clone()),
            _ => true,
        });
        if probes.attached().count() > MOST {
            let pids = processes.iter().map(|id| id.pid);
            let in_use = find_libraries(&self.procfs, pids, |_| true).in_use;
            let unused: Vec<_> = probes.attached().filter(|id| !in_use.contains(id)).collect();
            unused.into_iter().for_each(|id| {
                probes.detach(id);
            });
        }
        errors
    }
}

fn attach(probes: &mut Probes, library: &Library) -> Result<(), Error> {
    if probes.is_attached(library.id) {
        return Ok(());
    }
    let attached = probes.attach(library)?;
    tracing::info!(
        path = %library.path.display(),
        calls = attached.symbols.len(),
        way = ?attached.way,
        "watching the driver's memory calls"
    );
    Ok(())
}
