//! What holds of the kubelet's answer whatever bytes it is: it is refused, or it makes allocations within bounds, and none
//! that is not in it.

mod made;

use prost::Message;

use super::answer::{allocatable, allocated};
use super::device;
use super::v1::{AllocatableResourcesResponse, ListPodResourcesResponse};
use crate::snapshot::{AllocatedDevice, DeviceName};
use crate::trials::Pieces;

/// Reads both answers. True where one of them tells of a device.
pub fn pod_resources(data: &[u8]) -> bool {
    let made = Pieces::of(data).map(|mut pieces| made::answer(&mut pieces));
    let data = made.as_deref().unwrap_or(data);
    let mut told = false;
    if let Ok(answer) = ListPodResourcesResponse::decode(data) {
        told |= assert_allocated(answer);
    }
    if let Ok(answer) = AllocatableResourcesResponse::decode(data) {
        told |= assert_allocatable(answer);
    }
    told
}

fn assert_allocated(mut answer: ListPodResourcesResponse) -> bool {
    let found = allocated(&answer);
    let containers = || answer.pod_resources.iter().flat_map(|pod| pod.containers.iter().map(move |c| (pod, c)));
    let ids = containers().flat_map(|(_, container)| &container.devices).map(|devices| devices.device_ids.len());
    assert!(found.len() <= ids.sum(), "more devices than ids");
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a device twice");
    for allocation in &found {
        let holder = &allocation.holder;
        for name in [&holder.namespace, &holder.pod, &holder.container] {
            assert!((1..=256).contains(&name.len()), "{holder:?}");
        }
        assert_device(&allocation.device);
        let told = containers().any(|(pod, container)| {
            let names = [&pod.namespace, &pod.name, &container.name];
            let holds = |id| device::read(&allocation.device.resource, id).as_ref() == Some(&allocation.device);
            let mut devices = container.devices.iter().filter(|d| d.resource_name == allocation.device.resource);
            names == [&holder.namespace, &holder.pod, &holder.container]
                && devices.any(|devices| devices.device_ids.iter().any(|id| holds(id)))
        });
        assert!(told, "made up: {allocation:?}");
    }
    answer.pod_resources.reverse();
    for pod in &mut answer.pod_resources {
        pod.containers.reverse();
        pod.containers.iter_mut().for_each(|container| container.devices.reverse());
    }
    assert_eq!(allocated(&answer), found, "the order of an answer matters");
    !found.is_empty()
}

fn assert_allocatable(mut answer: AllocatableResourcesResponse) -> bool {
    let found = allocatable(&answer);
    assert!(found.len() <= answer.devices.iter().map(|devices| devices.device_ids.len()).sum());
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a device twice");
    found.iter().for_each(assert_device);
    answer.devices.reverse();
    answer.devices.iter_mut().for_each(|devices| devices.device_ids.reverse());
    assert_eq!(allocatable(&answer), found, "the order of an answer matters");
    !found.is_empty()
}

/// A device has a resource, and a name that can mean one GPU only.
fn assert_device(device: &AllocatedDevice) {
    assert!((1..=317).contains(&device.resource.len()), "{device:?}");
    let is_uuid = |text: &str, kind: &str| {
        let parts: Vec<_> = text.strip_prefix(kind).unwrap_or_default().split('-').collect();
        parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
            && parts.concat().bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let of_nvidia = device.resource.starts_with("nvidia.com/");
    let sound = match &device.device {
        DeviceName::Gpu(uuid) | DeviceName::Instance { gpu: uuid, .. } => is_uuid(uuid, "GPU-"),
        DeviceName::Mig(uuid) => is_uuid(uuid, "MIG-"),
        DeviceName::Minor { .. } | DeviceName::Index { .. } => of_nvidia,
    };
    assert!(sound, "{device:?}");
    let number = |text: &String| text.parse::<u32>().is_ok_and(|number| number.to_string() == *text);
    assert!(device.replica.as_ref().is_none_or(number), "{device:?}");
}

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    #[test]
    fn an_answer_tells_what_is_in_it_and_no_more() {
        let told = drive(env!("CARGO_MANIFEST_DIR"), "pod_resources", 3_000, super::pod_resources);
        assert!(told > 300, "{told} told of a device");
    }
}
