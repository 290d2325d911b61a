//! One GPU's processes at one moment: the driver's three lists merged, beside the memory in use at that moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::reported::ReportedReason;
use crate::faults::Reason;
use crate::lanes::watch::{Superseded, Watch};
use crate::nvml::{Device, Error, ListKind, ListedProcess, ProcessBuffer, Severity};
use crate::snapshot::ProcessKind;

/// How often the lists are read again because memory moved while they were read.
const ATTEMPTS: u32 = 3;

/// A MIG device, with its GPU instance and compute instance.
pub(super) type Slice<'d> = (Device<'d>, (u32, u32));

/// A process as the driver lists it, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ListEntry {
    pub(super) pid: u32,
    pub(super) kind: ProcessKind,
    /// Bytes; `None` where the driver does not tell.
    pub(super) used: Option<u64>,
    /// GPU instance and compute instance under MIG.
    pub(super) instance: Option<(u32, u32)>,
}

impl ListEntry {
    /// Pid, and the MIG device that it runs on.
    pub(super) fn slot(&self) -> (u32, Option<(u32, u32)>) {
        (self.pid, self.instance)
    }
}

/// All of a GPU's processes.
#[derive(Debug)]
pub(super) struct ProcessList {
    pub(super) entries: Vec<ListEntry>,
    /// The lists of earlier attempts: memory moved while they were read. Each is of one moment, as far as a list is.
    pub(super) earlier: Vec<Vec<ListEntry>>,
    /// Bytes in use on the GPU when the lists were read, reserved memory left out; `None` when memory moved meanwhile,
    /// or where the driver does not tell reserved memory apart.
    pub(super) used: Option<u64>,
    /// The same for each MIG device.
    pub(super) slices: Vec<Option<u64>>,
    /// A process with more memory than the GPU has; it is listed with unknown memory.
    pub(super) implausible: Option<u32>,
    /// Processes of these kinds may be there although they are not listed.
    pub(super) unread: Vec<ProcessKind>,
    /// The graphics or the MPS list.
    pub(super) refusals: Vec<Refusal>,
    pub(super) at: Instant,
}

/// A list that the driver refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// Whether it is to be counted: what a GPU never gives is counted when that begins.
    pub(super) counts: bool,
}

/// For how long a list that was empty is not read again, and the processes of a list that is refused are taken to live.
const STANDS: Duration = Duration::from_secs(5);

/// One of the driver's lists, as it was last read.
#[derive(Debug, Default)]
struct CachedList {
    entries: Vec<ListedProcess>,
    /// Whether it was ever read while the driver was open.
    given: bool,
    /// Whether the driver ever answered for it, be it with a refusal. Before that it is not known to be empty.
    answered: bool,
    /// Since when it is not known.
    unread_since: Option<Instant>,
    reported: ReportedReason,
}

impl CachedList {
    fn read(&mut self) {
        (self.given, self.answered) = (true, true);
        self.unread_since = None;
        self.reported.forget();
    }

    /// The list was refused: what it told is not known any longer. `None` where the part has no such list.
    fn refuse(&mut self, error: Error, kind: ListKind) -> Option<Refusal> {
        self.entries.clear();
        self.answered = true;
        let is_absent = error.severity() == Severity::Absent;
        // A part that knows no graphics or no MPS has none of their processes. Old drivers call the question invalid.
        let is_unknown_to_it = !self.given && kind != ListKind::Compute;
        let no_such_list = is_unknown_to_it && (is_absent || error.reason() == Reason::InvalidArgument);
        if !no_such_list {
            self.unread_since.get_or_insert_with(Instant::now);
        }
        let is_new = self.reported.is_new(error.reason());
        let silent = is_unknown_to_it && is_absent;
        (!silent).then_some(Refusal { counts: is_new || !(is_absent || no_such_list), error })
    }
}

/// The lists as they were last read.
///
/// The graphics and the MPS list cost as much as the compute list even when they are empty (NVML pays for all
/// processes: 0.5 ms for both on an H200 with 16). So an empty one is read again only at a whole pass, and there only
/// when memory moved since it was read (no process comes without memory), or after [`STANDS`].
#[derive(Debug, Default)]
pub(super) struct ListCache {
    /// In the order of [`ListKind`].
    lists: [CachedList; ListKind::ALL.len()],
    /// When all lists were read, and the bytes in use then.
    all_read: Option<(Instant, u64)>,
}

