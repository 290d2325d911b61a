//! One process on one GPU (or MIG device) over time.

use std::sync::Arc;
use std::time::SystemTime;

use super::clock::unix;
use super::event::Who;
use super::exit_status::{Exit, Identity};
use super::heap_use::{HeapUse as _, allocation};
use super::series::{Micros, Series};
use crate::snapshot::{MigDevice, Owner, Process};

/// A process on a GPU.
#[derive(Debug)]
pub(super) struct ProcessHistory {
    pub(super) pid: u32,
    pub(super) mig: Option<Arc<MigDevice>>,
    pub(super) owner: Arc<Owner>,
    /// The memory that the owner uses.
    owner_bytes: usize,
    /// Its memory.
    pub(super) series: Series,
    /// When it was first listed.
    pub(super) first: Micros,
    /// Its highest memory use in bytes, and when that value was first listed. `None` if its memory use was never known.
    pub(super) peak: Option<(u64, Micros)>,
    /// When the last list that contained it and the first that did not were read; `None` while it is on the GPU.
    pub(super) ended: Option<(Micros, Micros)>,
    /// When the last list that contained it was read.
    pub(super) seen: Micros,
    /// How it ended.
    pub(super) exit: Exit,
}

impl ProcessHistory {
    pub(super) fn new(process: &Process, at: Micros) -> Self {
        Self {
            pid: process.pid,
            mig: process.mig.clone(),
            owner: process.owner.clone(),
            owner_bytes: owner_bytes(&process.owner),
            series: Series::default(),
            first: at,
            peak: None,
            ended: None,
            seen: at,
            exit: Exit::default(),
        }
    }

    /// Whether a listed process is this one. If either start time is unknown, the start times are not compared.
    pub(super) fn is(&self, process: &Process) -> bool {
        let device = |mig: &Option<Arc<MigDevice>>| mig.as_ref().map(|device| device.uuid.clone());
        let starts = (self.owner.start, process.owner.start);
        let same_start = !matches!(starts, (Some(own), Some(other)) if own != other);
        self.pid == process.pid && same_start && device(&self.mig) == device(&process.mig)
    }

    /// Records what a list that was read at `at` shows about the process.
    pub(super) fn see(&mut self, process: &Process, at: Micros) {
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
    pub(super) fn end(&mut self, last: Option<&Process>, by: Micros) {
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
    pub(super) fn lived(&self, now_wall: f64, now: Micros) -> f64 {
        let end = self.ended.map_or(now, |(after, _)| after);
        let listed = end.saturating_sub(self.first) as f64 / 1e6;
        let since_end = now.saturating_sub(end) as f64 / 1e6;
        let start = self.start().and_then(unix);
        start.map_or(listed, |start| (now_wall - since_end - start).max(listed))
    }

    pub(super) fn start(&self) -> Option<SystemTime> {
        self.owner.start
    }

    /// `None` if its start is unknown, because another process could then have its pid.
    pub(super) fn identity(&self) -> Option<Identity> {
        Some((self.pid, self.start()?))
    }

    pub(super) fn who(&self) -> Who {
        let Owner { name, uid, user, workload, .. } = &*self.owner;
        Who {
            pid: self.pid,
            name: name.clone(),
            user: user.clone().or_else(|| uid.map(|uid| uid.to_string())),
            workload: workload.as_ref().map(|workload| workload.name.clone()),
            mig_uuid: self.mig.as_ref().map(|device| device.uuid.clone()),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        allocation(size_of::<Self>()) + self.series.bytes() + self.owner_bytes
    }
}

/// The memory that an owner uses, with the two counters of its [`Arc`].
fn owner_bytes(owner: &Owner) -> usize {
    allocation(size_of::<Owner>() + 2 * size_of::<usize>()) + owner.heap_use()
}
