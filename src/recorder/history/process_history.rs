//! One process on one GPU (or MIG device) over time.

use std::sync::Arc;
use std::time::SystemTime;

use super::series::Series;
use super::{Exit, HeapUse as _, Micros, Now, ProcessRef, allocation, unix};
use crate::snapshot::{MigDevice, Owner, Process, ProcessId};

/// Identifies a process among those of a device, also if its start time is unknown: no list contains a pid twice on one
/// device, and a process that a list did not contain has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pid: u32,
    /// The compute instance of MIG.
    compute_instance: Option<u32>,
    /// When the first list that contained it was read.
    first: Micros,
}

/// A process on a GPU.
#[derive(Debug, Default)]
pub(crate) struct ProcessHistory {
    pub(crate) pid: u32,
    pub(crate) mig: Option<Arc<MigDevice>>,
    pub(crate) owner: Arc<Owner>,
    /// The memory that the owner uses.
    owner_bytes: usize,
    /// Its memory.
    pub(crate) series: Series,
    /// When it was first listed.
    pub(crate) first: Micros,
    /// Its highest memory use in bytes, and when that value was first listed. `None` if its memory use was never known.
    pub(crate) peak: Option<(u64, Micros)>,
    /// When the last list that contained it and the first that did not were read; `None` while it is on the GPU.
    pub(crate) ended: Option<(Micros, Micros)>,
    /// When the last list that contained it was read.
    pub(crate) seen: Micros,
    /// How it ended.
    pub(crate) exit: Exit,
}

impl ProcessHistory {
    pub(crate) fn new(process: &Process, at: Micros) -> Self {
        Self {
            pid: process.pid,
            mig: process.mig.clone(),
            owner: process.owner.clone(),
            owner_bytes: owner_bytes(&process.owner),
            first: at,
            seen: at,
            ..Self::default()
        }
    }

    pub(crate) fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.owner.start_ticks }
    }

    pub(crate) fn holding(&self) -> Holding {
        let compute_instance = self.mig.as_ref().map(|device| device.compute_instance);
        Holding { pid: self.pid, compute_instance, first: self.first }
    }

    fn is_on_device_of(&self, process: &Process) -> bool {
        MigDevice::are_same(self.mig.as_deref(), process.mig.as_deref())
    }

    /// Whether a process that a list contains is this one, which every list has contained since it was first listed.
    pub(crate) fn is(&self, process: &Process, now: Now) -> bool {
        let is_former = || self.id().is_former_of(process.id(), process.owner.start, now.wall(self.first));
        self.pid == process.pid && self.is_on_device_of(process) && !is_former()
    }

    /// The last state of this process in a list that no longer contains it, if the list shows that.
    pub(crate) fn last_state<'l>(&self, ended: impl Iterator<Item = &'l Process>) -> Option<&'l Process> {
        let is_same = |process: &&Process| process.id() == self.id() && self.is_on_device_of(process);
        ended.filter(is_same).max_by_key(|process| process.ended.map(|ended| ended.by))
    }

    /// Records what a list that was read at `at` shows about the process.
    pub(crate) fn see(&mut self, process: &Process, at: Micros) {
        self.seen = at;
        if !Arc::ptr_eq(&self.owner, &process.owner) {
            self.owner = process.owner.clone();
            self.owner_bytes = owner_bytes(&self.owner);
        }
        self.series.see(at, process.used);
        self.raise(process, at);
    }

    /// Records that a list read at `by` no longer contains the process. `last`, its last state, contains its final
    /// peak.
    pub(crate) fn end(&mut self, last: Option<&Process>, by: Micros) {
        self.ended = Some((self.seen, by));
        if let Some(process) = last {
            self.raise(process, self.seen);
        }
        self.series.see(by, Some(0));
        self.series.trim();
    }

    /// Raises the peak to that of the list entry if that is higher. The entry's peak can come from a list that was read
    /// in an earlier attempt, and can then be higher than the value in the last list.
    fn raise(&mut self, process: &Process, at: Micros) {
        if let Some(highest) = process.peak.max(process.used)
            && self.peak.is_none_or(|(peak, _)| highest > peak)
        {
            self.peak = Some((highest, at));
        }
    }

    /// How long it ran, as far as that is known: since its start, or since it was first listed.
    pub(crate) fn lived(&self, now_wall: f64, now: Micros) -> f64 {
        let end = self.ended.map_or(now, |(after, _)| after);
        let listed = end.saturating_sub(self.first) as f64 / 1e6;
        let since_end = now.saturating_sub(end) as f64 / 1e6;
        let start = self.start().and_then(unix);
        start.map_or(listed, |start| (now_wall - since_end - start).max(listed))
    }

    pub(crate) fn start(&self) -> Option<SystemTime> {
        self.owner.start
    }

    pub(crate) fn who(&self) -> ProcessRef {
        ProcessRef::of(self.pid, &self.owner, self.mig.as_deref())
    }

    pub(crate) fn bytes(&self) -> usize {
        allocation(size_of::<Self>()) + self.series.bytes() + self.owner_bytes
    }
}

/// The memory that an owner uses, with the two counters of its [`Arc`].
fn owner_bytes(owner: &Owner) -> usize {
    allocation(size_of::<Owner>() + 2 * size_of::<usize>()) + owner.heap_use()
}
