//! The jobs: one report about each workload that has used a GPU, from its first process to the end of its last.
//!
//! Invariants: every value is added up from the lists and samples of the feed, weighted by the time between them; the
//! number of reports and the memory that they use are bounded. If there are too many, those of the workloads that left
//! first are completed early, and the oldest complete ones are dropped.

mod activity;
mod budget_use;
mod device_use;
mod job_report;
mod kept;
mod meter;
mod need;
mod open;
mod short_workloads;
mod shortage;
mod size;
mod text;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::device_use::DeviceUse;
pub use self::job_report::{DeviceReport, ExitCount, JobReport, State};
use self::kept::Kept;
use self::meter::{GpuReadings, Meter};
use self::open::Open;
pub use self::text::text;
use super::history::{Clock, Exit, Micros, Now, SECOND};
use crate::snapshot::{GpuProcesses, MemorySample, MigDevice, Process, ProcessId, Snapshot, Workload, longest_gap};

/// The maximum number of reports that are being written.
const MAX_OPEN: usize = 1024;
/// A pause of a workload's work shorter than this is not idle time.
const LEAST_PAUSE: Micros = 3 * SECOND;
/// The pause in periods of the readings that would show the opposite.
const PERIODS: u64 = 3;

/// How the reports are made.
#[derive(Debug, Clone)]
pub struct ReportSettings {
    /// How long a workload without processes is expected to return.
    pub linger: Duration,
    /// The longest time between two lists of processes.
    pub list_interval: Duration,
    /// The time between two readings of the work of processes.
    pub activity_interval: Duration,
}

/// The workloads that use a GPU, and the reports about those that have left.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    linger: Micros,
    gap: Micros,
    pause: Micros,
    node: Option<String>,
    open: HashMap<Arc<Workload>, Open>,
    /// The number of reports for which there is room.
    most_open: usize,
    /// The final reports.
    kept: Kept,
    /// The final reports that have not been taken for the file yet.
    complete: Vec<Arc<JobReport>>,
    /// The GPUs, in the order in which they were first seen.
    gpus: Vec<GpuReadings>,
    simulated: bool,
    /// The number of workloads about which there is no report.
    dropped: u64,
}

