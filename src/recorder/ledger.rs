//! All that the recorder remembers: the histories of the GPUs, the events, and the incidents.
//!
//! Invariant: the memory that it uses stays within its limit (`size`), and every drop is counted.

mod size;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::history::clock::{Clock, Now};
use super::history::device_history::{Changed, DeviceHistory};
use super::history::device_list::{DeviceKey, DeviceList, first_of_instance};
use super::history::ending;
use super::history::event::{EventKind, Events, Recorded};
use super::history::exit_status::Exit;
use super::history::failures::{Failures, Resolved};
use super::history::gone::Gone;
use super::history::incident::{Incident, IncidentGpu, Kind};
use super::history::list_times::ListTimes;
use super::history::process_history::ProcessHistory;
use super::history::series::Micros;
use super::incidents::trigger::Trigger;
use super::jobs::Jobs;
use crate::snapshot::{FailedAllocation, Gpu, GpuProcesses, MemorySample, MigDevice, NEARLY_FULL, ProcessId};

/// Reaching this share of the allocatable memory is an incident.
const FULL: f64 = NEARLY_FULL[2];

/// What is remembered.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) clock: Clock,
    /// The GPUs and GPU instances, in the order in which they were first seen.
    pub(super) devices: Vec<DeviceHistory>,
    pub(super) events: Events,
    pub(super) jobs: Jobs,
    failures: Failures,
    /// Incidents that have not been frozen yet.
    triggers: Vec<Trigger>,
    /// Processes that appeared and are not watched yet.
    started: Vec<ProcessId>,
    /// Processes that have left their last GPU and have not been logged yet.
    gone: Vec<Gone>,
    driver_up: Option<bool>,
    xids: HashMap<(String, u64), u64>,
    dropped: u64,
}

impl Ledger {
    pub(super) fn new(start: Instant) -> Self {
        let mut events = Events::default();
        events.add(Recorded { at: 0, gpu: None, mig: None, process: None, what: EventKind::ExporterStarted });
        Self {
            clock: Clock::starting(start),
            devices: Vec::new(),
            events,
            jobs: Jobs::default(),
            failures: Failures::default(),
            triggers: Vec::new(),
            started: Vec::new(),
            gone: Vec::new(),
            driver_up: None,
            xids: HashMap::new(),
            dropped: 0,
        }
    }

    /// The device with this key.
    pub(super) fn device(&self, key: &DeviceKey) -> Option<&DeviceHistory> {
        self.devices.iter().find(|known| known.key() == *key)
    }

    /// Whether a MIG device is remembered.
    pub(super) fn knows_mig(&self, uuid: &str) -> bool {
        self.devices.iter().any(|known| known.mig_uuid() == Some(uuid))
    }

    /// The time of the last list of the device that was read at or before a moment in the last two minutes.
    pub(super) fn listed_at(&self, device: &DeviceHistory, moment: Micros) -> Option<Micros> {
        self.lists_of(device)?.last_until(moment)
    }

    /// The moment whose list shows what the processes held when the device's memory use was that of `at`: the first list
    /// after `at`, if memory use had not changed again by then.
    pub(super) fn list_moment(&self, device: &DeviceHistory, at: Micros) -> Micros {
        let unchanged_until = device.list_moment(at);
        self.lists_of(device).and_then(|lists| lists.first_within(at, unchanged_until)).unwrap_or(unchanged_until)
    }

    /// The times of the lists of the device's GPU.
    fn lists_of(&self, device: &DeviceHistory) -> Option<&ListTimes> {
        self.device(&DeviceKey { mig: None, ..device.key() }).map(|gpu| &gpu.lists)
    }

    /// `mig`: any MIG device of the GPU instance; `None` for the GPU itself.
    fn device_index(&mut self, gpu: &Arc<Gpu>, mig: Option<&MigDevice>, at: Micros) -> usize {
        let key = DeviceKey::of(gpu, mig);
        self.devices.iter().position(|known| known.key() == key).unwrap_or_else(|| {
            let mig = mig.map(|mig| Arc::new(first_of_instance(gpu, mig).clone()));
            self.devices.push(DeviceHistory::new(gpu.clone(), mig, at));
            self.devices.len() - 1
        })
    }

