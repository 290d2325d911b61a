//! The histories, the incidents and the jobs. The ledger passes on to them everything that the recorder receives, and
//! to the jobs and the incidents each finding of the histories.
//!
//! Invariants: the jobs learn of a sample, a list and a snapshot before the histories do; a finding is passed on at
//! once; the memory of all three stays within one limit (`size`), and every drop is counted.

mod size;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::history::ended_log::Gone;
use super::history::ending::AtLimit;
use super::history::failures::{Novelty, Resolved};
use super::history::state::Alarms;
use super::history::{Clock, ExitWatch, Histories, Incident, Kind, Micros, Now, SECOND};
use super::incidents::trigger::Trigger;
use super::incidents::{Incidents, Moment};
use super::jobs::{JobReport, Jobs};
use crate::snapshot::{FailedAllocation, Feed, GpuProcesses, MemorySample, Snapshot};

/// How often old entries are dropped.
const AGE_EVERY: Micros = SECOND;
/// How long the recorder keeps checking how a process ended, because the parent may be slow to wait for the process.
const EXIT_WITHIN: Micros = 10 * SECOND;

/// The memory of the recorder.
#[derive(Debug)]
pub(super) struct Ledger {
    clock: Clock,
    pub(super) histories: Histories,
    pub(super) incidents: Incidents,
    pub(super) jobs: Jobs,
    /// The moments of this round whose incidents have not been recorded yet.
    triggers: Vec<Trigger>,
    exits: ExitWatch,
    /// When old entries were last dropped.
    aged: Micros,
}

/// The outcome of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The incidents that it began.
    pub(super) new: Vec<Arc<Incident>>,
    /// The incidents that it completed, and those whose repeats are to be written.
    pub(super) changed: Vec<Arc<Incident>>,
    /// Whether what the metrics show may have changed: old entries were dropped, or there was a moment that counts, one
    /// of a new incident or a repeat.
    pub(super) is_news: bool,
    /// The processes to be logged: those whose exit is known, and those that ended some time ago.
    pub(super) gone: Vec<Gone>,
    /// The reports that were completed, for the file.
    pub(super) reports: Vec<Arc<JobReport>>,
}

impl Ledger {
    /// A ledger whose clock starts at the given moment. `incidents` and `jobs` are those that earlier runs left.
    pub(super) fn new(start: Instant, incidents: Incidents, jobs: Jobs) -> Self {
        let (clock, histories) = (Clock::starting(start), Histories::new());
        Self { clock, histories, incidents, jobs, triggers: Vec::new(), exits: ExitWatch::default(), aged: 0 }
    }

    /// Collects what the lanes passed on, records and completes incidents, and gives up as much as is needed for the rest
    /// to use at most `limit` bytes. `patience`: how long a process that ended waits for its exit status.
    pub(super) fn round(&mut self, snapshot: &Snapshot, limit: usize, patience: Micros) -> Round {
        let now = self.now();
        self.read(&snapshot.feed, now);
        while let Some(peak) = snapshot.call_feed.next_recorded() {
            self.histories.call_peak(&peak, self.clock.micros(peak.at));
        }
        self.watch_exits(now);
        self.resolve_failures(now);
        self.compare_snapshot(snapshot, now);
        let mut round = self.record(now, snapshot.driver.load().simulated);
        if now.micros.saturating_sub(self.aged) >= AGE_EVERY {
            (self.aged, round.is_news) = (now.micros, true);
            self.age(now);
        }
        self.bound(now, limit.saturating_sub(snapshot.feed.bytes()));
        round.gone = self.histories.take_gone(now.micros.saturating_sub(patience));
        round.reports = self.jobs.take_complete();
        round
    }

    /// Takes every entry of the feed.
    fn read(&mut self, feed: &Feed, now: Now) {
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
        self.histories.failures.add(failed, at);
    }

    /// Records the failed allocations of processes that the driver lists. Failures of one process within a few seconds
    /// share one incident, and so do the two accounts of one failure: the framework's report and the driver's refusal.
    fn resolve_failures(&mut self, now: Now) {
        for Resolved { at, gpu, device, holding, failure, novelty, .. } in self.histories.resolve_failures(now) {
            self.jobs.fail(&gpu, &failure, at, novelty);
            if novelty != Novelty::Further {
                let moment = Trigger::of_device(Kind::OutOfMemory, at, device);
                self.triggers.push(Trigger { process: Some(holding), failure: Some(failure), ..moment });
            }
        }
    }

    /// Compares the snapshot with the last known state of the driver, the GPUs, their errors and the allocators.
    fn compare_snapshot(&mut self, snapshot: &Snapshot, now: Now) {
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
    fn record(&mut self, now: Now, simulated: bool) -> Round {
        let mut round = Round::default();
        for trigger in std::mem::take(&mut self.triggers) {
            let moment = self.incidents.record(trigger, &self.histories, now, simulated);
            round.is_news |= matches!(moment, Some(Moment::New(_) | Moment::Repeat));
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
        let trigger = Trigger::of_device(Kind::OnDemand, now.micros, self.histories.fullest()?);
        let moment = self.incidents.record(trigger, &self.histories, now, simulated)?;
        if let Moment::New(incident) = &moment {
            self.note_incident(incident, now);
        }
        Some(moment)
    }

    /// Records that there was an incident.
    fn note_incident(&mut self, incident: &Incident, now: Now) {
        let gpu = self.histories.note_incident(incident, now);
        if let Some(gpu) = gpu.filter(|_| matches!(incident.kind, Kind::EndedAtPeak | Kind::OutOfMemory)) {
            self.jobs.note_incident(&gpu, incident.gpu.mig_uuid(), incident.workload.as_deref(), &incident.id);
        }
    }

    /// Watches the processes that appeared, and records how those ended that did so a moment ago.
    fn watch_exits(&mut self, now: Now) {
        let since = now.micros.saturating_sub(EXIT_WITHIN);
        std::mem::take(&mut self.histories.started).into_iter().for_each(|process| self.exits.begin(process));
        let Self { jobs, histories, exits, .. } = self;
        let exit = |process| exits.exit(process);
        jobs.add_exits(since, &exit);
        histories.add_exits(since, &exit);
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
