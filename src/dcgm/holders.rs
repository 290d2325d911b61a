//! The containers to which a device is allocated, and what each of them uses of it.
//!
//! Invariant: a container is a holder of a device once. What it uses is known only if every process that could be its
//! own is known: its value is absent otherwise, never 0.

use crate::snapshot::{GpuProcesses, MigDevice, PodContainer, Process, WorkloadKind};
use gpu_metrics::{GpuView, Parts, Settings};

/// A container that has a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder<'a> {
    /// The container.
    pub(super) container: &'a PodContainer,
    /// Which share of the device; `None` for a whole device.
    pub(super) replica: Option<&'a str>,
}

/// What the processes of a container use of a device. `None`: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Use {
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Share of the streaming multiprocessors' time, 0 to 1.
    pub(super) utilization: Option<f64>,
}

/// The containers to which the kubelet has allocated the GPU, or the GPU instance on it. Without a kubelet, the
/// containers whose processes run there.
pub(super) fn holders<'a>(
    parts: &'a Parts,
    view: &GpuView<'a>,
    instance: Option<u32>,
    settings: &Settings,
) -> Vec<Holder<'a>> {
    let mut holders: Vec<Holder<'a>> = match parts.allocations.up {
        Some(_) => allocated(parts, view, instance, settings),
        None => {
            let live = on(view.processes, instance).filter_map(|process| process.owner.workload.as_ref());
            live.filter_map(|workload| Some(Holder { container: workload.pod.as_deref()?, replica: None })).collect()
        }
    };
    let key = |holder: &Holder<'a>| (&holder.container.namespace, &holder.container.pod, &holder.container.container);
    holders.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| number(a.replica).cmp(&number(b.replica))));
    holders.dedup_by(|later, first| key(later) == key(first));
    holders
}

fn allocated<'a>(parts: &'a Parts, view: &GpuView<'a>, instance: Option<u32>, settings: &Settings) -> Vec<Holder<'a>> {
    let Some(allocations) = parts.fresh_allocations(settings) else { return Vec::new() };
    // Kubelets before Kubernetes 1.34 list the devices of pods that have ended until another pod needs them.
    let current = allocations.allocated.iter().filter(|allocation| !parts.pods.has_ended(&allocation.holder));
    let here = current.filter(|allocation| {
        let found = parts.driver.find(&allocation.device.device);
        found.is_some_and(|(gpu, mig)| std::ptr::eq(gpu, view.gpu) && mig.map(|mig| mig.gpu_instance) == instance)
    });
    let holder = |allocation: &'a crate::snapshot::Allocation| Holder {
        container: &allocation.holder,
        replica: allocation.device.replica.as_deref(),
    };
    here.map(holder).collect()
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
    if settings.host_pid_namespace == Some(false) || list.invisible > 0 {
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
