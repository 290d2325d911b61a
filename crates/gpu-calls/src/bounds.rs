//! Peaks that calls tell: what processes, workloads and devices held at least, whenever a process took memory.
//!
//! Invariants: a sum is one over the same moment, and only over processes that were alive then: one that ended since the
//! last list may have ended before, so it is left out, and with it what no process holds. A bound above what can be
//! allocated is not true, so it is dropped. A call costs the same however many processes there are: sums are kept, and only
//! what has changed is looked up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::held::Span;
use super::memory::Memory;
use super::places::{DeviceNumber, Place, Places};
use gpu_readings::snapshot::{CallHolder, CallPeak, GpuProcesses, ProcessId, Workload};

/// What the processes of a device held at a moment.
#[derive(Debug, Default)]
struct Sums {
    at: Duration,
    held: HashMap<u32, u64>,
    all: u128,
    workloads: HashMap<Arc<Workload>, u128>,
    /// Processes that have called since.
    stale: HashSet<u32>,
}

/// How long what no process holds must stay to count.
const PERIOD: Duration = Duration::from_secs(30);

/// What the last list of a device tells besides its processes.
#[derive(Debug, Default)]
struct Listed {
    /// When the list was complete: until then, the reading before tells something too.
    complete: Duration,
    sums: Option<Sums>,
    /// The processes on it, by their pids.
    processes: HashMap<u32, Place>,
    /// Bytes that no process has held for a while, if the list has every process and all of them can be watched. Those of one
    /// list may be of a process that is ending, which lists do not have and which gives them back without a call.
    unattributed: Option<u64>,
}

/// The lowest figure of the last one or two [`PERIOD`]s.
#[derive(Debug, Clone, Copy)]
struct Lowest {
    began: Duration,
    current: u64,
    before: u64,
}

impl Lowest {
    fn see(&mut self, bytes: u64, at: Duration) -> u64 {
        if at.saturating_sub(self.began) >= PERIOD {
            *self = Self { began: at, current: bytes, before: self.current };
        }
        self.current = self.current.min(bytes);
        self.current.min(self.before)
    }
}

/// The peaks since they were last taken, by device.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    listed: HashMap<DeviceNumber, Listed>,
    lowest: HashMap<DeviceNumber, Lowest>,
    peaks: BTreeMap<DeviceNumber, Peaks>,
    /// Processes with a thread in a call that gives memory back: what they hold is not known until it returns.
    giving: HashSet<u32>,
}

#[derive(Debug, Default)]
struct Peaks {
    processes: HashMap<ProcessId, u64>,
    workloads: HashMap<Arc<Workload>, u64>,
    /// Of the GPU as a whole: absent for a MIG device.
    device: u64,
}

/// The peaks of one round.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) holders: Vec<CallPeak>,
    /// For each GPU with news: the bytes that it held at least, 0 if only its processes have news.
    pub(super) gpus: Vec<(DeviceNumber, u64)>,
}

impl Bounds {
    /// Takes in a list: `alive` are its processes.
    pub(super) fn read(&mut self, list: &GpuProcesses, span: Span, alive: &[Place], places: &Places) {
        self.listed.retain(|device, _| places.device(*device).gpu.uuid != list.gpu.uuid);
        // The list of one GPU can tell on which other a process is.
        self.forget_sums();
        let at = span.start;
        let is_whole =
            list.invisible == 0 && list.other.is_none() && alive.iter().all(|place| place.id.start_ticks.is_some());
        let mut by_device: HashMap<DeviceNumber, HashMap<u32, Place>> = HashMap::new();
        for place in alive {
            by_device.entry(place.device).or_default().insert(place.id.pid, place.clone());
        }
        for (device, processes) in by_device {
            let has_mig = !list.gpu.mig.is_empty();
            let unattributed = list.unattributed.filter(|_| !has_mig).map(|bytes| {
                let new = Lowest { began: at, current: bytes, before: bytes };
                self.lowest.entry(device).or_insert(new).see(bytes, at)
            });
            let unattributed = unattributed.filter(|_| is_whole);
            self.listed.insert(device, Listed { complete: span.end, sums: None, processes, unattributed });
        }
    }

    /// Takes in which processes have a thread in a call that gives memory back.
    pub(super) fn give(&mut self, giving: HashSet<u32>) {
        self.giving = giving;
        self.forget_sums();
    }

    /// Takes in that anything may have changed.
    pub(super) fn forget_sums(&mut self) {
        self.listed.values_mut().for_each(|listed| listed.sums = None);
    }