impl Jobs {
    /// `node` is the machine's name.
    pub(super) fn new(settings: &ReportSettings, node: Option<String>) -> Self {
        let micros = |time: Duration| Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX);
        Self {
            linger: micros(settings.linger),
            gap: micros(longest_gap(settings.list_interval)),
            pause: (micros(settings.activity_interval).saturating_mul(PERIODS)).max(LEAST_PAUSE),
            node,
            most_open: MAX_OPEN,
            ..Self::default()
        }
    }

    /// The jobs with the intervals of the default configuration.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        let second = Duration::from_secs(1);
        let settings = ReportSettings { linger: 360 * second, list_interval: second, activity_interval: second };
        Self::new(&settings, None)
    }

    /// Adds the reports from an earlier run, oldest first.
    pub(super) fn restore(&mut self, earlier: Vec<JobReport>) {
        earlier.into_iter().for_each(|report| self.kept.push(Arc::new(report)));
    }

    /// Accepts a sample of a GPU or MIG device.
    pub(super) fn sample(&mut self, sample: &MemorySample, at: Micros) {
        let index = meter::position(&mut self.gpus, &sample.gpu);
        let meters = &mut self.gpus[index].meters;
        let is_its = |meter: &Meter| MigDevice::are_same(meter.mig.as_deref(), sample.mig.as_deref());
        let known = meters.iter().position(is_its);
        let position = known.unwrap_or_else(|| {
            meters.push(Meter::new(sample.mig.clone(), at));
            meters.len() - 1
        });
        meters[position].sample(sample, at);
    }

    /// Accepts a list of a GPU, which was read at `at`.
    pub(super) fn list(&mut self, list: &GpuProcesses, at: Micros, clock: Clock, now: Now) {
        let (gap, index) = (self.gap, meter::position(&mut self.gpus, &list.gpu));
        let gpu = &mut self.gpus[index];
        let before = gpu.listed.replace(at);
        gpu.meters.iter_mut().for_each(|meter| meter.advance(at));
        let meters = &self.gpus[index].meters;
        for device in self.open.values_mut().flat_map(|open| &mut open.devices).filter(|device| device.index == index) {
            device.advance(at, gap, meters);
        }
        let seen_from_start = before.is_some_and(|before| at.saturating_sub(before) <= gap);
        for listed in &list.workloads {
            let mig = listed.mig.as_ref();
            if listed.processes > 0 {
                self.make_open(&listed.workload, at, seen_from_start, now);
                let Some(open) = self.open.get_mut(&listed.workload) else { continue };
                (open.seen, open.left) = (at, None);
                let device = open.device(index, &list.gpu, mig, at);
                // A device that is new to the workload has no part in what was added up before.
                device.advance(at, gap, &self.gpus[index].meters);
                device.see(listed);
            } else if let Some(open) = self.open.get_mut(&listed.workload) {
                let uuid = mig.map(|device| device.uuid.as_str());
                for device in open.devices.iter_mut().filter(|device| device.is_on(index, uuid)) {
                    if device.is_present {
                        device.see_peak(listed);
                    }
                    // The energy of its last second is apportioned after its end.
                    device.see_energy(listed);
                }
            }
        }
        for process in list.processes.iter().filter(|process| process.alive) {
            self.process(index, process, at, clock, now);
        }
        self.end(index, list, at);
        let instance = |device: &DeviceUse| device.gpu_instance().filter(|_| device.index == index);
        let used: Vec<_> = self.open.values().flat_map(|open| &open.devices).filter_map(instance).collect();
        self.gpus[index].forget_meters(&list.gpu, &used);
    }

    /// Begins the report about a workload that a list contains, if there is none and there is room for another one.
    fn make_open(&mut self, workload: &Arc<Workload>, at: Micros, seen_from_start: bool, now: Now) {
        if self.open.contains_key(workload) {
            return;
        }
        if self.open.len() >= self.most_open && !self.close_first_left(now) {
            self.dropped += 1;
            return;
        }
        self.open.insert(workload.clone(), Open::new(workload, at, seen_from_start));
    }

    fn process(&mut self, index: usize, process: &Process, at: Micros, clock: Clock, now: Now) {
        let Some(workload) = process.owner.workload.as_ref() else { return };
        let last_active = process.last_active.map(|last| clock.micros(last));
        let Some(open) = self.open.get_mut(workload) else { return };
        if open.follow(index, process, last_active) {
            return;
        }
        let renamed = |(name, other): (&Arc<Workload>, &Open)| {
            (name != workload && other.seen < at && other.had(index, process)).then(|| name.clone())
        };
        // The name of a workload can become known late: then its report continues under that name.
        let former = self.open.iter().find_map(renamed).and_then(|name| self.open.remove(&name));
        let Some(open) = self.open.get_mut(workload) else { return };
        former.into_iter().for_each(|former| open.absorb(former));
        if !open.follow(index, process, last_active) {
            open.begin(index, process, last_active, now.wall(at));
        }
    }

    /// Records what has left the GPU according to a list that has been accepted.
    fn end(&mut self, index: usize, list: &GpuProcesses, at: Micros) {
        let (pause, gap) = (self.pause, self.gap);
        // A list that leaves out running workloads or processes does not show that one has ended, except by its entry.
        let cuts_workloads = list.other_workloads.is_some_and(|other| other.processes > 0);
        let cuts_processes = list.other.is_some_and(|other| other.processes > 0);
        let has_entry = |workload: &Arc<Workload>, device: &DeviceUse| {
            let is_same = |mig: Option<&Arc<MigDevice>>| mig.map(|mig| mig.uuid.as_str()) == device.mig_uuid();
            list.workloads.iter().any(|listed| listed.workload == *workload && is_same(listed.mig.as_ref()))
        };
        for open in self.open.values_mut() {
            let mut gone = Vec::new();
            let mut is_here = false;
            for device in open.devices.iter_mut().filter(|device| device.index == index && device.is_present) {
                is_here = true;
                if device.is_listed {
                    device.activity.see(device.seen, device.at, pause, gap);
                } else if cuts_workloads && !has_entry(&open.workload, device) {
                    device.lose_sight();
                } else {
                    device.leave();
                }
                let ended = |id: ProcessId| list.processes.iter().any(|process| !process.alive && process.id() == id);
                gone.extend(device.take_gone(|process| cuts_processes && !ended(process.id())));
            }
            open.end(gone, at);
            if is_here && open.devices.iter().all(|device| !device.is_present) {
                let is_near = at.saturating_sub(open.seen) <= gap;
                open.left = Some(if is_near { at } else { open.seen });
            }
        }
    }

    /// Compares the snapshot with what is known: what the allocators in the processes report, and whether the GPUs are
    /// simulated.
    pub(super) fn compare_snapshot(&mut self, snapshot: &Snapshot, at: Micros) {
        self.simulated = snapshot.driver.load().simulated;
        let allocators = snapshot.allocator.load();
        if allocators.processes.is_empty() {
            return;
        }
        let devices = self.open.values_mut().flat_map(|open| &mut open.devices);
        devices.filter(|device| device.is_present).for_each(|device| device.see_allocators(&allocators, at));
    }

    /// For each process that left at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: &impl Fn(ProcessId) -> Option<Exit>) {
        self.open.values_mut().for_each(|open| open.add_exits(since, exit));
    }

    /// Completes the reports about the workloads that have been gone for long enough.
    pub(super) fn close(&mut self, now: Now) {
        let is_over = |open: &Open| {
            let linger = open.linger(self.linger);
            let unseen = now.micros.saturating_sub(open.seen);
            // Without lists, nothing shows that the workload has left.
            unseen > linger && (open.left.is_some() || unseen > linger.saturating_add(self.gap))
        };
        let over: Vec<_> = self.open.values().filter(|open| is_over(open)).map(|open| open.workload.clone()).collect();
        let mut over: Vec<_> = over.iter().filter_map(|workload| self.open.remove(workload)).collect();
        over.sort_unstable_by_key(|open| open.seen);
        for mut open in over {
            open.left.get_or_insert(open.seen);
            self.finish(&open, now, State::Ended);
        }
    }

    /// Completes all reports, because the exporter stops.
    pub(super) fn stop(&mut self, now: Now) {
        let mut open: Vec<_> = self.open.drain().map(|(_, open)| open).collect();
        open.sort_unstable_by_key(|open| open.seen);
        for open in open {
            let state = if open.left.is_some() { State::Ended } else { State::ExporterStopped };
            self.finish(&open, now, state);
        }
    }

    /// Completes the report about the workload that left first. Returns whether there is one.
    fn close_first_left(&mut self, now: Now) -> bool {
        let left = self.open.values().filter_map(|open| Some((open.left?, &open.workload)));
        let first = left.min_by_key(|(left, _)| *left).map(|(_, workload)| workload.clone());
        let Some(open) = first.and_then(|workload| self.open.remove(&workload)) else { return false };
        self.finish(&open, now, State::Ended);
        true
    }

    fn finish(&mut self, open: &Open, now: Now, state: State) {
        if !open.is_worth_a_report() {
            return;
        }
        let report = Arc::new(open.report(now, state, self.node.as_deref(), self.simulated));
        self.complete.push(report.clone());
        self.kept.push(report);
    }

    /// The reports that have been completed since the last call, for the file.
    pub(super) fn take_complete(&mut self) -> Vec<Arc<JobReport>> {
        std::mem::take(&mut self.complete)
    }

    /// The latest reports about a job and a workload, at most `limit` of them, newest first; `None` accepts any. The
    /// reports that are not complete come first.
    pub(super) fn latest(
        &self,
        job: Option<&str>,
        workload: Option<&str>,
        limit: usize,
        now: Now,
    ) -> Vec<Arc<JobReport>> {
        let state = |open: &Open| if open.left.is_some() { State::Left } else { State::Running };
        let mut open: Vec<_> = self.open.values().collect();
        open.sort_unstable_by_key(|open| Reverse((open.left.unwrap_or(Micros::MAX), open.first)));
        let open =
            open.into_iter().map(|open| Arc::new(open.report(now, state(open), self.node.as_deref(), self.simulated)));
        let all = open.chain(self.kept.newest_first().cloned());
        all.filter(|report| report.is_of(job, workload)).take(limit).collect()
    }
}

#[cfg(test)]
mod tests;
