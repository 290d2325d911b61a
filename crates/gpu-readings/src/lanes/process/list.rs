//! The processes of one GPU at one moment, as the driver lists them.

use std::collections::HashSet;
use std::time::Instant;

use super::list_source::{InUse, Used};
use crate::snapshot::{ListRead, ProcessKind, ReadProcess};

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
    /// The memory in use before and after each of the earlier lists and the last one was read.
    pub(super) around: Vec<[InUse; 2]>,
    /// The pid of a process for which the driver reports more memory than the GPU has. Its memory is listed as unknown.
    pub(super) implausible: Option<u32>,
    /// Processes of these kinds may be on the GPU although they are not listed.
    pub(super) unread: Vec<ProcessKind>,
    /// When the reading of the last list began.
    pub(super) began: Instant,
    pub(super) at: Instant,
}

impl ProcessList {
    /// The lists as they were read, for an observer; none if a list of some kind of process could not be read.
    pub(super) fn reads(&self) -> Vec<ListRead> {
        let lists = self.earlier.iter().chain([&self.entries]).filter(|_| self.unread.is_empty());
        let read = |&ListEntry { pid, used, instance, .. }: &ListEntry| ReadProcess { pid, instance, used };
        let pair = |before: Option<Used>, after: Option<Used>| [before, after].map(|used| Some(used?.bytes));
        let lists = lists.zip(&self.around).map(|(entries, [before, after])| ListRead {
            entries: entries.iter().map(read).collect(),
            around: pair(before.gpu, after.gpu),
            mig_around: before.mig.iter().zip(&after.mig).map(|(before, after)| pair(*before, *after)).collect(),
        });
        lists.collect()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_gets_every_list_that_was_read_and_no_incomplete_one() {
        let entry = |used| ListEntry { pid: 7, kind: ProcessKind::Compute, used: Some(used), instance: None };
        let in_use = |bytes| InUse { gpu: Some(Used { bytes, is_exact: false }), mig: vec![None] };
        let whole = ProcessList {
            entries: vec![entry(2)],
            earlier: vec![vec![entry(9)]],
            used: None,
            mig_used: Vec::new(),
            around: vec![[in_use(10), in_use(3)], [in_use(3), in_use(3)]],
            implausible: None,
            unread: Vec::new(),
            began: Instant::now(),
            at: Instant::now(),
        };
        let reads = whole.reads();
        let shown: Vec<_> =
            reads.iter().map(|read| (read.entries[0].used, read.around, &read.mig_around[..])).collect();
        let none = [[None; 2]];
        let expected = [(Some(9), [Some(10), Some(3)], &none[..]), (Some(2), [Some(3); 2], &none[..])];
        assert_eq!(shown, expected);
        assert!(ProcessList { unread: vec![ProcessKind::Mps], ..whole }.reads().is_empty());
    }
}
