//! The memory that is promised on each GPU: the sum of what its containers and workloads may hold, whether they have
//! started or not.
//!
//! Invariants: each container and each workload counts once for each GPU, with the lowest of its limits there, and with
//! at most the GPU's memory; a claim that consumes memory of a GPU counts once, in place of its containers; what a user writes does
//! not lower what a scheduler has promised; a share and the memory of a MIG device are not promised. If a part of the sum is unknown,
//! there is no sum.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::settings::Settings;
use super::Parts;
use gpu_readings::snapshot::{
    Allocations, Budget, BudgetPlace, ClaimAllocation, Gpu, GpuProcesses, PodContainer, WorkloadUse,
};

/// What the pods of this node declare, and on which GPUs the kubelet has placed their containers.
#[derive(Debug)]
pub(super) struct Promises<'a> {
    /// The containers with budgets.
    declared: Vec<(&'a PodContainer, &'a [Budget])>,
    /// The indices of the whole GPUs that are allocated to each container; `None` if the kubelet does not answer.
    allocated: Option<HashMap<&'a PodContainer, Vec<u32>>>,
    /// The containers of which not all GPUs are known.
    unassigned: &'a [Arc<PodContainer>],
    /// The claims that consume memory of whole GPUs, each with the index of its GPU.
    consumed: Vec<(u32, &'a ClaimAllocation)>,
    /// Whether it is not known what claims consume: the kubelet does not answer although one consumed memory, or a device that it
    /// lists may soon be found.
    is_open: bool,
    /// Whether the declarations are those of now: the API server answers, or no pod declares anything.
    followed: bool,
}

impl<'a> Promises<'a> {
    pub(super) fn of(parts: &'a Parts, settings: &Settings) -> Self {
        let declared: Vec<_> = parts.pods.budgets.iter().map(|(holder, budgets)| (holder, &budgets[..])).collect();
        // Where no pod declares anything, nothing has to be looked up.
        let allocated = if declared.is_empty() { Some(HashMap::new()) } else { allocated(parts, settings) };
        let followed = declared.is_empty() || parts.pods.up != Some(false);
        let Allocations { claimed, unassigned, pending, .. } = &*parts.allocations;
        let consumed = claimed.iter().filter(|one| one.memory.is_some() && !parts.pods.has_ended(&one.holder));
        let consumed = consumed.filter_map(|one| match parts.driver.find(&one.device)? {
            (gpu, None) => Some((gpu.index, one)),
            _ => None,
        });
        let consumed: Vec<_> = consumed.collect();
        let is_open = *pending || !consumed.is_empty() && parts.fresh_allocations(settings).is_none();
        Self { declared, allocated, unassigned, consumed, is_open, followed }
    }

    /// The bytes that are promised on a GPU. `total`: all memory of the GPU. `None` if nothing is promised, or if a part
    /// of the sum is unknown.
    pub(super) fn on(&self, gpu: &Gpu, list: &GpuProcesses, total: Option<u64>) -> Option<u64> {
        let running = list.workloads.iter().filter(|workload| workload.processes > 0 && workload.mig.is_none());
        let limited: Vec<_> = running.filter_map(|workload| Some((workload, promised_to(workload)?))).collect();
        let consumed: Vec<_> =
            self.consumed.iter().filter(|(index, _)| *index == gpu.index).map(|(_, one)| *one).collect();
        if self.declared.is_empty() && limited.is_empty() && consumed.is_empty() {
            return None;
        }
        if !self.followed || self.is_open {
            return None;
        }
        let mut counted: HashSet<&PodContainer> = consumed.iter().map(|one| &*one.holder).collect();
        let mut promised: Option<u64> = None;
        let mut add = |promise: Promise| {
            // Texts of users can name any number.
            let bytes = promise.bytes.min(total.unwrap_or(u64::MAX));
            promised = Some(promised.unwrap_or(0).saturating_add(bytes));
        };
        // Every container of a claim has every device of it.
        let once: HashMap<_, _> = consumed.iter().map(|one| ((&one.claim, &one.name), one.memory)).collect();
        for bytes in once.into_values().flatten() {
            add(Promise { is_users: false, bytes });
        }
        for &(holder, budgets) in &self.declared {
            if counted.contains(holder) {
                continue;
            }
            let own = limited.iter().find(|(workload, _)| workload.workload.pod.as_deref() == Some(holder));
            let mut promise = own.map(|(_, promise)| *promise);
            for budget in budgets {
                let applies = match budget.place {
                    BudgetPlace::EachGpu => own.is_some() || self.is_allocated(holder, gpu)?,
                    _ => budget.place.is(gpu, None),
                };
                if applies {
                    let bytes = budget.amount.bytes(total)?;
                    let other = Promise { is_users: budget.source.is_users(), bytes };
                    promise = Some(promise.map_or(other, |promise| promise.min(other)));
                }
            }
            if let Some(promise) = promise {
                counted.insert(holder);
                add(promise);
            }
        }
        for (workload, promise) in limited {
            if !workload.workload.pod.as_deref().is_some_and(|pod| counted.contains(pod)) {
                add(promise);
            }
        }
        promised
    }

    /// Whether the kubelet has allocated the whole GPU, or a replica of it, to a container. `None` if that is unknown.
    fn is_allocated(&self, holder: &PodContainer, gpu: &Gpu) -> Option<bool> {
        let is_here = self.allocated.as_ref()?.get(holder).is_some_and(|gpus| gpus.contains(&gpu.index));
        let is_known = is_here || self.unassigned.iter().all(|other| **other != *holder);
        is_known.then_some(is_here)
    }
}

/// What is promised to a workload or a container. The lesser of two promises counts: one of a scheduler or of the driver
/// before one that the user of the workload writes, and otherwise the lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Promise {
    is_users: bool,
    bytes: u64,
}

/// What is promised to a workload.
fn promised_to(workload: &WorkloadUse) -> Option<Promise> {
    let promises = workload.limits.iter().filter(|limit| limit.source.is_promise());
    promises.filter_map(|limit| Some(Promise { is_users: limit.source.is_users(), bytes: limit.bytes? })).min()
}

/// The whole GPUs of each container. `None` if the kubelet is queried and its response is too old; empty if it is not
/// queried.
fn allocated<'a>(parts: &'a Parts, settings: &Settings) -> Option<HashMap<&'a PodContainer, Vec<u32>>> {
    let mut allocated: HashMap<_, Vec<u32>> = HashMap::new();
    if parts.allocations.up.is_none() {
        return Some(allocated);
    }
    for (holder, device) in parts.fresh_allocations(settings)?.held() {
        if let Some((gpu, None)) = parts.driver.find(device) {
            allocated.entry(holder).or_default().push(gpu.index);
        }
    }
    Some(allocated)
}