impl ListCache {
    /// Reads the lists and the memory in use around them, of the GPU and of its MIG devices. `whole`: also lists that
    /// were empty; `total`: all memory of the GPU, where it is known. Without the compute list there is no listing.
    pub(super) fn read(
        &mut self,
        device: Device<'_>,
        slices: &[Slice<'_>],
        watch: &Watch,
        slot: usize,
        buffer: &mut ProcessBuffer,
        (whole, total): (bool, Option<u64>),
    ) -> Result<Result<ProcessList, Refusal>, Superseded> {
        let mut before = in_use(device, slices, watch, slot)?;
        let stand = |(at, used): (Instant, u64)| before.0 == Some(used) && at.elapsed() < STANDS;
        let all = whole && !self.all_read.is_some_and(stand);
        let mut earlier: Vec<Vec<ListEntry>> = Vec::new();
        let mut refusals = Vec::new();
        for attempt in 1.. {
            for kind in ListKind::ALL {
                let list = self.list(kind);
                let wanted = all || kind == ListKind::Compute || !list.answered || !list.entries.is_empty();
                let answer = if wanted { self.reread((device, slices), watch, slot, kind, buffer)? } else { Ok(()) };
                let Err(error) = answer else { continue };
                let out_of_reach = matches!(error.severity(), Severity::Gpu | Severity::Driver);
                if out_of_reach {
                    return Ok(Err(Refusal { error, counts: true }));
                }
                match self.list(kind).refuse(error, kind) {
                    Some(refusal) if kind == ListKind::Compute => return Ok(Err(refusal)),
                    refusal => refusals.extend(refusal),
                }
            }
            let after = in_use(device, slices, watch, slot)?;
            if before == after || attempt == ATTEMPTS {
                // Where memory moved at every attempt, no figure is one of the lists' moment.
                let same = |(before, after): (Option<u64>, Option<u64>)| after.filter(|_| before == after);
                before = (same((before.0, after.0)), before.1.into_iter().zip(after.1).map(same).collect());
                break;
            }
            before = after;
            // A spike may be over at the next attempt.
            earlier.push(self.merge());
        }
        let (mut used, mut slices) = before;
        // What a list does not tell may be the memory that no other list tells.
        if self.lists.iter().any(|list| list.unread_since.is_some()) {
            used = None;
            slices.fill(None);
        }
        if all {
            self.all_read = used.map(|used| (Instant::now(), used));
        }
        let mut implausible = None;
        let mut entries = self.merge();
        for entry in earlier.iter_mut().flatten().chain(&mut entries) {
            if entry.used.is_some_and(|bytes| total.is_some_and(|total| bytes > total)) {
                implausible = Some(entry.pid);
                entry.used = None;
            }
        }
        let unread = self.unread();
        Ok(Ok(ProcessList { entries, earlier, used, slices, implausible, unread, refusals, at: Instant::now() }))
    }

    /// The lists that are refused since a short time only.
    fn unread(&self) -> Vec<ProcessKind> {
        let unread = self.kinds().filter(|(list, _)| list.unread_since.is_some_and(|since| since.elapsed() < STANDS));
        unread.map(|(_, kind)| kind).collect()
    }

    fn reread(
        &mut self,
        (device, slices): (Device<'_>, &[Slice<'_>]),
        watch: &Watch,
        slot: usize,
        kind: ListKind,
        buffer: &mut ProcessBuffer,
    ) -> Result<Result<(), Error>, Superseded> {
        let list = self.list(kind);
        let answer = watch.call(slot, || -> Result<(), Error> {
            let entries = device.processes(kind, buffer)?;
            list.entries.clear();
            list.entries.extend(entries);
            Ok(())
        })?;
        let answer = match answer {
            // A driver may keep the list of a sliced GPU from whoever is no administrator, and tell those of the slices.
            Err(error) if error.severity() == Severity::Absent && !slices.is_empty() => {
                let slices = self.reread_slices(slices, watch, slot, kind, buffer)?;
                // A slice that fails by itself says more than that the GPU does not tell.
                slices.map_err(|own| if own.severity() == Severity::Absent { error } else { own })
            }
            answer => answer,
        };
        if answer.is_ok() {
            self.list(kind).read();
        }
        Ok(answer)
    }

    /// Reads the list of each MIG device, which does not say of which it is.
    fn reread_slices(
        &mut self,
        slices: &[Slice<'_>],
        watch: &Watch,
        slot: usize,
        kind: ListKind,
        buffer: &mut ProcessBuffer,
    ) -> Result<Result<(), Error>, Superseded> {
        let list = &mut self.list(kind).entries;
        list.clear();
        for &(device, instance) in slices {
            let answer = watch.call(slot, || -> Result<(), Error> {
                let entries = device.processes(kind, buffer)?;
                list.extend(entries.map(|entry| ListedProcess { instance: Some(instance), ..entry }));
                Ok(())
            })?;
            if answer.is_err() {
                return Ok(answer);
            }
        }
        Ok(Ok(()))
    }

    fn list(&mut self, kind: ListKind) -> &mut CachedList {
        &mut self.lists[kind as usize]
    }

    /// Each list, and what its processes are: a process of several lists is what it is in the first of these.
    fn kinds(&self) -> impl Iterator<Item = (&CachedList, ProcessKind)> {
        let [compute, graphics, mps] = &self.lists;
        [(mps, ProcessKind::Mps), (compute, ProcessKind::Compute), (graphics, ProcessKind::Graphics)].into_iter()
    }

    /// A process that stands in several lists is one process: the driver gives its whole memory in each.
    fn merge(&self) -> Vec<ListEntry> {
        let mut merged = BTreeMap::<(u32, Option<(u32, u32)>), ListEntry>::new();
        for (list, kind) in self.kinds() {
            for entry in &list.entries {
                let ListedProcess { pid, used, instance } = *entry;
                merged
                    .entry((pid, instance))
                    .and_modify(|known| known.used = known.used.max(used))
                    .or_insert(ListEntry { pid, kind, used, instance });
            }
        }
        merged.into_values().collect()
    }
}

/// Bytes in use on the GPU and on each of its MIG devices, reserved memory left out; `None` where that is not known.
fn in_use(
    device: Device<'_>,
    slices: &[Slice<'_>],
    watch: &Watch,
    slot: usize,
) -> Result<(Option<u64>, Vec<Option<u64>>), Superseded> {
    let used = |device: Device<'_>| {
        let reading = watch.call(slot, || device.memory())?.ok();
        Ok(reading.and_then(|memory| memory.reserved.map(|_| memory.used)))
    };
    Ok((used(device)?, slices.iter().map(|&(slice, _)| used(slice)).collect::<Result<_, _>>()?))
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
