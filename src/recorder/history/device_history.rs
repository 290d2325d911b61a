//! One device over time: its memory, its processes and its workloads. A device is a GPU, or a GPU instance of MIG,
//! which is identified by its first MIG device.
//!
//! Invariant: a GPU that is divided by MIG reaches no level and has no new peak, because no process can fill it: its
//! GPU instances do.

use std::collections::VecDeque;
use std::sync::Arc;

use super::device_list::{DeviceList, Unfollowed};
use super::list_times::ListTimes;
use super::peak_log::PeakLog;
use super::series::Series;
use super::{DeviceKey, EventKind, HeapUse as _, Micros, Now, ProcessHistory, RecordedPeak, SECOND, allocation};
use crate::snapshot::{CallHolder, Gpu, GpuState, MemorySample, MigDevice, NEARLY_FULL, Workload, WorkloadUse};

/// Reaching a level is an event again once memory use has fallen below it by more than this share of the allocatable
/// memory.
const REARM: f64 = 0.03;
/// A new peak is recorded as an event once memory use has stayed at or below it for this long.
const SETTLED: Micros = SECOND;
/// The minimum number of bytes by which a new peak exceeds the previous one.
const PEAK_STEP: u64 = 16 << 20;
/// A process whose memory has not changed for this long is idle.
const IDLE: Micros = 60 * SECOND;
/// How long a new peak waits for a list. One is read at once after a change, unless the driver does not answer.
const LISTED_WITHIN: Micros = 10 * SECOND;

/// A GPU or a GPU instance.
#[derive(Debug, Default)]
pub(crate) struct DeviceHistory {
    pub(crate) gpu: Arc<Gpu>,
    /// The first MIG device of the GPU instance; `None` for the GPU itself.
    pub(crate) mig: Option<Arc<MigDevice>>,
    /// When the lanes last passed something on about it.
    pub(crate) seen: Micros,
    /// Bytes: total minus reserved memory; 0 while unknown.
    pub(crate) allocatable: u64,
    pub(crate) memory: Series,
    pub(crate) peaks: PeakLog,
    /// The processes on the device.
    pub(crate) living: Vec<ProcessHistory>,
    /// The processes on the device that are not followed, because there was no room. Sorted.
    unfollowed: Vec<Unfollowed>,
    /// The processes that have ended, in the order in which they ended. Each is boxed, because a long list that grows
    /// would otherwise leave large holes in the heap.
    pub(crate) ended: VecDeque<Box<ProcessHistory>>,
    pub(crate) workloads: VecDeque<Box<WorkloadHistory>>,
    /// The number of workloads for which there was room; `None` if there has always been room.
    pub(crate) most_workloads: Option<usize>,
    /// Empty for a GPU instance, whose lists are those of its GPU.
    pub(crate) lists: ListTimes,
    pub(crate) state: GpuState,
    /// For each of [`NEARLY_FULL`], whether memory use has reached it and has not fallen far below it since.
    reached: [bool; NEARLY_FULL.len()],
    /// The highest memory use since the recorder started, and when it was reached.
    highest: (u64, Micros),
    /// The highest memory use for which a new peak was recorded as an event.
    announced: u64,
}

/// A workload on a GPU (or MIG device).
#[derive(Debug)]
pub(crate) struct WorkloadHistory {
    pub(crate) workload: Arc<Workload>,
    pub(crate) mig: Option<Arc<MigDevice>>,
    pub(crate) series: Series,
    /// When the last list that contained it was read.
    pub(crate) seen: Micros,
}

/// How many processes appeared and how many ended, according to a new list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The number of processes that appeared: they are the last ones in [`DeviceHistory::living`].
    pub(crate) started: usize,
    /// The number of processes that ended: they are the last ones in [`DeviceHistory::ended`].
    pub(crate) ended: usize,
}

impl DeviceHistory {
    pub(crate) fn new(gpu: Arc<Gpu>, mig: Option<Arc<MigDevice>>, seen: Micros) -> Self {
        Self { gpu, mig, seen, ..Self::default() }
    }

    /// Records a sample from the memory lane. Returns the levels that it reached.
    pub(crate) fn sample(&mut self, sample: &MemorySample, at: Micros) -> Vec<f64> {
        self.gpu.clone_from(&sample.gpu);
        self.seen = self.seen.max(at);
        self.peaks.roll(at, self.memory.last());
        self.memory.see(at, sample.used);
        let Some(used) = sample.used else { return Vec::new() };
        self.peaks.see(at, used);
        self.allocatable = sample.allocatable;
        if used > self.highest.0 {
            self.highest = (used, at);
        }
        let mut crossed = Vec::new();
        if self.is_divided() {
            return crossed;
        }
        for (level, reached) in NEARLY_FULL.into_iter().zip(&mut self.reached) {
            let ratio = used as f64 / self.allocatable.max(1) as f64;
            if ratio >= level && !std::mem::replace(reached, true) {
                crossed.push(level);
            } else if ratio < level - REARM {
                *reached = false;
            }
        }
        crossed
    }

