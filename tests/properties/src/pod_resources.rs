//! Any response from the kubelet: it is rejected, or the allocations and devices found are those in it, within bounds.

mod arbitrary;

use pod_resources::internals::{AllocatableResourcesResponse, ListPodResourcesResponse, allocatable, allocated};
use pod_resources::{ClaimedDevice, Device, DeviceName};
use prost::Message;

use crate::choices::choices;

/// Decodes the input as both kinds of response. True if one of them contains a device.
pub fn pod_resources(data: &[u8]) -> bool {
    let encoded = choices(data).map(|mut u| arbitrary::answer(&mut u));
    let data = encoded.as_deref().unwrap_or(data);
    let mut has_device = false;
    if let Ok(answer) = ListPodResourcesResponse::decode(data) {
        has_device |= assert_allocated(answer);
    }
    if let Ok(answer) = AllocatableResourcesResponse::decode(data) {
        has_device |= assert_allocatable(answer);
    }
    has_device
}

fn assert_allocated(mut answer: ListPodResourcesResponse) -> bool {
    let all = allocated(&answer);
    let found = &all.devices;
    let containers = || answer.pod_resources.iter().flat_map(|pod| pod.containers.iter().map(move |c| (pod, c)));
    let ids = containers().flat_map(|(_, container)| &container.devices).map(|devices| devices.device_ids.len());
    assert!(found.len() <= ids.sum(), "more devices than ids");
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a device twice");
    for allocation in found {
        let holder = &allocation.holder;
        assert_names([&holder.namespace, &holder.pod, &holder.container]);
        assert_device(&allocation.device);
        let is_listed = containers().any(|(pod, container)| {
            let names = [&pod.namespace, &pod.name, &container.name];
            let holds = |id| Device::read(&allocation.device.resource, id).as_ref() == Some(&allocation.device);
            let mut devices = container.devices.iter().filter(|d| d.resource_name == allocation.device.resource);
            names == [&holder.namespace, &holder.pod, &holder.container]
                && devices.any(|devices| devices.device_ids.iter().any(|id| holds(id)))
        });
        assert!(is_listed, "made up: {allocation:?}");
    }
    assert_claimed(&answer, &all.claimed);
    answer.pod_resources.reverse();
    for pod in &mut answer.pod_resources {
        pod.containers.reverse();
        for container in &mut pod.containers {
            container.devices.reverse();
            container.dynamic_resources.reverse();
            container.dynamic_resources.iter_mut().for_each(|claim| claim.claim_resources.reverse());
        }
    }
    assert_eq!(allocated(&answer), all, "the order within an answer changes the result");
    !all.devices.is_empty() || !all.claimed.is_empty()
}

/// Each device of a claim is in the answer, once for each container.
fn assert_claimed(answer: &ListPodResourcesResponse, found: &[ClaimedDevice]) {
    let key = |one: &ClaimedDevice| (one.holder.clone(), one.claim.clone(), one.device.clone());
    assert!(found.windows(2).all(|pair| key(&pair[0]) != key(&pair[1])), "a device twice");
    for one @ ClaimedDevice { holder, claim, device, cdi } in found {
        assert_names([&holder.namespace, &holder.pod, &holder.container]);
        assert_names([&claim.namespace, &claim.name]);
        assert_names([&device.driver, &device.pool, &device.device]);
        assert_names(&device.share);
        assert_names(cdi.iter());
        assert!(cdi.windows(2).all(|pair| pair[0] < pair[1]), "{one:?}");
        let pods =
            answer.pod_resources.iter().filter(|pod| pod.name == holder.pod && pod.namespace == holder.namespace);
        let containers = pods.flat_map(|pod| &pod.containers).filter(|container| container.name == holder.container);
        let claims = containers.flat_map(|container| &container.dynamic_resources);
        let own = claims.filter(|own| own.claim_name == claim.name && own.claim_namespace == claim.namespace);
        let is_listed = own.flat_map(|own| &own.claim_resources).any(|listed| {
            let names = [&listed.driver_name, &listed.pool_name, &listed.device_name];
            let share = listed.share_id.as_ref().filter(|share| !share.is_empty());
            names == [&device.driver, &device.pool, &device.device] && share == device.share.as_ref()
        });
        assert!(is_listed, "made up: {one:?}");
    }
}

fn assert_names<'n>(names: impl IntoIterator<Item = &'n String>) {
    for name in names {
        assert!((1..=256).contains(&name.len()), "{name:?}");
    }
}

fn assert_allocatable(mut answer: AllocatableResourcesResponse) -> bool {
    let found = allocatable(&answer);
    assert!(found.len() <= answer.devices.iter().map(|devices| devices.device_ids.len()).sum());
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a device twice");
    found.iter().for_each(assert_device);
    answer.devices.reverse();
    answer.devices.iter_mut().for_each(|devices| devices.device_ids.reverse());
    assert_eq!(allocatable(&answer), found, "the order within an answer changes the result");
    !found.is_empty()
}

/// A device has a resource and a name that denotes a single GPU.
fn assert_device(device: &Device) {
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
