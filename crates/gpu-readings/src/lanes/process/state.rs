//! What the lane remembers about processes and workloads, and what it publishes about them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::energy::EnergyLedger;
use super::guests::{GuestUse, settle};
use super::limits::LimitSources;
use super::list::{ListEntry, ProcessList};
use super::retention::Retention;
use super::table::ProcessTable;
use super::workloads::Workloads;
use crate::attribution::Attribution;
use crate::faults::{Faults, Reason, Source};
use crate::lanes::telemetry::{Spent, Work};
use crate::snapshot::{CallHolder, CallPeak, Gpu, GpuProcesses, MigDevice, UnifiedMemory};

/// What the lane remembers. Never locked during a driver call.
#[derive(Debug)]
pub(super) struct ProcessLaneState {
    attribution: Attribution,
    faults: Arc<Faults>,
    retention: Retention,
    longest_gap: Duration,
    /// Keyed by [`Gpu::key`].
    gpus: HashMap<String, GpuProcessState>,
    /// What is published, by position.
    pub(super) shown: Vec<Arc<GpuProcesses>>,
    /// The number of processes in the last list of each GPU, by position; at least 1 while the list is refused.
    pub(super) alive: Vec<usize>,
}

/// What is remembered about one GPU.
#[derive(Debug)]
struct GpuProcessState {
    table: ProcessTable,
    workloads: Workloads,
    /// `None` if the energy is not apportioned.
    energy: Option<EnergyLedger>,
    /// How many processes were invisible at the last check, so that an increase is reported once.
    invisible: u64,
}

/// The outcome of [`ProcessLaneState::fold_list`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Folded {
    /// The list was accepted; this many processes are on the GPU.
    Alive(usize),
    /// The list was rejected: in the previous list, one of its pids belonged to another process, which has ended. The
    /// memory in the list may belong to either process.
    PidReused,
}

/// Some processes on the GPU are not visible in `/proc`.
#[derive(Debug, thiserror::Error)]
#[error("{processes} processes on the GPU are not in /proc, so their owners are unknown: {}", why(*own_namespace))]
struct Invisible {
    processes: u64,
    own_namespace: bool,
}

fn why(own_namespace: bool) -> &'static str {
    if own_namespace {
        "the exporter has a pid namespace of its own; give it the host's (hostPID: true, docker run --pid=host)"
    } else {
        "they are in another pid namespace, or /proc is mounted with hidepid and the exporter is not in its group"
    }
}

impl ProcessLaneState {
    /// `longest_gap`: the longest time between two lists in which the memory of a workload counts as known.
    pub(super) fn new(
        attribution: Attribution,
        faults: Arc<Faults>,
        retention: Retention,
        longest_gap: Duration,
    ) -> Self {
        Self { attribution, faults, retention, longest_gap, gpus: HashMap::new(), shown: Vec::new(), alive: Vec::new() }
    }

