//! The ledger passes on to the histories and to the jobs what the recorder receives, and to the jobs and the incidents
//! what the histories find in it.
//!
//! Invariant: the memory that it uses stays within its limit (`size`), and every drop is counted.

mod size;

use std::time::{Instant, SystemTime};

use super::history::Histories;
use super::history::clock::{Clock, Now};
use super::history::ending::AtLimit;
use super::history::exit_status::Exit;
use super::history::failures::Resolved;
use super::history::gone::Gone;
use super::history::incident::{Incident, Kind};
use super::history::series::Micros;
use super::history::state::Alarms;
use super::incidents::trigger::Trigger;
use super::jobs::Jobs;
use crate::snapshot::{FailedAllocation, GpuProcesses, MemorySample, ProcessId, Snapshot};

/// What is remembered.
#[derive(Debug)]
pub(super) struct Ledger {
    clock: Clock,
    histories: Histories,
    pub(super) jobs: Jobs,
    /// Incidents that have not been frozen yet.
    triggers: Vec<Trigger>,
}

impl Ledger {
    pub(super) fn new(start: Instant) -> Self {
        Self { clock: Clock::starting(start), histories: Histories::new(), jobs: Jobs::default(), triggers: Vec::new() }
    }

    /// The histories and the events.
    pub(super) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Records a sample from the memory lane.
    pub(super) fn sample(&mut self, sample: &MemorySample) {
        let at = self.clock.micros(sample.at);
        self.jobs.sample(sample, at);
        if let Some(device) = self.histories.sample(sample, at) {
            self.triggers.push(Trigger::of_device(Kind::NearLimit, at, device));
        }
    }

    /// Records a list from the process lane.
    pub(super) fn list(&mut self, list: &GpuProcesses, now: Now) {
        let Some(at) = list.at.map(|at| self.clock.micros(at)) else { return };
        self.jobs.list(list, at, self.clock, now);
        for AtLimit { gpu, device, process, who, others } in self.histories.list(list, at, now) {
            self.jobs.end_at_limit(&gpu, &who, others, at);
            let moment = Trigger::of_device(Kind::EndedAtPeak, at, device);
            self.triggers.push(Trigger { process: Some(process), ..moment });
        }
    }

    /// Accepts a failed allocation, which is recorded once its process is known.
    pub(super) fn fail(&mut self, failed: FailedAllocation) {
        let at = self.clock.micros(failed.at);
        self.histories.fail(failed, at);
    }

    /// Records the failed allocations of processes that the driver lists. Failures of one process within a few seconds
    /// share one incident.
    pub(super) fn resolve_failures(&mut self, now: Now) {
        for Resolved { at, gpu, device, holding, failure, is_new, .. } in self.histories.resolve_failures(now) {
            self.jobs.fail(&gpu, &failure, at);
            if is_new {
                let moment = Trigger::of_device(Kind::OutOfMemory, at, device);
                self.triggers.push(Trigger { process: Some(holding), failure: Some(failure), ..moment });
            }
        }
    }

    /// Compares the snapshot with the last known state of the driver, the GPUs, their errors and the allocators.
    pub(super) fn compare_snapshot(&mut self, snapshot: &Snapshot, now: Now) {
        self.jobs.compare_snapshot(snapshot, now.micros);
        let Alarms { lost, memory_xids } = self.histories.compare_snapshot(snapshot, now);
        let lost = lost.into_iter().map(|device| Trigger::of_device(Kind::GpuLost, now.micros, device));
        self.triggers.extend(lost);
        for (device, xid) in memory_xids {
            let moment = Trigger::of_device(Kind::MemoryXid, now.micros, device);
            self.triggers.push(Trigger { xid: Some(xid), ..moment });
        }
    }

    /// Requests an incident for a client. Returns `None` if there is no GPU.
    pub(super) fn request(&self, at: Micros) -> Option<Trigger> {
        Some(Trigger::of_device(Kind::OnDemand, at, self.histories.fullest()?))
    }

    /// Records that there was an incident.
    pub(super) fn note_incident(&mut self, incident: &Incident, now: Now) {
        let gpu = self.histories.note_incident(incident, now);
        if let Some(gpu) = gpu.filter(|_| matches!(incident.kind, Kind::EndedAtPeak | Kind::OutOfMemory)) {
            self.jobs.note_incident(&gpu, incident.gpu.mig_uuid(), incident.workload.as_deref(), &incident.id);
        }
    }

    /// The incidents to be frozen.
    pub(super) fn take_triggers(&mut self) -> Vec<Trigger> {
        std::mem::take(&mut self.triggers)
    }

    /// The processes that appeared since the last call.
    pub(super) fn take_started(&mut self) -> Vec<ProcessId> {
        self.histories.take_started()
    }

    /// The processes on the GPUs, and those that ended at `since` or later.
    pub(super) fn present(&self, since: Micros) -> impl Iterator<Item = ProcessId> {
        self.histories.present(since)
    }

    /// For each process that ended at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: impl Fn(ProcessId) -> Option<Exit>) {
        self.jobs.add_exits(since, &exit);
        self.histories.add_exits(since, &exit);
    }

    /// The processes to be logged: those whose exit is known, and those that ended before `since`.
    pub(super) fn take_gone(&mut self, since: Micros) -> Vec<Gone> {
        self.histories.take_gone(since)
    }

    /// The current moment on both clocks.
    pub(super) fn now(&self) -> Now {
        self.clock.both(Instant::now(), SystemTime::now())
    }
}

#[cfg(test)]
mod tests;
