//! Budgets from every source: the real binary on a simulated machine, with doubles of the kubelet and of the API server.

mod driver;

use serde_json::{Value, json};

use crate::harness::{Exporter, Machine, Scrape};
use crate::node::{GIB, GPU, NODE, Node, process};

const LIMIT: &str = "gpu_workload_memory_limit_bytes";
const OVER: &str = "gpu_workload_memory_over_limit_seconds_total";
const PROMISED: &str = "gpu_memory_promised_bytes";

fn environment(limit: &str) -> String {
    format!("environment = [\"PATH=/bin\", 'VRAM_EXPORTER_GPU_MEMORY_LIMIT={limit}']")
}

fn export(node: &Node) -> Exporter {
    let (api, kubelet) = (node.api_flag(), node.kubelet_flag());
    let mut flags = vec![NODE, "--process.interval=100ms", &api];
    if node.kubelet.is_some() {
        flags.extend([kubelet.as_str(), "--kubernetes.pod-resources-interval=1s"]);
    }
    node.machine.export(&flags)
}

/// A value of a workload of the pod, by source.
fn of(scrape: &Scrape, family: &str, pod: &str, source: &str) -> Option<f64> {
    scrape.value(family, &[("pod", pod), ("source", source)])
}

fn total(scrape: &Scrape) -> f64 {
    scrape.value("gpu_memory_total_bytes", &[]).unwrap()
}

fn faults(scrape: &Scrape) -> f64 {
    scrape.value("vram_exporter_faults_total", &[("source", "budget")]).unwrap()
}

#[test]
fn every_source_of_a_pod_is_a_limit_of_its_workload() {
    let node = Node::new(&[
        process(11, 1, 'a', ""),
        process(12, 1, 'b', ""),
        process(13, 1, 'c', ""),
        process(14, 1, 'd', &environment("2Gi")),
        process(15, 1, 'e', ""),
    ]);
    node.annotate("own", Some('a'), &json!({"vram-exporter/gpu-memory-limit.main": "20Gi"}));
    node.annotate("kai", Some('b'), &json!({"gpu-fraction": "0.25"}));
    node.put("hami", Some('c'), &json!({}), &json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}));
    let assigned = format!("{GPU},NVIDIA,4000,30:;");
    node.annotate("both", Some('d'), &json!({"hami.io/vgpu-devices-allocated": assigned, "gpu-memory": "5000"}));
    node.annotate("none", Some('e'), &json!({"team/gpu-memory-limit": "1Gi"}));
    let exporter = export(&node);
    // A fraction is known once the total memory of the GPU has been read.
    let scrape = exporter.scrape_until("the limits", |s| s.all(LIMIT).count() == 6);
    let limit = |pod: &str, source: &str| of(&scrape, LIMIT, pod, source);
    assert_eq!(limit("own", "annotation"), Some(20.0 * GIB));
    assert_eq!(limit("kai", "kai"), Some((total(&scrape) / 4.0).floor()));
    assert_eq!(limit("hami", "hami"), Some(3000.0 * GIB / 1024.0));
    assert_eq!(limit("both", "hami"), Some(4000.0 * GIB / 1024.0));
    assert_eq!(limit("both", "kai"), Some(5000.0 * GIB / 1024.0));
    assert_eq!(limit("both", "environment"), Some(2.0 * GIB));
    assert_eq!(scrape.all(LIMIT).count(), 6);
    assert!(scrape.all(OVER).count() == 6 && scrape.all(OVER).all(|series| series.value == 0.0), "all are within");
    let promised = 20.0 * GIB + (total(&scrape) / 4.0).floor() + (3000.0 + 4000.0) * GIB / 1024.0;
    assert_eq!((scrape.value(PROMISED, &[("uuid", GPU)]), faults(&scrape)), (Some(promised), 0.0));
}

