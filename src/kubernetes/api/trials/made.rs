//! Pods of few names and ids, so that they meet; and now and then JSON that no API server writes.

use serde_json::{Value, json};

use crate::trials::Pieces;

pub(super) fn lines(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    for _ in 0..1 + pieces.below(12) {
        let mut line = line(pieces).into_bytes();
        if !line.is_empty() && pieces.once_in(32) {
            let at = pieces.below(line.len().min(256));
            line[at] = pieces.byte();
        }
        lines.extend(line);
        lines.push(b'\n');
    }
    lines
}

fn line(pieces: &mut Pieces<'_>) -> String {
    match pieces.below(8) {
        0 => format!("wait {}", pieces.pick(&[1, 299, 300, 301, 599, 600, 601])),
        1 => {
            let items: Vec<_> = (0..pieces.below(4)).map(|_| pod(pieces)).collect();
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
                .to_string()
        }
        2 => json!({"type": "DELETED", "object": pod(pieces)}).to_string(),
        3 => pod(pieces).to_string(),
        4 => "[".repeat(pieces.below(256)) + &pieces.text(20),
        _ => json!({"type": pieces.pick(&["ADDED", "MODIFIED", "BOOKMARK", "x"]), "object": pod(pieces)}).to_string(),
    }
}

fn pod(pieces: &mut Pieces<'_>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": name(pieces), "name": name(pieces), "resourceVersion": "1", "labels": {"a": "b"}},
        "status": {},
    });
    for kind in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        if pieces.once_in(2) {
            pod["status"][kind] = (0..pieces.below(3)).map(|_| container(pieces)).collect();
        }
    }
    if pieces.once_in(16) {
        let key = pieces.pick(&[
            "/metadata",
            "/status",
            "/metadata/name",
            "/metadata/resourceVersion",
            "/status/containerStatuses",
        ]);
        if let Some(value) = pod.pointer_mut(key) {
            *value = odd(pieces);
        }
    }
    pod
}

fn container(pieces: &mut Pieces<'_>) -> Value {
    let mut container = json!({"name": name(pieces), "containerID": id(pieces), "ready": true});
    for key in ["state", "lastState"] {
        if pieces.once_in(4) {
            container[key] = json!({"terminated": {"containerID": id(pieces), "exitCode": 1}});
        }
    }
    if pieces.once_in(16) {
        container[pieces.pick(&["name", "containerID", "state", "lastState"])] = odd(pieces);
    }
    container
}

fn name(pieces: &mut Pieces<'_>) -> String {
    match pieces.below(16) {
        0 => pieces.text(12),
        1 => "n".repeat(pieces.below(256) + 120),
        _ => pieces.pick(&["a", "b", "c"]).to_owned(),
    }
}

fn id(pieces: &mut Pieces<'_>) -> String {
    match pieces.below(16) {
        0 => pieces.text(12),
        1 => format!("x://{}", "1".repeat(pieces.below(256) + 120)),
        _ => format!("{}://{}", pieces.pick(&["containerd", "docker"]), pieces.below(4)),
    }
}

fn odd(pieces: &mut Pieces<'_>) -> Value {
    match pieces.below(8) {
        0 => json!([]),
        1 => json!({}),
        2 => json!(pieces.number()),
        3 => json!([[[[]]], {"a": {"b": [1, 2.5e300]}}]),
        4 => json!(pieces.text(20)),
        5 => json!(true),
        _ => Value::Null,
    }
}
