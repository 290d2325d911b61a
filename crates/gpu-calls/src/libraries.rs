//! Attaches the probes to every driver library that is in use.
//!
//! Invariant: a file that cannot be watched is reported once; the number of files with probes is at most [`MOST`]; a file that a
//! process on a GPU uses keeps its probes; the last slots are for workloads that have none.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_probe::{Error, Library, LibraryId, NoLibrary, Probes};

use super::finder::Finder;
use super::places::Place;
use gpu_readings::snapshot::{ProcessId, Workload};

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
/// A workload with files that have probes gets another one only while more than this many slots are free for each of them.
const FREE_FOR_EACH: usize = 8;
/// The shortest time between two censuses. To remove the probes of a file can take seconds.
const SELDOM: Duration = Duration::from_secs(600);

/// The files, and the processes that have been looked at.
#[derive(Debug)]
pub(super) struct Libraries {
    finder: Finder,
    looked: HashMap<ProcessId, Option<Arc<Workload>>>,
    slots: Slots,
    reported: HashSet<PathBuf>,
    installed: BTreeSet<LibraryId>,
    /// Processes at which a thread has hung.
    hanging: HashSet<u32>,
    /// Whether files that are in use no more should be given up.
    is_crowded: bool,
    census: Option<Census>,
    /// When the last one began.
    counted: Option<Instant>,
}

/// The files that were found in processes, with the workload of the process.
#[derive(Debug, Default)]
struct Slots(BTreeMap<LibraryId, Option<Arc<Workload>>>);

impl Slots {
    /// Whether a workload may have one more file with probes. `attached`: how many have probes.
    fn has_room(&self, attached: usize, workload: Option<&Arc<Workload>>) -> bool {
        let own = self.0.values().filter(|owner| owner.as_ref() == workload).count();
        own * FREE_FOR_EACH < MOST.saturating_sub(attached)
    }
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
            looked: HashMap::new(),
            slots: Slots::default(),
            reported: HashSet::new(),
            installed: BTreeSet::new(),
            hanging: HashSet::new(),
            is_crowded: false,
            census: None,
            counted: None,
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
    pub(super) fn attach<'p>(
        &mut self,
        probes: &mut Probes,
        listed: Option<impl Iterator<Item = &'p Place>>,
    ) -> Vec<Error> {
        if let Some(places) = listed {
            let all: HashMap<_, _> = places.map(|place| (place.id, place.workload.clone())).collect();
            let pids = all.keys().map(|id| id.pid).collect();
            self.finder.retain(&pids);
            self.hanging.retain(|pid| pids.contains(pid));
            self.finder.add(all.keys().filter(|id| !self.looked.contains_key(id)).map(|id| id.pid));
            self.looked = all;
        }
        let attached: Vec<LibraryId> = probes.attached().collect();
        let answers = self.finder.poll(Instant::now(), || attached.iter().copied().collect());
        let mut errors = Vec::new();
        for (pid, found) in answers.found {
            if let Some(census) = &mut self.census {
                census.is_partial |= found.unread;
                census.in_use.extend(&found.in_use);
            }
            errors.extend(found.failed.into_iter().map(|(_, error)| error));
            errors.extend(found.libraries.iter().filter_map(|library| self.attach_another(probes, library, pid).err()));
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

    /// Attaches the probes to a file that a process has mapped. If the kernel refuses, the file is the reason, not the machine:
    /// a process can make a file that has the driver's symbols at places where no probe can be.
    fn attach_another(&mut self, probes: &mut Probes, library: &Library, pid: u32) -> Result<(), Error> {
        if probes.is_attached(library.id) {
            return Ok(());
        }
        let workload = self.looked.iter().find(|(id, _)| id.pid == pid).and_then(|(_, workload)| workload.clone());
        let refuse = |reason| Error::Library { path: library.path.clone(), reason };
        let attached = probes.attached().count();
        let has_room = self.slots.has_room(attached, workload.as_ref());
        self.is_crowded |= attached >= MANY || !has_room;
        if !has_room {
            return Err(refuse(NoLibrary::TooMany));
        }
        attach(probes, library).map_err(|error| match error {
            error @ (Error::Library { .. } | Error::Rights { .. }) => error,
            error => refuse(NoLibrary::Unreadable(io::Error::other(error))),
        })?;
        self.slots.0.insert(library.id, workload);
        Ok(())
    }

    /// Removes the probes of files that are in use no more, once there are many or one is refused.
    fn give_up_unused(&mut self, probes: &mut Probes) {
        if !self.finder.is_idle() {
            return;
        }
        if let Some(census) = self.census.take().filter(|census| !census.is_partial) {
            let is_used = |id: &LibraryId| census.in_use.contains(id) || self.installed.contains(id);
            let unused: Vec<_> = probes.attached().filter(|id| !is_used(id)).collect();
            for id in &unused {
                probes.detach(*id);
                self.slots.0.remove(id);
            }
            // What was refused may have room now.
            if !unused.is_empty() {
                self.look_again();
            }
        }
        if self.is_crowded && self.counted.is_none_or(|counted| counted.elapsed() >= SELDOM) {
            self.is_crowded = false;
            self.counted = Some(Instant::now());
            self.census = Some(Census::default());
            self.look_again();
        }
    }

    fn look_again(&mut self) {
        self.finder.add(self.looked.keys().map(|id| id.pid).filter(|pid| !self.hanging.contains(pid)));
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

#[cfg(test)]
mod tests {
    use gpu_readings::snapshot::WorkloadKind;

    use super::*;

    fn workload(number: usize) -> Arc<Workload> {
        Arc::new(Workload { name: format!("user:{number}"), kind: WorkloadKind::User, pod: None })
    }

    /// How many files with probes a workload has after these workloads have come with `files` files each, one after the other.
    fn taken(slots: &mut Slots, workloads: std::ops::Range<usize>, files: usize) -> Vec<usize> {
        let mut take = |number| {
            let had = slots.0.len();
            for _ in 0..files {
                let inode = slots.0.len() as u64;
                if slots.has_room(slots.0.len(), Some(&workload(number))) {
                    slots.0.insert(LibraryId { device: (0, 1), inode }, Some(workload(number)));
                }
            }
            slots.0.len() - had
        };
        workloads.map(&mut take).collect()
    }

    #[test]
    fn many_processes_with_many_files_leave_a_slot_to_another_workload() {
        // 16 processes with four files each, of one user and of 16.
        let mut slots = Slots::default();
        assert_eq!(taken(&mut slots, 0..1, 64), [8]);
        assert_eq!(taken(&mut slots, 1..2, 1), [1]);
        let mut slots = Slots::default();
        let hostile: usize = taken(&mut slots, 0..16, 4).iter().sum();
        assert_eq!((hostile, taken(&mut slots, 16..18, 4)), (54, vec![2, 1]));
        // 22 workloads with files take all slots.
        let mut slots = Slots::default();
        assert_eq!(taken(&mut slots, 0..21, 64).iter().sum::<usize>(), MOST - 1);
        assert_eq!(taken(&mut slots, 21..23, 64), [1, 0]);
    }
}
