//! A whole node of a cluster: the real binary on a simulated machine, together with a kubelet and an API server that
//! speak the real protocols.

use serde_json::json;

use crate::harness::{Scrape, Series};
use crate::node::{GIB, GPU, NODE, Node, id, process};

/// The GPU memory of a CUDA context.
const CONTEXT: f64 = 520.0 * (1u64 << 20) as f64;

fn workload(scrape: &Scrape, family: &str, name: &str) -> Option<f64> {
    scrape.value(&format!("gpu_workload_{family}"), &[("workload", name)])
}

/// The pods in the labels of a family.
fn pods<'s>(scrape: &'s Scrape, family: &'s str) -> Vec<&'s str> {
    let mut pods: Vec<_> = scrape.all(family).filter_map(|s| s.label("pod")).collect();
    pods.sort_unstable();
    pods
}

#[test]
fn under_time_slicing_each_pod_has_its_memory_and_an_idle_one_is_listed() {
    let mut node = Node::new(&[process(11, 10, 'a', ""), process(12, 20, 'b', ""), process(13, 5, 'b', "")]);
    node.run("team-b", "notebook-7", 'a');
    node.run("team-b", "train-0", 'b');
    node.run("team-b", "asleep", 'c');
    let replica = |n: u32| format!("{GPU}::{n}");
    let (first, second, third) = (replica(0), replica(1), replica(2));
    node.allocate(&[("notebook-7", &[&first]), ("train-0", &[&second]), ("asleep", &[&third])]);
    let scrape = node.machine.once(&[NODE, &node.api_flag(), &node.kubelet_flag()]);

    assert_eq!(workload(&scrape, "memory_used_bytes", "team-b/notebook-7/main"), Some(10.0 * GIB + CONTEXT));
    assert_eq!(workload(&scrape, "memory_used_bytes", "team-b/train-0/main"), Some(25.0 * GIB + 2.0 * CONTEXT));
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &[("pod", "notebook-7")]), Some(10.0 * GIB + CONTEXT));
    assert_eq!(pods(&scrape, "gpu_process_memory_used_bytes"), ["notebook-7", "train-0", "train-0"]);
    assert_eq!(pods(&scrape, "gpu_workload_processes"), ["notebook-7", "train-0"]);
    assert_eq!(pods(&scrape, "gpu_allocation_info"), ["asleep", "notebook-7", "train-0"]);
    let asleep = [("pod", "asleep"), ("uuid", GPU), ("gpu", "0"), ("resource", "nvidia.com/gpu"), ("replica", "2")];
    assert_eq!(scrape.value("gpu_allocation_info", &asleep), Some(1.0));
    for up in ["vram_exporter_pod_resources_up", "vram_exporter_kubernetes_api_up"] {
        assert_eq!(scrape.value(up, &[]), Some(1.0), "{up}");
    }
}

#[test]
fn an_mps_server_is_shown_under_its_own_pod_and_its_clients_under_theirs() {
    let server = process(20, 1, 'd', "command = [\"nvidia-cuda-mps-server\"]");
    let clients = [process(21, 10, 'a', "type = \"mps\""), process(22, 20, 'b', "type = \"mps\"")];
    let mut node = Node::new(&[server, clients.concat()]);
    node.run("team-b", "first", 'a');
    node.run("team-b", "second", 'b');
    node.allocate(&[("first", &[GPU])]);
    let flags = [NODE, &node.api_flag(), &node.kubelet_flag()];
    let scrape = node.machine.once(&flags);
    // The server's container is unknown to the cluster, and it does not run in the pod to which the GPU is allocated.
    let of_server = scrape.all("gpu_process_info").find(|s| s.label("pid") == Some("20")).unwrap();
    assert_eq!((of_server.label("pod"), of_server.label("workload")), (None, Some("container:dddddddddddd")));
    assert_eq!(workload(&scrape, "memory_used_bytes", "team-b/first/main"), Some(10.0 * GIB + CONTEXT));
    assert_eq!(workload(&scrape, "memory_used_bytes", "team-b/second/main"), Some(20.0 * GIB + CONTEXT));
    node.run("gpu-operator", "mps-control-daemon", 'd');
    let scrape = node.machine.once(&flags);
    let of_server = scrape.all("gpu_process_info").find(|s| s.label("pid") == Some("20")).unwrap();
    assert_eq!(of_server.label("pod"), Some("mps-control-daemon"));
}

