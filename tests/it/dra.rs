//! The GPUs of claims (dynamic resource allocation): a follower of the kubelet, with a kubelet and an API server that speak the
//! real protocols. The answers have the form of those of Kubernetes 1.37 and of NVIDIA's driver.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::{Allocations, DeviceName, Driver, Gpu, MigDevice, Snapshot};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use vram_exporter::kubernetes::api::{self, LIST_AGAIN, Server};
use vram_exporter::kubernetes::kubelet::{PATIENCE, Settings, follow};

use crate::api_server::{ApiServer, Trouble, status};
use crate::harness::{eventually_or, until};
use crate::kubelet::{CdiDevice, DRIVER, Kubelet, List, POOL, Pod, claim, claiming};

mod served;

/// The UUID of the GPU with this number.
fn gpu(n: usize) -> String {
    format!("GPU-{n:08x}-2222-3333-4444-555555555555")
}

/// A slice of the pool with these devices, each with its attributes.
fn slice(name: &str, generation: u64, count: u64, devices: &[(&str, Value)]) -> Value {
    let device = |(name, attributes): &(&str, Value)| {
        json!({
            "name": name, "attributes": attributes, "capacity": {"memory": {"value": "143771Mi"}},
        })
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": name, "generateName": "00000-gpu.nvidia.com-node-1-"},
        "spec": {
            "driver": DRIVER, "nodeName": "node-1", "devices": devices.iter().map(device).collect::<Vec<_>>(),
            "pool": {"name": POOL, "generation": generation, "resourceSliceCount": count},
        },
    })
}

/// The attributes of a whole GPU, in the form of NVIDIA's driver.
fn whole(n: usize) -> Value {
    json!({
        "type": {"string": "gpu"}, "uuid": {"string": gpu(n)}, "productName": {"string": "NVIDIA H200"},
        "driverVersion": {"version": "580.159.4"}, "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
    })
}

/// A slice with four whole GPUs.
fn four() -> Value {
    slice("s0", 1, 1, &[("gpu-0", whole(0)), ("gpu-1", whole(1)), ("gpu-2", whole(2)), ("gpu-3", whole(3))])
}