    /// Records a sample from the memory lane. The compute instances of a GPU instance share its memory, which is recorded
    /// for the first of them.
    pub(super) fn sample(&mut self, sample: &MemorySample) {
        let at = self.clock.micros(sample.at);
        self.jobs.sample(sample, at);
        if sample.mig.as_ref().is_some_and(|mig| !sample.gpu.is_first_of_its_instance(mig)) {
            return;
        }
        let index = self.device_index(&sample.gpu, sample.mig.as_deref(), at);
        let was_known = self.devices[index].is_known();
        let reached = self.devices[index].sample(sample, at);
        for &ratio in reached.iter().filter(|_| was_known) {
            let mig_uuid = self.devices[index].mig_uuid().map(str::to_owned);
            self.note(at, index, EventKind::Reached { ratio, used_bytes: sample.used.unwrap_or_default(), mig_uuid });
        }
        if reached.iter().any(|&ratio| ratio >= FULL) {
            self.trigger(self.moment(Kind::NearLimit, at, index));
        }
    }

    /// Records a list from the process lane.
    pub(super) fn list(&mut self, list: &GpuProcesses, now: Now) {
        let Some(at) = list.at.map(|at| self.clock.micros(at)) else { return };
        self.jobs.list(list, at, self.clock, now);
        self.device_index(&list.gpu, None, at);
        let migs = list.gpu.mig.iter().chain(list.processes.iter().filter_map(|process| process.mig.as_ref()));
        for mig in migs.chain(list.workloads.iter().filter_map(|workload| workload.mig.as_ref())) {
            self.device_index(&list.gpu, Some(mig), at);
        }
        let gpu = list.gpu.key();
        let mut left_out = list.other.map_or(0, |other| usize::try_from(other.processes).unwrap_or(usize::MAX));
        for index in 0..self.devices.len() {
            let key = self.devices[index].key();
            let is_gone = key.mig.as_ref().is_some_and(|uuid| list.gpu.mig.iter().all(|mig| mig.uuid != *uuid));
            let has_processes = !self.devices[index].living.is_empty();
            if key.gpu != gpu || is_gone && !has_processes && self.devices[index].memory.last().is_none() {
                continue;
            }
            let mut part = DeviceList::of(list, &key, left_out);
            let changed = self.devices[index].list(&mut part, at, now);
            left_out = part.left_out;
            if is_gone {
                self.devices[index].lose(at);
            }
            self.note_changes(index, changed, at, now);
        }
    }

    fn note_changes(&mut self, index: usize, changed: Changed, at: Micros, now: Now) {
        let (living, ended) = (self.devices[index].living.len(), self.devices[index].ended.len());
        for process in living - changed.started..living {
            let history = &self.devices[index].living[process];
            let (who, process) = (history.who(), history.id());
            self.started.push(process);
            self.note_process(at, index, process, EventKind::ProcessStarted(who));
        }
        for process in ended - changed.ended..ended {
            self.ended(index, process, at, now);
        }
    }

    fn ended(&mut self, index: usize, position: usize, at: Micros, now: Now) {
        let gpu = &self.devices[index];
        let process = &gpu.ended[position];
        let (id, holding, who) = (process.id(), process.holding(), process.who());
        let lived_seconds = process.lived(now.unix(now.micros), now.micros);
        let what = EventKind::ProcessEnded {
            who: who.clone(),
            peak_bytes: process.peak.map(|(peak, _)| peak),
            peak_at: process.peak.map(|(_, at)| now.unix(at)),
            lived_seconds,
            exit: Exit::default(),
        };
        // If the process itself reported a failure, the failure describes the same end in more detail.
        let at_limit = ending::at_limit(gpu, process, at).filter(|_| !self.failures.is_recent(process, at));
        self.gone.extend(Gone::of(&self.devices, process, at, lived_seconds));
        self.note_process(at, index, id, what);
        if let Some(ending::AtLimit { others }) = at_limit {
            let gpu = self.devices[index].gpu.clone();
            self.jobs.end_at_limit(&gpu, &who, others, at);
            self.trigger(Trigger { process: Some(holding), ..self.moment(Kind::EndedAtPeak, at, index) });
        }
    }

    /// Accepts a failed allocation, which is recorded once its process is known.
    pub(super) fn fail(&mut self, failed: FailedAllocation) {
        let at = self.clock.micros(failed.at);
        self.failures.add(failed, at);
    }

    /// Records the failed allocations of processes that the driver lists. Failures of one process within a few seconds
    /// share one incident.
    pub(super) fn resolve_failures(&mut self, now: Now) {
        let resolved = self.failures.resolve(&self.devices, now.micros);
        for Resolved { index, at, process, holding, failure, is_new } in resolved {
            let gpu = self.devices[index].gpu.clone();
            self.jobs.fail(&gpu, &failure, at);
            self.note_process(at, index, process, EventKind::OutOfMemory(failure.clone()));
            if is_new {
                let moment = self.moment(Kind::OutOfMemory, at, index);
                self.trigger(Trigger { process: Some(holding), failure: Some(failure), ..moment });
            }
        }
    }

