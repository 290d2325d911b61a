//! The owners of processes. They are read while the processes are alive, because the processes will have ended by the time
//! the report is written.
//!
//! Invariant: a name is kept only if the process that was read is the one that was listed, that is, if both have the same
//! start time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gpu_readings::attribution::{Attribution, Settings};
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::{GpuProcesses, Owner, ProcessId, Snapshot};
use parking_lot::Mutex;
use vram_exporter::config::Config;

use super::record::Membership;
use super::tree::{Found, Tree};

/// The kernel's `/proc`, which shows the command and its descendants.
const PROC: &str = "/proc";
/// The maximum number of owners that are remembered.
const MOST: usize = 8192;

/// The owner of each process.
pub(super) type Owners = HashMap<ProcessId, Arc<Owner>>;
/// The names, which the lanes and the socket share.
pub(super) type SharedNames = Arc<Mutex<Names>>;

/// Which processes belong to the command, and the names that are known.
#[derive(Debug)]
pub(super) struct Names {
    tree: Tree,
    attribution: Attribution,
    /// Whether the lanes look processes up in a `/proc` other than the kernel's, such as the simulated one. The kernel's does
    /// not show simulated processes, so it does not provide their start times.
    other_procfs: bool,
    owners: Owners,
}

impl Names {
    /// Without any name.
    pub(super) fn new(config: &Config) -> SharedNames {
        let other_procfs = config.path.procfs != Path::new(PROC);
        let passwd = config.path.passwd.clone().filter(|_| !other_procfs);
        let settings = Settings { procfs: PROC.into(), passwd, command_line: false, hold: 0 };
        let attribution = Attribution::new(settings, Snapshot::new(), Arc::new(Faults::default()));
        let tree = Tree::below(std::process::id());
        Arc::new(Mutex::new(Self { tree, attribution, other_procfs, owners: Owners::new() }))
    }

    /// The process that has the pid now.
    pub(super) fn find(&mut self, pid: u32, now: Instant) -> Found {
        self.tree.find(pid, now)
    }

    /// Reads the names of the processes that have these pids, unless the command did not start them.
    pub(super) fn read(&mut self, pids: impl Iterator<Item = u32>, now: Instant) {
        let found = pids.map(|pid| self.tree.find(pid, now));
        let may_belong = |found: &Found| found.membership != Membership::Other && found.key.start_ticks.is_some();
        let is_known = |found: &Found| self.owners.get(&found.key).is_some_and(|owner| owner.user.is_some());
        let unknown: Vec<_> = found.filter(|found| may_belong(found) && !is_known(found)).collect();
        if unknown.is_empty() {
            return;
        }
        let pids: Vec<_> = unknown.iter().map(|found| found.key.pid).collect();
        for (found, owner) in unknown.into_iter().zip(self.attribution.identify_all(&pids)) {
            self.remember(found.key, &owner, false);
        }
        self.attribution.sweep(|_| true);
    }

    /// Takes over the names of the processes in a list that the command did not start.
    pub(super) fn learn(&mut self, list: &GpuProcesses) {
        let Some(at) = list.at else { return };
        for process in list.processes.iter().filter(|process| process.alive) {
            let found = self.tree.find(process.pid, at);
            if found.membership != Membership::Tree {
                self.remember(found.key, &process.owner, self.other_procfs);
            }
        }
    }

    /// Remembers the owner, if it is known to be that of the process.
    fn remember(&mut self, key: ProcessId, owner: &Arc<Owner>, is_same: bool) {
        let has_room = self.owners.len() < MOST || self.owners.contains_key(&key);
        if has_room && (is_same || owner.start_ticks == key.start_ticks) {
            self.owners.insert(key, owner.clone());
        }
    }

    /// The owners that are known.
    pub(super) fn owners(&self) -> &Owners {
        &self.owners
    }
}
