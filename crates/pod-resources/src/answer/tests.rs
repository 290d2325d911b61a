//! Answers: what is kept, and what is left out.

use super::*;
use crate::DeviceName;
use crate::messages::{ContainerResources, PodResources};

const GPU: &str = "GPU-b4c0ffee-0123-4567-89ab-0123456789ab";

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.iter().map(|&id| id.to_owned()).collect() }
}

fn pod(namespace: &str, name: &str, container: &str, devices: Vec<ContainerDevices>) -> PodResources {
    let containers = vec![ContainerResources { name: container.to_owned(), devices }];
    PodResources { name: name.to_owned(), namespace: namespace.to_owned(), containers }
}

fn of(pods: Vec<PodResources>) -> Vec<Allocation> {
    allocated(&ListPodResourcesResponse { pod_resources: pods })
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
