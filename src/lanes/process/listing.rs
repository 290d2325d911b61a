//! One GPU's processes at one moment: the driver's three lists merged, beside the memory in use at that moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::lanes::watch::{Superseded, Watch};
use crate::nvml::{Device, Error, ListKind, ListedProcess, ProcessBuffer, Severity};
use crate::snapshot::ProcessKind;

/// How often the lists are read again because memory moved while they were read.
const ATTEMPTS: u32 = 3;

/// A MIG device, with its GPU instance and compute instance.
pub(super) type Slice<'d> = (Device<'d>, (u32, u32));

/// A process as the driver lists it, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Listed {
    pub(super) pid: u32,
    pub(super) kind: ProcessKind,
    /// Bytes; `None` where the driver does not tell.
    pub(super) used: Option<u64>,
    /// GPU instance and compute instance under MIG.
    pub(super) instance: Option<(u32, u32)>,
}

impl Listed {
    /// Pid, and the MIG device that it runs on.
    pub(super) fn place(&self) -> (u32, Option<(u32, u32)>) {
        (self.pid, self.instance)
    }
}

/// All of a GPU's processes.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) entries: Vec<Listed>,
    /// The lists of earlier attempts: memory moved while they were read. Each is of one moment, as far as a list is.
    pub(super) earlier: Vec<Vec<Listed>>,
    /// Bytes in use on the GPU when the lists were read, reserved memory left out; `None` when memory moved meanwhile,
    /// or where the driver does not tell reserved memory apart.
    pub(super) used: Option<u64>,
    /// The same for each MIG device.
    pub(super) slices: Vec<Option<u64>>,
    /// A process with more memory than the GPU has; it is listed with unknown memory.
    pub(super) implausible: Option<u32>,
    pub(super) at: Instant,
}

/// The longest time between two readings of a list that was empty.
const EMPTY_STANDS: Duration = Duration::from_secs(5);

/// The lists as they were last read.
///
/// The graphics and the MPS list cost as much as the compute list even when they are empty (NVML pays for all
/// processes: 0.5 ms for both on an H200 with 16). So an empty one is read again only at a whole pass, and there only
/// when memory moved since it was read (no process comes without memory), or after [`EMPTY_STANDS`].
#[derive(Debug, Default)]
pub(super) struct Lists {
    compute: Vec<ListedProcess>,
    graphics: Vec<ListedProcess>,
    mps: Vec<ListedProcess>,
    /// When all lists were read, and the bytes in use then.
    all_read: Option<(Instant, u64)>,
}

impl Lists {
    /// Reads the lists and the memory in use around them, of the GPU and of its MIG devices. `whole`: also lists that
    /// were empty; `total`: all memory of the GPU, where it is known.
    pub(super) fn read(
        &mut self,
        device: Device<'_>,
        slices: &[Slice<'_>],
        watch: &Watch,
        slot: usize,
        buffer: &mut ProcessBuffer,
        (whole, total): (bool, Option<u64>),
    ) -> Result<Result<Listing, Error>, Superseded> {
        let mut before = in_use(device, slices, watch, slot)?;
        let stand = |(at, used): (Instant, u64)| before.0 == Some(used) && at.elapsed() < EMPTY_STANDS;
        let all = whole && !self.all_read.is_some_and(stand);
        let mut earlier: Vec<Vec<Listed>> = Vec::new();
        for attempt in 1.. {
            for kind in ListKind::ALL {
                let wanted = all || kind == ListKind::Compute || !self.list(kind).is_empty();
                if wanted && let Err(error) = self.reread((device, slices), watch, slot, kind, buffer)? {
                    return Ok(Err(error));
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
        let (used, slices) = before;
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
        Ok(Ok(Listing { entries, earlier, used, slices, implausible, at: Instant::now() }))
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
            list.clear();
            list.extend(entries);
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
        match answer {
            // A part that knows no graphics or no MPS has none of their processes.
            Err(error) if kind != ListKind::Compute && error.severity() == Severity::Absent => {
                self.list(kind).clear();
                Ok(Ok(()))
            }
            answer => Ok(answer),
        }
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
        let list = self.list(kind);
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

    fn list(&mut self, kind: ListKind) -> &mut Vec<ListedProcess> {
        match kind {
            ListKind::Compute => &mut self.compute,
            ListKind::Graphics => &mut self.graphics,
            ListKind::Mps => &mut self.mps,
        }
    }

    /// A process that stands in several lists is one process: the driver gives its whole memory in each.
    fn merge(&self) -> Vec<Listed> {
        let mut merged = BTreeMap::<(u32, Option<(u32, u32)>), Listed>::new();
        let lists = [
            (&self.mps, ProcessKind::Mps),
            (&self.compute, ProcessKind::Compute),
            (&self.graphics, ProcessKind::Graphics),
        ];
        for (list, kind) in lists {
            for entry in list {
                let ListedProcess { pid, used, instance } = *entry;
                merged.entry((pid, instance)).and_modify(|known| known.used = known.used.max(used)).or_insert(Listed {
                    pid,
                    kind,
                    used,
                    instance,
                });
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

    #[test]
    fn a_process_in_two_lists_is_one_process_with_its_memory_once() {
        let lists = Lists {
            compute: vec![listed(1, Some(10)), listed(2, None), listed(3, Some(5))],
            graphics: vec![listed(1, Some(10)), listed(2, Some(7)), listed(4, Some(1))],
            mps: vec![listed(3, Some(5))],
            all_read: None,
        };
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
        let lists = Lists { compute: vec![on((1, 0)), on((2, 0))], ..Lists::default() };
        assert_eq!(lists.merge().len(), 2);
    }
}
