//! Reads the kubelet's answers: which NVIDIA devices are allocated to containers, and which are allocatable.
//!
//! Invariant: the result depends only on the content of an answer, not on the order of its parts, which the kubelet does
//! not define.

use std::sync::Arc;

use super::device;
use super::v1::{AllocatableResourcesResponse, ContainerDevices, ListPodResourcesResponse};
use crate::snapshot::{AllocatedDevice, Allocation, PodContainer};

/// The longest name of a pod, namespace or container that is accepted, in bytes. Kubernetes allows 253.
const LONGEST_NAME: usize = 256;

/// The allocated devices, sorted and without duplicates.
pub fn allocated(answer: &ListPodResourcesResponse) -> Vec<Allocation> {
    let mut allocations = Vec::new();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let names = [&pod.namespace, &pod.name, &container.name];
            if !names.iter().all(|name| (1..=LONGEST_NAME).contains(&name.len())) {
                continue;
            }
            let mut devices = gpus(&container.devices).peekable();
            if devices.peek().is_none() {
                continue;
            }
            let [namespace, pod, container] = names.map(String::clone);
            let holder = Arc::new(PodContainer { namespace, pod, container });
            allocations.extend(devices.map(|device| Allocation { holder: holder.clone(), device }));
        }
    }
    allocations.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    allocations.dedup();
    allocations
}

/// The allocatable devices, sorted and without duplicates.
pub fn allocatable(answer: &AllocatableResourcesResponse) -> Vec<AllocatedDevice> {
    let mut devices: Vec<_> = gpus(&answer.devices).collect();
    devices.sort_unstable_by(|a, b| device::order(a).cmp(&device::order(b)));
    devices.dedup();
    devices
}

/// The devices that are NVIDIA GPUs.
fn gpus(all: &[ContainerDevices]) -> impl Iterator<Item = AllocatedDevice> {
    let ids = all.iter().flat_map(|devices| devices.device_ids.iter().map(|id| (&devices.resource_name, id)));
    ids.filter_map(|(resource, id)| {
        let device = device::read(resource, id);
        if device.is_none() && resource.starts_with("nvidia.com/") {
            tracing::debug!(resource, id, "device ignored: its id does not say which GPU it is");
        }
        device
    })
}

fn key(allocation: &Allocation) -> impl Ord {
    let PodContainer { namespace, pod, container } = &*allocation.holder;
    (namespace, pod, container, device::order(&allocation.device))
}

#[cfg(test)]
mod tests;
