//! Answers: what is kept, and what is left out.

use super::*;
use crate::DeviceName;
use crate::messages::{CdiDevice, ContainerResources, PodResources};

const GPU: &str = "GPU-b4c0ffee-0123-4567-89ab-0123456789ab";

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.iter().map(|&id| id.to_owned()).collect() }
}

fn pod(namespace: &str, name: &str, container: &str, devices: Vec<ContainerDevices>) -> PodResources {
    let dynamic_resources = Vec::new();
    let containers = vec![ContainerResources { name: container.to_owned(), devices, dynamic_resources }];
    PodResources { name: name.to_owned(), namespace: namespace.to_owned(), containers }
}

/// A pod with a container for each list of claims.
fn pod_with_claims(name: &str, containers: Vec<(&str, Vec<DynamicResource>)>) -> PodResources {
    let container = |(name, dynamic_resources): (&str, _)| {
        let (name, devices) = (name.to_owned(), Vec::new());
        ContainerResources { name, devices, dynamic_resources }
    };
    let containers = containers.into_iter().map(container).collect();
    PodResources { name: name.to_owned(), namespace: "n".to_owned(), containers }
}

/// A claim with these devices, each of a driver, a pool and a name.
fn claim(namespace: &str, name: &str, devices: &[[&str; 3]]) -> DynamicResource {
    let resource = |[driver, pool, device]: &[&str; 3]| ClaimResource {
        driver_name: (*driver).to_owned(),
        pool_name: (*pool).to_owned(),
        device_name: (*device).to_owned(),
        ..ClaimResource::default()
    };
    let claim_resources = devices.iter().map(resource).collect();
    DynamicResource { claim_name: name.to_owned(), claim_namespace: namespace.to_owned(), claim_resources }
}

fn all_of(pods: Vec<PodResources>) -> Allocated {
    allocated(&ListPodResourcesResponse { pod_resources: pods })
}

fn of(pods: Vec<PodResources>) -> Vec<Allocation> {
    all_of(pods).devices
}

/// The claimed devices, one line each.
fn claimed_of(pods: Vec<PodResources>) -> Vec<String> {
    let line = |ClaimedDevice { holder, claim, device, .. }: &ClaimedDevice| {
        let share = device.share.as_deref().map_or(String::new(), |share| format!(" share {share}"));
        format!("{}/{} {}/{} {}{share}", holder.pod, holder.container, claim.namespace, claim.name, device.device)
    };
    all_of(pods).claimed.iter().map(line).collect()
}

const GPU_0: [&str; 3] = ["gpu.nvidia.com", "node-1", "gpu-0"];
const GPU_1: [&str; 3] = ["gpu.nvidia.com", "node-1", "gpu-1"];

#[test]
fn each_container_of_a_claim_has_every_device_of_it() {
    let both = || vec![claim("n", "split-c-x", &[GPU_1, GPU_0])];
    let expected = [
        "split/first n/split-c-x gpu-0",
        "split/first n/split-c-x gpu-1",
        "split/second n/split-c-x gpu-0",
        "split/second n/split-c-x gpu-1",
    ];
    let containers = vec![("second", both()), ("first", both()), ("none", Vec::new())];
    assert_eq!(claimed_of(vec![pod_with_claims("split", containers)]), expected);
}

#[test]
fn a_claim_that_is_not_prepared_has_no_device() {
    assert_eq!(claimed_of(vec![pod_with_claims("a", vec![("main", vec![claim("n", "c", &[])])])]), [""; 0]);
}

#[test]
fn a_claim_without_a_whole_name_is_left_out_and_a_share_is_kept() {
    let long = "x".repeat(257);
    let mut shared = claim("n", "c", &[GPU_0]);
    shared.claim_resources[0].share_id = Some("9d6a3a4c".to_owned());
    let (mut endless, mut unshared) = (claim("n", "d", &[GPU_0]), claim("n", "e", &[GPU_0]));
    endless.claim_resources[0].share_id = Some(long.clone());
    unshared.claim_resources[0].share_id = Some(String::new());
    let claims = vec![
        shared,
        endless,
        unshared,
        claim("", "c", &[GPU_0]),
        claim("n", &long, &[GPU_0]),
        claim("n", "f", &[["", "node-1", "gpu-0"], ["d", &long, "gpu-0"], ["d", "node-1", ""]]),
    ];
    let kept = claimed_of(vec![pod_with_claims("a", vec![("main", claims)])]);
    assert_eq!(kept, ["a/main n/c gpu-0 share 9d6a3a4c", "a/main n/e gpu-0"]);
}