    /// Takes in that a process has called.
    pub(super) fn called(&mut self, places: &[Place], pid: u32) {
        for place in places {
            if let Some(sums) = self.listed.get_mut(&place.device).and_then(|listed| listed.sums.as_mut()) {
                sums.stale.insert(pid);
            }
        }
    }

    /// Takes in that a process took memory on a device: the bounds of that moment.
    pub(super) fn took(&mut self, memory: &Memory, places: &Places, pid: u32, device: DeviceNumber, at: Duration) {
        let giving = &self.giving;
        let known = |pid: u32| memory.processes.get(&pid).filter(|_| !giving.contains(&pid));
        let held = |pid: u32| known(pid)?.at_least(device, at, places.of(pid));
        let Some(own) = places.of(pid).places.iter().find(|place| place.device == device && place.alive) else {
            return;
        };
        let Some(bytes) = held(pid).filter(|bytes| own.used.is_none_or(|used| *bytes > used)) else { return };
        let peaks = self.peaks.entry(device).or_default();
        raise(peaks.processes.entry(own.id).or_default(), bytes);
        let Some(listed) = self.listed.get_mut(&device) else { return };
        let sums = listed.sums(at, held);
        if let Some(workload) = &own.workload
            && let Some(bytes) = sums.workloads.get(workload)
        {
            raise(peaks.workloads.entry(workload.clone()).or_default(), whole(*bytes));
        }
        let all = whole(sums.all);
        if let Some(unattributed) = listed.unattributed {
            raise(&mut peaks.device, all.saturating_add(unattributed));
        }
    }

    /// Takes the peaks since the last time. `is_alive`: whether a process still is. `allocatable`: what a device can give
    /// out at most; `None` if that is not known.
    pub(super) fn take(
        &mut self,
        places: &Places,
        is_alive: impl Fn(ProcessId) -> bool,
        allocatable: impl Fn(DeviceNumber) -> Option<u64>,
    ) -> Taken {
        let mut taken = Taken::default();
        for (number, peaks) in std::mem::take(&mut self.peaks) {
            let device = places.device(number);
            let limit = allocatable(number).unwrap_or(0);
            let processes = self.listed.get(&number).map(|listed| &listed.processes);
            let all_live = |wanted: &dyn Fn(&Place) -> bool| {
                let mut its = processes.into_iter().flat_map(HashMap::values).filter(|place| wanted(place));
                its.all(|place| is_alive(place.id))
            };
            let peak = |holder, bytes: u64| {
                (bytes <= limit).then(|| CallPeak { gpu: device.gpu.clone(), mig: device.mig.clone(), holder, bytes })
            };
            let before = taken.holders.len();
            let own = peaks.processes.into_iter().map(|(id, bytes)| (CallHolder::Process(id), bytes));
            let workloads = peaks.workloads.into_iter();
            let workloads = workloads
                .filter(|(workload, _)| all_live(&|place| place.workload.as_ref() == Some(workload)))
                .map(|(workload, bytes)| (CallHolder::Workload(workload), bytes));
            taken.holders.extend(own.chain(workloads).filter_map(|(holder, bytes)| peak(holder, bytes)));
            let whole = if peaks.device <= limit && all_live(&|_| true) { peaks.device } else { 0 };
            if whole > 0 || taken.holders.len() > before {
                taken.gpus.push((number, whole));
            }
        }
        taken
    }
}

impl Listed {
    /// What the processes held at a moment. `held`: what one of them does.
    fn sums(&mut self, at: Duration, held: impl Fn(u32) -> Option<u64>) -> &Sums {
        let still_holds = |sums: &Sums| sums.at > self.complete || at <= self.complete;
        let mut sums = self
            .sums
            .take()
            .filter(still_holds)
            .unwrap_or_else(|| Sums { stale: self.processes.keys().copied().collect(), ..Sums::default() });
        sums.at = at;
        let stale = std::mem::take(&mut sums.stale);
        for place in stale.iter().filter_map(|pid| self.processes.get(pid)) {
            let now = held(place.id.pid).unwrap_or_default();
            let before = sums.held.insert(place.id.pid, now).unwrap_or_default();
            sums.all = sums.all + u128::from(now) - u128::from(before);
            if let Some(workload) = &place.workload {
                let sum = sums.workloads.entry(workload.clone()).or_default();
                *sum = *sum + u128::from(now) - u128::from(before);
            }
        }
        self.sums.insert(sums)
    }
}

fn whole(bytes: u128) -> u64 {
    bytes.try_into().unwrap_or(u64::MAX)
}

fn raise(highest: &mut u64, bytes: u64) {
    *highest = (*highest).max(bytes);
}