    /// Whether it is a GPU whose memory is divided among GPU instances.
    pub(crate) fn is_divided(&self) -> bool {
        self.mig.is_none() && self.gpu.mig_mode == Some(true)
    }

    /// What identifies it.
    pub(crate) fn key(&self) -> DeviceKey {
        DeviceKey::of(&self.gpu, self.mig.as_deref())
    }

    /// The UUID of the MIG device, or of the GPU.
    pub(crate) fn uuid(&self) -> &str {
        self.gpu.device_uuid(self.mig.as_deref())
    }

    pub(crate) fn mig_uuid(&self) -> Option<&str> {
        self.mig.as_ref().map(|device| device.uuid.as_str())
    }

    /// The new peak, once it has settled and a list was read after it.
    pub(crate) fn new_peak(&mut self, now: Now) -> Option<(Micros, EventKind)> {
        let (used_bytes, at) = self.highest;
        let age = now.micros.saturating_sub(at);
        if used_bytes < self.announced.saturating_add(PEAK_STEP) || age < SETTLED || self.is_divided() {
            return None;
        }
        let reached = self.peaks.reached(at)?;
        if !reached.is_listed() && age < LISTED_WITHIN {
            return None;
        }
        let RecordedPeak { listed_at, holders, held_by, .. } = reached.shown(now);
        self.announced = used_bytes;
        self.peaks.close(at);
        let mig_uuid = self.mig_uuid().map(str::to_owned);
        Some((at, EventKind::NewPeak { used_bytes, listed_at, holders, held_by, mig_uuid }))
    }

    /// The moment at which the memory use of the processes matches the memory use that the GPU had at `at`. This moment
    /// is just before the GPU's memory use changed again, because a list is read only after the change that it shows.
    pub(crate) fn list_moment(&self, at: Micros) -> Micros {
        const LONGEST_PLATEAU: Micros = SECOND;
        let changed = self.memory.next_change(at).map_or(Micros::MAX, |next| next.saturating_sub(1));
        changed.min(at + LONGEST_PLATEAU)
    }