#[test]
fn the_devices_of_a_claim_have_the_same_names_for_the_runtime() {
    let mut two = claim("n", "c", &[GPU_0, GPU_1]);
    let cdi = |name: &str| CdiDevice { name: name.to_owned() };
    // The kubelet lists those of the first device again for the second.
    two.claim_resources[0].cdi_devices = vec![cdi("k8s.gpu.nvidia.com/claim=u-gpu-1"), cdi(""), cdi(&"x".repeat(257))];
    two.claim_resources[1].cdi_devices =
        vec![cdi("k8s.gpu.nvidia.com/claim=u-gpu-1"), cdi("k8s.gpu.nvidia.com/claim=u-gpu-0")];
    let listed = |claims| all_of(vec![pod_with_claims("a", vec![("main", claims)])]).claimed;
    let all = listed(vec![two.clone()]);
    let expected = ["k8s.gpu.nvidia.com/claim=u-gpu-0", "k8s.gpu.nvidia.com/claim=u-gpu-1"];
    assert_eq!(all.iter().map(|one| one.cdi.to_vec()).collect::<Vec<_>>(), [expected, expected]);
    // Each device once, although the claim is listed twice with different names.
    two.claim_resources[0].cdi_devices.clear();
    two.claim_resources[1].cdi_devices.clear();
    assert_eq!(listed(vec![two.clone(), claim("n", "c", &[GPU_0]), two]).len(), 2);
}

#[test]
fn the_order_of_an_answer_does_not_matter() {
    let a = |ids: &[&str]| pod("n", "a", "c", vec![devices("nvidia.com/gpu", ids)]);
    let b = || pod("n", "b", "c", vec![devices("nvidia.com/gpu", &["2", GPU, "2"])]);
    let one = of(vec![a(&["0", "1"]), b()]);
    assert_eq!(one, of(vec![b(), a(&["1", "0"])]));
    assert_eq!(one.len(), 4, "each device once");
}

#[test]
fn a_holder_without_a_whole_name_is_left_out() {
    let gpu = || vec![devices("nvidia.com/gpu", &[GPU])];
    let long = "x".repeat(257);
    let kept = of(vec![
        pod("", "a", "c", gpu()),
        pod("n", "", "c", gpu()),
        pod("n", "a", "", gpu()),
        pod(&long, "a", "c", gpu()),
        pod("n", &long, "c", gpu()),
        pod("n", "a", &long, gpu()),
        pod("n", "\u{e4}\n\"", &long[1..], gpu()),
    ]);
    assert_eq!(kept.len(), 1);
    let PodContainer { namespace, pod, container } = &*kept[0].holder;
    assert_eq!([namespace, pod, container], ["n", "\u{e4}\n\"", &long[1..]], "a name is kept as given");
}

#[test]
fn devices_of_one_container_share_its_name() {
    let kept = of(vec![pod("n", "a", "c", vec![devices("nvidia.com/gpu", &["0", "1"])])]);
    assert!(Arc::ptr_eq(&kept[0].holder, &kept[1].holder));
}

#[test]
fn containers_without_a_gpu_hold_nothing() {
    assert_eq!(of(vec![pod("n", "a", "c", vec![devices("rdma/hca", &["0"]), devices("nvidia.com/gpu", &[])])]), []);
}

#[test]
fn what_can_be_handed_out_is_listed_once() {
    let all =
        vec![devices("nvidia.com/gpu", &[GPU, "1"]), devices("nvidia.com/gpu", &[GPU]), devices("rdma/hca", &["0"])];
    let names: Vec<_> =
        allocatable(&AllocatableResourcesResponse { devices: all }).into_iter().map(|device| device.device).collect();
    assert_eq!(names, [DeviceName::Gpu(GPU.to_owned()), DeviceName::Index { gpu: 1, mig: None }]);
}
