//! The containers to which a device is allocated, and what each of them uses of it.
//!
//! Invariant: a container is a holder of a device once. What it uses is known only if every process that could be its
//! own is known: its value is absent otherwise, never 0.

use std::collections::HashSet;

use crate::snapshot::{ClaimAllocation, DeviceName, GpuProcesses, MigDevice, PodContainer, Process, WorkloadKind};
use gpu_metrics::{GpuView, Parts, Settings};

/// A container that has a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder<'a> {
    /// The container.
    pub(super) container: &'a PodContainer,
    /// Which share of the device; `None` for a whole device.
    pub(super) replica: Option<&'a str>,
    /// The claim through which it has the device; `None` for a device of a device plugin, and without a kubelet.
    pub(super) claim: Option<&'a ClaimAllocation>,
}

/// What the processes of a container use of a device. `None`: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Use {
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Share of the streaming multiprocessors' time, 0 to 1.
    pub(super) utilization: Option<f64>,
}

/// The containers to which the kubelet has allocated the GPU, or the GPU instance on it; of several with the same claim, those
/// that use it, if any does. Without a kubelet, the containers whose processes run there.
pub(super) fn holders<'a>(
    parts: &'a Parts,
    view: &GpuView<'a>,
    instance: Option<u32>,
    settings: &Settings,
) -> Vec<Holder<'a>> {
    let mut holders = match parts.allocations.up {
        Some(_) => allocated(parts, view, instance, settings),
        None => running(view, instance).collect(),
    };
    let key = |holder: &Holder<'a>| (&holder.container.namespace, &holder.container.pod, &holder.container.container);
    holders.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| number(a.replica).cmp(&number(b.replica))));
    holders.dedup_by(|later, first| key(later) == key(first));
    holders
}

/// The containers whose processes run on the device.
fn running<'a>(view: &GpuView<'a>, instance: Option<u32>) -> impl Iterator<Item = Holder<'a>> {
    let live = on(view.processes, instance).filter_map(|process| process.owner.workload.as_ref());
    live.filter_map(|workload| Some(Holder { container: workload.pod.as_deref()?, replica: None, claim: None }))
}

fn allocated<'a>(parts: &'a Parts, view: &GpuView<'a>, instance: Option<u32>, settings: &Settings) -> Vec<Holder<'a>> {
    let Some(allocations) = parts.fresh_allocations(settings) else { return Vec::new() };
    let is_here = |device: &DeviceName| {
        let found = parts.driver.find(device);
        found.is_some_and(|(gpu, mig)| std::ptr::eq(gpu, view.gpu) && mig.map(|mig| mig.gpu_instance) == instance)
    };
    // Kubelets before Kubernetes 1.34 list the devices of pods that have ended until another pod needs them.
    let is_current = |holder: &PodContainer| !parts.pods.has_ended(holder);
    let plugged = allocations.allocated.iter().filter(|one| is_here(&one.device.device) && is_current(&one.holder));
    let plugged =
        plugged.map(|one| Holder { container: &one.holder, replica: one.device.replica.as_deref(), claim: None });
    let claimed = allocations.claimed.iter().filter(|one| is_here(&one.device) && is_current(&one.holder));
    let claimed: Vec<_> =
        claimed.map(|one| Holder { container: &one.holder, replica: None, claim: Some(one) }).collect();
    let holders: Vec<_> = plugged.chain(users(claimed, view, instance, settings)).collect();
    // A claim whose GPU is not known may be for this one.
    if holders.is_empty() && !allocations.unassigned.is_empty() {
        return running(view, instance).collect();
    }
    holders
}

/// Of the containers that may use a device through one claim, those whose processes run on it; all of them while none does, and
/// while it is not known of all processes whose they are.
fn users<'a>(
    claimed: Vec<Holder<'a>>,
    view: &GpuView<'a>,
    instance: Option<u32>,
    settings: &Settings,
) -> Vec<Holder<'a>> {
    if claimed.len() < 2 || hides_processes(view, settings) {
        return claimed;
    }
    let running: HashSet<_> = running(view, instance).map(|holder| holder.container).collect();
    let is_running = |holder: &Holder<'_>| running.contains(holder.container);
    let claim = |holder: &Holder<'a>| holder.claim.map(|claimed| &claimed.claim);
    let used: HashSet<_> = claimed.iter().filter(|holder| is_running(holder)).map(claim).collect();
    let is_user = |holder: &Holder<'a>| is_running(holder) || !used.contains(&claim(holder));
    claimed.into_iter().filter(is_user).collect()
}

/// Whether a process may be on the GPU that is not shown, or not as one of its container.
fn hides_processes(view: &GpuView<'_>, settings: &Settings) -> bool {
    settings.host_pid_namespace == Some(false) || view.processes.is_none_or(|list| list.invisible > 0)
}

/// The number of a share, for the order.
fn number(replica: Option<&str>) -> Option<u32> {
    replica?.parse().ok()
}

/// The live processes on the GPU, or on the GPU instance.
fn on(processes: Option<&GpuProcesses>, instance: Option<u32>) -> impl Iterator<Item = &Process> {
    let all = processes.map_or(&[][..], |list| &list.processes);
    all.iter().filter(move |process| process.alive && is_on(process.mig.as_deref(), instance))
}

fn is_on(mig: Option<&MigDevice>, instance: Option<u32>) -> bool {
    mig.map(|mig| mig.gpu_instance) == instance
}

/// How much of the GPU, or of the GPU instance, the container's processes use.
pub(super) fn used_by(container: &PodContainer, view: &GpuView<'_>, instance: Option<u32>, settings: &Settings) -> Use {
    let Some(list) = view.processes else { return Use::default() };
    // A process that is not shown could be one of the container's.
    if hides_processes(view, settings) {
        return Use::default();
    }
    let is_own = |pod: Option<&PodContainer>| pod == Some(container);
    let workloads = list.workloads.iter().filter(|workload| is_on(workload.mig.as_deref(), instance));
    let mut own =
        workloads.filter(|workload| workload.processes > 0 && is_own(workload.workload.pod.as_deref())).peekable();
    if own.peek().is_none() {
        let nothing = has_nothing_else(list, instance);
        return Use { memory: nothing.then_some(0), utilization: nothing.then_some(0.0) };
    }
    // Sums of values that are all known.
    let memory = own.try_fold(0_u64, |sum, workload| Some(sum.saturating_add(workload.used?)));
    let processes = on(view.processes, instance)
        .filter(|process| process.owner.workload.as_ref().is_some_and(|workload| is_own(workload.pod.as_deref())));
    let samples: Option<Vec<f64>> = processes.map(|process| process.sm_utilization).collect();
    let samples = samples.filter(|samples| !samples.is_empty() && list.other.is_none());
    Use { memory, utilization: samples.map(|samples| samples.iter().sum()) }
}

/// Whether no process on the device could belong to a container whose processes are not listed: all are listed, and the owner of
/// each is known.
fn has_nothing_else(list: &GpuProcesses, instance: Option<u32>) -> bool {
    let is_known = |process: &Process| {
        process.owner.workload.as_ref().is_some_and(|workload| workload.kind != WorkloadKind::Container)
    };
    list.other.is_none() && list.other_workloads.is_none() && on(Some(list), instance).all(is_known)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