/// A claim that was allocated these devices.
fn allocated(namespace: &str, name: &str, devices: &[&str], more: &Value) -> Value {
    let result = |device: &&str| {
        let mut result = json!({"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": namespace, "name": name, "uid": "1f4ab41d"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        "status": {
            "allocation": {"devices": {"results": devices.iter().map(result).collect::<Vec<_>>()}},
            "reservedFor": [{"resource": "pods", "name": name}],
        },
    })
}

/// A node whose driver has four GPUs, of which the last is divided into two MIG devices.
fn driver() -> Driver {
    let of = |n: usize| {
        let uuid = |mig: u32| format!("MIG-{mig:08x}-2222-3333-4444-555555555555");
        let mig = |index: u32, profile: &str| {
            Arc::new(MigDevice { index, uuid: uuid(index), profile: Some(profile.to_owned()), ..MigDevice::default() })
        };
        let mig = if n == 3 { vec![mig(0, "1g.18gb"), mig(1, "3g.71gb")] } else { Vec::new() };
        Arc::new(Gpu { index: n as u32, uuid: gpu(n), mig, ..Gpu::default() })
    };
    Driver { up: true, gpus: (0..4).map(of).collect(), ..Driver::default() }
}

/// The exporter's side: a follower with its snapshot and its faults, a kubelet and an API server.
struct Node {
    // Declared before the folder, so that the runtime is dropped first.
    runtime: Runtime,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    kubelet: Kubelet,
    api: ApiServer,
    folder: TempDir,
}

impl Node {
    /// A node with these pods.
    fn new(pods: &[Pod]) -> Self {
        let folder = TempDir::new().unwrap();
        let kubelet = Kubelet::start(&socket(folder.path()), &List { pod_resources: pods.to_vec() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let api = runtime.block_on(ApiServer::start());
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        snapshot.driver.store(Arc::new(driver()));
        Self { runtime, snapshot, faults, kubelet, api, folder }
    }

    fn follow(self) -> Self {
        self.follow_with(PATIENCE)
    }

    fn follow_with(self, patience: Duration) -> Self {
        let server = Server::At { url: self.api.url(), token_file: None, ca_file: None };
        let timeout = Duration::from_secs(10);
        let claims = api::Settings {
            server,
            node: "node-1".to_owned(),
            timeout,
            list_again: LIST_AGAIN,
            labels: Arc::default(),
        };
        self.start(Some(claims), patience)
    }

    fn start(self, claims: Option<api::Settings>, patience: Duration) -> Self {
        let (socket, interval, timeout) =
            (socket(self.folder.path()), Duration::from_millis(20), Duration::from_secs(10));
        let settings = Settings { socket, interval, timeout, claims, patience };
        self.runtime.spawn(follow(settings, self.snapshot.clone(), self.faults.clone()));
        self
    }

    /// From now on the kubelet lists these pods.
    fn list(&self, pods: &[Pod]) {
        self.kubelet.list(&List { pod_resources: pods.to_vec() });
    }

    fn now(&self) -> Arc<Allocations> {
        self.snapshot.allocations.load_full()
    }

    /// Waits until exactly these devices of claims are assigned.
    fn shows(&self, expected: &[String]) {
        eventually_or(&format!("{expected:?}"), || {
            let now = self.now();
            let is_settled = now.up == Some(true) && !now.pending && lines(&now) == expected;
            if is_settled { Ok(()) } else { Err(format!("{now:?}")) }
        });
    }

    fn count(&self, reason: Reason) -> u64 {
        self.faults.count(Source::ResourceClaims, reason)
    }

    fn counts(&self) -> Vec<(Reason, u64)> {
        let all = Source::ResourceClaims.reasons().map(|reason| (reason, self.count(reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Waits until the kubelet has been asked a few times more.
    fn rounds(&self) {
        let before = self.kubelet.lists();
        until("further rounds", || self.kubelet.lists() > before + 3);
    }

    /// The paths of the requests for claims.
    fn asked(&self) -> Vec<String> {
        let all = self.api.requests().into_iter().map(|request| request.path);
        all.filter(|path| path.contains("resourceclaims")).collect()
    }
}

fn socket(folder: &Path) -> std::path::PathBuf {
    folder.join("kubelet.sock")
}

/// The devices of claims, one line each.
fn lines(allocations: &Allocations) -> Vec<String> {
    let line = |one: &gpu_readings::snapshot::ClaimAllocation| {
        let (DeviceName::Gpu(uuid) | DeviceName::Mig(uuid)) = &one.device else { panic!("{one:?}") };
        let holder = &one.holder;
        format!("{}/{} {} {} {uuid}", holder.pod, holder.container, one.claim.name, one.name.device)
    };
    allocations.claimed.iter().map(line).collect()
}

/// A pod whose container `main` uses a claim of its own, with these devices.
fn own(pod: &str, devices: &[&str]) -> Pod {
    claiming("team", pod, &[("main", &[claim("team", &format!("{pod}-c"), devices)])])
}

/// Adds the claims of such pods to the API server.
fn put_own(api: &ApiServer, pods: &[(&str, &[&str])]) {
    for (pod, devices) in pods {
        api.put_claim(allocated("team", &format!("{pod}-c"), devices, &json!({})));
    }
}

/// The line of such a pod.
fn holds(pod: &str, n: usize) -> String {
    format!("{pod}/main {pod}-c gpu-{n} {}", gpu(n))
}

// ---- which GPU a claim has
// ------------------------------------------------------------------------------------------------------

#[test]
fn each_device_of_a_claim_is_the_gpu_that_its_slice_names() {
    let node = Node::new(&[own("whole", &["gpu-0"]), own("two", &["gpu-2", "gpu-1"])]);
    node.api.put(four());
    put_own(&node.api, &[("whole", &["gpu-0"]), ("two", &["gpu-1", "gpu-2"])]);
    let node = node.follow();
    node.shows(&[holds("two", 1), holds("two", 2), holds("whole", 0)]);
    node.rounds();
    assert_eq!((node.now().unassigned.len(), node.counts()), (0, Vec::new()));
    // Slices are selected by node, and a claim is read once, by its name.
    let mut asked = node.asked();
    asked.sort();
    let path = |name: &str| format!("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}");
    assert_eq!(asked, [path("two-c"), path("whole-c")]);
    for request in node.api.requests().iter().filter(|request| request.path.ends_with("/resourceslices")) {
        assert_eq!((&*request.method, &*request.query["fieldSelector"]), ("GET", "spec.nodeName=node-1"));
    }
}

/// What a class with `extendedResourceName` makes: the scheduler writes the claim, and both containers have both devices of it.
#[test]
fn the_claim_of_an_extended_resource_is_one_like_any_other() {
    let of = || claim("team", "extended-extended-resources-x2k4f", &["gpu-0", "gpu-1"]);
    let node = Node::new(&[claiming("team", "extended", &[("main", &[of()]), ("other", &[of()])])]);
    node.api.put(four());
    node.api.put_claim(allocated("team", "extended-extended-resources-x2k4f", &["gpu-0", "gpu-1"], &json!({})));
    let line = |container: &str, n: usize| {
        format!("extended/{container} extended-extended-resources-x2k4f gpu-{n} {}", gpu(n))
    };
    node.follow().shows(&[line("main", 0), line("main", 1), line("other", 0), line("other", 1)]);
}

#[test]
fn two_pods_of_one_claim_both_have_its_gpu() {
    let of = |pod: &str| claiming("team", pod, &[("main", &[claim("team", "shared", &["gpu-1"])])]);
    let node = Node::new(&[of("one"), of("two")]);
    node.api.put(four());
    node.api.put_claim(allocated("team", "shared", &["gpu-1"], &json!({})));
    let line = |pod: &str| format!("{pod}/main shared gpu-1 {}", gpu(1));
    let node = node.follow();
    node.shows(&[line("one"), line("two")]);
    assert_eq!(node.asked().len(), 1);
}

#[test]
fn a_claim_for_monitoring_holds_nothing() {
    let all = ["gpu-0", "gpu-1", "gpu-2"];
    let node = Node::new(&[own("train", &["gpu-0"]), own("watch", &all)]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    node.api.put_claim(allocated("team", "watch-c", &all, &json!({"adminAccess": true})));
    let node = node.follow();
    node.shows(&[holds("train", 0)]);
    assert_eq!((node.now().unassigned.len(), node.counts()), (0, Vec::new()));
}

#[test]
fn a_mig_device_is_found_by_its_uuid_or_by_its_profile_on_its_gpu() {
    let mig = |n: usize| format!("MIG-{n:08x}-2222-3333-4444-555555555555");
    let parent = json!({"string": gpu(3)});
    let with_uuid = json!({
        "type": {"string": "mig"}, "uuid": {"string": mig(0)}, "parentUUID": parent, "profile": {"string": "1g.18gb"},
    });
    // A dynamic MIG device has no UUID, before and after it is made.
    let without =
        json!({"type": {"string": "mig"}, "parentUUID": {"string": gpu(3)}, "profile": {"string": "3g.71gb"}});
    let node = Node::new(&[own("a", &["gpu-3-mig-1g18gb-19-6"]), own("b", &["gpu-3-mig-3g71gb-9-0"])]);
    node.api.put(slice("s0", 1, 1, &[("gpu-3-mig-1g18gb-19-6", with_uuid), ("gpu-3-mig-3g71gb-9-0", without)]));
    put_own(&node.api, &[("a", &["gpu-3-mig-1g18gb-19-6"]), ("b", &["gpu-3-mig-3g71gb-9-0"])]);
    node.follow().shows(&[
        format!("a/main a-c gpu-3-mig-1g18gb-19-6 {}", mig(0)),
        format!("b/main b-c gpu-3-mig-3g71gb-9-0 {}", mig(1)),
    ]);
}

// ---- slices and claims that come and go
// -----------------------------------------------------------------------------------------

/// A pod with a device of a pool of its own, whose slice names this GPU. The server sends its events in order, so once the pod is
/// on this GPU, everything before has been seen.
fn marker(node: &Node, n: usize) -> Pod {
    let mut slice = slice("marker", 1, 1, &[("gpu-9", whole(n))]);
    slice["spec"]["pool"]["name"] = "other".into();
    node.api.put(slice);
    let mut claim_of_node = allocated("team", "marker-c", &["gpu-9"], &json!({}));
    claim_of_node["status"]["allocation"]["devices"]["results"][0]["pool"] = "other".into();
    node.api.put_claim(claim_of_node);
    let mut of = claim("team", "marker-c", &["gpu-9"]);
    of.claim_resources[0].pool_name = "other".to_owned();
    claiming("team", "marker", &[("main", &[of])])
}

/// The line of the marker.
fn marked(n: usize) -> String {
    format!("marker/main marker-c gpu-9 {}", gpu(n))
}

#[test]
fn slices_that_vanish_take_no_gpu_from_a_pod_that_runs() {
    let node = Node::new(&[own("train", &["gpu-0"])]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"]), ("late", &["gpu-1"])]);
    let node = node.follow();
    node.shows(&[holds("train", 0)]);
    // A kubelet that restarts deletes the slices of its node. The driver publishes its pool again, in two slices.
    node.api.delete("", "s0");
    node.api.put(slice("s1", 2, 2, &[("gpu-0", whole(0))]));
    let marker_on = |n: usize| marker(&node, n);
    let both = [own("train", &["gpu-0"]), marker_on(2)];
    node.list(&both);
    node.shows(&[marked(2), holds("train", 0)]);
    node.list(&[&both[..], &[own("late", &["gpu-1"])]].concat());
    until("the newcomer, whose slice is not known", || node.now().unassigned.len() == 1);
    assert_eq!(lines(&node.now()), [marked(2), holds("train", 0)], "half of a pool is none");
    node.api.put(slice("s2", 2, 2, &[("gpu-1", whole(1))]));
    node.shows(&[holds("late", 1), marked(2), holds("train", 0)]);
    // The pod ends while the slices are away: what was known of its device is forgotten.
    node.api.delete("", "s1");
    let others = [own("late", &["gpu-1"]), marker_on(3)];
    node.list(&others);
    node.shows(&[holds("late", 1), marked(3)]);
    node.list(&[&others[..], &[own("train", &["gpu-0"])]].concat());
    until("the pod is back, and its slice is not", || node.now().unassigned.len() == 1);
    node.rounds();
    assert_eq!(lines(&node.now()), [holds("late", 1), marked(3)]);
    assert_eq!(node.counts(), [], "nobody has waited for long");
}

#[test]
fn a_device_that_is_moved_to_another_gpu_follows_its_slice() {
    let node = Node::new(&[own("train", &["gpu-0"])]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    let node = node.follow();
    node.shows(&[holds("train", 0)]);
    node.api.put(slice("s0", 2, 1, &[("gpu-0", whole(2))]));
    node.shows(&[format!("train/main train-c gpu-0 {}", gpu(2))]);
}

#[test]
fn a_new_claim_of_the_same_name_is_read_again() {
    let node = Node::new(&[own("train", &["gpu-0"])]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    let node = node.follow();
    node.shows(&[holds("train", 0)]);
    put_own(&node.api, &[("train", &["gpu-1"])]);
    node.list(&[own("train", &["gpu-1"])]);
    node.shows(&[holds("train", 1)]);
    assert_eq!((node.asked().len(), node.counts()), (2, Vec::new()));
}

/// A pod with a claim whose device has this name for the container runtime.
fn with_cdi(pod: &str, claim_name: &str, cdi: &str) -> Pod {
    let mut of = claim("team", claim_name, &["gpu-0"]);
    of.claim_resources[0].cdi_devices = vec![CdiDevice { name: cdi.to_owned() }];
    claiming("team", pod, &[("main", &[of])])
}

#[test]
fn a_new_claim_of_the_same_name_and_device_has_its_own_rights() {
    let first = with_cdi("train", "train-c", "k8s.gpu.nvidia.com/claim=uid-1-gpu-0");
    let node = Node::new(&[first]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    let node = node.follow();
    node.shows(&[holds("train", 0)]);
    // The claim is deleted and created again between two answers. NVIDIA's driver has the uid of a claim in the names.
    node.api.put_claim(allocated("team", "train-c", &["gpu-0"], &json!({"adminAccess": true})));
    node.list(&[with_cdi("train", "train-c", "k8s.gpu.nvidia.com/claim=uid-2-gpu-0")]);
    node.shows(&[]);
    assert_eq!((node.asked().len(), node.now().unassigned.len(), node.counts()), (2, 0, Vec::new()));
    // The same with names that do not tell claims apart, but in another pod: no claim is deleted while its pod is there.
    let plain = |pod: &str| with_cdi(pod, "shared", "example.com/gpu=gpu-0");
    node.api.put_claim(allocated("team", "shared", &["gpu-0"], &json!({"adminAccess": true})));
    node.list(&[plain("one")]);
    until("the claim", || node.asked().len() == 3 && !node.now().pending);
    node.list(&[plain("one"), plain("two")]);
    node.rounds();
    assert_eq!(node.asked().len(), 3, "the second pod of a claim");
    node.api.put_claim(allocated("team", "shared", &["gpu-0"], &json!({})));
    node.list(&[plain("three")]);
    node.shows(&[format!("three/main shared gpu-0 {}", gpu(0))]);
    assert_eq!((node.asked().len(), node.counts()), (4, Vec::new()));
}

#[test]
fn a_claim_that_is_not_prepared_has_no_device_yet() {
    let node = Node::new(&[own("train", &[])]).follow();
    node.rounds();
    assert_eq!((lines(&node.now()).len(), node.now().unassigned.len()), (0, 0));
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    node.list(&[own("train", &["gpu-0"])]);
    node.shows(&[holds("train", 0)]);
}

// ---- what is asked, and what is a fault
// -----------------------------------------------------------------------------------------

#[test]
fn a_node_without_claims_asks_for_nothing() {
    let node = Node::new(&[crate::kubelet::pod("team", "train", vec![])]).follow();
    until("a round", || node.kubelet.lists() > 3);
    assert!(node.api.requests().is_empty(), "{:?}", node.api.requests());
}

#[test]
fn what_is_no_gpu_of_nvidia_is_passed_over_and_its_claim_is_not_read() {
    let node = Node::new(&[own("net", &["eth1", "card0"]), own("train", &["gpu-0"])]);
    let card = json!({"uuid": {"string": "0000:3d:00.0-0x0bda"}, "family": {"string": "Flex"}});
    let port = json!({"dra.net/ifName": {"string": "eth1"}, "dra.net/rdma": {"bool": true}});
    node.api.put(slice("s0", 1, 1, &[("eth1", port), ("card0", card), ("gpu-0", whole(0))]));
    put_own(&node.api, &[("train", &["gpu-0"])]);
    let node = node.follow_with(Duration::ZERO);
    node.shows(&[holds("train", 0)]);
    node.rounds();
    assert_eq!(node.now().unassigned.len(), 0);
    assert_eq!(node.asked().len(), 1);
}

/// Waits until the reason is counted, and checks that it is counted once although the kubelet lists the device again and again.
/// `unread`: the claim cannot be read, so that it stays unknown what it has of a GPU.
fn is_one_fault(node: &Node, reason: Reason, unread: bool) {
    until("the fault", || node.count(reason) > 0);
    until("nothing but the claim is awaited", || node.now().pending == unread);
    node.rounds();
    assert_eq!(node.counts(), [(reason, 1)]);
    let now = node.now();
    assert_eq!((lines(&now).len(), now.unassigned.len(), now.up), (0, 1, Some(true)));
}

#[test]
fn a_device_that_cannot_be_assigned_is_one_fault_with_its_reason() {
    let missing = json!({"uuid": {"string": "GPU-ffffffff-2222-3333-4444-555555555555"}});
    let ambiguous = json!({"parentUUID": {"string": gpu(3)}, "profile": {"string": "7g.141gb"}});
    let cases = [
        ("no slice has it", whole(1), "gpu-1", Reason::NotFound),
        ("the driver does not list it", missing, "gpu-0", Reason::NotFound),
        ("no MIG device of this profile", ambiguous, "gpu-0", Reason::Inconsistent),
    ];
    for (what, attributes, name, reason) in cases {
        let node = Node::new(&[own("train", &["gpu-0"])]);
        node.api.put(slice("s0", 1, 1, &[(name, attributes)]));
        put_own(&node.api, &[("train", &["gpu-0"])]);
        // Long enough for the list of the slices.
        let node = node.follow_with(Duration::from_secs(2));
        is_one_fault(&node, reason, false);
        // The way back.
        node.api.put(four());
        node.api.delete("", "s0");
        node.api.put(four());
        node.shows(&[holds("train", 0)]);
        assert_eq!(node.now().unassigned.len(), 0, "{what}");
    }
}

/// A slice without `spec.nodeName` (for all nodes, or for selected ones) is not among the slices of this node.
#[test]
fn a_pool_without_a_slice_on_this_node_is_one_fault_for_all_its_claims() {
    let of_pool = |pod: &str| {
        let mut of = claim("team", &format!("{pod}-c"), &["gpu-0"]);
        of.claim_resources[0].pool_name = "rack-7".to_owned();
        claiming("team", pod, &[("main", &[of])])
    };
    let node = Node::new(&[own("train", &["gpu-0"]), of_pool("a"), of_pool("b")]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    let node = node.follow_with(Duration::from_secs(2));
    node.shows(&[holds("train", 0)]);
    assert_eq!((node.counts(), node.now().unassigned.len()), (vec![(Reason::NotFound, 1)], 2));
    // Later claims are known to be such, and nothing is awaited.
    node.list(&[own("train", &["gpu-0"])]);
    node.rounds();
    node.list(&[own("train", &["gpu-0"]), of_pool("c")]);
    until("the later claim", || node.now().unassigned.len() == 1);
    assert!(!node.now().pending);
    node.rounds();
    assert_eq!((node.counts(), node.asked().len()), (vec![(Reason::NotFound, 1)], 1));
    // The driver has only been slow to publish its pool.
    let mut late = slice("late", 1, 1, &[("gpu-0", whole(2))]);
    late["spec"]["pool"]["name"] = "rack-7".into();
    node.api.put(late);
    let mut of_c = allocated("team", "c-c", &["gpu-0"], &json!({}));
    of_c["status"]["allocation"]["devices"]["results"][0]["pool"] = "rack-7".into();
    node.api.put_claim(of_c);
    node.shows(&[format!("c/main c-c gpu-0 {}", gpu(2)), holds("train", 0)]);
    assert_eq!(node.now().unassigned.len(), 0);
}

#[test]
fn consumed_memory_is_that_of_all_shares_and_what_cannot_be_read_is_a_fault() {
    let consumed = |memory: &str| json!({"shareID": memory, "consumedCapacity": {"memory": memory, "shares": "1"}});
    // NVIDIA's driver does not report which share is which: the kubelet lists the device once or twice.
    let twice = || claim("team", "twice-c", &["gpu-1", "gpu-1"]);
    let named = |pod: &str| {
        let mut of = claim("team", "named-c", &["gpu-2", "gpu-2"]);
        for (share, device) in ["2Gi", "5Gi"].into_iter().zip(&mut of.claim_resources) {
            device.share_id = Some(share.to_owned());
        }
        claiming("team", pod, &[("main", &[of])])
    };
    let pods = ["whole", "share", "free", "odd"].map(|pod| own(pod, &["gpu-0"]));
    let node = Node::new(&[&pods[..], &[claiming("team", "twice", &[("main", &[twice()])]), named("named")]].concat());
    node.api.put(four());
    put_own(&node.api, &[("whole", &["gpu-0"])]);
    for (pod, memory) in [("share", "20Gi"), ("free", "0"), ("odd", "20GB")] {
        node.api.put_claim(allocated("team", &format!("{pod}-c"), &["gpu-0"], &consumed(memory)));
    }
    for (name, device) in [("twice-c", "gpu-1"), ("named-c", "gpu-2")] {
        let mut of = allocated("team", name, &[device], &consumed("2Gi"));
        let second = allocated("team", name, &[device], &consumed("5Gi"));
        let results = |claim: &Value| claim["status"]["allocation"]["devices"]["results"][0].clone();
        of["status"]["allocation"]["devices"]["results"] = json!([results(&of), results(&second)]);
        node.api.put_claim(of);
    }
    let node = node.follow();
    until("all claims", || node.now().claimed.len() == 7);
    let memory =
        |one: &gpu_readings::snapshot::ClaimAllocation| (one.holder.pod.clone(), one.memory.map(|bytes| bytes >> 30));
    let shown: Vec<_> = node.now().claimed.iter().map(memory).collect();
    let expected = [
        ("free", None),
        ("named", Some(2)),
        ("named", Some(5)),
        ("odd", None),
        ("share", Some(20)),
        ("twice", Some(7)),
        ("whole", None),
    ];
    assert_eq!(shown, expected.map(|(pod, memory)| (pod.to_owned(), memory)));
    node.rounds();
    let budgets = node.faults.count(Source::Budget, Reason::Malformed);
    assert_eq!((node.counts(), budgets), (Vec::new(), 1));
}

#[test]
fn a_claim_that_may_not_be_read_holds_nothing_and_is_asked_for_again() {
    let node = Node::new(&[own("train", &["gpu-0"])]);
    node.api.put(four());
    put_own(&node.api, &[("train", &["gpu-0"])]);
    node.api.claim_with(Some(Trouble::Status(403, status(403, "resourceclaims is forbidden"), None)));
    let node = node.follow_with(Duration::from_secs(2));
    is_one_fault(&node, Reason::NoPermission, true);
    node.api.claim_with(None);
    node.shows(&[holds("train", 0)]);
}

#[test]
fn slices_that_may_not_be_listed_are_a_fault_of_the_claims() {
    let node = Node::new(&[own("train", &["gpu-0"])]);
    node.api.slices_with(Some(Trouble::Status(404, status(404, "no such resource"), None)));
    let node = node.follow();
    until("the fault", || node.count(Reason::NotFound) > 0);
    assert_eq!(node.faults.count(Source::KubernetesApi, Reason::NotFound), 0);
    assert_eq!(node.now().unassigned.len(), 1);
}

#[test]
fn without_an_api_server_a_claim_is_a_fault_at_once() {
    let node = Node::new(&[own("train", &["gpu-0"])]).start(None, PATIENCE);
    is_one_fault(&node, Reason::NotFound, false);
}

#[test]
fn hostile_answers_are_faults_and_nothing_is_assigned() {
    let node = Node::new(&[claiming("team", "a", &[("main", &[claim("../team", "x/../../pods", &["gpu-0"])])])]);
    node.api.put(four());
    let node = node.follow_with(Duration::from_secs(2));
    is_one_fault(&node, Reason::Malformed, true);
    assert_eq!(node.asked(), [""; 0], "no such path is requested");
}
