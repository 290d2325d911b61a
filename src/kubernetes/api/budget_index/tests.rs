//! Pods as KAI-Scheduler, HAMi and users write them, and hostile ones.

use serde_json::{Value, json};

use super::*;
use crate::snapshot::{BudgetAmount, BudgetSource};

const MIB: u64 = 1 << 20;
const A: &str = "GPU-11111111-2222-3333-4444-555555555555";
const B: &str = "GPU-99999999-2222-3333-4444-555555555555";

/// A pod with the containers `main` and `side` and the sidecar `init`.
fn pod_with(name: &str, metadata: &Value, limits: &Value) -> Pod {
    let mut object = json!({"namespace": "team", "name": name, "resourceVersion": "1"});
    object.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "metadata": object,
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits}}, {"name": "side"}],
            "initContainers": [{"name": "init", "restartPolicy": "Always"}],
        },
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

fn annotated(annotations: &Value) -> Pod {
    pod_with("p", &json!({"annotations": annotations}), &json!({}))
}

/// `container source amount place`, sorted.
fn lines(index: &BudgetIndex) -> Vec<String> {
    let mut lines = Vec::new();
    for (holder, budgets) in index.shown() {
        for Budget { source, amount, place } in budgets {
            let amount = match amount {
                BudgetAmount::Bytes(bytes) => format!("{}MiB", bytes / MIB),
                BudgetAmount::Millionths(part) => format!("{part}ppm"),
            };
            let place = match place {
                BudgetPlace::EachGpu => "each".to_owned(),
                BudgetPlace::Uuid(uuid) => uuid[..5].to_owned(),
                BudgetPlace::Index(index) => index.to_string(),
            };
            lines.push(format!("{}/{} {} {amount} {place}", holder.pod, holder.container, source.label()));
        }
    }
    lines.sort();
    lines
}

fn declared(pod: &Pod) -> Result<Vec<String>, String> {
    let mut index = BudgetIndex::default();
    match index.put(pod).as_slice() {
        [] => Ok(lines(&index)),
        problems => {
            assert_eq!(lines(&index), Vec::<String>::new(), "no budget beside a problem in these cases");
            Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        }
    }
}

#[test]
fn our_own_annotation_applies_to_every_container_or_to_one() {
    let all = annotated(&json!({"vram-exporter/gpu-memory-limit": "20Gi"}));
    let each = |name: &str, limit: u64| format!("p/{name} annotation {limit}MiB each");
    assert_eq!(declared(&all).unwrap(), [each("init", 20480), each("main", 20480), each("side", 20480)]);
    let one = annotated(&json!({"vram-exporter/gpu-memory-limit.main": "1Gi"}));
    assert_eq!(declared(&one).unwrap(), [each("main", 1024)]);
    let both = annotated(&json!({
        "vram-exporter/gpu-memory-limit.side": "1Gi", "vram-exporter/gpu-memory-limit": "2Gi",
        "vram-exporter/gpu-memory-limits": "3Gi",
    }));
    assert_eq!(declared(&both).unwrap(), [each("init", 2048), each("main", 2048), each("side", 1024)]);
}

#[test]
fn kai_names_memory_or_a_fraction_of_the_first_or_a_named_container() {
    let memory = annotated(&json!({"gpu-memory": "2000"}));
    assert_eq!(declared(&memory).unwrap(), ["p/main kai 2000MiB each"]);
    let fraction = annotated(&json!({"gpu-fraction": "0.57", "gpu-fraction-container-name": "init"}));
    assert_eq!(declared(&fraction).unwrap(), ["p/init kai 570000ppm each"]);
    assert_eq!(declared(&annotated(&json!({"gpu-fraction": "1"}))).unwrap(), ["p/main kai 1000000ppm each"]);
}

#[test]
fn kai_shares_the_gpu_that_the_reservation_pod_names() {
    let labels = json!({"annotations": {"gpu-fraction": "0.5"}, "labels": {"runai-gpu-group": "g1", "app": "x"}});
    let mut index = BudgetIndex::default();
    index.put(&pod_with("p", &labels, &json!({})));
    assert_eq!(lines(&index), ["p/main kai 500000ppm each"], "before the reservation is known");
    let reserves = |name: &str, gpu: &str| {
        let annotations = json!({"run.ai/reserve_for_gpu_index": gpu});
        pod_with(name, &json!({"annotations": annotations, "labels": {"runai-gpu-group": "g1"}}), &json!({}))
    };
    assert!(index.put(&reserves("r", A)).is_empty() && index.take_change());
    assert_eq!(lines(&index), ["p/main kai 500000ppm GPU-1"]);
    index.put(&reserves("s", B));
    assert_eq!(lines(&index), ["p/main kai 500000ppm each"], "two pods that contradict each other");
    index.remove(&reserves("s", B));
    index.put(&reserves("r", "3"));
    assert_eq!(lines(&index), ["p/main kai 500000ppm 3"]);
    let refused = index.put(&reserves("r", "the third"));
    assert!(refused[0].to_string().contains("is \"the third\", but must be a GPU's UUID"), "{refused:?}");
}

