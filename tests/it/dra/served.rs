//! What is served about the GPUs of claims: by the real binary on a simulated machine.

use serde_json::json;

use super::{allocated, four, gpu, slice, whole};
use crate::dcgm::Served;
use crate::harness::{Machine, Scrape, eventually};
use crate::kubelet::{DRIVER, Kubelet, List, POOL, claim, claiming, devices, pod};
use crate::node::{GIB, NODE, Node, id, process};

/// The family of the listener that is looked at.
const USED: &str = "DCGM_FI_DEV_FB_USED";

/// A node with four GPUs and the processes of containers: (container, GPU).
fn node(running: &[(char, u32)]) -> Node {
    let process = |(at, &(container, gpu)): (usize, &(char, u32))| {
        process(11 + at as u32, 10, container, &format!("gpus = [{gpu}]"))
    };
    let uuids: Vec<_> = (0..4).map(gpu).collect();
    let uuids: Vec<_> = uuids.iter().map(String::as_str).collect();
    let node = Node::with_gpus(&uuids, &running.iter().enumerate().map(process).collect::<Vec<_>>());
    node.api.put(four());
    node
}

fn flags(node: &Node) -> [String; 4] {
    let interval = "--kubernetes.pod-resources-interval=1s".to_owned();
    [NODE.to_owned(), node.api_flag(), node.kubelet_flag(), interval]
}

/// The listener of dcgm-exporter's families on the node.
fn served(node: &Node) -> Served {
    Served::on_with(&node.machine, &flags(node).each_ref().map(String::as_str))
}

/// The labels of the series of a family on a GPU, without those that say which GPU it is, and without those of claims and of
/// device plugins.
fn common(scrape: &Scrape, family: &str, gpu: &str) -> Vec<String> {
    const OWN: [&str; 10] =
        ["gpu", "uuid", "UUID", "pci_bus_id", "claim", "claim_namespace", "driver", "pool", "device", "resource"];
    let is_own = |name: &str| OWN.contains(&name) || name.starts_with("dra_");
    let here = scrape.all(family).filter(|series| series.label("gpu") == Some(gpu));
    here.map(|series| {
        let labels = series.labels.iter().filter(|(name, _)| !is_own(name));
        labels.map(|(name, value)| format!("{name}={value} ")).collect()
    })
    .collect()
}

