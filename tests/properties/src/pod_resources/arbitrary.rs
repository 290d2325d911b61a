//! Responses built from the parts of protobuf: fields of the right kind, and sometimes a wrong field, a wrong length,
//! an unknown field or a group.

use crate::choices::{Choose, Unstructured};

const RESOURCES: [&str; 8] = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/GA102GL_A10",
    "a/b",
    "",
    "nvidia.com/",
    "x",
];
const UUID: &str = "b4c0ffee-0123-4567-89ab-0123456789ab";
/// Ids as device plugins assign them; `@` is a UUID.
const IDS: &str = "
    GPU-@ MIG-@ GPU-@::3 MIG-@::0 MIG-GPU-@/1/0 0 1:2 7::1 nvidia0 nvidia1/gi3 nvidia2/gi3/vgpu1 nvidia2/vgpu1
    GPU-@-4 GPU-@-_-1 01 4294967296
";

/// A response that lists pods or allocatable devices.
pub(super) fn answer(u: &mut Unstructured<'_>) -> Vec<u8> {
    let one = if u.once_in(3) { devices } else { pod };
    let mut out = Vec::new();
    for _ in 0..1 + u.below(4) {
        message(u, &mut out, 1, one);
    }
    out
}

fn pod(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(u, &mut out, 1, &["a", "b", "", "pod"]);
    text(u, &mut out, 2, &["n", "kube-system", ""]);
    for _ in 0..u.below(3) {
        message(u, &mut out, 3, container);
    }
    out
}

fn container(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(u, &mut out, 1, &["c", "main", ""]);
    for _ in 0..u.below(3) {
        message(u, &mut out, 2, devices);
    }
    for _ in 0..u.below(3) {
        message(u, &mut out, 5, claim);
    }
    out
}

fn claim(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(u, &mut out, 2, &["train-0-gpu-x2k4f", "shared", ""]);
    text(u, &mut out, 3, &["n", "team", ""]);
    for _ in 0..u.below(3) {
        message(u, &mut out, 4, claimed_device);
    }
    out
}

fn claimed_device(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..u.below(3) {
        message(u, &mut out, 1, |u| {
            let mut name = Vec::new();
            text(u, &mut name, 1, &["", "k8s.gpu.nvidia.com/claim=@-gpu-0", "k8s.gpu.nvidia.com/claim=@-gpu-1"]);
            name
        });
    }
    text(u, &mut out, 2, &["gpu.nvidia.com", "dra.net", ""]);
    text(u, &mut out, 3, &["node-1", ""]);
    text(u, &mut out, 4, &["gpu-0", "gpu-1", "gpu-0-mig-1g10gb-19-6", ""]);
    if u.once_in(3) {
        text(u, &mut out, 5, &["@", ""]);
    }
    out
}

fn devices(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let ids: Vec<&str> = IDS.split_ascii_whitespace().collect();
    text(u, &mut out, 1, &RESOURCES);
    for _ in 0..u.below(4) {
        text(u, &mut out, 2, &ids);
    }
    out
}

/// A field that contains a message, sometimes after a field that does not belong there.
fn message(u: &mut Unstructured<'_>, out: &mut Vec<u8>, field: u64, of: fn(&mut Unstructured<'_>) -> Vec<u8>) {
    if u.once_in(8) {
        odd(u, out);
    }
    let bytes = of(u);
    delimited(u, out, field, &bytes);
}

fn text(u: &mut Unstructured<'_>, out: &mut Vec<u8>, field: u64, words: &[&str]) {
    let word = match u.below(16) {
        0 => u.up_to(40).to_vec(),
        1 => u.text(40).into_bytes(),
        2 => u.pick(words).repeat(u.below(40)).into_bytes(),
        _ => u.pick(words).replace('@', UUID).into_bytes(),
    };
    delimited(u, out, field, &word);
}

fn delimited(u: &mut Unstructured<'_>, out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    let length = bytes.len() as u64;
    varint(out, if u.once_in(32) { length ^ u.number() } else { length });
    out.extend_from_slice(bytes);
}

/// A field with any number and any wire type, groups included.
fn odd(u: &mut Unstructured<'_>, out: &mut Vec<u8>) {
    let (field, kind) = (u64::from(u.byte()), u.below(8) as u64);
    varint(out, field << 3 | kind);
    match kind {
        0 => varint(out, u.number()),
        1 => out.extend_from_slice(&u.number().to_le_bytes()),
        2 => {
            let bytes = u.up_to(30);
            varint(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        3 => (0..u.below(200)).for_each(|_| varint(out, field << 3 | 3)),
        5 => out.extend_from_slice(&u.number().to_le_bytes()[..4]),
        _ => {}
    }
    if kind == 3 && u.once_in(2) {
        varint(out, field << 3 | 4);
    }
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
