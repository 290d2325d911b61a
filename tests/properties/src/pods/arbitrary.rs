//! Pods with few different names and ids, so that they collide, and sometimes JSON that no API server writes.

use serde_json::{Value, json};

use crate::choices::{Choose, Unstructured};

pub(super) fn lines(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    for _ in 0..1 + u.below(12) {
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
    match u.below(8) {
        0 => format!("wait {}", u.pick(&[1, 299, 300, 301, 599, 600, 601])),
        1 => {
            let items: Vec<_> = (0..u.below(4)).map(|_| pod(u)).collect();
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
                .to_string()
        }
        2 => json!({"type": "DELETED", "object": pod(u)}).to_string(),
        3 => pod(u).to_string(),
        4 => "[".repeat(u.below(256)) + &u.text(20),
        _ => json!({"type": u.pick(&["ADDED", "MODIFIED", "BOOKMARK", "x"]), "object": pod(u)}).to_string(),
    }
}

fn pod(u: &mut Unstructured<'_>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": name(u), "name": name(u), "resourceVersion": "1", "labels": {"a": "b"}},
        "status": {},
    });
    if u.once_in(2) {
        declare(u, &mut pod);
    }
    for kind in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        if u.once_in(2) {
            pod["status"][kind] = (0..u.below(3)).map(|_| container(u)).collect();
        }
    }
    if u.once_in(16) {
        let key = u.pick(&[
            "/metadata",
            "/status",
            "/metadata/name",
            "/metadata/resourceVersion",
            "/status/containerStatuses",
            "/metadata/annotations",
            "/metadata/labels",
            "/spec",
            "/spec/containers",
        ]);
        if let Some(value) = pod.pointer_mut(key) {
            *value = odd(u);
        }
    }
    pod
}

/// Adds annotations, labels and resources about budgets.
fn declare(u: &mut Unstructured<'_>, pod: &mut Value) {
    pod["metadata"]["annotations"] = json!({});
    for _ in 0..u.below(4) {
        let key = u.pick(&[
            "vram-exporter/gpu-memory-limit",
            "vram-exporter/gpu-memory-limit.a",
            "vram-exporter/gpu-memory-limit.c",
            "gpu-memory",
            "gpu-fraction",
            "gpu-fraction-container-name",
            "run.ai/reserve_for_gpu_index",
            "hami.io/vgpu-devices-allocated",
        ]);
        pod["metadata"]["annotations"][key] = amount(u);
    }
    for key in ["runai-gpu-group", "runai-gpu-group/g"] {
        if u.once_in(4) {
            pod["metadata"]["labels"][key] = json!(u.pick(&["g", "h", ""]));
        }
    }
    let limits = |u: &mut Unstructured<'_>| match u.below(3) {
        0 => json!({"nvidia.com/gpumem": amount(u)}),
        1 => json!({"nvidia.com/gpumem-percentage": amount(u)}),
        _ => json!({}),
    };
    let list = |u: &mut Unstructured<'_>, names: &[&str]| -> Value {
        names.iter().map(|name| json!({"name": name, "resources": {"limits": limits(u)}})).collect()
    };
    pod["spec"] = json!({"containers": list(u, &["a", "b"])});
    if u.once_in(4) {
        pod["spec"]["initContainers"] = list(u, &["c"]);
    }
}

/// The text of an annotation or a resource.
fn amount(u: &mut Unstructured<'_>) -> Value {
    const UUID: &str = "GPU-11111111-2222-3333-4444-555555555555";
    match u.below(12) {
        0 => odd(u),
        1 => json!(u.text(12)),
        2 => json!(u.number()),
        3 => json!(format!("{}{}", u.number(), u.pick(&["Gi", "Ei", "m", "e9", "GB", ""]))),
        4 => json!("9".repeat(u.below(256) * 32)),
        5 => json!(UUID),
        6 => json!(format!("{UUID},NVIDIA,{},1:;;", u.below(9))),
        7 => json!(format!("{UUID},NVIDIA,1,1:{UUID},NVIDIA,2,1:;;;")),
        8 => json!(u.pick(&["a", "b", "c", "d"])),
        _ => json!(u.pick(&["20Gi", "0.5", "1", "2000", "100", "1.5Gi"])),
    }
}

fn container(u: &mut Unstructured<'_>) -> Value {
    let mut container = json!({"name": name(u), "containerID": id(u), "ready": true});
    for key in ["state", "lastState"] {
        if u.once_in(4) {
            container[key] = json!({"terminated": {"containerID": id(u), "exitCode": 1}});
        }
    }
    if u.once_in(16) {
        container[u.pick(&["name", "containerID", "state", "lastState"])] = odd(u);
    }
    container
}

fn name(u: &mut Unstructured<'_>) -> String {
    match u.below(16) {
        0 => u.text(12),
        1 => "n".repeat(u.below(256) + 120),
        _ => u.pick(&["a", "b", "c"]).to_owned(),
    }
}

fn id(u: &mut Unstructured<'_>) -> String {
    match u.below(16) {
        0 => u.text(12),
        1 => format!("x://{}", "1".repeat(u.below(256) + 120)),
        _ => format!("{}://{}", u.pick(&["containerd", "docker"]), u.below(4)),
    }
}

fn odd(u: &mut Unstructured<'_>) -> Value {
    match u.below(8) {
        0 => json!([]),
        1 => json!({}),
        2 => json!(u.number()),
        3 => json!([[[[]]], {"a": {"b": [1, 2.5e300]}}]),
        4 => json!(u.text(20)),
        5 => json!(true),
        _ => Value::Null,
    }
}
