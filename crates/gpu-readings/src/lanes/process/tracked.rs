//! One process on a GPU: its identity, its memory, its peaks and its work.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::list::{Instance, ListEntry, ProcessSlot};
use crate::lanes::peaks::Record;
use crate::nvml::UtilizationSample;
use crate::snapshot::{Ended, MigDevice, Owner, PodContainer, Process, ProcessId, ProcessKind, Workload};

/// One process on the GPU (or on one of its MIG devices).
#[derive(Debug)]
pub(super) struct TrackedProcess {
    pub(super) pid: u32,
    pub(super) instance: Instance,
    pub(super) mig: Option<Arc<MigDevice>>,
    pub(super) kind: ProcessKind,
    pub(super) owner: Arc<Owner>,
    /// Its workload at the time of the previous list.
    pub(super) before: Option<Arc<Workload>>,
    pub(super) used: Option<u64>,
    pub(super) record: Record,
    pub(super) first_seen: Instant,
    /// The same time by the wall clock.
    first_seen_at: SystemTime,
    /// When a list last contained it.
    last_seen: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) sm_utilization: Option<f64>,
    pub(super) last_active: Option<Instant>,
}

/// The labels of a process. No two shown processes may have the same labels.
type Labels<'p> = (u32, Instance, ProcessKind, Option<&'p str>, Option<&'p PodContainer>);

impl TrackedProcess {
    pub(super) fn new(entry: &ListEntry, owner: Arc<Owner>, peak_window: Duration, now: Instant) -> Self {
        Self {
            pid: entry.pid,
            instance: entry.instance,
            mig: None,
            kind: entry.kind,
            owner,
            before: None,
            used: None,
            record: Record::new(peak_window),
            first_seen: now,
            first_seen_at: SystemTime::now(),
            last_seen: now,
            ended: None,
            sm_utilization: None,
            last_active: None,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn slot(&self) -> ProcessSlot {
        (self.pid, self.instance)
    }

    pub(super) fn labels(&self) -> Labels<'_> {
        let pod = self.owner.workload.as_ref().and_then(|workload| workload.pod.as_deref());
        (self.pid, self.instance, self.kind, self.owner.name.as_deref(), pod)
    }

    pub(super) fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.owner.start_ticks }
    }

    /// Whether the process that has the pid now is a different one.
    pub(super) fn is_former_of(&self, owner: &Owner) -> bool {
        let now = ProcessId { pid: self.pid, start_ticks: owner.start_ticks };
        self.id().is_former_of(now, owner.start, self.first_seen_at)
    }

    /// Updates the owner. If the location or the user differs, the process has moved to another workload. In that case,
    /// its former workload is forgotten, so that the former workload is not taken for one that has been renamed.
    pub(super) fn take_owner(&mut self, owner: Arc<Owner>) {
        if self.owner.location != owner.location || self.owner.uid != owner.uid {
            self.before = None;
        }
        self.owner = owner;
    }

    /// Updates the process from a list entry. `unread` contains the process kinds whose lists could not be read, and
    /// `layout` the MIG devices, if they are known.
    pub(super) fn see(
        &mut self,
        entry: &ListEntry,
        unread: &[ProcessKind],
        layout: Option<&[Arc<MigDevice>]>,
        now: Instant,
    ) {
        if !unread.contains(&self.kind) {
            self.kind = entry.kind;
        }
        self.used = entry.used;
        self.last_seen = now;
        // Looked up each time, because the layout may have been read after the process appeared.
        let here = |device: &&Arc<MigDevice>| Some((device.gpu_instance, device.compute_instance)) == entry.instance;
        if let Some(layout) = layout {
            self.mig = layout.iter().find(here).cloned();
        }
        self.record.see(entry.used, now);
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.ended = Some(now);
        self.used = None;
        self.sm_utilization = None;
        self.record.end(now);
    }

    /// Applies the samples for its pid, which can be in any order.
    pub(super) fn work<'s>(
        &mut self,
        samples: impl Iterator<Item = &'s UtilizationSample> + Clone,
        asked_at: (Instant, SystemTime),
    ) {
        // A sample from before the process was first seen may belong to an earlier process with the same pid.
        let own = samples.filter(|sample| when(sample.timestamp, asked_at) >= self.first_seen);
        self.sm_utilization = own.clone().max_by_key(|sample| sample.timestamp).map(|sample| sample.sm);
        let active = own.filter(|sample| sample.active).map(|sample| when(sample.timestamp, asked_at)).max();
        // The query succeeded, so a process without samples did no work.
        let since = self.last_active.unwrap_or(self.first_seen);
        self.last_active = Some(active.map_or(since, |active| active.max(since)));
    }

    pub(super) fn show(&mut self, now: Instant) -> Process {
        let alive = self.is_alive();
        Process {
            pid: self.pid,
            kind: self.kind,
            mig: self.mig.clone(),
            owner: self.owner.clone(),
            alive,
            ended: self.ended.map(|by| Ended { after: self.last_seen, by }),
            used: self.used,
            window_peak: self.record.window_peak(now, !alive),
            is_peak_of_calls: self.record.is_of_calls(now),
            peak: self.record.peak(),
            sm_utilization: self.sm_utilization,
            last_active: self.last_active.filter(|_| alive),
        }
    }
}

/// Converts a wall-clock timestamp to the monotonic clock. A timestamp in the future (the clock was set back) becomes
/// `instant`.
pub(super) fn when(micros: u64, (instant, wall): (Instant, SystemTime)) -> Instant {
    let then = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    instant.checked_sub(wall.duration_since(then).unwrap_or_default()).unwrap_or(instant)
}
