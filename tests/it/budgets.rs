//! Budgets from every source: the real binary on a simulated machine, with doubles of the kubelet and of the API server.

mod driver;

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::api_server::{self, ApiServer};
use crate::harness::{Exporter, Machine, Scrape};
use crate::kubelet::{self, Kubelet};

const GIB: f64 = (1u64 << 30) as f64;
const GPU: &str = "GPU-11111111-2222-3333-4444-555555555555";
const LIMIT: &str = "gpu_workload_memory_limit_bytes";
const OVER: &str = "gpu_workload_memory_over_limit_seconds_total";
const PROMISED: &str = "gpu_memory_promised_bytes";

/// A process of a container, which is named by a digit.
fn process(pid: u32, gib: u32, container: char, more: &str) -> String {
    let scope = format!("cri-containerd-{}.scope", container.to_string().repeat(64));
    let slice = format!("kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e5{container}.slice");
    let cgroup = format!("0::/kubepods.slice/{slice}/{scope}");
    format!("[[process]]\npid = {pid}\nmemory = \"{gib}GiB\"\ncgroup = \"{cgroup}\"\n{more}\n")
}

fn environment(limit: &str) -> String {
    format!("environment = [\"PATH=/bin\", 'VRAM_EXPORTER_GPU_MEMORY_LIMIT={limit}']")
}

/// A machine with one H200, and its cluster.
struct Node {
    machine: Machine,
    runtime: Runtime,
    api: ApiServer,
    kubelet: Option<Kubelet>,
}

