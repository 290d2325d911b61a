//! Answers made of protobuf's own parts: fields of the right kind, and now and then a wrong one, a wrong length, an unknown
//! field or a group.

use crate::trials::Pieces;

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
/// Ids as device plugins give them; `@` is a UUID.
const IDS: [&str; 16] = [
    "GPU-@",
    "MIG-@",
    "GPU-@::3",
    "MIG-@::0",
    "MIG-GPU-@/1/0",
    "0",
    "1:2",
    "7::1",
    "nvidia0",
    "nvidia1/gi3",
    "nvidia2/gi3/vgpu1",
    "nvidia2/vgpu1",
    "GPU-@-4",
    "GPU-@-_-1",
    "01",
    "4294967296",
];

/// An answer: of pods, or of devices that can be handed out.
pub(super) fn answer(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let one = if pieces.once_in(3) { devices } else { pod };
    let mut out = Vec::new();
    for _ in 0..1 + pieces.below(4) {
        message(pieces, &mut out, 1, one);
    }
    out
}

fn pod(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(pieces, &mut out, 1, &["a", "b", "", "pod"]);
    text(pieces, &mut out, 2, &["n", "kube-system", ""]);
    for _ in 0..pieces.below(3) {
        message(pieces, &mut out, 3, container);
    }
    out
}

fn container(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(pieces, &mut out, 1, &["c", "main", ""]);
    for _ in 0..pieces.below(3) {
        message(pieces, &mut out, 2, devices);
    }
    out
}

fn devices(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    text(pieces, &mut out, 1, &RESOURCES);
    for _ in 0..pieces.below(4) {
        text(pieces, &mut out, 2, &IDS);
    }
    out
}

/// A field that holds a message, and before it now and then something that nobody expects.
fn message(pieces: &mut Pieces<'_>, out: &mut Vec<u8>, field: u64, of: fn(&mut Pieces<'_>) -> Vec<u8>) {
    if pieces.once_in(8) {
        odd(pieces, out);
    }
    let bytes = of(pieces);
    delimited(pieces, out, field, &bytes);
}

fn text(pieces: &mut Pieces<'_>, out: &mut Vec<u8>, field: u64, words: &[&str]) {
    let word = match pieces.below(16) {
        0 => pieces.bytes(40).to_vec(),
        1 => pieces.text(40).into_bytes(),
        2 => pieces.pick(words).repeat(pieces.below(40)).into_bytes(),
        _ => pieces.pick(words).replace('@', UUID).into_bytes(),
    };
    delimited(pieces, out, field, &word);
}

fn delimited(pieces: &mut Pieces<'_>, out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    let length = bytes.len() as u64;
    varint(out, if pieces.once_in(32) { length ^ pieces.number() } else { length });
    out.extend_from_slice(bytes);
}

/// A field of any number and any wire type, groups included.
fn odd(pieces: &mut Pieces<'_>, out: &mut Vec<u8>) {
    let (field, kind) = (u64::from(pieces.byte()), pieces.below(8) as u64);
    varint(out, field << 3 | kind);
    match kind {
        0 => varint(out, pieces.number()),
        1 => out.extend_from_slice(&pieces.number().to_le_bytes()),
        2 => {
            let bytes = pieces.bytes(30);
            varint(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        3 => (0..pieces.below(200)).for_each(|_| varint(out, field << 3 | 3)),
        5 => out.extend_from_slice(&pieces.number().to_le_bytes()[..4]),
        _ => {}
    }
    if kind == 3 && pieces.once_in(2) {
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
