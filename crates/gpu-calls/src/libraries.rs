//! Attaches the probes to every driver library that is in use.
//!
//! Invariant: a file that cannot be watched is reported once; the number of files with probes is at most [`MOST`].

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cuda_probe::{Error, Library, LibraryId, NoLibrary, Probes};

use super::finder::Finder;
use gpu_readings::snapshot::ProcessId;

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
/// Once more files than this have probes, those that are in use no more are given up.
const MANY: usize = 32;
/// The maximum number of files with probes: each takes two descriptors, or four for each call.
const MOST: usize = 64;

/// The files, and the processes that have been looked at.
#[derive(Debug)]
pub(super) struct Libraries {
    finder: Finder,
    looked: HashSet<ProcessId>,
    reported: HashSet<PathBuf>,
    installed: BTreeSet<LibraryId>,
    /// Processes at which a thread has hung.
    hanging: HashSet<u32>,
    /// Whether a file has got probes since the last census.
    has_grown: bool,
    census: Option<Census>,
}

/// A look at all processes, to find the files that are in use.
#[derive(Debug, Default)]
struct Census {
    in_use: BTreeSet<LibraryId>,
    /// Whether it has not seen all processes.
    is_partial: bool,
}

impl Libraries {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self {
            finder: Finder::new(procfs),
            looked: HashSet::new(),
            reported: HashSet::new(),
            installed: BTreeSet::new(),
            hanging: HashSet::new(),
            has_grown: false,
            census: None,
        }
    }

    /// Attaches the probes to the installed driver. Returns what went wrong. A file that is absent, or is none of the
    /// driver's, is no error.
    pub(super) fn attach_installed(&mut self, probes: &mut Probes) -> Vec<Error> {
        let open = |path: &&str| Library::open(Path::new(path)).ok();
        let libraries: Vec<Library> = PLACES.iter().filter_map(open).collect();
        let attached = libraries.into_iter().filter_map(|library| attach(probes, &library).err());
        let errors = attached.filter(|error| !matches!(error, Error::Library { .. })).collect();
        self.installed = probes.attached().collect();
        errors
    }

    /// Attaches the probes to the libraries of processes that have not been looked at. `listed`: all processes, if they have
    /// been listed again. Returns what went wrong, each file once.
    pub(super) fn attach(&mut self, probes: &mut Probes, listed: Option<&[ProcessId]>) -> Vec<Error> {
        if let Some(processes) = listed {
            let all: HashSet<ProcessId> = processes.iter().copied().collect();
            self.looked.retain(|known| all.contains(known));
            let pids = all.iter().map(|id| id.pid).collect();
            self.finder.retain(&pids);
            self.hanging.retain(|pid| pids.contains(pid));
            self.finder.add(processes.iter().filter(|id| self.looked.insert(**id)).map(|id| id.pid));
        }
        let attached: Vec<LibraryId> = probes.attached().collect();
        let answers = self.finder.poll(Instant::now(), || attached.iter().copied().collect());
        let mut errors = Vec::new();
        for found in answers.found {
            if let Some(census) = &mut self.census {
                census.is_partial |= found.unread;
                census.in_use.extend(&found.in_use);
            }
            errors.extend(found.failed.into_iter().map(|(_, error)| error));
            self.has_grown |= !found.libraries.is_empty();
            errors.extend(found.libraries.iter().filter_map(|library| attach_another(probes, library).err()));
        }
        if let Some(pid) = answers.hanging {
            self.hanging.insert(pid);
            self.census.iter_mut().for_each(|census| census.is_partial = true);
            let reason = NoLibrary::Unreadable(io::ErrorKind::TimedOut.into());
            errors.push(Error::Library { path: self.finder.maps(pid), reason });
        }
        self.give_up_unused(probes);
        errors.retain(|error| match error {
            Error::Library { path, .. } => self.reported.len() < MOST && self.reported.insert(path.clone()),
            _ => true,
        });
        errors
    }

    /// Removes the probes of files that are in use no more, once there are many.
    fn give_up_unused(&mut self, probes: &mut Probes) {
        if !self.finder.is_idle() {
            return;
        }
        if let Some(census) = self.census.take().filter(|census| !census.is_partial) {
            let is_used = |id: &LibraryId| census.in_use.contains(id) || self.installed.contains(id);
            let unused: Vec<_> = probes.attached().filter(|id| !is_used(id)).collect();
            unused.into_iter().for_each(|id| {
                probes.detach(id);
            });
        }
        if probes.attached().count() > MANY && std::mem::take(&mut self.has_grown) {
            self.census = Some(Census::default());
            self.finder.add(self.looked.iter().map(|id| id.pid).filter(|pid| !self.hanging.contains(pid)));
        }
    }
}

/// Attaches the probes to a file that a process has mapped. If the kernel refuses, the file is the reason, not the machine:
/// a process can make a file that has the driver's symbols at places where no probe can be.
fn attach_another(probes: &mut Probes, library: &Library) -> Result<(), Error> {
    let refuse = |reason| Error::Library { path: library.path.clone(), reason };
    if probes.attached().count() >= MOST && !probes.is_attached(library.id) {
        return Err(refuse(NoLibrary::TooMany));
    }
    attach(probes, library).map_err(|error| match error {
        error @ (Error::Library { .. } | Error::Rights { .. }) => error,
        error => refuse(NoLibrary::Unreadable(io::Error::other(error))),
    })
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
