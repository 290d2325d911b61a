//! Reads the kubelet's answers: which NVIDIA devices are allocated to containers, which devices of claims, and which are
//! allocatable.
//!
//! Invariant: the result depends only on the content of an answer, not on the order of its parts, which the kubelet
//! does not define.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::device::Device;
use crate::messages::{
    AllocatableResourcesResponse, ClaimResource, ContainerDevices, DynamicResource, ListPodResourcesResponse,
};

/// The longest name that is accepted, of a pod, a claim, a device or anything else, in bytes. Kubernetes allows 253.
const LONGEST_NAME: usize = 256;

/// What is allocated to the containers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// The devices of device plugins, sorted and without duplicates.
    pub devices: Vec<Allocation>,
    /// The devices of claims (dynamic resource allocation), sorted and without duplicates.
    pub claimed: Vec<ClaimedDevice>,
}

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

/// A device of a claim that a container uses.
///
/// The kubelet lists every device of a claim for every container that uses the claim, although a container may use only
/// one request of it, and does not say what kind of device it is: a claim may be for a network card as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimedDevice {
    /// The container. The devices of one container share it.
    pub holder: Arc<PodContainer>,
    /// The claim. The devices of one claim share it within a container.
    pub claim: Arc<Claim>,
    /// The device.
    pub device: PoolDevice,
    /// The names under which the container runtime gets the devices of the claim, sorted and without duplicates. A driver makes them
    /// up; NVIDIA's includes the uid of the claim, so that a later claim of the same name has others.
    pub cdi: Arc<[String]>,
}

/// A claim for devices (`ResourceClaim`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A device as its driver names it in a `ResourceSlice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolDevice {
    /// The driver, such as `gpu.nvidia.com`.
    pub driver: String,
    /// The pool, often the node's name.
    pub pool: String,
    /// The device's name in the pool. It does not say which GPU it is.
    pub device: String,
    /// The share of the device; `None` for a whole device, and where the driver does not report it.
    pub share: Option<String>,
}

/// The allocated devices.
pub fn allocated(answer: &ListPodResourcesResponse) -> Allocated {
    let mut all = Allocated::default();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let names = [&pod.namespace, &pod.name, &container.name];
            if !names.iter().all(|name| is_name(name)) {
                continue;
            }
            let mut devices = gpus(&container.devices).peekable();
            let mut claimed = container.dynamic_resources.iter().flat_map(claimed).peekable();
            if devices.peek().is_none() && claimed.peek().is_none() {
                continue;
            }
            let [namespace, pod, container] = names.map(String::clone);
            let holder = Arc::new(PodContainer { namespace, pod, container });
            all.devices.extend(devices.map(|device| Allocation { holder: holder.clone(), device }));
            let of_holder = |(claim, device, cdi)| ClaimedDevice { holder: holder.clone(), claim, device, cdi };
            all.claimed.extend(claimed.map(of_holder));
        }
    }
    all.devices.sort_unstable();
    all.devices.dedup();
    all.claimed.sort_unstable();
    all.claimed.dedup_by(|a, b| (&a.holder, &a.claim, &a.device) == (&b.holder, &b.claim, &b.device));
    all
}

/// The devices of a claim. An entry without a whole name is left out: nothing could be found by it.
fn claimed(resource: &DynamicResource) -> impl Iterator<Item = (Arc<Claim>, PoolDevice, Arc<[String]>)> {
    let names = [&resource.claim_namespace, &resource.claim_name];
    let claim = names.iter().all(|name| is_name(name)).then(|| {
        let [namespace, name] = names.map(String::clone);
        Arc::new(Claim { namespace, name })
    });
    claim.into_iter().flat_map(|claim| {
        let cdi = resource.claim_resources.iter().flat_map(|device| &device.cdi_devices).map(|device| &device.name);
        let cdi: BTreeSet<_> = cdi.filter(|name| is_name(name)).cloned().collect();
        let cdi: Arc<[String]> = cdi.into_iter().collect();
        let devices = resource.claim_resources.iter().filter_map(pool_device);
        devices.map(move |device| (claim.clone(), device, cdi.clone()))
    })
}

fn pool_device(resource: &ClaimResource) -> Option<PoolDevice> {
    let names = [&resource.driver_name, &resource.pool_name, &resource.device_name];
    let share = resource.share_id.clone().filter(|share| !share.is_empty());
    if !names.iter().all(|name| is_name(name)) || share.as_ref().is_some_and(|share| !is_name(share)) {
        return None;
    }
    let [driver, pool, device] = names.map(String::clone);
    Some(PoolDevice { driver, pool, device, share })
}

fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
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
