//! All that the recorder remembers: the histories of the GPUs, the events, and the incidents.
//!
//! Invariant: the memory that it uses stays within its limit. The oldest entries are dropped first, and every drop is
//! counted.

mod size;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::clock::{Clock, Now};
use super::event::{Events, Failure, Recorded, What, Who};
use super::exit_status::Exit;
use super::failures::{Failures, Settled};
use super::gpu_history::GpuHistory;
use super::incident::{Incident, Kind};
use super::process_history::{Holding, ProcessHistory};
use super::reports::Reports;
use super::series::{Micros, SECOND};
use crate::snapshot::{FailedAllocation, Gpu, GpuProcesses, GpuState, MemorySample, ProcessId, Snapshot};

/// If a process ends within this time after its memory use was last at its own peak, it counts as having ended at its
/// peak.
const AT_PEAK: Micros = 5 * SECOND;
/// The end of a process at its peak is an incident if the GPU's memory use reached this share of the allocatable
/// memory.
const NEARLY_FULL: f64 = 0.95;
/// Reaching this share of the allocatable memory is an incident.
const FULL: f64 = 0.98;
/// The Xids that concern memory, according to NVIDIA's catalogue: a page fault, ECC errors, retired pages and remapped
/// rows.
const MEMORY_XIDS: [u64; 8] = [31, 48, 63, 64, 92, 94, 95, 140];

/// What is remembered.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) clock: Clock,
    /// In the order in which they were first seen.
    pub(super) gpus: Vec<GpuHistory>,
    pub(super) events: Events,
    pub(super) reports: Reports,
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

/// A moment at which an incident is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trigger {
    pub(super) kind: Kind,
    pub(super) at: Micros,
    /// [`Gpu::key`].
    pub(super) gpu: String,
    /// The process that ended or that reported a failure.
    pub(super) process: Option<Holding>,
    /// The Xid.
    pub(super) xid: Option<u64>,
    /// What the process reported.
    pub(super) failure: Option<Box<Failure>>,
}

/// A process that has ended, with one peak for each of its GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gone {
    pub(super) who: Who,
    pub(super) process: ProcessId,
    /// When the first list that did not contain it was read.
    pub(super) ended: Micros,
    pub(super) lived_seconds: f64,
    /// How it ended.
    pub(super) exit: Exit,
    /// Index of the GPU, peak in bytes, and seconds from the peak to the end.
    pub(super) peaks: Vec<(u32, Option<u64>, Option<f64>)>,
}

impl Ledger {
    pub(super) fn new(start: Instant) -> Self {
        let mut events = Events::default();
        events.add(Recorded { at: 0, gpu: None, process: None, what: What::ExporterStarted });
        Self {
            clock: Clock::starting(start),
            gpus: Vec::new(),
            events,
            reports: Reports::default(),
            failures: Failures::default(),
            triggers: Vec::new(),
            started: Vec::new(),
            gone: Vec::new(),
            driver_up: None,
            xids: HashMap::new(),
            dropped: 0,
        }
    }

    /// The GPU with this key.
    pub(super) fn gpu(&self, key: &str) -> Option<&GpuHistory> {
        self.gpus.iter().find(|known| known.gpu.key() == key)
    }

    fn gpu_index(&mut self, gpu: &Arc<Gpu>) -> usize {
        let key = gpu.key();
        self.gpus.iter().position(|known| known.gpu.key() == key).unwrap_or_else(|| {
            self.gpus.push(GpuHistory::new(gpu.clone()));
            self.gpus.len() - 1
        })
    }

    /// Records a sample from the memory lane.
    pub(super) fn sample(&mut self, sample: &MemorySample) {
        let (at, index) = (self.clock.micros(sample.at), self.gpu_index(&sample.gpu));
        self.reports.sample(index, sample, at);
        let crossed = self.gpus[index].sample(sample, at);
        for ratio in crossed {
            self.note(at, index, What::Reached { ratio, used_bytes: sample.used.unwrap_or_default() });
            if ratio >= FULL {
                self.trigger(self.moment(Kind::NearLimit, at, index));
            }
        }
    }

