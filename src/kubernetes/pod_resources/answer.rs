//! What an answer tells: which NVIDIA devices containers hold, and which can be handed out.
//!
//! Invariant: an answer is taken whole or not at all, and what is made of it depends on its content alone and not on the
//! order of its parts, which is the kubelet's mood. Only what is kept takes memory.

use std::sync::Arc;

use super::device;
use super::error::Malformed;
use super::wire::{messages, text, texts};
use crate::snapshot::{AllocatedDevice, Allocation, PodContainer};

/// The most devices that are kept of one answer. A node has a few thousand when every GPU is cut and shared.
const MOST_DEVICES: usize = 1 << 18;
/// The longest name of a pod, a namespace or a container that is kept, in bytes. Kubernetes allows 253.
const LONGEST_NAME: usize = 256;

/// The numbers of the fields, as `v1.proto` has them.
mod field {
    pub(super) const LIST_PODS: u64 = 1;
    pub(super) const POD_NAME: u64 = 1;
    pub(super) const POD_NAMESPACE: u64 = 2;
    pub(super) const POD_CONTAINERS: u64 = 3;
    pub(super) const CONTAINER_NAME: u64 = 1;
    pub(super) const CONTAINER_DEVICES: u64 = 2;
    pub(super) const DEVICES_RESOURCE: u64 = 1;
    pub(super) const DEVICES_IDS: u64 = 2;
    pub(super) const ALLOCATABLE_DEVICES: u64 = 1;
}

/// A message that is read in place.
pub(super) trait Answer: Sized {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// What keeps it from being understood.
    fn read(message: &[u8]) -> Result<Self, Malformed>;
}

/// The answer to `List`: the devices that containers hold, in order and each once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allocated(pub(super) Vec<Allocation>);

/// The answer to `GetAllocatableResources`: the devices that can be handed out, in order and each once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allocatable(pub(super) Vec<AllocatedDevice>);

impl Answer for Allocated {
    fn read(message: &[u8]) -> Result<Self, Malformed> {
        let mut allocations = Vec::new();
        for pod in messages(message, field::LIST_PODS) {
            read_pod(pod?, &mut allocations)?;
        }
        let key = |a: &Allocation, b: &Allocation| {
            let holders = || names(&a.holder).cmp(&names(&b.holder));
            holders().then_with(|| device::order(&a.device).cmp(&device::order(&b.device)))
        };
        allocations.sort_unstable_by(key);
        allocations.dedup();
        allocations.shrink_to_fit();
        Ok(Self(allocations))
    }
}

impl Answer for Allocatable {
    fn read(message: &[u8]) -> Result<Self, Malformed> {
        let mut kept = Vec::new();
        for devices in messages(message, field::ALLOCATABLE_DEVICES) {
            read_devices(devices?, |device| keep(&mut kept, device))?;
        }
        kept.sort_unstable_by(|a, b| device::order(a).cmp(&device::order(b)));
        kept.dedup();
        kept.shrink_to_fit();
        Ok(Self(kept))
    }
}

fn read_pod(pod: &[u8], allocations: &mut Vec<Allocation>) -> Result<(), Malformed> {
    let (namespace, name) = (text(pod, field::POD_NAMESPACE)?, text(pod, field::POD_NAME)?);
    for container in messages(pod, field::POD_CONTAINERS) {
        let container = container?;
        let container_name = text(container, field::CONTAINER_NAME)?;
        let named = [namespace, name, container_name].iter().all(|name| (1..=LONGEST_NAME).contains(&name.len()));
        // Made with the first device: most containers hold none.
        let mut holder: Option<Arc<PodContainer>> = None;
        for devices in messages(container, field::CONTAINER_DEVICES) {
            read_devices(devices?, |device| {
                if !named {
                    return Ok(());
                }
                let holder = holder.get_or_insert_with(|| {
                    Arc::new(PodContainer {
                        namespace: namespace.to_owned(),
                        pod: name.to_owned(),
                        container: container_name.to_owned(),
                    })
                });
                keep(allocations, Allocation { holder: Arc::clone(holder), device })
            })?;
        }
    }
    Ok(())
}

/// Gives each device that is an NVIDIA GPU.
fn read_devices(
    devices: &[u8],
    mut give: impl FnMut(AllocatedDevice) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let resource = text(devices, field::DEVICES_RESOURCE)?;
    let mut strange = 0_u64;
    for id in texts(devices, field::DEVICES_IDS) {
        match device::read(resource, id?) {
            Some(device) => give(device)?,
            None => strange += 1,
        }
    }
    if strange > 0 && resource.starts_with("nvidia.com/") {
        tracing::debug!(resource, strange, "devices whose ids do not say which GPU they are");
    }
    Ok(())
}

fn keep<T>(kept: &mut Vec<T>, one: T) -> Result<(), Malformed> {
    if kept.len() == MOST_DEVICES {
        return Err(Malformed::Crowd);
    }
    kept.push(one);
    Ok(())
}

fn names(holder: &PodContainer) -> [&str; 3] {
    [&holder.namespace, &holder.pod, &holder.container]
}

#[cfg(test)]
mod tests;
