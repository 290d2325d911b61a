//! The processes of one GPU over time: a process is identified by (pid, start time) and is remembered for a while after
//! its end.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::list::{ListEntry, ProcessList, ProcessSlot};
use super::retention::Retention;
use super::tracked::TrackedProcess;
use super::workload_entry::WorkloadMember;
use crate::nvml::UtilizationSample;
use crate::snapshot::{Held, MigDevice, Other, Owner, Process, ProcessId};

/// The driver removes a process from its lists shortly after the process ends. A process that is listed for longer
/// without appearing in `/proc` is invisible.
const INVISIBLE_AFTER: Duration = Duration::from_secs(3);

/// The processes of a GPU: those that are alive and, for a while, those that have ended.
#[derive(Debug)]
pub(super) struct ProcessTable {
    processes: Vec<TrackedProcess>,
    /// When a list was last folded in.
    folded: Option<Instant>,
    /// Processes that took the pid of an earlier one and were not alive in the table when their list was read.
    successors: Vec<(ProcessSlot, ProcessId)>,
    retention: Retention,
}

impl ProcessTable {
    pub(super) fn new(retention: Retention) -> Self {
        Self { processes: Vec::new(), folded: None, successors: Vec::new(), retention }
    }

    fn living(&self) -> impl Iterator<Item = &TrackedProcess> {
        self.processes.iter().filter(|process| process.is_alive())
    }

    /// The indices of the live processes.
    fn living_by_slot(&self) -> HashMap<ProcessSlot, usize> {
        let living = self.processes.iter().enumerate().filter(|(_, process)| process.is_alive());
        living.map(|(index, process)| (process.slot(), index)).collect()
    }

    /// Marks as ended those live processes whose pid now belongs to another process. Returns whether the list may still
    /// contain the memory of a previous process: such a process was alive, or it is remembered and its successor was
    /// identified only after the list was read. The list must then be read again.
    pub(super) fn end_former(&mut self, list: &ProcessList, owners: &[Arc<Owner>]) -> bool {
        let living = self.living_by_slot();
        let identified = std::mem::take(&mut self.successors);
        let mut reused = false;
        for (entry, owner) in list.entries.iter().zip(owners) {
            let slot = entry.slot();
            let successor = (slot, ProcessId { pid: entry.pid, start_ticks: owner.start_ticks });
            if let Some(&index) = living.get(&slot) {
                let former = &mut self.processes[index];
                if former.is_former_of(owner) {
                    former.end(list.at);
                    reused = true;
                    self.successors.push(successor);
                }
            } else if self.processes.iter().any(|process| process.slot() == slot && process.is_former_of(owner)) {
                reused |= !identified.contains(&successor);
                self.successors.push(successor);
            }
        }
        reused
    }

    /// Whether the pid of a process that is recorded as alive has passed to another process.
    pub(super) fn is_passed_on(&self, entry: &ListEntry, owner: &Owner) -> bool {
        let mut living = self.living();
        living.find(|process| process.slot() == entry.slot()).is_some_and(|process| process.is_former_of(owner))
    }

    /// Folds in a list with the owner of each entry. The entries are the processes on the GPU; the list's `earlier`
    /// lists matter only for peaks. `layout` contains the MIG devices; if it is `None`, the layout is unknown and a
    /// process keeps its MIG device.
    pub(super) fn fold(&mut self, list: &ProcessList, owners: &[Arc<Owner>], layout: Option<&[Arc<MigDevice>]>) {
        let now = list.at;
        let mut living = self.living_by_slot();
        let mut listed = HashSet::with_capacity(list.entries.len());
        let before = self.processes.len();
        for process in &mut self.processes {
            process.before.clone_from(&process.owner.workload);
        }
        for (entry, owner) in list.entries.iter().zip(owners.iter().cloned()) {
            let index = self.find_or_add(entry, owner, living.get(&entry.slot()).copied(), now);
            living.insert(entry.slot(), index);
            listed.insert(index);
            self.processes[index].see(entry, &list.unread, layout, now);
        }
        for entry in list.earlier.iter().flatten() {
            if let Some(&index) = living.get(&entry.slot()) {
                self.processes[index].record.see(entry.used, now);
            }
        }
        let mut ended = false;
        for (index, process) in self.processes.iter_mut().enumerate() {
            if !process.is_alive() || listed.contains(&index) {
                continue;
            }
            if list.unread.contains(&process.kind) {
                process.used = None;
                continue;
            }
            process.end(now);
            ended = true;
        }
        if ended || self.processes.len() > before {
            self.make_room();
        }
        self.processes.retain(|process| self.retention.keeps(process.ended, now));
        self.folded = Some(now);
    }

