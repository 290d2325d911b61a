//! Answers byte by byte: what is kept, what is refused, and that the numbers are those of `v1.proto`.

use super::*;
use crate::snapshot::DeviceName;

const GPU: &str = "GPU-b4c0ffee-0123-4567-89ab-0123456789ab";

/// A field with its bytes, as protobuf writes it.
fn field(number: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut length = bytes.len();
    let mut field = vec![number << 3 | 2];
    while length >= 0x80 {
        field.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend(bytes);
    field
}

fn devices(resource: &str, ids: &[&str]) -> Vec<u8> {
    let ids = ids.iter().flat_map(|id| field(2, id));
    field(1, resource).into_iter().chain(ids).collect()
}

fn pod(namespace: &str, name: &str, container: &str, devices: &[u8]) -> Vec<u8> {
    let container = [field(1, container), field(2, devices)].concat();
    field(1, [field(1, name), field(2, namespace), field(3, container)].concat())
}

fn kept(message: &[u8]) -> Vec<String> {
    let line =
        |allocation: &Allocation| format!("{} {:?}", names(&allocation.holder).join("/"), allocation.device.device);
    Allocated::read(message).unwrap().0.iter().map(line).collect()
}

#[test]
fn the_order_of_an_answer_does_not_matter() {
    let (a, b) = (devices("nvidia.com/gpu", &["0", "1"]), devices("nvidia.com/gpu", &["2", GPU, "2"]));
    let one = [pod("n", "a", "c", &a), pod("n", "b", "c", &b)].concat();
    let swapped = devices("nvidia.com/gpu", &["1", "0"]);
    let other = [pod("n", "b", "c", &b), pod("n", "a", "c", &swapped)].concat();
    assert_eq!(Allocated::read(&one), Allocated::read(&other));
    assert_eq!(Allocated::read(&one).unwrap().0.len(), 4, "each device once");
    // Protobuf lets the name of a pod and of a resource stand behind what they name.
    let container = [field(2, [field(2, "0"), field(1, "nvidia.com/gpu")].concat()), field(1, "c")].concat();
    let late = field(1, [field(3, container), field(2, "n"), field(1, "old"), field(1, "a")].concat());
    assert_eq!(kept(&late), ["n/a/c Index { gpu: 0, mig: None }"]);
}

#[test]
fn a_holder_without_a_whole_name_is_left_out() {
    let gpu = devices("nvidia.com/gpu", &[GPU]);
    let long = "x".repeat(257);
    let message = [
        pod("", "a", "c", &gpu),
        pod("n", "", "c", &gpu),
        pod("n", "a", "", &gpu),
        pod(&long, "a", "c", &gpu),
        pod("n", &long, "c", &gpu),
        pod("n", "a", &long, &gpu),
        pod("n", "\u{e4}\n\"", &long[1..], &gpu),
    ];
    let kept = Allocated::read(&message.concat()).unwrap().0;
    assert_eq!(kept.len(), 1);
    assert_eq!(names(&kept[0].holder), ["n", "\u{e4}\n\"", &long[1..]], "a name is kept as given");
}

#[test]
fn devices_of_one_container_share_its_name() {
    let gpus = devices("nvidia.com/gpu", &["0", "1"]);
    let Allocated(kept) = Allocated::read(&pod("n", "a", "c", &gpus)).unwrap();
    assert!(Arc::ptr_eq(&kept[0].holder, &kept[1].holder));
}

#[test]
fn an_answer_is_taken_whole_or_not_at_all() {
    let good = pod("n", "a", "c", &devices("nvidia.com/gpu", &[GPU]));
    let spoilt = |tail: &[u8]| Allocated::read(&[&good, tail].concat());
    assert_eq!(spoilt(&good[..good.len() - 1]), Err(Malformed::Cut));
    assert_eq!(spoilt(&field(1, field(1, b"\xff"))), Err(Malformed::Text));
    assert_eq!(spoilt(&pod("n", "b", "c", &field(2, b"\xc3"))), Err(Malformed::Text));
    assert_eq!(spoilt(b"\x08\x01"), Err(Malformed::Form), "a pod that is a number");
    assert_eq!(Allocated::read(b""), Ok(Allocated(Vec::new())), "a node without pods");
}

#[test]
fn a_crowd_of_devices_is_refused_and_a_crowd_of_nothing_is_nothing() {
    let ids: Vec<String> = (0..=MOST_DEVICES).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let crowd = |ids| pod("n", "a", "c", &devices("nvidia.com/gpu", ids));
    assert_eq!(Allocated::read(&crowd(&ids)), Err(Malformed::Crowd));
    assert_eq!(Allocated::read(&crowd(&ids[1..])).unwrap().0.len(), MOST_DEVICES);
    let allocatable = field(1, devices("nvidia.com/gpu", &ids));
    assert_eq!(Allocatable::read(&allocatable), Err(Malformed::Crowd));
    let million = 1 << 20;
    for empty in [b"\x0a\x00".repeat(million), pod("n", "a", "c", &b"\x12\x00".repeat(million))] {
        assert_eq!(Allocated::read(&empty), Ok(Allocated(Vec::new())));
    }
}

#[test]
fn what_can_be_handed_out_is_listed_once() {
    let message = [
        field(1, devices("nvidia.com/gpu", &[GPU, "1"])),
        field(1, devices("nvidia.com/gpu", &[GPU])),
        field(1, devices("rdma/hca", &["0"])),
    ];
    let Allocatable(devices) = Allocatable::read(&message.concat()).unwrap();
    let devices: Vec<_> = devices.into_iter().map(|device| device.device).collect();
    assert_eq!(devices, [DeviceName::Gpu(GPU.to_owned()), DeviceName::Index { gpu: 1, mig: None }]);
}

#[test]
fn the_numbers_are_those_of_the_protocol() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kubernetes/pod_resources");
    let protocol = protox::compile(["v1.proto"], [folder]).unwrap();
    let number = |message: &str, field: &str| {
        let message = protocol.file[0].message_type.iter().find(|one| one.name() == message).unwrap();
        message.field.iter().find(|one| one.name() == field).unwrap().number() as u64
    };
    assert_eq!(field::LIST_PODS, number("ListPodResourcesResponse", "pod_resources"));
    assert_eq!(field::POD_NAME, number("PodResources", "name"));
    assert_eq!(field::POD_NAMESPACE, number("PodResources", "namespace"));
    assert_eq!(field::POD_CONTAINERS, number("PodResources", "containers"));
    assert_eq!(field::CONTAINER_NAME, number("ContainerResources", "name"));
    assert_eq!(field::CONTAINER_DEVICES, number("ContainerResources", "devices"));
    assert_eq!(field::DEVICES_RESOURCE, number("ContainerDevices", "resource_name"));
    assert_eq!(field::DEVICES_IDS, number("ContainerDevices", "device_ids"));
    assert_eq!(field::ALLOCATABLE_DEVICES, number("AllocatableResourcesResponse", "devices"));
}