    /// Starts a new session: the processes of its GPUs have not been listed yet.
    pub(super) fn resume<'g>(&mut self, gpus: impl Iterator<Item = &'g Arc<Gpu>>) {
        self.shown = gpus.map(|gpu| Arc::new(unread(gpu))).collect();
        self.alive = vec![0; self.shown.len()];
    }

    /// Records that the list of the GPU at a position was refused: there may be processes.
    pub(super) fn assume_alive(&mut self, position: usize) {
        self.alive[position] = self.alive[position].max(1);
    }

    /// The number of processes on all GPUs.
    pub(super) fn alive(&self) -> usize {
        self.alive.iter().sum()
    }

    /// Folds in a list of the GPU at a position. `layout_holds`: whether the list matches the MIG layout in
    /// [`Gpu::mig`]. `limits`: what limits the workloads on the GPU. `guests`: the vGPUs on it.
    pub(super) fn fold_list(
        &mut self,
        position: usize,
        gpu: &Arc<Gpu>,
        mut list: ProcessList,
        layout_holds: bool,
        limits: &LimitSources,
        guests: &[GuestUse],
    ) -> Folded {
        let known = self.gpus.entry(gpu.key()).or_insert_with(|| GpuProcessState::new(self.retention));
        let owners = self.attribution.identify_all(&pids(&list.entries));
        if known.table.end_former(&list, &owners) {
            return Folded::PidReused;
        }
        let gone: Vec<_> = list.gone().into_iter().collect();
        let owners_now = self.attribution.identify_all(&pids(&gone));
        let passed_on = gone.iter().zip(&owners_now).filter(|(entry, now)| known.table.is_passed_on(entry, now));
        for (entry, _) in passed_on {
            list.earlier.iter_mut().for_each(|earlier| earlier.retain(|other| other.pid != entry.pid));
        }
        let layout = layout_holds.then_some(&gpu.mig[..]);
        known.table.fold(&list, &owners, layout);
        let mut members: Vec<_> = known.table.members().collect();
        let unlisted = settle(&mut members, guests);
        members.extend(guests.iter().map(GuestUse::member));
        // An earlier list has the whole memory of the vGPU manager, of which the guests' was not read at that moment.
        let earlier = if guests.is_empty() { &list.earlier[..] } else { &[] };
        known.workloads.fold(&members, earlier, list.at);
        known.workloads.measure(&members, limits, list.at, self.longest_gap);
        let alive = known.table.alive() + guests.len();
        let held = known.table.used().zip(unlisted).map(|(held, unlisted)| held.saturating_add(unlisted));
        // A new part is created, because a reader may still hold the previous one; the other GPUs keep their parts.
        let mut shown = GpuProcesses {
            at: Some(list.at),
            began: Some(list.began),
            unattributed: list.used.zip(held).map(|(used, held)| used.saturating_sub(held)),
            held: (gpu.unified_memory == Some(UnifiedMemory::Listed))
                .then(|| {
                    // The driver lists no process outside of the exporter's pid namespace.
                    let is_hidden = self.attribution.sees_host_processes() == Some(false);
                    known.table.held(is_hidden || !list.unread.is_empty())
                })
                .flatten(),
            mig_unattributed: known.mig_unattributed(layout.unwrap_or_default(), &list.mig_used),
            ..unread(gpu)
        };
        known.show(&mut shown, &self.attribution, &self.faults, list.at);
        self.shown[position] = Arc::new(shown);
        Folded::Alive(alive)
    }

    /// Folds in the work of a GPU's processes.
    pub(super) fn fold_work(&mut self, work: &Work) {
        let Some(known) = self.gpus.get_mut(&work.gpu.key()) else { return };
        match &work.samples {
            Some(samples) => known.table.fold_work(samples, work.asked_at),
            None => known.table.forget_work(),
        }
        if let Some(energy) = &mut known.energy {
            energy.see(&known.table, work);
        }
        self.show_again(&work.gpu, work.asked_at.0);
    }

    /// Apportions the energy of a GPU since the round before.
    pub(super) fn fold_energy(&mut self, spent: &Spent) {
        let new = || GpuProcessState::new(self.retention);
        let known = self.gpus.entry(spent.gpu.key()).or_insert_with(new);
        known.energy.get_or_insert_default().apportion(spent, &mut known.workloads);
        self.show_again(&spent.gpu, Instant::now());
    }

    /// Compares the workloads of a GPU with limits that have changed since its list was folded in.
    pub(super) fn measure(&mut self, gpu: &Arc<Gpu>, limits: &LimitSources) {
        let Some(known) = self.gpus.get_mut(&gpu.key()) else { return };
        let Some(at) = self.shown.iter().find(|shown| Arc::ptr_eq(&shown.gpu, gpu)).and_then(|shown| shown.at) else {
            return;
        };
        let members: Vec<_> = known.table.members().collect();
        known.workloads.measure(&members, limits, at, self.longest_gap);
        self.show_again(gpu, at);
    }

    /// Shows a GPU's processes and workloads as they are known now, with the same list.
    fn show_again(&mut self, gpu: &Arc<Gpu>, now: Instant) {
        let Some(known) = self.gpus.get_mut(&gpu.key()) else { return };
        if let Some(shown) = self.shown.iter_mut().find(|shown| Arc::ptr_eq(&shown.gpu, gpu)) {
            let GpuProcesses { at, began, unattributed, held, ref mig_unattributed, .. } = **shown;
            let mig_unattributed = mig_unattributed.clone();
            let mut next = GpuProcesses { at, began, unattributed, held, mig_unattributed, ..unread(gpu) };
            known.show(&mut next, &self.attribution, &self.faults, now);
            *shown = Arc::new(next);
        }
    }

    /// The cgroups of the workloads on a GPU itself, not on its MIG devices, sorted.
    pub(super) fn cgroups(&self, gpu: &Gpu) -> Vec<Arc<Path>> {
        let Some(known) = self.gpus.get(&gpu.key()) else { return Vec::new() };
        let members = known.table.members().filter(|member| member.alive && member.instance.is_none());
        let mut cgroups: Vec<_> = members.filter_map(|member| member.cgroup.cloned()).collect();
        cgroups.sort_unstable();
        cgroups.dedup();
        cgroups
    }

    /// The pids of the live processes of a GPU.
    pub(super) fn pids(&self, gpu: &Gpu) -> Vec<u32> {
        self.gpus.get(&gpu.key()).map(|known| known.table.pids()).unwrap_or_default()
    }

    /// Applies the driver's own maximum to a live process.
    pub(super) fn raise(&mut self, gpu: &Gpu, pid: u32, peak: u64) {
        let Some(known) = self.gpus.get_mut(&gpu.key()) else { return };
        known.table.raise(pid, peak);
        for member in known.table.members().filter(|member| member.pid == pid) {
            known.workloads.raise(&member, peak);
        }
    }

    /// Applies what calls tell that a process or a workload held.
    pub(super) fn see_call(&mut self, peak: &CallPeak, now: Instant) {
        let Some(known) = self.gpus.get_mut(&peak.gpu.key()) else { return };
        match &peak.holder {
            CallHolder::Process(id) => known.table.see_call(*id, peak.mig.as_deref(), peak.bytes, now),
            CallHolder::Workload(workload) => known.workloads.see_call(workload, peak.mig.as_deref(), peak.bytes, now),
        }
    }

    /// Forgets the owners of processes that are no longer on a GPU. Those of a GPU whose list another thread reads, or was
    /// refused, are kept: its last list has them.
    pub(super) fn sweep(&mut self) {
        let Self { attribution, gpus, shown, .. } = self;
        let known = |shown: &Arc<GpuProcesses>| gpus.get(&shown.gpu.key());
        attribution.sweep(|pid| shown.iter().filter_map(known).any(|known| known.table.lists(pid)));
    }
}