impl Node {
    fn new(processes: &[String]) -> Self {
        let gpu = format!("seed = 5\n[[gpu]]\nmodel = \"H200\"\nuuid = \"{GPU}\"\n");
        let machine = Machine::new(&(gpu + &processes.concat()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let api = runtime.block_on(ApiServer::start());
        Self { machine, runtime, api, kubelet: None }
    }

    /// Adds or replaces a pod with the container `main`, which runs if it is named by a digit.
    fn put(&self, name: &str, container: Option<char>, metadata: &Value, limits: &Value) {
        let id = container.map(|container| format!("containerd://{}", container.to_string().repeat(64)));
        let running: Vec<_> = id.iter().map(|id| ("main", id.as_str())).collect();
        let mut pod = api_server::pod("team-b", name, &running);
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
        if container.is_none() {
            pod["status"]["phase"] = "Pending".into();
        }
        self.api.put(pod);
    }

    fn annotate(&self, name: &str, container: Option<char>, annotations: &Value) {
        self.put(name, container, &json!({"annotations": annotations}), &json!({}));
    }

    fn socket(&self) -> PathBuf {
        self.machine.folder.path().join("kubelet.sock")
    }

    /// Starts a kubelet that allocates device ids to pods and has these ids in all.
    fn allocate(&mut self, given: &[(&str, &[&str])], all: &[&str]) {
        let pod =
            |(name, ids): &(&str, &[&str])| kubelet::pod("team-b", name, vec![kubelet::devices("nvidia.com/gpu", ids)]);
        let kubelet = Kubelet::start(&self.socket(), &kubelet::List { pods: given.iter().map(pod).collect() });
        let devices = vec![kubelet::devices("nvidia.com/gpu", all)];
        kubelet.allocatable(&kubelet::Allocatable { devices, ..kubelet::Allocatable::default() });
        self.kubelet = Some(kubelet);
    }

    fn export(&self) -> Exporter {
        let api = format!("--kubernetes.api-server={}", self.api.url());
        let socket = format!("--kubernetes.pod-resources={}", self.socket().display());
        let mut flags = vec!["--kubernetes.node-name=node-1", "--process.interval=100ms", &api];
        if self.kubelet.is_some() {
            flags.extend([socket.as_str(), "--kubernetes.pod-resources-interval=1s"]);
        }
        self.machine.export(&flags)
    }
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
    let exporter = node.export();
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
    node.allocate(&[("first", &all[..1]), ("second", &all[1..3])], &all);
    let exporter = node.export();
    let scrape = exporter.scrape_until("the shares", |s| of(s, LIMIT, "second", "time_slicing").is_some());
    assert_eq!(of(&scrape, LIMIT, "first", "time_slicing"), Some((total(&scrape) / 4.0).floor()));
    assert_eq!(of(&scrape, LIMIT, "second", "time_slicing"), Some((total(&scrape) / 2.0).floor()));
    assert_eq!((scrape.all(OVER).count(), scrape.all(PROMISED).count()), (0, 0));
}

#[test]
fn the_size_of_a_mig_device_is_a_limit() {
    let scrape = Machine::built_in("mig-h100").once(&[]);
    let mut devices = 0;
    for series in scrape.all(LIMIT) {
        let mig = series.label("mig_uuid").unwrap();
        assert_eq!(series.label("source"), Some("mig"));
        assert_eq!(Some(series.value), scrape.value("gpu_mig_memory_total_bytes", &[("mig_uuid", mig)]), "{mig}");
        devices += 1;
    }
    assert!(devices > 0 && scrape.all(PROMISED).count() == 0, "{devices}");
}

#[test]
fn a_limit_that_changes_applies_at_once_and_its_seconds_go_on() {
    let node = Node::new(&[process(11, 10, 'a', "")]);
    let declare = |limit: &str| node.annotate("p", Some('a'), &json!({"vram-exporter/gpu-memory-limit": limit}));
    declare("20Gi");
    let exporter = node.export();
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
    let exporter = node.export();
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
    node.allocate(&[("reservation", &[GPU])], &[GPU]);
    let exporter = node.export();
    let promised = |s: &Scrape| s.value(PROMISED, &[("uuid", GPU)]);
    let scrape =
        exporter.scrape_until("both fractions", |s| promised(s).is_some_and(|bytes| (bytes - total(s)).abs() <= 1.0));
    let reserved = scrape.value("gpu_memory_reserved_bytes", &[]).unwrap();
    assert!(promised(&scrape).unwrap() > total(&scrape) - reserved, "the two do not fit");
    assert_eq!((scrape.all(LIMIT).count(), scrape.all("gpu_workload_processes").count()), (0, 0));
    // A pod with a GPU of its own and a budget of our own, and one that has ended.
    node.annotate("ended", None, &json!({"hami.io/vgpu-devices-allocated": format!("{GPU},NVIDIA,4096,1:;")}));
    exporter.scrape_until("a third one", |s| promised(s).is_some_and(|bytes| bytes > total(s) + 3.9 * GIB));
    let mut ended = api_server::pod("team-b", "ended", &[]);
    ended["metadata"]["annotations"] = json!({"hami.io/vgpu-devices-allocated": format!("{GPU},NVIDIA,4096,1:;")});
    ended["status"]["phase"] = "Succeeded".into();
    node.api.put(ended);
    exporter.scrape_until("its end", |s| promised(s).is_some_and(|bytes| bytes <= total(s)));
    node.api.delete("team-b", "first");
    let left = exporter.scrape_until("one fraction", |s| promised(s).is_some_and(|bytes| bytes < total(s) / 2.0));
    assert_eq!(promised(&left), Some((total(&left) * 0.4).floor()));
    // What a user writes does not lower what the scheduler has promised, and no pod counts with more than the GPU.
    let own = json!({"gpu-fraction": "0.4", "vram-exporter/gpu-memory-limit": "1"});
    node.put("second", None, &group(own), &json!({}));
    node.annotate("huge", None, &json!({"hami.io/vgpu-devices-allocated": format!("{GPU},NVIDIA,99999999,0:;")}));
    let capped = exporter.scrape_until("the huge one", |s| promised(s).is_some_and(|bytes| bytes > total(s)));
    assert_eq!(promised(&capped), Some((total(&capped) * 0.4).floor() + total(&capped)));
    // While the API server does not answer, pods may have gone or come.
    node.runtime.block_on(node.api.stop());
    exporter.scrape_until("no sum", |s| promised(s).is_none());
}

#[test]
fn the_kubelet_places_a_container_that_has_not_started() {
    let mut node = Node::new(&[]);
    node.annotate("waits", None, &json!({"vram-exporter/gpu-memory-limit": "7Gi"}));
    node.annotate("elsewhere", None, &json!({"vram-exporter/gpu-memory-limit": "9Gi"}));
    node.allocate(&[("waits", &[GPU])], &[GPU]);
    let exporter = node.export();
    let scrape = exporter.scrape_until("the promise", |s| s.value(PROMISED, &[]).is_some());
    assert_eq!(scrape.value(PROMISED, &[("uuid", GPU)]), Some(7.0 * GIB));
}

#[test]
fn a_wrong_annotation_is_no_limit_and_one_fault_until_it_changes() {
    let node = Node::new(&[process(11, 10, 'a', ""), process(12, 10, 'b', "")]);
    node.annotate("wrong", Some('a'), &json!({"vram-exporter/gpu-memory-limit": "20GB\n\u{202e}"}));
    node.annotate("right", Some('b'), &json!({"gpu-memory": "1024"}));
    let exporter = node.export();
    let known = |s: &Scrape| of(s, LIMIT, "right", "kai").is_some() && faults(s) > 0.0;
    let scrape = exporter.scrape_until("the other limit and the fault", known);
    assert_eq!((scrape.all(LIMIT).count(), faults(&scrape)), (1, 1.0));
    let reasons = [("source", "budget"), ("reason", "malformed")];
    assert_eq!(scrape.value("vram_exporter_faults_by_reason_total", &reasons), Some(1.0));
    let log = exporter.log();
    assert!(log.contains("team-b/wrong") && log.contains("such as 20Gi"), "{log}");
    // The same pod in another state, then with other annotations.
    let wrong = json!({"annotations": {"vram-exporter/gpu-memory-limit": "20GB\n\u{202e}"}, "generation": 2});
    node.put("wrong", Some('a'), &wrong, &json!({"cpu": "1"}));
    node.annotate("right", Some('b'), &json!({"gpu-memory": "2048"}));
    let same = exporter.scrape_until("another limit", |s| of(s, LIMIT, "right", "kai") == Some(2.0 * GIB));
    assert_eq!(faults(&same), 1.0);
    node.annotate("wrong", Some('a'), &json!({"vram-exporter/gpu-memory-limit": "-1", "gpu-fraction": "2"}));
    let twice = exporter.scrape_until("two more faults", |s| faults(s) == 3.0);
    assert_eq!(of(&twice, LIMIT, "wrong", "annotation"), None);
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
