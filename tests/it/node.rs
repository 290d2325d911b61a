//! A node of a cluster: a simulated machine, with doubles of the API server and of the kubelet that speak the real protocols.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::api_server::{ApiServer, pod};
use crate::harness::Machine;
use crate::kubelet::{self, Allocatable, Kubelet, List, devices};

/// The UUID of the node's GPU.
pub(crate) const GPU: &str = "GPU-11111111-2222-3333-4444-555555555555";
pub(crate) const NODE: &str = "--kubernetes.node-name=node-1";
pub(crate) const GIB: f64 = (1u64 << 30) as f64;

/// A container id of 64 digits.
pub(crate) fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// A process in a container of a pod. The container is named by a digit.
pub(crate) fn process(pid: u32, gib: u32, container: char, more: &str) -> String {
    let slice = format!("kubepods-pod1d5c7a0e_52f1_4b55_9f0e_6a2b8c3d4e5{container}.slice");
    let cgroup = format!("0::/kubepods.slice/{slice}/cri-containerd-{}.scope", id(container));
    format!("[[process]]\npid = {pid}\nmemory = \"{gib}GiB\"\ncgroup = \"{cgroup}\"\n{more}\n")
}

/// A machine with one H200, and its cluster.
pub(crate) struct Node {
    pub(crate) machine: Machine,
    pub(crate) runtime: Runtime,
    pub(crate) api: ApiServer,
    pub(crate) kubelet: Option<Kubelet>,
}

impl Node {
    pub(crate) fn new(processes: &[String]) -> Self {
        Self::with_gpus(&[GPU], processes)
    }

    /// A machine with an H200 for each UUID, and its cluster.
    pub(crate) fn with_gpus(uuids: &[&str], processes: &[String]) -> Self {
        let gpu = |uuid: &&str| format!("[[gpu]]\nmodel = \"H200\"\nuuid = \"{uuid}\"\n");
        let gpus: String = uuids.iter().map(gpu).collect();
        Self::on(Machine::new(&format!("seed = 5\n{gpus}{}", processes.concat())))
    }

    /// A machine, and its cluster.
    pub(crate) fn on(machine: Machine) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let api = runtime.block_on(ApiServer::start());
        Self { machine, runtime, api, kubelet: None }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.machine.folder.path().join("kubelet.sock")
    }

    /// Adds a pod with the container `main` to the API server.
    pub(crate) fn run(&self, namespace: &str, name: &str, container: char) {
        self.api.put(pod(namespace, name, &[("main", &format!("containerd://{}", id(container)))]));
    }

    /// Adds or replaces a pod of `team-b` with the container `main`, which runs if it is named by a digit.
    pub(crate) fn put(&self, name: &str, container: Option<char>, metadata: &Value, limits: &Value) {
        let id = container.map(|container| format!("containerd://{}", id(container)));
        let running: Vec<_> = id.iter().map(|id| ("main", id.as_str())).collect();
        let mut pod = pod("team-b", name, &running);
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
        if container.is_none() {
            pod["status"]["phase"] = "Pending".into();
        }
        self.api.put(pod);
    }

    pub(crate) fn annotate(&self, name: &str, container: Option<char>, annotations: &Value) {
        self.put(name, container, &json!({"annotations": annotations}), &json!({}));
    }

    /// Starts a kubelet that has allocated these devices to pods of `team-b`.
    pub(crate) fn allocate(&mut self, given: &[(&str, &[&str])]) -> &Kubelet {
        let pod = |(name, ids): &(&str, &[&str])| kubelet::pod("team-b", name, vec![devices("nvidia.com/gpu", ids)]);
        let list = List { pod_resources: given.iter().map(pod).collect() };
        self.kubelet.insert(Kubelet::start(&self.socket(), &list))
    }

    /// The same, with these devices in all.
    pub(crate) fn allocate_of(&mut self, given: &[(&str, &[&str])], all: &[&str]) {
        self.allocate(given).allocatable(&Allocatable { devices: vec![devices("nvidia.com/gpu", all)] });
    }

    pub(crate) fn api_flag(&self) -> String {
        format!("--kubernetes.api-server={}", self.api.url())
    }

    pub(crate) fn kubelet_flag(&self) -> String {
        format!("--kubernetes.pod-resources={}", self.socket().display())
    }
}
