//! Reads the kubelet's answers: which NVIDIA devices are allocated to containers, and which are allocatable.
//!
//! Invariant: the result depends only on the content of an answer, not on the order of its parts, which the kubelet
//! does not define.

use std::sync::Arc;

use crate::device::Device;
use crate::messages::{AllocatableResourcesResponse, ContainerDevices, ListPodResourcesResponse};

/// The longest name of a pod, namespace or container that is accepted, in bytes. Kubernetes allows 253.
const LONGEST_NAME: usize = 256;

/// A device that is allocated to a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation {
    /// The container. The devices of one container share it.
    pub holder: Arc<PodContainer>,
    /// The device.
    pub device: Device,
}

/// A container of a pod, identified by its names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name within the pod.
    pub container: String,
}

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
    allocations.sort_unstable();
    allocations.dedup();
    allocations
}

/// The allocatable devices, sorted and without duplicates.
pub fn allocatable(answer: &AllocatableResourcesResponse) -> Vec<Device> {
    let mut devices: Vec<_> = gpus(&answer.devices).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// The devices that are NVIDIA GPUs.
fn gpus(all: &[ContainerDevices]) -> impl Iterator<Item = Device> {
    let ids = all.iter().flat_map(|devices| devices.device_ids.iter().map(|id| (&devices.resource_name, id)));
    ids.filter_map(|(resource, id)| {
        let device = Device::read(resource, id);
        if device.is_none() && resource.starts_with("nvidia.com/") {
            tracing::debug!(resource, id, "device ignored: its id does not say which GPU it is");
        }
        device
    })
}

#[cfg(test)]
mod tests;
