//! The driver's three lists for one GPU, as last read, and how they are merged into one list that describes one moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::list::{ListEntry, ProcessList, ProcessSlot};
use super::list_source::{ListSource, Used};
use super::raised::RaisedReason;
use crate::faults::{Faults, Source};
use crate::lanes::watch::Superseded;
use crate::nvml::{Error, ListKind, ListedProcess, ProcessBuffer, Severity};
use crate::snapshot::ProcessKind;

/// The maximum number of times that the lists are read if memory changes while they are being read.
const ATTEMPTS: usize = 3;

/// How long an empty list stays valid without being read again, and how long the processes of a refused list are
/// assumed to be alive.
const VALID_FOR: Duration = Duration::from_secs(5);

/// The lists as they were last read.
///
/// The graphics and MPS lists cost as much as the compute list even when they are empty (NVML's cost depends on the
/// total number of processes: 0.5 ms for both lists on an H200 with 16 processes). So an empty list is read again only
/// in a whole pass, and only if memory has changed since it was read (no process starts without using memory) or
/// [`VALID_FOR`] has passed.
#[derive(Debug, Default)]
pub(super) struct ListCache {
    /// In the order of [`ListKind`].
    lists: [CachedList; ListKind::ALL.len()],
    /// When all lists were read, and the bytes in use then.
    all_read: Option<(Instant, Used)>,
}

/// One of the driver's lists, as it was last read.
#[derive(Debug, Default)]
struct CachedList {
    entries: Vec<ListedProcess>,
    /// Whether it has ever been read in this session.
    given: bool,
    /// Whether the driver has ever responded to a call for this list, even with a refusal. Until then, the list is not
    /// known to be empty.
    answered: bool,
    /// When its processes became unknown.
    unread_since: Option<Instant>,
    raised: RaisedReason,
}

impl CachedList {
    fn is_empty(&self) -> bool {
        self.answered && self.entries.is_empty()
    }

    fn read(&mut self) {
        (self.given, self.answered) = (true, true);
        self.unread_since = None;
        self.raised.forget();
    }

    /// Records that the list was refused: its processes are no longer known. Returns whether to count the refusal:
    /// always if it may be temporary, otherwise only if its reason is new. The refusal of a list that this GPU does not
    /// have is not counted at all.
    fn refuse(&mut self, error: &Error, kind: ListKind) -> bool {
        self.entries.clear();
        self.answered = true;
        let is_absent = error.severity() == Severity::Absent;
        // A GPU without graphics or MPS support has no such processes.
        let never_given = !self.given && kind != ListKind::Compute;
        let no_such_list = never_given && error.is_unavailable();
        if !no_such_list {
            self.unread_since.get_or_insert_with(Instant::now);
        }
        let is_new = self.raised.is_new(error.reason());
        let silent = never_given && is_absent;
        !silent && (is_new || !(is_absent || no_such_list))
    }
}

impl ListCache {
    /// Reads the lists, and the memory in use before and after. `whole`: whether to also read lists that were empty.
    /// `total`: the total memory of the GPU, if it is known. Refusals are raised as faults. Returns `None` if the
    /// compute list could not be read or the GPU is out of reach.
    pub(super) fn read(
        &mut self,
        source: &ListSource<'_>,
        buffer: &mut ProcessBuffer,
        whole: bool,
        total: Option<u64>,
        faults: &Faults,
    ) -> Result<Option<ProcessList>, Superseded> {
        let mut began = Instant::now();
        let mut before = source.in_use()?;
        let is_valid = |(at, used): (Instant, Used)| before.gpu == Some(used) && at.elapsed() < VALID_FOR;
        let all = whole && !self.all_read.is_some_and(is_valid);
        let mut earlier: Vec<Vec<ListEntry>> = Vec::new();
        let mut around = Vec::new();
        let mut in_use = loop {
            if !self.read_once(source, buffer, all, faults)? {
                return Ok(None);
            }
            let next = Instant::now();
            let after = source.in_use()?;
            around.push([before.clone(), after.clone()]);
            if before == after || earlier.len() + 1 == ATTEMPTS {
                // A figure that changed during every attempt does not match the lists.
                break before.common(after);
            }
            (began, before) = (next, after);
            // A spike may be over by the next attempt.
            earlier.push(self.merge());
        };
        // Memory that no list accounts for may belong to the processes of a list that was not read.
        if self.lists.iter().any(|list| list.unread_since.is_some()) {
            in_use.forget();
        }
        if all {
            self.all_read = in_use.gpu.map(|used| (Instant::now(), used));
        }
        let mut implausible = None;
        let mut entries = self.merge();
        for entry in earlier.iter_mut().flatten().chain(&mut entries) {
            if entry.used.is_some_and(|bytes| total.is_some_and(|total| bytes > total)) {
                implausible = Some(entry.pid);
                entry.used = None;
            }
        }
        Ok(Some(ProcessList {
            entries,
            earlier,
            used: in_use.gpu.and_then(Used::exact),
            mig_used: in_use.mig.into_iter().map(|used| used?.exact()).collect(),
            around,
            implausible,
            unread: self.unread(),
            began,
            at: Instant::now(),
        }))
    }