/// The pods and containers that a family names on a GPU.
fn named(scrape: &Scrape, family: &str, gpu: &str) -> Vec<String> {
    let here = scrape.all(family).filter(|series| series.label("gpu") == Some(gpu));
    let names = here.filter_map(|series| Some(format!("{}/{}", series.label("pod")?, series.label("container")?)));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_claim_and_a_device_plugin_give_equal_labels() {
    let mut node = node(&[('a', 0), ('b', 1)]);
    node.run("team-b", "plugged", 'a');
    node.run("team-b", "claiming", 'b');
    let claimed = claiming("team-b", "claiming", &[("main", &[claim("team-b", "claiming-c", &["gpu-1"])])]);
    let plugged = pod("team-b", "plugged", vec![devices("nvidia.com/gpu", &[&gpu(0)])]);
    node.kubelet = Some(Kubelet::start(&node.socket(), &List { pod_resources: vec![claimed, plugged] }));
    node.api.put_claim(allocated("team-b", "claiming-c", &["gpu-1"], &json!({})));

    let scrape = node.machine.once(&flags(&node).each_ref().map(String::as_str));
    let uuid = gpu(1);
    let own = [
        ("pod", "claiming"),
        ("claim", "claiming-c"),
        ("claim_namespace", "team-b"),
        ("driver", DRIVER),
        ("pool", POOL),
        ("device", "gpu-1"),
        ("gpu", "1"),
        ("uuid", uuid.as_str()),
    ];
    assert_eq!(scrape.value("gpu_allocation_info", &own), Some(1.0));
    let both = |scrape: &Scrape, family: &str| {
        let [plugged, claiming] = ["0", "1"].map(|gpu| common(scrape, family, gpu));
        assert_eq!(plugged.len(), 1, "{plugged:?}");
        assert_eq!(plugged, claiming.iter().map(|text| text.replace("claiming", "plugged")).collect::<Vec<_>>());
    };
    both(&scrape, "gpu_allocation_info");

    let served = served(&node);
    // Until the claim has been read, the pod is named by its process.
    let scrape = eventually("the claim", || {
        let scrape = served.scrape();
        let is_known = scrape.all(USED).any(|series| series.label("dra_claim_name").is_some());
        (is_known && named(&scrape, USED, "0").len() == 1).then_some(scrape)
    });
    both(&scrape, USED);
    let names = ["dra_claim_name", "dra_claim_namespace", "dra_driver_name", "dra_pool_name", "dra_device_name"];
    let series = scrape.all(USED).find(|series| series.label("gpu") == Some("1")).unwrap();
    assert_eq!(names.map(|name| series.label(name).unwrap()), ["claiming-c", "team-b", DRIVER, POOL, "gpu-1"]);
    assert_eq!((series.label("dra_mig_profile"), series.label("dra_mig_device_uuid")), (None, None));
}

/// One claim with two requests, and a container for each: the kubelet lists both devices for both.
#[test]
fn of_several_containers_of_a_claim_those_that_use_a_gpu_are_named() {
    let mut node = node(&[('a', 0)]);
    let [first, second] = ['a', 'b'].map(|container| format!("containerd://{}", id(container)));
    node.api.put(crate::api_server::pod("team-b", "split", &[("first", &first), ("second", &second)]));
    let of = || claim("team-b", "split-c", &["gpu-0", "gpu-1"]);
    let split = claiming("team-b", "split", &[("first", &[of()]), ("second", &[of()])]);
    node.kubelet = Some(Kubelet::start(&node.socket(), &List { pod_resources: vec![split] }));
    node.api.put_claim(allocated("team-b", "split-c", &["gpu-0", "gpu-1"], &json!({})));

    let scrape = node.machine.once(&flags(&node).each_ref().map(String::as_str));
    for gpu in ["0", "1"] {
        let both = ["split/first", "split/second"];
        assert_eq!(named(&scrape, "gpu_allocation_info", gpu), both, "each may use it");
    }
    // On the listener a GPU that neither uses yet belongs to one of two, so neither is named.
    let served = served(&node);
    eventually("the first user", || {
        let scrape = served.scrape();
        let names = ["0", "1"].map(|gpu| named(&scrape, USED, gpu));
        (names[0] == ["split/first"] && names[1].is_empty()).then_some(())
    });
    node.machine.control(&process(50, 5, 'b', "gpus = [1]"));
    eventually("the second user", || (named(&served.scrape(), USED, "1") == ["split/second"]).then_some(()));
}

#[test]
fn as_long_as_a_claim_has_no_gpu_pods_are_named_by_their_processes() {
    let mut node = node(&[('a', 2)]);
    node.run("team-b", "lost", 'a');
    let lost = claiming("team-b", "lost", &[("main", &[claim("team-b", "lost-c", &["gpu-7"])])]);
    node.kubelet = Some(Kubelet::start(&node.socket(), &List { pod_resources: vec![lost] }));
    node.api.put_claim(allocated("team-b", "lost-c", &["gpu-7"], &json!({})));
    let served = served(&node);
    eventually("the process", || (named(&served.scrape(), USED, "2") == ["lost/main"]).then_some(()));
    // As soon as its slice is there, the claim says which GPU the container has, wherever its process runs.
    node.api.put(slice("s1", 2, 1, &[("gpu-7", whole(3))]));
    eventually("the claim", || {
        let scrape = served.scrape();
        let names = ["2", "3"].map(|gpu| named(&scrape, USED, gpu));
        (names[0].is_empty() && names[1] == ["lost/main"]).then_some(())
    });
}

#[test]
fn a_mig_device_of_a_claim_has_its_pod_its_profile_and_its_uuid() {
    let gpu = gpu(0);
    let model = format!("[[gpu]]\nmodel = \"H100\"\nuuid = \"{gpu}\"\nmig = [\"3g.40gb\", \"\", \"2g.20gb\"]\n");
    let mut node = Node::on(Machine::new(&format!("seed = 5\n{model}")));
    let scrape = node.machine.once(&[]);
    let mig: Vec<_> = scrape.all("gpu_mig_memory_total_bytes").filter_map(|series| series.label("mig_uuid")).collect();
    let (uuid, name) = (mig[1], "gpu-0-mig-2g20gb-14-4");
    let attributes = json!({
        "type": {"string": "mig"}, "uuid": {"string": uuid}, "parentUUID": {"string": gpu},
        "profile": {"string": "2g.20gb"},
    });
    node.api.put(slice("s0", 1, 1, &[(name, attributes)]));
    node.api.put_claim(allocated("team-b", "slice-c", &[name], &json!({})));
    let one = claiming("team-b", "slice", &[("main", &[claim("team-b", "slice-c", &[name])])]);
    node.kubelet = Some(Kubelet::start(&node.socket(), &List { pod_resources: vec![one] }));
    let served = served(&node);
    eventually("the pod", || {
        let scrape = served.scrape();
        let series = scrape.all(USED).find(|series| series.label("pod") == Some("slice"))?;
        assert_eq!(series.label("dra_claim_name"), Some("slice-c"));
        assert_eq!(
            (series.label("dra_mig_profile"), series.label("dra_mig_device_uuid")),
            (Some("2g.20gb"), Some(uuid))
        );
        assert_eq!(series.label("GPU_I_PROFILE"), Some("2g.20gb"));
        Some(())
    });
}

/// A GPU that several claims share: one claim of two containers, of which one runs, and one of a pod that has not started.
#[test]
fn what_a_claim_consumes_is_a_budget_that_is_promised_once() {
    let mut node = node(&[('a', 0), ('c', 0)]);
    let [first, second, third] = ['a', 'b', 'c'].map(|container| format!("containerd://{}", id(container)));
    node.api.put(crate::api_server::pod("team-b", "both", &[("first", &first), ("second", &second)]));
    node.api.put(crate::api_server::pod("team-b", "whole", &[("main", &third)]));
    let shared = || claim("team-b", "both-c", &["gpu-0"]);
    let own = |pod: &str| claiming("team-b", pod, &[("main", &[claim("team-b", &format!("{pod}-c"), &["gpu-0"])])]);
    let both = claiming("team-b", "both", &[("first", &[shared()]), ("second", &[shared()])]);
    node.kubelet =
        Some(Kubelet::start(&node.socket(), &List { pod_resources: vec![both, own("waits"), own("whole")] }));
    for (claim, memory) in [("both-c", "20Gi"), ("waits-c", "10Gi"), ("whole-c", "0")] {
        let consumed = json!({"consumedCapacity": {"memory": memory}});
        node.api.put_claim(allocated("team-b", claim, &["gpu-0"], &consumed));
    }
    let exporter = node.machine.export(&flags(&node).each_ref().map(String::as_str));
    let limit = "gpu_workload_memory_limit_bytes";
    let scrape = exporter.scrape_until("the limit", |scrape| scrape.all(limit).count() > 0);
    let of_first = [("pod", "both"), ("container", "first"), ("source", "claim")];
    assert_eq!((scrape.value(limit, &of_first), scrape.all(limit).count()), (Some(20.0 * GIB), 1));
    let over = scrape.value("gpu_workload_memory_over_limit_seconds_total", &of_first);
    assert_eq!((over, scrape.value("gpu_memory_promised_bytes", &[("gpu", "0")])), (Some(0.0), Some(30.0 * GIB)));
    assert_eq!(scrape.all("gpu_memory_promised_bytes").count(), 1);
}
