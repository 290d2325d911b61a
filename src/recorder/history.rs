//! The histories of the devices, of their processes and of their workloads, and the events.
//!
//! The other rooms of the recorder build on it, and it imports none of them. The clock and the names of processes are
//! here too, and the forms of a chart, an event and an incident, which the API and the files use.
//!
//! Invariant: the histories return their findings, such as the end of a process at the limit; they know neither the
//! incidents nor the jobs.

pub(super) mod answers;
mod blocks;
mod call_peaks;
pub(super) mod chart;
pub(super) mod clock;
pub(super) mod device_history;
pub(super) mod device_list;
pub(super) mod ended_log;
pub(super) mod ending;
pub(super) mod event;
pub(super) mod exit_status;
mod failure_sites;
pub(super) mod failures;
pub(super) mod heap_use;
pub(super) mod incident;
mod list_times;
pub(super) mod names;
pub(super) mod peak;
mod peak_log;
pub(super) mod process_history;
mod process_ref;
pub(super) mod series;
mod size;
pub(super) mod state;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::answers::{HistoryHead, HistoryQuery, HistorySeries, MigIdentity, SeriesKind, Visit, Visits};
pub(super) use self::chart::chart;
pub use self::chart::{Chart, ChartPoint};
pub(super) use self::clock::{Clock, Micros, Now, SECOND, time, unix};
use self::device_history::Changed;
pub(super) use self::device_history::DeviceHistory;
pub(super) use self::device_list::DeviceKey;
use self::device_list::{DeviceList, first_of_instance};
use self::ended_log::Gone;
use self::ending::AtLimit;
use self::event::Events;
pub(super) use self::event::Recorded;
pub use self::event::{Event, EventKind, Failure};
pub use self::exit_status::Exit;
pub(super) use self::exit_status::ExitWatch;
pub use self::failure_sites::{FailureSites, ModuleUse, SiteUse, SitesGrown};
use self::failures::{Failures, Novelty, Resolved};
pub(super) use self::heap_use::{HeapUse, allocation};
pub use self::incident::{Between, Growth, Holder, Incident, IncidentGpu, IncidentMig, Kind, Peak, VERSION};
use self::list_times::ListTimes;
pub use self::peak::{PeakHolder, RecordedPeak};
pub(super) use self::process_history::{Holding, ProcessHistory};
pub use self::process_ref::ProcessRef;
pub(super) use self::series::{COARSE, FINE};
use crate::snapshot::{Gpu, GpuProcesses, MemorySample, MigDevice, NEARLY_FULL, ProcessId, RecordedCallPeak};

/// A device whose memory use reaches this share of the allocatable memory is full.
const FULL: f64 = NEARLY_FULL[2];

/// The histories of all devices, and the events.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    /// The GPUs and GPU instances, in the order in which they were first seen.
    pub(super) devices: Vec<DeviceHistory>,
    pub(super) events: Events,
    pub(super) failures: Failures,
    /// Processes that appeared and are not watched yet.
    pub(super) started: Vec<ProcessId>,
    /// Processes that have left their last GPU and have not been logged yet.
    gone: Vec<Gone>,
    driver_up: Option<bool>,
    xids: HashMap<(String, u64), u64>,
    dropped: u64,
}

impl Histories {
    /// Histories that begin with the event that the exporter has started.
    pub(super) fn new() -> Self {
        let mut histories = Self::default();
        histories.events.add(Recorded::of_machine(0, EventKind::ExporterStarted));
        histories
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

    /// The moment whose list shows what the processes held when the device's memory use was that of `at`: the first
    /// list after `at`, if memory use had not changed again by then.
    pub(super) fn list_moment(&self, device: &DeviceHistory, at: Micros) -> Micros {
        let unchanged_until = device.list_moment(at);
        self.lists_of(device).and_then(|lists| lists.first_within(at, unchanged_until)).unwrap_or(unchanged_until)
    }

    /// The times of the lists of the device's GPU.
    fn lists_of(&self, device: &DeviceHistory) -> Option<&ListTimes> {
        self.device(&DeviceKey { mig: None, ..device.key() }).map(|gpu| &gpu.lists)
    }

    /// `mig`: any MIG device of the GPU instance; `None` for the GPU itself.
    pub(super) fn device_index(&mut self, gpu: &Arc<Gpu>, mig: Option<&MigDevice>, at: Micros) -> usize {
        let key = DeviceKey::of(gpu, mig);
        self.devices.iter().position(|known| known.key() == key).unwrap_or_else(|| {
            let mig = mig.map(|mig| Arc::new(first_of_instance(gpu, mig).clone()));
            self.devices.push(DeviceHistory::new(gpu.clone(), mig, at));
            self.devices.len() - 1
        })
    }

    /// Records a sample from the memory lane, which was read at `at`. The compute instances of a GPU instance share its
    /// memory, which is recorded for the first of them. Returns the device if its memory use has become [`FULL`].
    pub(super) fn sample(&mut self, sample: &MemorySample, at: Micros) -> Option<DeviceKey> {
        if sample.mig.as_ref().is_some_and(|mig| !sample.gpu.is_first_of_its_instance(mig)) {
            return None;
        }
        let index = self.device_index(&sample.gpu, sample.mig.as_deref(), at);
        // If the last sample did not tell the memory in use, it is not known when a level was reached.
        let was_known = self.devices[index].memory.last().is_some();
        let reached = self.devices[index].sample(sample, at);
        for &ratio in reached.iter().filter(|_| was_known) {
            let mig_uuid = self.devices[index].mig_uuid().map(str::to_owned);
            let used_bytes = sample.used.unwrap_or_default();
            self.note(at, index, None, EventKind::Reached { ratio, used_bytes, mig_uuid });
        }
        reached.iter().any(|&ratio| ratio >= FULL).then(|| self.devices[index].key())
    }

    /// Records that calls tell that a device, or one of its processes or workloads, held memory a moment before `at`.
    pub(super) fn call_peak(&mut self, peak: &RecordedCallPeak, at: Micros) {
        let key = DeviceKey::of(&peak.gpu, peak.mig.as_deref());
        let Some(device) = self.devices.iter_mut().find(|known| known.key() == key) else { return };
        if let Some(series) = device.series_of(peak.holder.as_ref(), peak.mig.as_deref(), at) {
            series.see_call(at, peak.bytes);
        }
    }

    /// Records a list from the process lane, which was read at `at`. Returns the ends at the limit that it shows.
    pub(super) fn list(&mut self, list: &GpuProcesses, at: Micros, now: Now) -> Vec<AtLimit> {
        self.device_index(&list.gpu, None, at);
        let migs = list.gpu.mig.iter().chain(list.processes.iter().filter_map(|process| process.mig.as_ref()));
        for mig in migs.chain(list.workloads.iter().filter_map(|workload| workload.mig.as_ref())) {
            self.device_index(&list.gpu, Some(mig), at);
        }
        let gpu = list.gpu.key();
        let mut left_out = list.other.map_or(0, |other| usize::try_from(other.processes).unwrap_or(usize::MAX));
        let mut at_limit = Vec::new();
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
            at_limit.extend(self.note_changes(index, changed, at, now));
        }
        at_limit
    }

