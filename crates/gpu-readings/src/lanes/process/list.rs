//! The processes of one GPU at one moment, as the driver lists them.

use std::collections::HashSet;
use std::time::Instant;

use crate::snapshot::ProcessKind;

/// The GPU instance and the compute instance under MIG.
pub(super) type Instance = Option<(u32, u32)>;

/// The identity of a live process on one GPU: the pid, and the MIG device that the process runs on.
pub(super) type ProcessSlot = (u32, Instance);

/// One process in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ListEntry {
    pub(super) pid: u32,
    pub(super) kind: ProcessKind,
    /// Bytes; `None` if the driver does not report them.
    pub(super) used: Option<u64>,
    pub(super) instance: Instance,
}

impl ListEntry {
    pub(super) fn slot(&self) -> ProcessSlot {
        (self.pid, self.instance)
    }
}

/// All processes of a GPU: the driver's three lists merged, with the memory in use at that moment.
#[derive(Debug)]
pub(super) struct ProcessList {
    pub(super) entries: Vec<ListEntry>,
    /// The lists of earlier attempts, during which memory changed. Like every list, each describes one moment only
    /// approximately.
    pub(super) earlier: Vec<Vec<ListEntry>>,
    /// Bytes in use on the GPU when the lists were read, without reserved memory. `None` if memory changed while they
    /// were being read, or if the driver does not report reserved memory separately.
    pub(super) used: Option<u64>,
    /// The same for each MIG device.
    pub(super) mig_used: Vec<Option<u64>>,
    /// The pid of a process for which the driver reports more memory than the GPU has. Its memory is listed as unknown.
    pub(super) implausible: Option<u32>,
    /// Processes of these kinds may be on the GPU although they are not listed.
    pub(super) unread: Vec<ProcessKind>,
    pub(super) at: Instant,
}

impl ProcessList {
    /// The entries of earlier lists whose slots are not in the last list.
    pub(super) fn gone(&self) -> HashSet<ListEntry> {
        // Nearly every pass has only one list.
        if self.earlier.is_empty() {
            return HashSet::new();
        }
        let last: HashSet<ProcessSlot> = self.entries.iter().map(ListEntry::slot).collect();
        self.earlier.iter().flatten().filter(|entry| !last.contains(&entry.slot())).copied().collect()
    }
}