impl GpuProcessState {
    fn new(retention: Retention) -> Self {
        let (table, workloads) = (ProcessTable::new(retention), Workloads::new(retention));
        Self { table, workloads, energy: None, invisible: 0 }
    }

    /// Fills in the GPU's processes and workloads. If there are more invisible processes than before, a fault is
    /// reported before they are shown.
    fn show(&mut self, shown: &mut GpuProcesses, attribution: &Attribution, faults: &Faults, now: Instant) {
        (shown.processes, shown.other) = self.table.show(now);
        shown.energy = self.energy.as_ref().and_then(EnergyLedger::shown);
        (shown.workloads, shown.other_workloads) = self.workloads.show(now, shown.energy.is_some());
        shown.invisible = self.table.invisible(now);
        if shown.invisible > std::mem::replace(&mut self.invisible, shown.invisible) {
            let own_namespace = attribution.sees_host_processes() == Some(false);
            let error = Invisible { processes: shown.invisible, own_namespace };
            faults.raise(Source::Attribution, Reason::Invisible, Some(shown.gpu.index), &error);
        }
    }

    /// For each GPU instance, the bytes that are in use but held by no process, listed under the instance's first MIG
    /// device. The compute instances of a GPU instance share its memory, which is shown once.
    fn mig_unattributed(&self, layout: &[Arc<MigDevice>], used: &[Option<u64>]) -> Vec<(Arc<MigDevice>, u64)> {
        let mut unattributed: Vec<(Arc<MigDevice>, u64)> = Vec::new();
        for (device, used) in layout.iter().zip(used) {
            let is_shown = unattributed.iter().any(|(first, _)| first.gpu_instance == device.gpu_instance);
            if let (false, Some(used), Some(held)) = (is_shown, used, self.table.used_in(device.gpu_instance)) {
                unattributed.push((device.clone(), used.saturating_sub(held)));
            }
        }
        unattributed
    }
}

fn pids(entries: &[ListEntry]) -> Vec<u32> {
    entries.iter().map(|entry| entry.pid).collect()
}

fn unread(gpu: &Arc<Gpu>) -> GpuProcesses {
    GpuProcesses { gpu: gpu.clone(), ..GpuProcesses::default() }
}