    /// The processes on the GPU and those that have ended.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &ProcessHistory> {
        self.living.iter().chain(self.ended.iter().map(|process| &**process))
    }

    /// Records the part of a list from the process lane that concerns the device.
    pub(crate) fn list(&mut self, list: &mut DeviceList<'_>, at: Micros, now: Now) -> Changed {
        let mut changed = Changed::default();
        self.seen = self.seen.max(at);
        self.peaks.list(list, at);
        if self.mig.is_none() {
            self.lists.add(at);
        }
        let unfollowed = std::mem::take(&mut self.unfollowed);
        for process in list.processes.iter().filter(|process| process.alive) {
            let key = Unfollowed::of(process.id(), process.mig.as_deref());
            if unfollowed.binary_search(&key).is_ok() {
                self.unfollowed.push(key);
                continue;
            }
            let known = self.living.iter().position(|known| known.is(process, now));
            let index = known.unwrap_or_else(|| {
                changed.started += 1;
                self.living.push(ProcessHistory::new(process, at));
                self.living.len() - 1
            });
            self.living[index].see(process, at);
        }
        self.unfollowed.sort_unstable();
        let ended = || list.processes.iter().copied().filter(|process| !process.alive);
        let last_state = |known: &ProcessHistory| known.last_state(ended());
        // A truncated list contains the number of running processes that it leaves out. Of the processes that are
        // missing from such a list, those seen most recently are assumed to be the left-out ones. The others have
        // ended.
        let mut left_out = list.left_out;
        let mut seen: Vec<Micros> = match left_out {
            0 => Vec::new(),
            _ => {
                let is_missing = |known: &&ProcessHistory| known.seen != at && last_state(known).is_none();
                self.living.iter().filter(is_missing).map(|known| known.seen).collect()
            }
        };
        seen.sort_unstable_by_key(|&seen| std::cmp::Reverse(seen));
        let seen_last = seen.get(left_out.saturating_sub(1)).or(seen.last()).copied().unwrap_or_default();
        let has_ended = |known: &mut ProcessHistory| {
            if known.seen == at {
                return false;
            }
            let is_left_out = left_out > 0 && known.seen >= seen_last && last_state(known).is_none();
            if is_left_out {
                left_out -= 1;
                known.series.see(at, None);
            }
            !is_left_out
        };
        for mut known in self.living.extract_if(.., has_ended) {
            known.end(last_state(&known), at);
            changed.ended += 1;
            self.ended.push_back(Box::new(known));
        }
        list.left_out = left_out;
        self.list_workloads(list, at);
        changed
    }

    fn list_workloads(&mut self, list: &DeviceList<'_>, at: Micros) {
        let is_it = |known: &WorkloadHistory, workload: &WorkloadUse| {
            known.workload == workload.workload && MigDevice::are_same(known.mig.as_deref(), workload.mig.as_deref())
        };
        for workload in list.workloads.iter().filter(|workload| workload.processes > 0) {
            let known = self.workloads.iter().position(|known| is_it(known, workload));
            if known.is_none() && self.most_workloads.is_some_and(|most| self.workloads.len() >= most) {
                continue;
            }
            let index = known.unwrap_or_else(|| {
                let (workload, mig) = (workload.workload.clone(), workload.mig.clone());
                let known = WorkloadHistory { workload, mig, series: Series::default(), seen: at };
                self.workloads.push_back(Box::new(known));
                self.workloads.len() - 1
            });
            self.workloads[index].series.see(at, workload.used);
            self.workloads[index].seen = at;
        }
        for known in self.workloads.iter_mut().filter(|known| known.seen != at) {
            known.series.see(at, (!list.cuts_workloads).then_some(0));
        }
    }

    /// Records that nothing is known about the device from this moment on.
    pub(crate) fn lose(&mut self, at: Micros) {
        self.memory.see(at, None);
        self.living.iter_mut().for_each(|process| process.series.see(at, None));
        self.workloads.iter_mut().for_each(|workload| workload.series.see(at, None));
    }

    /// Stops following that many running processes: idle ones first, then those with the least memory. Nothing is
    /// recorded about them any longer, also not their ends. Returns their number.
    pub(crate) fn unfollow(&mut self, count: usize) -> usize {
        let now = self.seen;
        self.living.sort_unstable_by_key(|process| {
            let is_idle = process.series.last_change().is_none_or(|at| now.saturating_sub(at) >= IDLE);
            std::cmp::Reverse((!is_idle, process.series.last()))
        });
        let kept = self.living.len().saturating_sub(count);
        let given_up = self.living.drain(kept..);
        self.unfollowed.extend(given_up.map(|process| Unfollowed::of(process.id(), process.mig.as_deref())));
        self.unfollowed.sort_unstable();
        self.unfollowed.shrink_to_fit();
        self.living.shrink_to(kept * 2);
        count
    }

    /// Gives up the older parts of the device's own history until it uses at most `bytes`, or is short.
    pub(crate) fn bound_own(&mut self, bytes: usize) {
        while self.memory.bytes() > bytes && self.memory.halve() {}
        self.lists.bound(bytes / 2);
        self.peaks.bound(bytes / 2);
    }

    /// The series of its processes and workloads.
    pub(crate) fn holders_series(&mut self) -> impl Iterator<Item = &mut Series> {
        let processes = self.living.iter_mut().map(|process| &mut process.series);
        processes.chain(self.workloads.iter_mut().map(|workload| &mut workload.series))
    }

    /// All series of the device.
    pub(crate) fn series(&mut self) -> impl Iterator<Item = &mut Series> {
        let processes = self.living.iter_mut().chain(self.ended.iter_mut().map(|process| &mut **process));
        std::iter::once(&mut self.memory)
            .chain(processes.map(|process| &mut process.series))
            .chain(self.workloads.iter_mut().map(|workload| &mut workload.series))
    }

    /// The series of a process or a workload on the device, or on one MIG device of it; that of the device itself if there
    /// is no holder. `at`: when it held the memory; of a process that has ended, only its last moment counts.
    pub(crate) fn series_of(
        &mut self,
        holder: Option<&CallHolder>,
        mig: Option<&MigDevice>,
        at: Micros,
    ) -> Option<&mut Series> {
        let is_there = |known: &Option<Arc<MigDevice>>| MigDevice::are_same(known.as_deref(), mig);
        match holder {
            None => Some(&mut self.memory),
            Some(CallHolder::Process(id)) => {
                let mut all = self.living.iter_mut().chain(self.ended.iter_mut().rev().map(|process| &mut **process));
                let was_there =
                    |process: &ProcessHistory| process.ended.is_none_or(|(_, by)| at.saturating_sub(by) <= SECOND);
                all.find(|process| process.id() == *id && is_there(&process.mig) && was_there(process))
                    .map(|process| &mut process.series)
            }
            Some(CallHolder::Workload(workload)) => {
                let mut all = self.workloads.iter_mut();
                let found = all.find(|known| known.workload == *workload && is_there(&known.mig));
                found.map(|known| &mut known.series)
            }
        }
    }

    /// The memory that the history uses.
    pub(crate) fn bytes(&self) -> usize {
        let boxes = self.ended.capacity() + self.workloads.capacity();
        let processes: usize = self.processes().map(ProcessHistory::bytes).sum();
        let workloads: usize = self.workloads.iter().map(|workload| workload.bytes()).sum();
        let own = size_of::<Self>() + self.memory.bytes() + self.lists.bytes() + self.peaks.bytes();
        let unused = (self.living.capacity() - self.living.len()) * size_of::<ProcessHistory>();
        let unfollowed = allocation(self.unfollowed.capacity() * size_of::<Unfollowed>());
        own + boxes * size_of::<usize>() + processes + workloads + unused + unfollowed
    }
}

impl WorkloadHistory {
    fn bytes(&self) -> usize {
        allocation(size_of::<Self>())
            + self.series.bytes()
            + allocation(size_of::<Workload>())
            + self.workload.heap_use()
    }

    /// Whether none of its processes is on the GPU.
    pub(crate) fn is_over(&self) -> bool {
        self.series.last() == Some(0)
    }
}