    /// Records a list from the process lane.
    pub(super) fn list(&mut self, list: &GpuProcesses, now: Now) {
        let Some(at) = list.at.map(|at| self.clock.micros(at)) else { return };
        let index = self.gpu_index(&list.gpu);
        let changed = self.gpus[index].list(list, at, now);
        self.reports.list(index, list, at, self.clock, now);
        let (living, ended) = (self.gpus[index].living.len(), self.gpus[index].ended.len());
        for process in living - changed.started..living {
            let history = &self.gpus[index].living[process];
            let (who, process) = (history.who(), history.id());
            self.started.push(process);
            self.note_process(at, index, process, What::ProcessStarted(who));
        }
        for process in ended - changed.ended..ended {
            self.ended(index, process, at, now);
        }
    }

    fn ended(&mut self, index: usize, position: usize, at: Micros, now: Now) {
        let gpu = &self.gpus[index];
        let process = &gpu.ended[position];
        let (id, holding, first) = (process.id(), process.holding(), process.first);
        let lived_seconds = process.lived(now.unix(now.micros), now.micros);
        let what = What::ProcessEnded {
            who: process.who(),
            peak_bytes: process.peak.map(|(peak, _)| peak),
            peak_at: process.peak.map(|(_, at)| now.unix(at)),
            lived_seconds,
            exit: Exit::default(),
        };
        let was_at_peak = process.peak.is_some_and(|(peak, peak_at)| {
            // A process that still held its peak when it ended counts as having ended at its peak, however long it held
            // the peak.
            let last = process.series.last_at_least(peak, process.seen).unwrap_or(peak_at);
            peak > 0 && at.saturating_sub(last) <= AT_PEAK
        });
        let highest = gpu.memory.highest(at.saturating_sub(AT_PEAK).max(first.saturating_sub(SECOND)), at);
        let limit = gpu.allocatable as f64 * NEARLY_FULL;
        let was_full = gpu.allocatable > 0 && highest.is_some_and(|(_, used)| used as f64 >= limit);
        let who = process.who();
        self.note_process(at, index, id, what);
        // If the process itself reported a failure, that report describes the same end in more detail.
        let reported = self.failures.is_recent(&self.gpus[index].ended[position], at);
        if was_at_peak && was_full && !reported {
            self.trigger(Trigger { process: Some(holding), ..self.moment(Kind::EndedAtPeak, at, index) });
        }
        let remains = self.gpus.iter().any(|gpu| gpu.living.iter().any(|process| process.id().may_be(id)));
        if !remains {
            let parts = self.gpus.iter().flat_map(|gpu| gpu.ended.iter().map(move |process| (gpu.gpu.index, process)));
            let is_same = |process: &ProcessHistory| process.id().may_be(id) && process.seen >= first;
            let seconds = |process: &ProcessHistory, at| Some(process.ended?.0.saturating_sub(at) as f64 / 1e6);
            let peaks = parts.filter(|(_, process)| is_same(process)).map(|(gpu, process)| {
                (gpu, process.peak.map(|(peak, _)| peak), process.peak.and_then(|(_, at)| seconds(process, at)))
            });
            let peaks = peaks.collect();
            self.gone.push(Gone { who, process: id, ended: at, lived_seconds, exit: Exit::default(), peaks });
        }
    }

    /// Accepts a failed allocation, which is recorded once its process is known.
    pub(super) fn fail(&mut self, failed: FailedAllocation) {
        let at = self.clock.micros(failed.at);
        self.failures.add(failed, at);
    }

    /// Records the failed allocations of processes that the driver lists. Failures of one process within a few seconds
    /// share one incident.
    pub(super) fn settle(&mut self, now: Now) {
        for Settled { index, at, process, holding, failure, is_new } in self.failures.settle(&self.gpus, now.micros) {
            self.reports.fail(index, &failure);
            self.note_process(at, index, process, What::OutOfMemory(failure.clone()));
            if is_new {
                let moment = self.moment(Kind::OutOfMemory, at, index);
                self.trigger(Trigger { process: Some(holding), failure: Some(failure), ..moment });
            }
        }
    }

