//! One workload on a GPU: the sum over its processes, and the highest of these sums.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::list::Instance;
use super::over_limit::OverLimits;
use crate::lanes::peaks::Record;
use crate::snapshot::{EnergyShare, MigDevice, Workload, WorkloadUse};

/// What a workload's values are computed from: a process that is on the GPU, or was on it until the last list was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkloadMember<'t> {
    pub(super) pid: u32,
    pub(super) instance: Instance,
    pub(super) mig: Option<&'t Arc<MigDevice>>,
    pub(super) workload: &'t Arc<Workload>,
    /// Its workload at the time of the previous list, if the process has not moved to another workload since.
    pub(super) before: Option<&'t Arc<Workload>>,
    /// Whether the last list contains it.
    pub(super) alive: bool,
    pub(super) used: Option<u64>,
    /// Bytes: the limit that its environment declares for its workload.
    pub(super) limit: Option<u64>,
    /// The path of the cgroup that forms its boundary, if it is known.
    pub(super) cgroup: Option<&'t Arc<Path>>,
}

/// One workload on the GPU (or on one of its MIG devices).
#[derive(Debug)]
pub(super) struct WorkloadEntry {
    pub(super) workload: Arc<Workload>,
    pub(super) instance: Instance,
    pub(super) mig: Option<Arc<MigDevice>>,
    pub(super) sum: Sum,
    pub(super) record: Record,
    pub(super) over: OverLimits,
    pub(super) energy: EnergyShare,
    /// When its last process ended.
    pub(super) ended: Option<Instant>,
}

/// The processes of a workload at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) processes: u64,
    /// Bytes; `None` while the memory of any process is unknown.
    pub(super) used: Option<u64>,
    /// Bytes: the sum over the processes whose memory is known; `None` if there is none.
    pub(super) known: Option<u64>,
    /// Bytes: the highest limit that the environment of a process declares. `None` while any process declares none,
    /// because its memory is part of the sum.
    pub(super) limit: Option<u64>,
}

impl Sum {
    pub(super) fn add(&mut self, used: Option<u64>, limit: Option<u64>) {
        let before = if self.processes == 0 { (Some(0), Some(0)) } else { (self.used, self.limit) };
        self.used = before.0.zip(used).map(|(sum, bytes)| sum.saturating_add(bytes));
        self.known = used.map(|bytes| self.known.unwrap_or(0).saturating_add(bytes)).or(self.known);
        self.limit = before.1.zip(limit).map(|(highest, bytes)| highest.max(bytes));
        self.processes += 1;
    }
}

fn nothing_apportioned() -> EnergyShare {
    EnergyShare { counted_since: SystemTime::now(), joules: 0.0 }
}

impl WorkloadEntry {
    pub(super) fn new(member: &WorkloadMember<'_>, peak_window: Duration) -> Self {
        Self {
            workload: member.workload.clone(),
            instance: member.instance,
            mig: member.mig.cloned(),
            sum: Sum::default(),
            record: Record::new(peak_window),
            over: OverLimits::default(),
            energy: nothing_apportioned(),
            ended: None,
        }
    }

    /// Continues under another name. What it has counted stays in the series of the former name: with the new one, it would be
    /// a second rise.
    pub(super) fn rename(&mut self, workload: &Arc<Workload>) {
        self.workload.clone_from(workload);
        self.energy = nothing_apportioned();
    }

    pub(super) fn is_alive(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether it has the same workload and instance ids as the member.
    /// Several MIG devices may have had these instance ids over time.
    pub(super) fn has_ids_of(&self, member: &WorkloadMember<'_>) -> bool {
        self.workload == *member.workload && self.instance == member.instance
    }

    /// Whether it is on the member's MIG device. When a GPU is repartitioned, new GPU instances get the ids of former
    /// ones, so an unknown device is not assumed to be the one that had these ids before.
    pub(super) fn is_on_device_of(&self, member: &WorkloadMember<'_>) -> bool {
        match (&self.mig, member.mig) {
            (Some(own), Some(other)) => own.uuid == other.uuid,
            (Some(_), None) => false,
            (None, Some(_)) => self.is_alive(),
            (None, None) => true,
        }
    }

    pub(super) fn see(&mut self, sum: Sum, member: &WorkloadMember<'_>, now: Instant) {
        self.workload.clone_from(member.workload);
        // The layout may have been read after the process appeared.
        self.mig = member.mig.cloned().or(self.mig.take());
        self.sum = sum;
        self.ended = None;
        self.record.see(sum.used, now);
    }

    pub(super) fn end(&mut self, now: Instant) {
        if self.is_alive() {
            self.ended = Some(now);
            self.sum = Sum::default();
            self.record.end(now);
        }
    }

    /// `with_energy`: whether the energy of the GPU is apportioned.
    pub(super) fn show(&mut self, now: Instant, with_energy: bool) -> WorkloadUse {
        WorkloadUse {
            workload: self.workload.clone(),
            mig: self.mig.clone(),
            processes: self.sum.processes,
            used: self.sum.used,
            at_least: self.sum.known.filter(|_| self.sum.used.is_none()),
            window_peak: self.record.window_peak(now, !self.is_alive()),
            is_peak_of_calls: self.record.is_of_calls(now),
            peak: self.record.peak(),
            limits: self.over.show(),
            energy: (with_energy && self.mig.is_none()).then_some(self.energy),
        }
    }
}
