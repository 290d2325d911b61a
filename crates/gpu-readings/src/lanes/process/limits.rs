//! What limits the memory of a workload on a GPU or MIG device, according to each source.
//!
//! Invariant: a limit whose bytes are not known, such as a fraction of a GPU whose total memory has not been read, is no
//! limit. On a machine without budgets, nothing is allocated and nothing is looked up by name.

use std::path::Path;
use std::sync::Arc;

use super::driver_limits::CgroupLimits;
use crate::snapshot::{
    Allocations, BudgetPlace, BudgetSource, DeviceName, Driver, Gpu, MemoryPart, MigDevice, PodContainer, Pods,
    Snapshot, Workload,
};

/// Bytes by source, in the order of [`BudgetSource::ALL`]; `None` if a source declares no limit.
pub(super) type Limits = [Option<u64>; BudgetSource::ALL.len()];

/// What is known about budgets at one moment, for one GPU.
#[derive(Debug)]
pub(super) struct LimitSources {
    gpu: Arc<Gpu>,
    memory: Arc<MemoryPart>,
    pods: Arc<Pods>,
    /// What the driver limits.
    cgroups: Arc<CgroupLimits>,
    /// `None` if no device is allocated in shares or with a part of its memory.
    shared: Option<(Arc<Allocations>, Arc<Driver>)>,
}

impl LimitSources {
    /// `cgroups`: the limits that the driver keeps on the GPU.
    pub(super) fn load(snapshot: &Snapshot, gpu: &Arc<Gpu>, cgroups: Arc<CgroupLimits>) -> Self {
        let allocations = snapshot.allocations.load();
        let is_shared = allocations.allocated.iter().any(|allocation| allocation.device.replica.is_some())
            || allocations.claimed.iter().any(|claimed| claimed.memory.is_some());
        Self {
            gpu: gpu.clone(),
            memory: snapshot.memory.load_full(),
            pods: snapshot.pods.load_full(),
            cgroups,
            shared: is_shared.then(|| (allocations.clone(), snapshot.driver.load_full())),
        }
    }

    /// Whether the driver limits any cgroup.
    pub(super) fn has_cgroups(&self) -> bool {
        !self.cgroups.is_empty()
    }

    /// The limits of a workload on the GPU or on a MIG device. `environment`: the limit that its processes declare;
    /// `cgroup`: the cgroup of its processes.
    pub(super) fn of(
        &self,
        workload: &Workload,
        mig: Option<&MigDevice>,
        environment: Option<u64>,
        cgroup: Option<&Path>,
    ) -> Limits {
        let mut limits = Limits::default();
        limits[BudgetSource::Driver as usize] = cgroup.and_then(|cgroup| self.cgroups.get(cgroup)).copied();
        limits[BudgetSource::Environment as usize] = environment;
        if let Some(mig) = mig {
            limits[BudgetSource::Mig as usize] = self.total(Some(mig));
        }
        if let Some(container) = workload.pod.as_deref() {
            self.add_declared(container, mig, &mut limits);
            if let Some((allocations, driver)) = &self.shared {
                let is_here = |device: &DeviceName| {
                    let found = driver.find(device);
                    found.is_some_and(|found| found.0.uuid == self.gpu.uuid && MigDevice::are_same(found.1, mig))
                };
                limits[BudgetSource::Claim as usize] = consumed(allocations, container, is_here);
                limits[BudgetSource::TimeSlicing as usize] = self.share(allocations, container, mig, is_here);
            }
        }
        limits
    }

    /// Adds what the container's pod declares. A budget for this device takes precedence over one for each GPU.
    fn add_declared(&self, container: &PodContainer, mig: Option<&MigDevice>, limits: &mut Limits) {
        if self.pods.budgets.is_empty() {
            return;
        }
        let budgets = self.pods.budgets.get(container).map_or(&[][..], |budgets| budgets);
        for own in [false, true] {
            let applies =
                |place: &BudgetPlace| if own { place.is(&self.gpu, mig) } else { *place == BudgetPlace::EachGpu };
            for budget in budgets.iter().filter(|budget| applies(&budget.place)) {
                limits[budget.source as usize] = budget.amount.bytes(self.total(mig));
            }
        }
    }

    /// The share of the device that the kubelet allocated to a container. `None` if it allocated the whole device, or
    /// does not report how many shares there are.
    fn share(
        &self,
        allocations: &Allocations,
        container: &PodContainer,
        mig: Option<&MigDevice>,
        is_here: impl Fn(&DeviceName) -> bool,
    ) -> Option<u64> {
        let own = allocations.allocated.iter().filter(|allocation| *allocation.holder == *container);
        let own = own.filter(|allocation| allocation.device.replica.is_some());
        let own = own.filter(|allocation| is_here(&allocation.device.device)).count() as u64;
        if own == 0 {
            return None;
        }
        let all = allocations.allocatable.as_ref()?.iter();
        let all = all.filter(|device| is_here(&device.device)).count() as u64;
        // The kubelet leaves out an unhealthy device that a container still has.
        if all <= 1 || own > all {
            return None;
        }
        u64::try_from(u128::from(self.total(mig)?) * u128::from(own) / u128::from(all)).ok()
    }

    /// The total memory of the GPU or of a MIG device in bytes, if it has been read.
    fn total(&self, mig: Option<&MigDevice>) -> Option<u64> {
        let memory = self.memory.gpus.iter().find(|memory| memory.gpu.uuid == self.gpu.uuid)?;
        let figures = match mig {
            None => memory.figures,
            Some(mig) => memory.mig.iter().find(|memory| memory.device.uuid == mig.uuid)?.figures,
        };
        Some(figures?.total)
    }
}

/// What the claims of a container consume of a device. `None` if it has none there, or one without a limit.
fn consumed(allocations: &Allocations, container: &PodContainer, is_here: impl Fn(&DeviceName) -> bool) -> Option<u64> {
    let own = allocations.claimed.iter().filter(|claimed| *claimed.holder == *container && is_here(&claimed.device));
    own.map(|claimed| claimed.memory).reduce(|sum, more| Some(sum?.saturating_add(more?))).flatten()
}

#[cfg(test)]
mod tests;