    /// The index of the entry's process, which is added if it is new. `living`: the index of the live process in the
    /// same slot.
    fn find_or_add(&mut self, entry: &ListEntry, owner: Arc<Owner>, living: Option<usize>, now: Instant) -> usize {
        if let Some(index) = living {
            let process = &mut self.processes[index];
            // The driver still lists a process for a moment after it has left /proc; no other process has its pid at
            // that time.
            if owner.start_ticks.is_none() {
                return index;
            }
            if !process.is_former_of(&owner) {
                process.take_owner(owner);
                return index;
            }
            process.end(now);
        }
        // A process that left the GPU and came back without ending in between is the same process.
        let is_back = |process: &TrackedProcess| {
            process.owner.start_ticks == owner.start_ticks
                && owner.start_ticks.is_some()
                && process.slot() == entry.slot()
        };
        if let Some(index) = self.processes.iter().position(is_back) {
            self.processes[index].ended = None;
            self.processes[index].take_owner(owner);
            return index;
        }
        self.processes.push(TrackedProcess::new(entry, owner, self.retention.peak_window, now));
        self.processes.len() - 1
    }

    /// Drops processes that have ended and whose labels now belong to another process. Beyond the limit, also drops
    /// those that ended first, so that a burst of short-lived processes cannot fill the table.
    fn make_room(&mut self) {
        // Newest first: the latest holder of a label set keeps it.
        self.processes
            .sort_by_key(|process| (!process.is_alive(), Reverse(process.ended.unwrap_or(process.first_seen))));
        let mut taken = HashSet::with_capacity(self.processes.len());
        let mut ended = 0;
        let limit = self.retention.limit;
        let kept: Vec<bool> = self
            .processes
            .iter()
            .map(|process| {
                ended += usize::from(!process.is_alive());
                taken.insert(process.labels()) && (process.is_alive() || ended <= limit)
            })
            .collect();
        let mut kept = kept.into_iter();
        self.processes.retain(|_| kept.next().unwrap_or(true));
    }

    /// Forgets the work of the processes, because the driver cannot report it.
    pub(super) fn forget_work(&mut self) {
        for process in &mut self.processes {
            (process.sm_utilization, process.last_active) = (None, None);
        }
    }

    /// Folds in the work of each process since the last query, as reported by the driver.
    pub(super) fn fold_work(&mut self, samples: &[UtilizationSample], asked_at: (Instant, SystemTime)) {
        let mut samples: Vec<_> = samples.iter().collect();
        samples.sort_by_key(|sample| sample.pid);
        for process in self.processes.iter_mut().filter(|process| process.is_alive()) {
            let pid = process.pid;
            let from = samples.partition_point(|sample| sample.pid < pid);
            process.work(samples[from..].iter().copied().take_while(|sample| sample.pid == pid), asked_at);
        }
    }

    /// The process that a sample of its work at `at` belongs to. A sample from before the process was first seen may belong to
    /// an earlier process with the same pid.
    pub(super) fn at_work(&self, pid: u32, at: Instant) -> Option<&TrackedProcess> {
        let had_pid = |process: &&TrackedProcess| {
            process.pid == pid && process.first_seen <= at && process.ended.is_none_or(|ended| at <= ended)
        };
        self.processes.iter().find(had_pid)
    }

    /// Applies the driver's own maximum to a live process.
    pub(super) fn raise(&mut self, pid: u32, peak: u64) {
        for process in self.processes.iter_mut().filter(|process| process.is_alive() && process.pid == pid) {
            process.record.raise(peak);
        }
    }