    /// Requests an incident for a client. Returns `None` if there is no GPU.
    pub(super) fn request(&mut self, at: Micros) -> Option<Trigger> {
        let fullest = |device: &DeviceHistory| {
            let used = device.memory.last().filter(|_| !device.is_divided()).unwrap_or(0);
            used as f64 / device.allocatable.max(1) as f64
        };
        let index =
            (0..self.devices.len()).max_by(|&a, &b| fullest(&self.devices[a]).total_cmp(&fullest(&self.devices[b])))?;
        Some(self.moment(Kind::OnDemand, at, index))
    }

    /// Records that there was an incident.
    pub(super) fn note_incident(&mut self, incident: &Incident, now: Now) {
        let IncidentGpu { index, uuid, .. } = &incident.gpu;
        let mig_uuid = incident.gpu.mig_uuid();
        let device = self.devices.iter().find(|known| known.gpu.uuid == *uuid && known.mig_uuid() == mig_uuid);
        if let Some(device) = device.filter(|_| matches!(incident.kind, Kind::EndedAtPeak | Kind::OutOfMemory)) {
            self.jobs.note_incident(&device.gpu, mig_uuid, incident.workload.as_deref(), &incident.id);
        }
        self.events.add(Recorded {
            at: now.moment(incident.at),
            gpu: Some((*index, uuid.clone())),
            mig: device.and_then(|device| device.mig.clone()),
            process: None,
            what: EventKind::Incident { id: incident.id.clone(), mig_uuid: mig_uuid.map(str::to_owned) },
        });
    }

    fn note(&mut self, at: Micros, index: usize, what: EventKind) {
        self.add_event(at, index, None, what);
    }

    fn note_process(&mut self, at: Micros, index: usize, process: ProcessId, what: EventKind) {
        self.add_event(at, index, Some(process), what);
    }

    fn add_event(&mut self, at: Micros, index: usize, process: Option<ProcessId>, what: EventKind) {
        let DeviceHistory { gpu, mig, .. } = &self.devices[index];
        self.events.add(Recorded { at, gpu: Some((gpu.index, gpu.uuid.clone())), mig: mig.clone(), process, what });
    }

    /// A trigger for a moment that concerns no single process.
    fn moment(&self, kind: Kind, at: Micros, index: usize) -> Trigger {
        Trigger::of_device(kind, at, self.devices[index].key())
    }

    fn trigger(&mut self, trigger: Trigger) {
        self.triggers.push(trigger);
    }

    /// The incidents to be frozen.
    pub(super) fn take_triggers(&mut self) -> Vec<Trigger> {
        std::mem::take(&mut self.triggers)
    }

    /// The processes that appeared since the last call.
    pub(super) fn take_started(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.started)
    }

    /// The processes on the GPUs, and those that ended at `since` or later.
    pub(super) fn present(&self, since: Micros) -> impl Iterator<Item = ProcessId> {
        let recent = move |process: &&ProcessHistory| process.ended.is_none_or(|(_, by)| by >= since);
        self.devices.iter().flat_map(DeviceHistory::processes).filter(recent).map(ProcessHistory::id)
    }

    /// For each process that ended at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: impl Fn(ProcessId) -> Option<Exit>) {
        let Self { devices, events, gone, jobs, .. } = self;
        jobs.add_exits(since, &exit);
        for gpu in devices {
            // The processes are in the order in which they ended.
            for process in gpu.ended.iter_mut().rev() {
                let Some((_, by)) = process.ended.filter(|(_, by)| *by >= since) else { break };
                if !process.exit.is_known()
                    && let Some(how) = exit(process.id())
                {
                    process.exit = how;
                    events.set_exit(by, process.id(), how);
                }
            }
        }
        for process in gone.iter_mut().filter(|process| !process.exit.is_known()) {
            process.exit = exit(process.process).unwrap_or_default();
        }
    }

    /// The processes to be logged: those whose exit is known, and those that ended before `since`.
    pub(super) fn take_gone(&mut self, since: Micros) -> Vec<Gone> {
        self.gone.extract_if(.., |process| process.exit.is_known() || process.ended <= since).collect()
    }

    /// The current moment on both clocks.
    pub(super) fn now(&self) -> Now {
        self.clock.both(Instant::now(), SystemTime::now())
    }
}

#[cfg(test)]
mod tests;