#[test]
fn a_replica_is_a_share_that_is_neither_enforced_nor_promised() {
    let mut node = Node::new(&[process(11, 100, 'a', ""), process(12, 1, 'b', "")]);
    node.annotate("first", Some('a'), &json!({}));
    node.annotate("second", Some('b'), &json!({}));
    let replicas: Vec<_> = (0..4).map(|n| format!("{GPU}::{n}")).collect();
    let all: Vec<_> = replicas.iter().map(String::as_str).collect();
    node.allocate_of(&[("first", &all[..1]), ("second", &all[1..3]), ("waits", &all[3..])], &all);
    let exporter = export(&node);
    let scrape = exporter.scrape_until("the shares", |s| of(s, LIMIT, "second", "time_slicing").is_some());
    assert_eq!(of(&scrape, LIMIT, "first", "time_slicing"), Some((total(&scrape) / 4.0).floor()));
    assert_eq!(of(&scrape, LIMIT, "second", "time_slicing"), Some((total(&scrape) / 2.0).floor()));
    assert_eq!((scrape.all(OVER).count(), scrape.all(PROMISED).count()), (0, 0));
    // A container that has not started is placed by what the kubelet allocated, and by nothing else.
    node.annotate("waits", None, &json!({"vram-exporter/gpu-memory-limit": "7Gi"}));
    node.annotate("elsewhere", None, &json!({"vram-exporter/gpu-memory-limit": "9Gi"}));
    let placed = exporter.scrape_until("the promise", |s| s.value(PROMISED, &[]).is_some());
    assert_eq!(placed.value(PROMISED, &[("uuid", GPU)]), Some(7.0 * GIB));
}

#[test]
fn a_limit_that_changes_applies_at_once_and_its_seconds_go_on() {
    let node = Node::new(&[process(11, 10, 'a', "")]);
    let declare = |limit: &str| node.annotate("p", Some('a'), &json!({"vram-exporter/gpu-memory-limit": limit}));
    declare("20Gi");
    let exporter = export(&node);
    let limit = |s: &Scrape| of(s, LIMIT, "p", "annotation");
    let over = |s: &Scrape| of(s, OVER, "p", "annotation");
    let within = exporter.scrape_until("the limit", |s| limit(s) == Some(20.0 * GIB));
    assert_eq!(over(&within), Some(0.0));
    declare("5Gi");
    exporter.scrape_until("time over the limit", |s| over(s).is_some_and(|seconds| seconds > 0.3));
    declare("30Gi");
    let within = exporter.scrape_until("the new limit", |s| limit(s) == Some(30.0 * GIB));
    let seconds = over(&within).unwrap();
    declare("40Gi");
    let later = exporter.scrape_until("another one", |s| limit(s) == Some(40.0 * GIB));
    assert_eq!(over(&later), Some(seconds), "it was within the limit all the time");
    node.annotate("p", Some('a'), &json!({}));
    let without = exporter.scrape_until("no limit", |s| limit(s).is_none());
    assert_eq!(over(&without), Some(seconds));
    declare("5Gi");
    exporter.scrape_until("more time", |s| over(s).is_some_and(|more| more > seconds));
}

#[test]
fn a_container_that_restarts_keeps_its_seconds_and_a_deleted_pod_has_no_limit() {
    let node = Node::new(&[]);
    node.machine.control(&process(11, 10, 'a', "start = \"0s\""));
    let annotations = json!({"vram-exporter/gpu-memory-limit": "5Gi"});
    node.annotate("p", Some('a'), &annotations);
    let exporter = export(&node);
    let over = |s: &Scrape| of(s, OVER, "p", "annotation").unwrap_or(0.0);
    let processes = |s: &Scrape| s.value("gpu_workload_processes", &[("pod", "p")]);
    exporter.scrape_until("time over the limit", |s| over(s) > 0.3);
    node.machine.control("");
    let ended = exporter.scrape_until("the end", |s| over(s) > 0.0 && processes(s).is_none());
    let seconds = over(&ended);
    assert_eq!(of(&ended, LIMIT, "p", "annotation"), None, "it is not on the GPU any more");
    assert_eq!(ended.value(PROMISED, &[]), None, "nothing places it on the GPU");
    node.annotate("p", Some('b'), &annotations);
    node.machine.control(&process(12, 10, 'b', ""));
    let restarted = exporter.scrape_until("more time", |s| over(s) > seconds);
    assert_eq!(restarted.value(PROMISED, &[]), Some(5.0 * GIB));
    node.api.delete("team-b", "p");
    let deleted = exporter.scrape_until("no limit", |s| of(s, LIMIT, "p", "annotation").is_none());
    assert_eq!((deleted.value(PROMISED, &[]), processes(&deleted)), (None, Some(1.0)));
}

