//! The workloads of one GPU over time.
//!
//! Invariants: a peak is the highest sum at one moment, never a sum of peaks; a workload outlives its processes, so
//! that a restarted process continues it; a workload whose name became known late keeps its earlier values.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::LimitSources;
use super::list::{Instance, ListEntry};
use super::retention::Retention;
use super::workload_cgroups::cgroups;
use super::workload_entry::{Sum, WorkloadEntry, WorkloadMember};
use crate::snapshot::{MigDevice, Other, Workload, WorkloadUse};

/// The workloads of a GPU: those that are alive and, for a while, those that have ended.
#[derive(Debug)]
pub(super) struct Workloads {
    entries: Vec<WorkloadEntry>,
    retention: Retention,
}

impl Workloads {
    pub(super) fn new(retention: Retention) -> Self {
        Self { entries: Vec::new(), retention }
    }

    /// Folds in the processes listed at `now`, and the earlier lists of the same pass, which may contain processes that
    /// have ended since.
    pub(super) fn fold(&mut self, members: &[WorkloadMember<'_>], earlier: &[Vec<ListEntry>], now: Instant) {
        self.rename(members);
        let mut sums: HashMap<(Arc<Workload>, Instance), (Sum, &WorkloadMember<'_>)> = HashMap::new();
        for member in members.iter().filter(|member| member.alive) {
            let (sum, first) =
                sums.entry((member.workload.clone(), member.instance)).or_insert((Sum::default(), member));
            sum.add(member.used, member.limit);
            // The members share a MIG device, which is unknown for a member that appeared while the layout was unknown.
            if first.mig.is_none() {
                *first = member;
            }
        }
        sums.values().for_each(|(_, member)| self.join(member));
        for entry in &mut self.entries {
            let key = (entry.workload.clone(), entry.instance);
            let own = sums.get(&key).is_some_and(|(_, member)| entry.is_on_device_of(member));
            match own.then(|| sums.remove(&key)).flatten() {
                Some((sum, member)) => entry.see(sum, member, now),
                None => entry.end(now),
            }
        }
        let mut new: Vec<_> = sums.into_values().collect();
        new.sort_unstable_by_key(|(_, member)| (member.pid, member.instance));
        for (sum, member) in new {
            let mut entry = WorkloadEntry::new(member, self.retention.peak_window);
            entry.see(sum, member, now);
            self.entries.push(entry);
        }
        earlier.iter().for_each(|list| self.recall(members, list, now));
        self.entries.retain(|entry| self.retention.keeps(entry.ended, now));
        self.make_room();
    }

    /// Compares the memory of the workloads with their limits, after a list with these members was folded in at `now`.
    /// `gap`: the longest time between two lists in which the memory counts as known.
    pub(super) fn measure(
        &mut self,
        members: &[WorkloadMember<'_>],
        sources: &LimitSources,
        now: Instant,
        gap: Duration,
    ) {
        let cgroups = if sources.has_cgroups() { cgroups(members) } else { HashMap::new() };
        for entry in &mut self.entries {
            if entry.is_alive() {
                let cgroup = cgroups.get(&*entry.workload).copied().flatten().filter(|_| entry.instance.is_none());
                let limits = sources.of(&entry.workload, entry.mig.as_deref(), entry.sum.limit, cgroup);
                entry.over.see(&limits, entry.sum.used, now, gap);
            } else {
                entry.over.end(now, gap);
            }
        }
    }

    /// Folds in the sums of an earlier list of the same pass, which count towards peaks.
    fn recall(&mut self, members: &[WorkloadMember<'_>], list: &[ListEntry], now: Instant) {
        let by_slot: HashMap<_, _> = members.iter().map(|member| ((member.pid, member.instance), member)).collect();
        let mut sums: HashMap<(&Workload, Instance), (Sum, &WorkloadMember<'_>)> = HashMap::new();
        for entry in list {
            if let Some(&member) = by_slot.get(&entry.slot()) {
                let key = (&**member.workload, member.instance);
                sums.entry(key).or_insert((Sum::default(), member)).0.add(entry.used, None);
            }
        }
        for (sum, member) in sums.into_values() {
            // A workload that appeared and ended within this pass is not known yet.
            let position = self.position(member).unwrap_or_else(|| {
                self.entries.push(WorkloadEntry::new(member, self.retention.peak_window));
                self.entries.len() - 1
            });
            let entry = &mut self.entries[position];
            entry.record.see(sum.used, now);
            if entry.sum.processes == 0 {
                entry.end(now);
            }
        }
    }

    /// Renames workloads. The workload name of a process can differ from the one at the time of the previous list,
    /// because the name of the pod or the user has become known since then. In that case, the workload continues under
    /// the new name.
    fn rename(&mut self, members: &[WorkloadMember<'_>]) {
        let alive = members.iter().filter(|member| member.alive);
        let living: HashSet<_> = alive.clone().map(|member| (&**member.workload, member.instance)).collect();
        for member in alive {
            let Some(before) = member.before.filter(|before| *before != member.workload) else { continue };
            if living.contains(&(&**before, member.instance)) {
                continue;
            }
            let Some(old) = self.position(&WorkloadMember { workload: before, ..*member }) else { continue };
            match self.position(member) {
                None => self.entries[old].rename(member.workload),
                Some(new) => self.absorb(new, old),
            }
        }
    }

    /// Joins two entries if a workload appeared on a MIG device while the layout was unknown, and the device turns out
    /// to be one that the workload was on before.
    fn join(&mut self, member: &WorkloadMember<'_>) {
        let Some(device) = member.mig else { return };
        let is_unplaced = |entry: &WorkloadEntry| entry.mig.is_none() && entry.is_alive();
        let is_placed = |entry: &WorkloadEntry| entry.mig.as_ref().is_some_and(|own| own.uuid == device.uuid);
        let unplaced = self.entries.iter().position(|entry| entry.has_ids_of(member) && is_unplaced(entry));
        let placed = self.entries.iter().position(|entry| entry.has_ids_of(member) && is_placed(entry));
        if let Some((unplaced, placed)) = unplaced.zip(placed) {
            self.absorb(placed, unplaced);
        }
    }

    /// Removes an entry and merges its peaks and times into those of another entry, because the sum of both was at least as high
    /// as either part. Its joules remain where they were counted: added here, they would be a second rise.
    fn absorb(&mut self, into: usize, gone: usize) {
        let WorkloadEntry { record, over, .. } = &self.entries[gone];
        let (record, over) = (record.clone(), over.clone());
        self.entries[into].record.absorb(&record);
        self.entries[into].over.absorb(&over);
        self.entries.swap_remove(gone);
    }

    fn position(&self, member: &WorkloadMember<'_>) -> Option<usize> {
        self.entries.iter().position(|entry| entry.has_ids_of(member) && entry.is_on_device_of(member))
    }

    /// Beyond the limit, drops the workloads that ended first, so that the number of workloads that have ended stays
    /// bounded.
    fn make_room(&mut self) {
        let most = self.entries.iter().filter(|entry| entry.is_alive()).count() + self.retention.limit;
        if self.entries.len() > most {
            self.entries.sort_by_key(|entry| (!entry.is_alive(), Reverse(entry.ended)));
            self.entries.truncate(most);
        }
    }

    /// Applies the driver's own maximum for one process to its workload, which held at least as much.
    pub(super) fn raise(&mut self, member: &WorkloadMember<'_>, peak: u64) {
        if let Some(position) = self.position(member) {
            self.entries[position].record.raise(peak);
        }
    }

    /// Applies what calls tell that the processes of a workload held together.
    pub(super) fn see_call(&mut self, workload: &Workload, mig: Option<&MigDevice>, bytes: u64, now: Instant) {
        let is_it =
            |entry: &&mut WorkloadEntry| *entry.workload == *workload && MigDevice::are_same(entry.mig.as_deref(), mig);
        for entry in self.entries.iter_mut().filter(is_it) {
            entry.record.see_call(bytes, now);
        }
    }

    /// Adds the joules of a workload, unless it is unknown or was left out when the workloads were last shown. Returns what was
    /// added.
    pub(super) fn add_energy(&mut self, workload: &Workload, instance: Instance, joules: f64) -> f64 {
        let shown = self.retention.limit.min(self.entries.len());
        let is_it = |entry: &&mut WorkloadEntry| *entry.workload == *workload && entry.instance == instance;
        let Some(entry) = self.entries[..shown].iter_mut().find(is_it) else { return 0.0 };
        entry.energy.joules += joules;
        joules
    }

    /// What is published: the largest workloads, up to the limit, and the sum of the others. `with_energy`: whether the energy of
    /// the GPU is apportioned.
    pub(super) fn show(&mut self, now: Instant, with_energy: bool) -> (Vec<WorkloadUse>, Option<Other>) {
        self.entries.sort_by_key(|entry| {
            let size = entry.sum.used.unwrap_or_else(|| entry.record.peak().unwrap_or(0));
            Reverse((entry.is_alive(), size, entry.ended))
        });
        let shown = self.entries.len().min(self.retention.limit);
        let (shown, others) = self.entries.split_at_mut(shown);
        let processes = others.iter().map(|entry| entry.sum.processes).sum();
        let mut alive = others.iter().filter(|entry| entry.is_alive());
        let used = alive.try_fold(0_u64, |sum, entry| Some(sum.saturating_add(entry.sum.used?)));
        let other = (!others.is_empty()).then(|| Other {
            entries: others.len() as u64,
            processes,
            used: used.filter(|_| processes > 0),
        });
        (shown.iter_mut().map(|entry| entry.show(now, with_energy)).collect(), other)
    }
}

#[cfg(test)]
mod tests;