#[test]
fn the_labels_that_are_asked_for_are_shown_of_pods_with_a_gpu_and_no_others() {
    let mut node = Node::new(&[process(11, 10, 'a', ""), process(12, 5, 'd', "")]);
    let labels = |team: &str| json!({"labels": {"team": team, "example.com/costCenter": "a\"b\\c", "token": "s3cret"}});
    node.put("notebook-7", Some('a'), &labels("research"), &json!({}));
    node.put("asleep", Some('b'), &labels("x{},=\n"), &json!({}));
    node.put("web", Some('c'), &labels("no-gpu"), &json!({}));
    node.put("plain", Some('d'), &json!({"labels": {"app": "plain"}}), &json!({}));
    node.allocate(&[("asleep", &[GPU])]);
    let flags = [NODE, &node.api_flag(), &node.kubelet_flag(), "--kubernetes.pod-labels=team,example.com/costCenter"];
    let exporter = node.machine.export(&flags);
    const FAMILY: &str = "gpu_pod_labels_info";
    let scrape = exporter.scrape_until("both pods", |s| pods(s, FAMILY) == ["asleep", "notebook-7"]);
    let label = |pod: &str, name: &str| {
        let series = scrape.all(FAMILY).find(|series| series.label("pod") == Some(pod)).unwrap();
        series.label(name).map(str::to_owned)
    };
    assert_eq!(label("notebook-7", "namespace").as_deref(), Some("team-b"));
    assert_eq!(label("notebook-7", "label_team").as_deref(), Some("research"));
    assert_eq!(label("notebook-7", "label_example_com_cost_center").as_deref(), Some("a\"b\\c"));
    assert_eq!(label("asleep", "label_team").as_deref(), Some("x{},=\n"), "a hostile value");
    assert!(!scrape.text.contains("s3cret") && !scrape.text.contains("label_token"), "{}", scrape.text);
    let carries = |s: &&Series| s.name != FAMILY && s.labels.keys().any(|label| label.starts_with("label_"));
    assert!(!scrape.series.iter().any(|series| carries(&series)), "no other family has the labels");

    node.put("notebook-7", Some('a'), &labels("sales"), &json!({}));
    let team = [("pod", "notebook-7"), ("label_team", "sales")];
    exporter.scrape_until("the new label", |s| s.value(FAMILY, &team) == Some(1.0));
    // Its process still holds memory, and so do its labels.
    node.api.delete("team-b", "notebook-7");
    node.put("later", Some('e'), &labels("z"), &json!({}));
    node.machine.control(&process(13, 1, 'e', ""));
    let after = exporter.scrape_until("another pod", |s| pods(s, FAMILY).contains(&"later"));
    assert_eq!(after.value(FAMILY, &team), Some(1.0));
}

#[test]
fn the_kubelet_alone_names_holders_and_no_process() {
    let mut node = Node::new(&[process(11, 10, 'a', "")]);
    node.allocate(&[("notebook-7", &[GPU])]);
    let scrape = node.machine.once(&[&node.kubelet_flag()]);
    assert_eq!(pods(&scrape, "gpu_allocation_info"), ["notebook-7"]);
    assert_eq!(pods(&scrape, "gpu_process_memory_used_bytes"), [""; 0]);
    assert_eq!(workload(&scrape, "processes", "container:aaaaaaaaaaaa"), Some(1.0));
    assert_eq!(scrape.value("vram_exporter_kubernetes_api_up", &[]), None);
}