    /// Applies what calls tell that a process held.
    pub(super) fn see_call(&mut self, id: ProcessId, mig: Option<&MigDevice>, bytes: u64, now: Instant) {
        let is_it =
            |process: &&mut TrackedProcess| process.id() == id && MigDevice::are_same(process.mig.as_deref(), mig);
        for process in self.processes.iter_mut().filter(is_it) {
            process.record.see_call(bytes, now);
        }
    }

    /// How many processes are on the GPU.
    pub(super) fn alive(&self) -> usize {
        self.living().count()
    }

    /// The processes that are alive, or were recorded as ended when the last list was folded in, and whose workload is
    /// known.
    pub(super) fn members(&self) -> impl Iterator<Item = WorkloadMember<'_>> {
        let recent = |process: &&TrackedProcess| process.is_alive() || process.ended == self.folded;
        self.processes.iter().filter(recent).filter_map(|process| {
            Some(WorkloadMember {
                pid: process.pid,
                instance: process.instance,
                mig: process.mig.as_ref(),
                workload: process.owner.workload.as_ref()?,
                before: process.before.as_ref(),
                alive: process.is_alive(),
                used: process.used,
                limit: process.owner.memory_limit,
                cgroup: process.owner.cgroup.as_ref(),
            })
        })
    }

    /// The number of live processes that never appeared in `/proc`, although they have been listed for longer than a
    /// process that has ended would be.
    pub(super) fn invisible(&self, now: Instant) -> u64 {
        let unseen = self.living().filter(|process| process.owner.start_ticks.is_none());
        unseen.filter(|process| now.saturating_duration_since(process.first_seen) > INVISIBLE_AFTER).count() as u64
    }

    /// The pids of the live processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.living().map(|process| process.pid).collect()
    }

    /// Whether a live process has this pid.
    pub(super) fn lists(&self, pid: u32) -> bool {
        self.living().any(|process| process.pid == pid)
    }

    /// The total number of bytes that the live processes hold; `None` while the memory of any of them is unknown.
    pub(super) fn used(&self) -> Option<u64> {
        total(self.living())
    }

    /// What the live processes hold together, as far as their memory is known; `None` if it is known of none of them. `is_cut`:
    /// processes may be on the GPU although the last list does not contain them.
    pub(super) fn held(&self, is_cut: bool) -> Option<Held> {
        let bytes = self.living().filter_map(|process| process.used).reduce(u64::saturating_add);
        let is_lower_bound = is_cut || self.living().any(|process| process.used.is_none());
        bytes.or((!is_lower_bound).then_some(0)).map(|bytes| Held { bytes, is_lower_bound })
    }

    /// The same as `used` for the processes of one GPU instance.
    pub(super) fn used_in(&self, gpu_instance: u32) -> Option<u64> {
        total(self.living().filter(|process| process.instance.is_some_and(|ids| ids.0 == gpu_instance)))
    }

    /// What is published: the largest processes, up to the limit, and the sum of the others.
    pub(super) fn show(&mut self, now: Instant) -> (Vec<Process>, Option<Other>) {
        self.processes.sort_by_key(|process| {
            Reverse((process.is_alive(), process.used.unwrap_or_else(|| process.record.peak().unwrap_or(0))))
        });
        let shown = self.processes.len().min(self.retention.limit);
        let (shown, others) = self.processes.split_at_mut(shown);
        let alive = || others.iter().filter(|process| process.is_alive());
        let processes = alive().count() as u64;
        let other = (!others.is_empty()).then(|| Other {
            entries: others.len() as u64,
            processes,
            used: (processes > 0).then(|| total(alive())).flatten(),
        });
        (shown.iter_mut().map(|process| process.show(now)).collect(), other)
    }
}

/// The total number of bytes; `None` while the memory of any process is unknown.
fn total<'t>(mut processes: impl Iterator<Item = &'t TrackedProcess>) -> Option<u64> {
    processes.try_fold(0, |sum: u64, process| Some(sum.saturating_add(process.used?)))
}

#[cfg(test)]
pub(super) mod tests;