    /// Compares the snapshot with the last known state of the driver, the GPUs and their errors.
    pub(super) fn look(&mut self, snapshot: &Snapshot, now: Now) {
        self.reports.look(snapshot);
        let driver = snapshot.driver.load();
        let is_known = driver.up || driver.problem.is_some();
        if is_known && self.driver_up != Some(driver.up) {
            let what = match driver.up {
                true => What::DriverOpened { version: driver.driver_version.clone() },
                false => What::DriverClosed { problem: driver.problem.clone() },
            };
            self.events.add(Recorded { at: now.micros, gpu: None, process: None, what });
            if !driver.up {
                self.gpus.iter_mut().for_each(|gpu| gpu.lose(now.micros));
            }
            self.driver_up = Some(driver.up);
        }
        for memory in &snapshot.memory.load().gpus {
            let index = self.gpu_index(&memory.gpu);
            self.see_state(index, memory.state, now.micros);
        }
        for part in &snapshot.xids.load().gpus {
            for (&xid, &count) in part.errors.iter().flatten() {
                let before = self.xids.insert((part.gpu.key(), xid), count).unwrap_or(0);
                if count > before {
                    let index = self.gpu_index(&part.gpu);
                    self.note(now.micros, index, What::Xid { xid, count: count - before });
                    if MEMORY_XIDS.contains(&xid) {
                        let moment = self.moment(Kind::MemoryXid, now.micros, index);
                        self.trigger(Trigger { xid: Some(xid), ..moment });
                    }
                }
            }
        }
        for index in 0..self.gpus.len() {
            if let Some((at, what)) = self.gpus[index].new_peak(now.micros) {
                self.note(at, index, what);
            }
        }
    }

    fn see_state(&mut self, index: usize, state: GpuState, at: Micros) {
        let before = std::mem::replace(&mut self.gpus[index].state, state);
        match (before, state) {
            (before, state) if before == state => {}
            (_, GpuState::Unsampled) => self.gpus[index].state = before,
            (GpuState::Unsampled, GpuState::Up) => {}
            (_, GpuState::Up) => self.note(at, index, What::GpuBack),
            (_, GpuState::Stalled) => self.note(at, index, What::GpuStalled),
            (_, GpuState::Unreadable) => {
                self.note(at, index, What::GpuLost);
                self.trigger(self.moment(Kind::GpuLost, at, index));
            }
        }
    }

    /// Requests an incident for a client. Returns `None` if there is no GPU.
    pub(super) fn request(&mut self, at: Micros) -> Option<Trigger> {
        let fullest = |gpu: &GpuHistory| gpu.memory.last().unwrap_or(0) as f64 / gpu.allocatable.max(1) as f64;
        let index = (0..self.gpus.len()).max_by(|&a, &b| fullest(&self.gpus[a]).total_cmp(&fullest(&self.gpus[b])))?;
        Some(self.moment(Kind::OnDemand, at, index))
    }

    /// Records that there was an incident.
    pub(super) fn note_incident(&mut self, incident: &Incident, now: Now) {
        let gpu = Some((incident.gpu.index, incident.gpu.uuid.clone()));
        self.events.add(Recorded {
            at: now.moment(incident.at),
            gpu,
            process: None,
            what: What::Incident { id: incident.id.clone() },
        });
    }

    fn note(&mut self, at: Micros, index: usize, what: What) {
        self.add_event(at, index, None, what);
    }

    fn note_process(&mut self, at: Micros, index: usize, process: ProcessId, what: What) {
        self.add_event(at, index, Some(process), what);
    }

    fn add_event(&mut self, at: Micros, index: usize, process: Option<ProcessId>, what: What) {
        let gpu = &self.gpus[index].gpu;
        self.events.add(Recorded { at, gpu: Some((gpu.index, gpu.uuid.clone())), process, what });
    }

    /// A trigger for a moment that concerns no single process.
    fn moment(&self, kind: Kind, at: Micros, index: usize) -> Trigger {
        Trigger { kind, at, gpu: self.gpus[index].gpu.key(), process: None, xid: None, failure: None }
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
        self.gpus.iter().flat_map(GpuHistory::processes).filter(recent).map(ProcessHistory::id)
    }

    /// For each process that ended at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: impl Fn(ProcessId) -> Option<Exit>) {
        let Self { gpus, events, gone, reports, .. } = self;
        reports.add_exits(since, &exit);
        for gpu in gpus {
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