#[test]
fn a_pod_that_has_ended_holds_nothing_whatever_the_kubelet_lists() {
    let mut node = Node::new(&[]);
    node.run("team-b", "train-0", 'a');
    node.run("team-b", "notebook-7", 'b');
    // A kubelet older than 1.34 continues to list train-0 after it has ended.
    node.allocate(&[("notebook-7", &[GPU]), ("train-0", &[GPU])]);
    let exporter =
        node.machine.export(&[NODE, &node.api_flag(), &node.kubelet_flag(), "--kubernetes.pod-resources-interval=1s"]);
    let both = |s: &Scrape| pods(s, "gpu_allocation_info") == ["notebook-7", "train-0"];
    exporter.scrape_until("both", both);
    let mut ended = crate::api_server::pod("team-b", "train-0", &[("main", &format!("containerd://{}", id('a')))]);
    ended["status"]["phase"] = "Failed".into();
    node.api.put(ended);
    exporter.scrape_until("the end", |s| pods(s, "gpu_allocation_info") == ["notebook-7"]);
    // A pod of the same name may be running by now: without the API server the kubelet is the only source.
    node.runtime.block_on(node.api.stop());
    exporter.scrape_until("both", both);
    node.run("team-b", "train-0", 'c');
    node.runtime.block_on(node.api.resume());
    exporter.scrape_until("the new one", |s| both(s) && s.value("vram_exporter_kubernetes_api_up", &[]) == Some(1.0));
}

#[test]
fn a_late_name_is_used_and_the_peak_stays_with_its_workload() {
    // The process holds 40 GiB until the exporter has shown this, and 5 GiB by the time its name becomes known. Its
    // start time is the same, so it counts as the same process.
    let holding = |gib| process(11, gib, 'a', "start = \"0s\"");
    let node = Node::new(&[]);
    node.machine.control(&holding(40));
    let exporter = node.machine.export(&[NODE, &node.api_flag()]);
    let unnamed = "container:aaaaaaaaaaaa";
    let holds = |s: &Scrape, gib: f64| workload(s, "memory_used_bytes", unnamed) == Some(gib * GIB + CONTEXT);
    exporter.scrape_until("the peak", |s| holds(s, 40.0));
    node.machine.control(&holding(5));
    let before = exporter.scrape_until("the fall", |s| holds(s, 5.0));
    assert_eq!(workload(&before, "memory_peak_bytes", unnamed), Some(40.0 * GIB + CONTEXT));
    node.run("team-b", "notebook-7", 'a');
    let named = "team-b/notebook-7/main";
    let scrape = exporter.scrape_until("its name", |s| workload(s, "processes", named) == Some(1.0));
    assert_eq!(workload(&scrape, "memory_peak_bytes", named), Some(40.0 * GIB + CONTEXT));
    assert_eq!(workload(&scrape, "memory_peak_bytes", unnamed), None, "it is the same workload");
    assert_eq!(scrape.value("gpu_process_memory_used_bytes", &[("pod", "notebook-7")]), Some(5.0 * GIB + CONTEXT));
}

#[test]
fn while_the_api_server_is_down_known_names_stay_and_none_is_invented() {
    let mut node = Node::new(&[process(11, 10, 'a', "")]);
    node.run("team-b", "notebook-7", 'a');
    let exporter = node.machine.export(&[NODE, &node.api_flag(), "--kubernetes.timeout=1s"]);
    let named = |s: &Scrape| workload(s, "processes", "team-b/notebook-7/main") == Some(1.0);
    exporter.scrape_until("the name", named);
    node.runtime.block_on(node.api.stop());
    exporter.scrape_until("the end is noticed", |s| s.value("vram_exporter_kubernetes_api_up", &[]) == Some(0.0));
    node.machine.control(&process(12, 20, 'b', ""));
    let away = exporter.scrape_until("a newcomer", |s| workload(s, "processes", "container:bbbbbbbbbbbb") == Some(1.0));
    assert!(named(&away));
    node.run("team-b", "train-0", 'b');
    node.runtime.block_on(node.api.resume());
    let back = exporter.scrape_until("its name", |s| workload(s, "processes", "team-b/train-0/main") == Some(1.0));
    assert!(named(&back));
    assert_eq!(back.value("vram_exporter_kubernetes_api_up", &[]), Some(1.0));
}
