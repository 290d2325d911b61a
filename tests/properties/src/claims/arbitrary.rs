//! Slices, claims and answers of the kubelet about few devices, so that they meet, and sometimes JSON that no server writes.

use serde_json::{Value, json};

use crate::choices::{Choose, Unstructured};

const CLAIMS: [&str; 3] = ["a", "b", "train-0-gpu-x2k4f"];
const POOLS: [&str; 2] = ["node-1", "rack"];
const DEVICES: [&str; 3] = ["gpu-0", "gpu-1", "mig"];

pub(super) fn lines(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    for _ in 0..1 + u.below(16) {
        let mut line = line(u).into_bytes();
        if !line.is_empty() && u.once_in(32) {
            let at = u.below(line.len().min(256));
            line[at] = u.byte();
        }
        lines.extend(line);
        lines.push(b'\n');
    }
    lines
}

fn line(u: &mut Unstructured<'_>) -> String {
    match u.below(10) {
        0..3 => {
            let listed: Vec<_> = (0..u.below(5)).map(|_| listed(u)).collect();
            format!("kubelet {}", Value::from(listed))
        }
        3..6 => format!("claim {} {}", u.pick(&CLAIMS), claim(u)),
        6 => json!({"type": "DELETED", "object": slice(u)}).to_string(),
        7 => json!({"type": u.pick(&["ADDED", "MODIFIED", "x"]), "object": slice(u)}).to_string(),
        8 if u.once_in(4) => "[".repeat(u.below(4096)) + &u.text(20),
        _ => {
            let items: Vec<_> = (0..u.below(4)).map(|_| slice(u)).collect();
            json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string()
        }
    }
}

/// One device of a claim in the kubelet's answer.
fn listed(u: &mut Unstructured<'_>) -> Value {
    let (pod, container, claim) = (u.pick(&["p", "q"]), u.pick(&["main", "side"]), u.pick(&CLAIMS));
    let (pool, device) = (u.pick(&POOLS), device(u));
    let share = u.once_in(4).then(|| u.pick(&["s-1", "s-2", ""]));
    json!([pod, container, claim, pool, device, share, u.pick(&["claim=uid-1", "claim=uid-2", ""])])
}

fn device(u: &mut Unstructured<'_>) -> String {
    match u.below(16) {
        0 => u.text(12),
        1 => "d".repeat(u.below(256) + 120),
        _ => u.pick(&DEVICES).to_owned(),
    }
}

fn slice(u: &mut Unstructured<'_>) -> Value {
    let devices: Vec<_> = (0..u.below(4)).map(|_| published(u)).collect();
    let mut slice = json!({
        "metadata": {"name": u.pick(&["s0", "s1", "s2"]), "resourceVersion": "1"},
        "spec": {
            "driver": u.pick(&["gpu.nvidia.com", "gpu.nvidia.com", "dra.net"]), "nodeName": "node-1", "devices": devices,
            "pool": {"name": u.pick(&POOLS), "generation": number(u), "resourceSliceCount": number(u)},
        },
    });
    spoil(
        u,
        &mut slice,
        &["/metadata", "/metadata/name", "/spec", "/spec/pool", "/spec/pool/generation", "/spec/devices"],
    );
    slice
}

fn published(u: &mut Unstructured<'_>) -> Value {
    let mut device = json!({"name": device(u), "attributes": {}});
    for key in ["uuid", "gpu.nvidia.com/uuid", "parentUUID", "profile", "other.example/uuid"] {
        if u.once_in(2) {
            let text = match (u.below(8), key) {
                (0, _) => u.text(200),
                (1..6, "profile") => u.pick(&["1g.18gb", "3g.71gb", "7g.141gb"]).to_owned(),
                _ => u.pick(&["GPU-0", "GPU-1", "MIG-0", "MIG-2", "GPU-9", "0000:3d:00.0"]).to_owned(),
            };
            device["attributes"][key] = json!({"string": text});
        }
    }
    spoil(u, &mut device, &["/name", "/attributes", "/attributes/uuid", "/attributes/uuid/string"]);
    device
}

fn claim(u: &mut Unstructured<'_>) -> Value {
    let result = |u: &mut Unstructured<'_>| {
        let mut result =
            json!({"driver": "gpu.nvidia.com", "pool": u.pick(&POOLS), "device": device(u), "request": "r"});
        if u.once_in(4) {
            result["adminAccess"] = json!(u.once_in(2));
        }
        if u.once_in(4) {
            result["shareID"] = json!(u.pick(&["s-1", "s-2", ""]));
        }
        if u.once_in(2) {
            let amount = match u.below(4) {
                0 => json!(u.number()),
                1 => json!(u.text(12)),
                _ => json!(u.pick(&["0", "20Gi", "16Ei", "-1", "20GB"])),
            };
            result["consumedCapacity"] = json!({u.pick(&["memory", "gpu.nvidia.com/memory", "shares"]): amount});
        }
        spoil(u, &mut result, &["/driver", "/device", "/shareID", "/adminAccess", "/consumedCapacity"]);
        result
    };
    let results: Vec<_> = (0..u.below(5)).map(|_| result(u)).collect();
    let mut claim = json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": results}}}});
    spoil(u, &mut claim, &["/status", "/status/allocation", "/status/allocation/devices"]);
    claim
}

/// A generation or a count: mostly small, so that some of them are right.
fn number(u: &mut Unstructured<'_>) -> Value {
    match u.below(16) {
        0 => json!(-1),
        1 => json!(i64::MIN),
        2 => json!(i64::MAX),
        3 => json!(u.number()),
        _ => json!(u.below(3)),
    }
}

/// Sometimes puts a value of another kind into one of these places.
fn spoil(u: &mut Unstructured<'_>, value: &mut Value, places: &[&str]) {
    if !u.once_in(24) {
        return;
    }
    if let Some(place) = value.pointer_mut(u.pick(places)) {
        *place = match u.below(6) {
            0 => json!([]),
            1 => json!({}),
            2 => json!(u.number()),
            3 => json!([[[[]]], {"a": {"b": [1, 2.5e300]}}]),
            4 => json!(u.text(20)),
            _ => Value::Null,
        };
    }
}