    fn note_changes(&mut self, index: usize, changed: Changed, at: Micros, now: Now) -> Vec<AtLimit> {
        let (living, ended) = (self.devices[index].living.len(), self.devices[index].ended.len());
        for process in living - changed.started..living {
            let history = &self.devices[index].living[process];
            let (who, process) = (history.who(), history.id());
            self.started.push(process);
            self.note(at, index, Some(process), EventKind::ProcessStarted(who));
        }
        (ended - changed.ended..ended).filter_map(|process| self.note_end(index, process, at, now)).collect()
    }

    /// Records the end of the process at a position among those of the device that have ended.
    fn note_end(&mut self, index: usize, position: usize, at: Micros, now: Now) -> Option<AtLimit> {
        let device = &self.devices[index];
        let process = &device.ended[position];
        let id = process.id();
        let lived_seconds = process.lived(now.unix(now.micros), now.micros);
        let what = EventKind::ProcessEnded {
            who: process.who(),
            peak_bytes: process.peak.map(|(peak, _)| peak),
            peak_at: process.peak.map(|(_, at)| now.unix(at)),
            lived_seconds,
            exit: Exit::default(),
        };
        // If the process itself reported a failure, the failure describes the same end in more detail.
        let at_limit = ending::at_limit(device, process, at).filter(|_| !self.failures.is_recent(process, at));
        self.gone.extend(Gone::of(&self.devices, process, at, lived_seconds));
        self.note(at, index, Some(id), what);
        at_limit
    }

    /// Records the failed allocations of processes that the driver lists, and returns them.
    pub(super) fn resolve_failures(&mut self, now: Now) -> Vec<Resolved> {
        let resolved = self.failures.resolve(&self.devices, now.micros);
        for found in resolved.iter().filter(|found| found.novelty != Novelty::Account) {
            self.note(
                found.at,
                found.index,
                Some(found.process),
                EventKind::OutOfMemory(Box::new(found.failure.brief())),
            );
        }
        resolved
    }

    /// The device of whose memory the largest share is in use; `None` if there is no GPU.
    pub(super) fn fullest(&self) -> Option<DeviceKey> {
        let share = |device: &DeviceHistory| {
            let used = device.memory.last().filter(|_| !device.is_divided()).unwrap_or(0);
            used as f64 / device.allocatable.max(1) as f64
        };
        self.devices.iter().max_by(|a, b| share(a).total_cmp(&share(b))).map(DeviceHistory::key)
    }

    /// Records that there was an incident. Returns its GPU if that is known.
    pub(super) fn note_incident(&mut self, incident: &Incident, now: Now) -> Option<Arc<Gpu>> {
        let IncidentGpu { index, uuid, .. } = &incident.gpu;
        let mig_uuid = incident.gpu.mig_uuid();
        let device = self.devices.iter().find(|known| known.gpu.uuid == *uuid && known.mig_uuid() == mig_uuid);
        self.events.add(Recorded {
            at: now.moment(incident.at),
            gpu: Some((*index, uuid.clone())),
            mig: device.and_then(|device| device.mig.clone()),
            process: None,
            what: EventKind::Incident { id: incident.id.clone(), mig_uuid: mig_uuid.map(str::to_owned) },
        });
        device.map(|device| device.gpu.clone())
    }

    /// Records what happened on a device, and to which of its processes.
    fn note(&mut self, at: Micros, index: usize, process: Option<ProcessId>, what: EventKind) {
        let DeviceHistory { gpu, mig, .. } = &self.devices[index];
        self.events.add(Recorded { at, gpu: Some((gpu.index, gpu.uuid.clone())), mig: mig.clone(), process, what });
    }

    /// The processes on the GPUs, and those that ended at `since` or later.
    pub(super) fn present(&self, since: Micros) -> impl Iterator<Item = ProcessId> {
        let recent = move |process: &&ProcessHistory| process.ended.is_none_or(|(_, by)| by >= since);
        self.devices.iter().flat_map(DeviceHistory::processes).filter(recent).map(ProcessHistory::id)
    }

    /// For each process that ended at `since` or later, records how it ended, if `exit` returns that.
    pub(super) fn add_exits(&mut self, since: Micros, exit: &impl Fn(ProcessId) -> Option<Exit>) {
        let Self { devices, events, gone, .. } = self;
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
}