#[test]
fn what_is_promised_is_known_before_any_process_starts() {
    let mut node = Node::new(&[]);
    let reserved = json!({"run.ai/reserve_for_gpu_index": GPU});
    let group = |annotations: Value| json!({"annotations": annotations, "labels": {"runai-gpu-group": "g"}});
    node.put("reservation", Some('r'), &group(reserved), &json!({}));
    for (pod, fraction) in [("first", "0.6"), ("second", "0.4")] {
        node.put(pod, None, &group(json!({"gpu-fraction": fraction})), &json!({}));
    }
    node.allocate_of(&[("reservation", &[GPU])], &[GPU]);
    let exporter = export(&node);
    let promised = |s: &Scrape| s.value(PROMISED, &[("uuid", GPU)]);
    let scrape =
        exporter.scrape_until("both fractions", |s| promised(s).is_some_and(|bytes| (bytes - total(s)).abs() <= 1.0));
    let reserved = scrape.value("gpu_memory_reserved_bytes", &[]).unwrap();
    assert!(promised(&scrape).unwrap() > total(&scrape) - reserved, "the two do not fit");
    assert_eq!((scrape.all(LIMIT).count(), scrape.all("gpu_workload_processes").count()), (0, 0));
    // While the API server does not answer, pods may have gone or come.
    node.runtime.block_on(node.api.stop());
    exporter.scrape_until("no sum", |s| promised(s).is_none());
}

#[test]
fn a_wrong_annotation_is_no_limit_and_one_fault_until_it_changes() {
    let node = Node::new(&[process(11, 10, 'a', ""), process(12, 10, 'b', "")]);
    node.annotate("wrong", Some('a'), &json!({"vram-exporter/gpu-memory-limit": "20GB\n\u{202e}"}));
    node.annotate("right", Some('b'), &json!({"gpu-memory": "1024"}));
    let exporter = export(&node);
    let known = |s: &Scrape| of(s, LIMIT, "right", "kai").is_some() && faults(s) > 0.0;
    let scrape = exporter.scrape_until("the other limit and the fault", known);
    assert_eq!((scrape.all(LIMIT).count(), faults(&scrape)), (1, 1.0));
    let reasons = [("source", "budget"), ("reason", "malformed")];
    assert_eq!(scrape.value("vram_exporter_faults_by_reason_total", &reasons), Some(1.0));
    let log = exporter.log();
    assert!(log.contains("team-b/wrong") && log.contains("such as 20Gi"), "{log}");
    // Two annotations of it are wrong, then none.
    node.annotate("wrong", Some('a'), &json!({"vram-exporter/gpu-memory-limit": "-1", "gpu-fraction": "2"}));
    exporter.scrape_until("two more faults", |s| faults(s) == 3.0);
    node.annotate("wrong", Some('a'), &json!({"vram-exporter/gpu-memory-limit": "1Gi"}));
    let right = exporter.scrape_until("its limit", |s| of(s, LIMIT, "wrong", "annotation") == Some(GIB));
    assert_eq!(faults(&right), 3.0);
}

#[test]
fn an_environment_limits_a_workload_only_if_every_process_declares_it() {
    let node = Node::new(&[
        process(11, 10, 'a', &environment("5Gi")),
        process(12, 10, 'a', &environment("30Gi")),
        process(13, 10, 'b', &environment("5Gi")),
        process(14, 10, 'b', ""),
        process(15, 10, 'c', &environment("lots")),
        process(16, 10, 'd', &environment("-5Gi")),
    ]);
    let exporter = node.machine.export(&["--process.interval=100ms"]);
    // All six processes have been read: the highest limit of the first two, and the faults of the last two.
    let whole = |s: &Scrape| s.all(LIMIT).any(|limit| limit.value >= 30.0 * GIB) && faults(s) >= 2.0;
    let scrape = exporter.scrape_until("the limit and the faults", whole);
    let limits: Vec<_> = scrape.all(LIMIT).map(|s| (s.label("workload"), s.label("source"), s.value)).collect();
    assert_eq!(limits, [(Some("container:aaaaaaaaaaaa"), Some("environment"), 30.0 * GIB)], "the highest");
    assert_eq!(faults(&scrape), 2.0);
    let later = exporter.scrape_until("another pass", |s| s.value(OVER, &[]).is_some());
    assert_eq!((later.value(OVER, &[]), faults(&later)), (Some(0.0), 2.0), "a process is read once");
    assert_eq!(later.value(PROMISED, &[]), Some(30.0 * GIB));
}

#[test]
fn the_demo_has_a_workload_over_its_budget_and_one_far_below() {
    let scrape = Machine::built_in("demo").once(&[]);
    let share = |workload: &str| {
        let of = |family: &str| scrape.value(family, &[("workload", workload)]).unwrap();
        of("gpu_workload_memory_used_bytes") / of(LIMIT)
    };
    assert!(share("unit:embedder.service") > 1.0 && share("container:9f8e7d6c5b4a") < 0.25);
    let of = |family: &str| scrape.value(family, &[("gpu", "2")]).unwrap();
    let (total, reserved) = (of("gpu_memory_total_bytes"), of("gpu_memory_reserved_bytes"));
    assert!((total - reserved..total).contains(&of(PROMISED)), "less than the GPU, more than can be allocated");
}