#[test]
fn kai_shares_several_gpus_by_one_label_for_each() {
    let annotations = json!({"gpu-memory": "10", "gpu-fraction-num-devices": "2"});
    let labels = json!({"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"});
    let mut index = BudgetIndex::default();
    index.put(&pod_with("p", &json!({"annotations": annotations, "labels": labels}), &json!({})));
    for (group, gpu) in [("g1", A), ("g2", B)] {
        let annotations = json!({"run.ai/reserve_for_gpu_index": gpu});
        let metadata = json!({"annotations": annotations, "labels": {"runai-gpu-group": group}});
        index.put(&pod_with(group, &metadata, &json!({})));
    }
    assert_eq!(lines(&index), ["p/main kai 10MiB GPU-1", "p/main kai 10MiB GPU-9"]);
}

#[test]
fn hami_requests_memory_or_a_percentage_and_assigns_devices() {
    let of = |limits: Value| declared(&pod_with("p", &json!({}), &limits));
    assert_eq!(of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"})).unwrap(), ["p/main hami 3000MiB each"]);
    assert_eq!(of(json!({"nvidia.com/gpumem-percentage": "50"})).unwrap(), ["p/main hami 500000ppm each"]);
    let both = json!({"nvidia.com/gpumem": 7, "nvidia.com/gpumem-percentage": 50});
    assert_eq!(of(both).unwrap(), ["p/main hami 7MiB each"]);
    assert_eq!(of(json!({"nvidia.com/gpumem": "0"})).unwrap(), Vec::<String>::new());
    let assigned = |text: String| {
        let annotations = json!({"annotations": {"hami.io/vgpu-devices-allocated": text}});
        declared(&pod_with("p", &annotations, &json!({"nvidia.com/gpumem": "1"})))
    };
    let two = assigned(format!("{A},NVIDIA,3000,30:{B},NVIDIA,10,0:;;")).unwrap();
    assert_eq!(two, ["p/main hami 10MiB GPU-9", "p/main hami 3000MiB GPU-1"]);
    let with_init = assigned(format!(";{A},NVIDIA,1,1:{A},NVIDIA,2,1:;{B}[1-0],NVIDIA-H100,3,1:;")).unwrap();
    assert_eq!(with_init, ["p/main hami 3MiB GPU-1", "p/side hami 3MiB GPU-9"]);
}

#[test]
fn an_init_container_that_ends_before_the_others_has_no_budget() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "namespace": "team", "name": "p",
            "annotations": {"hami.io/vgpu-devices-allocated": format!("{A},NVIDIA,8,0:;{A},NVIDIA,9,0:;")},
        },
        "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "prepare"}]},
    }))
    .unwrap();
    assert_eq!(declared(&pod).unwrap(), ["p/main hami 9MiB GPU-1"]);
}

