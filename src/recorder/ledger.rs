//! The histories, the incidents and the jobs. The ledger passes on to them everything that the recorder receives, and
//! to the jobs and the incidents each finding of the histories.
//!
//! Invariants: the jobs learn of a sample, a list and a snapshot before the histories do; a finding is passed on at
//! once; the memory of all three stays within one limit (`size`), and every drop is counted.

mod size;

use std::sync::Arc;
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
use super::incidents::{Incidents, Moment};
use super::jobs::{JobReport, Jobs};
use crate::snapshot::{FailedAllocation, Feed, GpuProcesses, MemorySample, ProcessId, Snapshot, WorkloadShortage};

/// The memory of the recorder.
#[derive(Debug)]
pub(super) struct Ledger {
    clock: Clock,
    histories: Histories,
    incidents: Incidents,
    jobs: Jobs,
    /// The moments of this round whose incidents have not been recorded yet.
    triggers: Vec<Trigger>,
}

/// The outcome of the moments of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The incidents that it began.
    pub(super) new: Vec<Arc<Incident>>,
    /// The incidents that it completed, and those whose repeats are to be written.
    pub(super) changed: Vec<Arc<Incident>>,
    /// Whether there was a moment that counts: one of a new incident, or a repeat.
    pub(super) has_counted: bool,
}

impl Ledger {
    /// A ledger whose clock starts at the given moment. `incidents` and `jobs` are those that earlier runs left.
    pub(super) fn new(start: Instant, incidents: Incidents, jobs: Jobs) -> Self {
        Self { clock: Clock::starting(start), histories: Histories::new(), incidents, jobs, triggers: Vec::new() }
    }

    /// The histories and the events.
    pub(super) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// The incidents that are kept.
    pub(super) fn incidents(&self) -> &Incidents {
        &self.incidents
    }

    /// The latest reports about a job and a workload, as [`Jobs::latest`] returns them.
    pub(super) fn reports(&self, job: Option<&str>, workload: Option<&str>, limit: usize) -> Vec<Arc<JobReport>> {
        self.jobs.latest(job, workload, limit, self.now())
    }

    /// The workloads that were short of memory, on each device.
    pub(super) fn shortages(&self) -> Vec<WorkloadShortage> {
        self.jobs.shortages(self.now())
    }

    /// Takes every entry of the feed.
    pub(super) fn read(&mut self, feed: &Feed, now: Now) {
        // Taken before the samples, so that every sample from before a list is known when the list is recorded.
        let lists: Vec<_> = std::iter::from_fn(|| feed.next_list()).collect();
        // Failures come first, so that when the lists show the end of a process, its failure is already known.
        while let Some(failed) = feed.next_failure() {
            self.fail(failed);
        }
        while let Some(sample) = feed.next_sample() {
            self.sample(&sample);
        }
        lists.iter().for_each(|list| self.list(list, now));
    }

    /// Records a sample from the memory lane.
    fn sample(&mut self, sample: &MemorySample) {
        let at = self.clock.micros(sample.at);
        self.jobs.sample(sample, at);
        if let Some(device) = self.histories.sample(sample, at) {
            self.triggers.push(Trigger::of_device(Kind::NearLimit, at, device));
        }
    }

    /// Records a list from the process lane.
    fn list(&mut self, list: &GpuProcesses, now: Now) {
        let Some(at) = list.at.map(|at| self.clock.micros(at)) else { return };
        self.jobs.list(list, at, self.clock, now);
        for AtLimit { gpu, device, process, who, others } in self.histories.list(list, at, now) {
            self.jobs.end_at_limit(&gpu, &who, others, at);
            let moment = Trigger::of_device(Kind::EndedAtPeak, at, device);
            self.triggers.push(Trigger { process: Some(process), ..moment });
        }
    }

    /// Accepts a failed allocation, which is recorded once its process is known.
    fn fail(&mut self, failed: FailedAllocation) {
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

    /// Records the incidents of the moments that this round found, and completes those whose ten seconds have passed.
    pub(super) fn record(&mut self, now: Now, simulated: bool) -> Round {
        let mut round = Round::default();
        for trigger in self.take_triggers() {
            let moment = self.incidents.record(trigger, &self.histories, now, simulated);
            round.has_counted |= matches!(moment, Some(Moment::New(_) | Moment::Repeat));
            if let Some(Moment::New(incident)) = moment {
                self.note_incident(&incident, now);
                round.new.push(incident);
            }
        }
        round.changed = self.incidents.complete(&self.histories, now, simulated);
        round
    }

    /// Records an incident now, for a client. Returns `None` if there is no GPU.
    pub(super) fn record_on_demand(&mut self, simulated: bool) -> Option<Moment> {
        let now = self.now();
        let trigger = self.request(now.micros)?;
        let moment = self.incidents.record(trigger, &self.histories, now, simulated)?;
        if let Moment::New(incident) = &moment {
            self.note_incident(incident, now);
        }
        Some(moment)
    }

    /// The moment that a client asks for, on the fullest device.
    fn request(&self, at: Micros) -> Option<Trigger> {
        Some(Trigger::of_device(Kind::OnDemand, at, self.histories.fullest()?))
    }

    /// Records that there was an incident.
    fn note_incident(&mut self, incident: &Incident, now: Now) {
        let gpu = self.histories.note_incident(incident, now);
        if let Some(gpu) = gpu.filter(|_| matches!(incident.kind, Kind::EndedAtPeak | Kind::OutOfMemory)) {
            self.jobs.note_incident(&gpu, incident.gpu.mig_uuid(), incident.workload.as_deref(), &incident.id);
        }
    }

    /// The moments whose incidents have not been recorded yet.
    fn take_triggers(&mut self) -> Vec<Trigger> {
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

    /// The reports that have been completed since the last call, for the file.
    pub(super) fn take_reports(&mut self) -> Vec<Arc<JobReport>> {
        self.jobs.take_complete()
    }

    /// Ends what is in progress, because the exporter ends. Returns the reports and the incidents that are to be
    /// written.
    pub(super) fn finish(&mut self, simulated: bool) -> (Vec<Arc<JobReport>>, Vec<Arc<Incident>>) {
        let now = self.now();
        self.jobs.stop(now);
        (self.jobs.take_complete(), self.incidents.finish(&self.histories, now, simulated))
    }

    /// The current moment on both clocks.
    pub(super) fn now(&self) -> Now {
        self.clock.both(Instant::now(), SystemTime::now())
    }
}

#[cfg(test)]
mod tests;