    /// Reads each list once: `all` of them, or those that are not known to be empty. Returns whether the compute list
    /// was read and the GPU is within reach.
    fn read_once(
        &mut self,
        source: &ListSource<'_>,
        buffer: &mut ProcessBuffer,
        all: bool,
        faults: &Faults,
    ) -> Result<bool, Superseded> {
        for kind in ListKind::ALL {
            let list = &mut self.lists[kind as usize];
            if !all && kind != ListKind::Compute && list.is_empty() {
                continue;
            }
            let Err(error) = source.read(kind, &mut list.entries, buffer)? else {
                list.read();
                continue;
            };
            let out_of_reach = matches!(error.severity(), Severity::Gpu | Severity::Driver);
            if out_of_reach || list.refuse(&error, kind) {
                source.device.raise(faults, Source::Process, &error);
            }
            if out_of_reach || kind == ListKind::Compute {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The process kinds of the lists that have been unreadable for less than [`VALID_FOR`].
    fn unread(&self) -> Vec<ProcessKind> {
        let unread = self.kinds().filter(|(list, _)| list.unread_since.is_some_and(|at| at.elapsed() < VALID_FOR));
        unread.map(|(_, kind)| kind).collect()
    }

    /// Each list with the kind of its processes. A process in several lists has the kind of the first of them.
    fn kinds(&self) -> impl Iterator<Item = (&CachedList, ProcessKind)> {
        let [compute, graphics, mps] = &self.lists;
        [(mps, ProcessKind::Mps), (compute, ProcessKind::Compute), (graphics, ProcessKind::Graphics)].into_iter()
    }

    /// Merges the lists. A process in several lists is one process: the driver reports its whole memory in each.
    fn merge(&self) -> Vec<ListEntry> {
        let mut merged = BTreeMap::<ProcessSlot, ListEntry>::new();
        for (list, kind) in self.kinds() {
            for &ListedProcess { pid, used, instance } in &list.entries {
                let entry = merged.entry((pid, instance)).or_insert(ListEntry { pid, kind, used, instance });
                entry.used = entry.used.max(used);
            }
        }
        merged.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(pid: u32, used: Option<u64>) -> ListedProcess {
        ListedProcess { pid, used, instance: None }
    }

    /// Compute, graphics, MPS.
    fn lists(entries: [Vec<ListedProcess>; 3]) -> ListCache {
        ListCache {
            lists: entries.map(|entries| CachedList { entries, ..CachedList::default() }),
            ..ListCache::default()
        }
    }

    #[test]
    fn a_process_in_two_lists_is_one_process_with_its_memory_once() {
        let lists = lists([
            vec![listed(1, Some(10)), listed(2, None), listed(3, Some(5))],
            vec![listed(1, Some(10)), listed(2, Some(7)), listed(4, Some(1))],
            vec![listed(3, Some(5))],
        ]);
        let merged = lists.merge();
        let of = |pid| *merged.iter().find(|entry| entry.pid == pid).unwrap();
        assert_eq!(merged.len(), 4);
        assert_eq!((of(1).kind, of(1).used), (ProcessKind::Compute, Some(10)));
        assert_eq!((of(2).kind, of(2).used), (ProcessKind::Compute, Some(7)));
        assert_eq!((of(3).kind, of(3).used), (ProcessKind::Mps, Some(5)));
        assert_eq!(of(4).kind, ProcessKind::Graphics);
    }

    #[test]
    fn one_pid_on_two_mig_devices_stays_two_entries() {
        let on = |instance| ListedProcess { pid: 1, used: Some(3), instance: Some(instance) };
        let lists = lists([vec![on((1, 0)), on((2, 0))], Vec::new(), Vec::new()]);
        assert_eq!(lists.merge().len(), 2);
    }
}