#[test]
fn what_cannot_be_read_gives_no_budget_and_says_why() {
    let long = "9".repeat(5000);
    let cases = [
        (json!({"vram-exporter/gpu-memory-limit": "20GB"}), "\"20GB\" has no suffix that Kubernetes knows"),
        (json!({"vram-exporter/gpu-memory-limit": "0"}), "is 0"),
        (json!({"vram-exporter/gpu-memory-limit": ""}), "is not a quantity"),
        (json!({"vram-exporter/gpu-memory-limit": long}), "is too long"),
        (json!({"vram-exporter/gpu-memory-limit.x\n": "1Gi"}), "names \"x\\n\", which is no container"),
        (json!({"gpu-memory": "1", "gpu-fraction": "0.5"}), "both annotations"),
        (json!({"gpu-memory": "1.5"}), "gpu-memory is \"1.5\", but must be a whole number of MiB above 0"),
        (json!({"gpu-memory": "0"}), "above 0"),
        (json!({"gpu-memory": "99999999999999999"}), "above 0"),
        (json!({"gpu-fraction": "1.01"}), "above 0 and at most 1"),
        (json!({"gpu-fraction": "NaN"}), "above 0 and at most 1"),
        (json!({"gpu-fraction": "-0.5"}), "above 0 and at most 1"),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}),
            "names \"other\", which is no container",
        ),
        (json!({"hami.io/vgpu-devices-allocated": format!("{A},NVIDIA,1,1:;")}), "one part for each container"),
        (json!({"hami.io/vgpu-devices-allocated": format!("{A},NVIDIA,1:;;")}), "UUID,NVIDIA,MiB,cores"),
        (json!({"hami.io/vgpu-devices-allocated": format!("{A},DCU,1,1:;;")}), "UUID,NVIDIA,MiB,cores"),
        (json!({"hami.io/vgpu-devices-allocated": "GPU-\n,NVIDIA,1,1:;;"}), "UUID,NVIDIA,MiB,cores"),
        (json!({"hami.io/vgpu-devices-allocated": format!("{A},NVIDIA,-1,1:;;")}), "UUID,NVIDIA,MiB,cores"),
    ];
    for (annotations, expected) in cases {
        let refused = declared(&annotated(&annotations)).expect_err(expected);
        assert!(refused.contains("no budget for pod team/p") && refused.contains(expected), "{refused}");
        assert!(!refused.contains('\n') && refused.len() < 300, "{refused}");
    }
    for limits in [json!({"nvidia.com/gpumem": "many"}), json!({"nvidia.com/gpumem-percentage": "101"})] {
        assert!(declared(&pod_with("p", &json!({}), &limits)).is_err(), "{limits}");
    }
}

#[test]
fn a_problem_is_reported_once_until_the_pod_declares_something_else() {
    let mut index = BudgetIndex::default();
    let wrong = annotated(&json!({"gpu-memory": "x"}));
    assert_eq!(index.put(&wrong).len(), 1);
    assert_eq!(index.put(&wrong).len(), 0);
    assert_eq!(index.replace(std::slice::from_ref(&wrong)).len(), 0, "the pods are listed again");
    assert_eq!(index.put(&annotated(&json!({"gpu-memory": "y"}))).len(), 1);
    let half = json!({"gpu-memory": "y", "vram-exporter/gpu-memory-limit.main": "1Gi"});
    assert_eq!(index.put(&annotated(&half)).len(), 0);
    assert_eq!(lines(&index), ["p/main annotation 1024MiB each"], "one source does not affect another");
    index.remove(&wrong);
    assert_eq!(index.put(&wrong).len(), 1, "another pod with the same name");
}

#[test]
fn a_pod_that_ended_or_is_gone_declares_nothing() {
    let (mut index, promised) = (BudgetIndex::default(), annotated(&json!({"gpu-memory": "1"})));
    let ended: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "team", "name": "p", "annotations": {"gpu-memory": "1"}},
        "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Failed"},
    }))
    .unwrap();
    for gone in [0, 1, 2] {
        index.put(&promised);
        assert!(index.take_change() && lines(&index).len() == 1);
        match gone {
            0 => assert!(index.put(&ended).is_empty()),
            1 => index.remove(&promised),
            _ => assert!(index.replace(&[]).is_empty()),
        }
        assert!(index.take_change() && lines(&index).is_empty() && index.kept == 0);
    }
    index.put(&ended);
    assert!(!index.take_change() && index.pods.is_empty());
}

#[test]
fn thousands_of_pods_are_bounded() {
    let mut index = BudgetIndex::default();
    let mut problems = Vec::new();
    for n in 0..LIMIT + 5 {
        let metadata = json!({"annotations": {"gpu-memory": "1"}});
        problems.extend(index.put(&pod_with(&format!("p{n}"), &metadata, &json!({}))));
    }
    assert_eq!((index.kept, index.shown().len(), problems.len()), (LIMIT, LIMIT, 5));
    assert!(problems.iter().all(|problem| problem.reason == Reason::TooManyKeys));
    for n in 0..LIMIT {
        index.put(&pod_with(&format!("q{n}"), &json!({}), &json!({})));
    }
    assert_eq!(index.kept, LIMIT);
    index.replace(&[]);
    assert_eq!((index.kept, index.pods.len()), (0, 0));
}

#[test]
fn a_declared_source_is_one_that_is_known() {
    let sources = [BudgetSource::Annotation, BudgetSource::Kai, BudgetSource::Hami];
    assert!(sources.iter().all(|source| source.is_promise() && !source.is_share()));
}
