//! `--demo`: the whole product on simulated GPUs.
//!
//! A simulated machine has a simulated cluster too: the scenario describes its containers, so only a server that the
//! configuration names is queried for them. Its processes also report about their allocators, if the scenario specifies
//! that. A key that would have no effect beside a simulated machine is refused.
//!
//! The simulator is built in, but the exporter does not call it directly: it opens the simulator as a library, like the
//! real driver, and every output states that the GPUs are simulated.

mod allocators;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

pub use allocators::SimulatedAllocators;

use crate::config::Config;
use crate::nvml::Library;
use crate::snapshot::{
    Allocation, Allocations, Claim, ClaimAllocation, Device, DeviceName, PodContainer, Pods, PoolDevice,
};

/// The simulator's library in the demo's folder.
const LIBRARY: &str = "libnvml_sim.so";
/// The folder of the simulated `/proc` within the demo's folder.
const PROCFS: &str = "proc";
/// The file in the simulated `/proc` that describes the containers of the cluster.
const CONTAINERS: &str = "containers";
/// The name of the cluster's resource for a whole GPU.
const RESOURCE: &str = "nvidia.com/gpu";
/// The temporary folder, and the folder that is writable even if a container's root file system is read-only.
const TEMPORARY: [&str; 2] = ["/tmp", "/dev/shm"];

/// Why a program without the simulator refuses the flag.
#[cfg(not(feature = "demo"))]
const NOT_BUILT_IN: &str = "--demo: this program has no simulated GPUs; it was built without the feature `demo`";

/// Checks that a scenario describes a machine. Nothing is opened or written.
///
/// # Errors
/// When the scenario is invalid, the program has no simulator, or the system cannot load it.
pub fn check(scenario: &str) -> Result<()> {
    simulator(scenario).map(drop)
}

/// The built-in scenarios, each with a sentence that describes it.
///
/// # Errors
/// When the program has no simulator.
#[cfg(feature = "demo")]
pub fn scenarios() -> Result<Vec<(&'static str, &'static str)>> {
    Ok(nvml_sim::scenarios().map(|name| (name, nvml_sim::describe(name).unwrap_or_default())).collect())
}

/// The built-in scenarios: there are none.
///
/// # Errors
/// Always, because the program has no simulator.
#[cfg(not(feature = "demo"))]
pub fn scenarios() -> Result<Vec<(&'static str, &'static str)>> {
    Err(anyhow!(NOT_BUILT_IN))
}

/// The scenario used if `--demo` has no value.
const DEFAULT_SCENARIO: &str = "demo";

/// Something that the default scenario shows within a minute, and the metric that shows it.
struct Sight {
    what: &'static str,
    metric: &'static str,
}

const TOUR: [Sight; 6] = [
    Sight {
        what: "GPU 0: kernel_tests runs for 1.5 s and holds 22 GiB for 120 ms of that: a reading every 15 s does not show it",
        metric: "gpu_process_memory_peak_bytes",
    },
    Sight {
        what: "GPUs 0 and 1: pod llama-13b-0 trains at 66 GiB with peaks of 94 GiB; on GPU 1, 5 GiB belong to no process",
        metric: "gpu_memory_window_peak_bytes, gpu_memory_unattributed_bytes",
    },
    Sight {
        what: "GPU 2: after 20 s, import.py reaches the memory limit of the GPU and ends: an incident records what each process held",
        metric: "gpu_memory_pressure_seconds_total",
    },
    Sight {
        what: "GPU 3: a notebook keeps 31 GiB, needs little more than 1 GiB and does nothing, and embedder.service leaks",
        metric: "gpu_process_idle_seconds, gpu_memory_needed_bytes",
    },
    Sight { what: "GPU 3: pod notebook-7 has the GPU allocated and uses nothing", metric: "gpu_allocation_info" },
    Sight {
        what: "GPUs 4 and 5: nvidia-smi shows both as 100 % busy, but the SMs of GPU 4 are active 11 % of the time: it waits for data",
        metric: "gpu_utilization_ratio, gpu_engine_active_seconds_total",
    },
];

/// What the page of a demo points out to the reader.
pub fn sights(scenario: &str) -> Vec<&'static str> {
    let tour = if scenario == DEFAULT_SCENARIO { &TOUR[..] } else { &[] };
    tour.iter().map(|sight| sight.what).collect()
}

/// The first lines of a demo: where to look, and what the default scenario shows. `page` is the URL of the landing
/// page, `metrics` that of the metrics.
pub fn introduction(scenario: &str, page: &str, metrics: &str) -> Vec<String> {
    let mut lines = vec![
        format!("the page is at {page} and the metrics are at {metrics}"),
        "the same with Prometheus and Grafana: docker compose -f deploy/docker-compose.yml up --build".to_owned(),
    ];
    if scenario == DEFAULT_SCENARIO {
        lines.extend(TOUR.map(|Sight { what, metric }| format!("{what} ({metric})")));
    }
    lines
}

/// The bytes of the simulator's library, which can be used only by this process. Fails if the scenario is invalid or the
/// system's loader is too old.
#[cfg(feature = "demo")]
fn simulator(scenario: &str) -> Result<Vec<u8>> {
    nvml_sim::check(scenario).map_err(|why| anyhow!("--demo={scenario} does not describe a machine: {why}"))?;
    nvml_sim::image().map_err(|old| anyhow!("--demo: {old}"))
}

#[cfg(not(feature = "demo"))]
fn simulator(_: &str) -> Result<Vec<u8>> {
    Err(anyhow!(NOT_BUILT_IN))
}

/// A simulated machine. When it is dropped, its folder, which contains its `/proc`, is removed.
#[derive(Debug)]
pub struct SimulatedMachine {
    scenario: OsString,
    folder: TempDir,
    cluster: Option<SimulatedCluster>,
}

/// The cluster of a simulated machine.
#[derive(Debug, Clone)]
pub struct SimulatedCluster {
    pods: Pods,
    allocated: Arc<Vec<Allocation>>,
    claimed: Arc<Vec<ClaimAllocation>>,
    allocatable: Arc<Vec<Device>>,
}

impl SimulatedCluster {
    /// Reads the simulator's lines: id, namespace, pod, name and the UUIDs of allocated devices, separated by tabs; with a
    /// claim, its name and what is known about it before `DEVICE=UUID`. `None` if there is no container and so no cluster.
    fn read(text: &str) -> Option<Self> {
        let (mut containers, mut allocated, mut claimed) = (HashMap::new(), Vec::new(), Vec::new());
        for line in text.lines() {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next();
            let (id, namespace, pod, container) = (next()?, next()?, next()?, next()?);
            let holder = Arc::new(PodContainer { namespace, pod, container });
            containers.insert(id, holder.clone());
            let (mut claim, mut memory, mut may_hold) = (None, None, true);
            for field in fields {
                match field.split_once('=') {
                    None => allocated.push(Allocation { holder: holder.clone(), device: device(field) }),
                    Some(("claim", name)) => {
                        claim = Some(Arc::new(Claim { namespace: holder.namespace.clone(), name: name.to_owned() }));
                    }
                    Some(("memory", bytes)) => memory = bytes.parse().ok(),
                    Some(("admin", _)) => may_hold = false,
                    Some((name, uuid)) if may_hold => {
                        let (holder, claim) = (holder.clone(), claim.clone()?);
                        let (name, device) = (pool_device(name), device(uuid.to_owned()).device);
                        claimed.push(ClaimAllocation { holder, claim, name, device, memory });
                    }
                    Some(_) => {}
                }
            }
        }
        number_shares(&mut allocated);
        let mut allocatable: Vec<_> = allocated.iter().map(|allocation| allocation.device.clone()).collect();
        allocatable.sort_unstable_by_key(|device| format!("{device:?}"));
        allocatable.dedup();
        let pods = Pods { up: Some(true), containers: Arc::new(containers), ..Pods::default() };
        let (allocated, claimed, allocatable) = (Arc::new(allocated), Arc::new(claimed), Arc::new(allocatable));
        let cluster = Self { pods, allocated, claimed, allocatable };
        (!cluster.pods.containers.is_empty()).then_some(cluster)
    }

    /// What the API server would report.
    pub fn pods(&self) -> Pods {
        self.pods.clone()
    }

    /// What the kubelet would report at this moment.
    pub fn allocations(&self) -> Allocations {
        Allocations {
            up: Some(true),
            at: Some(Instant::now()),
            allocated: self.allocated.clone(),
            claimed: self.claimed.clone(),
            allocatable: Some(self.allocatable.clone()),
            ..Allocations::default()
        }
    }
}

/// Numbers the shares of a device that is allocated to several containers, as a device plugin does under time-slicing.
fn number_shares(allocated: &mut [Allocation]) {
    let mut containers: HashMap<DeviceName, u32> = HashMap::new();
    for allocation in &*allocated {
        *containers.entry(allocation.device.device.clone()).or_default() += 1;
    }
    let mut next: HashMap<DeviceName, u32> = HashMap::new();
    for device in allocated.iter_mut().map(|allocation| &mut allocation.device) {
        if containers.get(&device.device).is_some_and(|&containers| containers > 1) {
            let share = next.entry(device.device.clone()).or_default();
            device.replica = Some(share.to_string());
            *share += 1;
        }
    }
}

/// A device in the pool of NVIDIA's driver.
fn pool_device(name: &str) -> PoolDevice {
    let [driver, pool, device] = ["gpu.nvidia.com", "node-1", name].map(str::to_owned);
    PoolDevice { driver, pool, device, share: None }
}

fn device(uuid: String) -> Device {
    let device = if uuid.starts_with("MIG-") { DeviceName::Mig(uuid) } else { DeviceName::Gpu(uuid) };
    Device { resource: RESOURCE.to_owned(), device, replica: None }
}

/// The places for the demo's folder: the one in the environment variable `TMPDIR`, or else the usual ones.
fn places() -> Vec<PathBuf> {
    match std::env::var_os("TMPDIR").filter(|named| !named.is_empty()) {
        Some(named) => vec![named.into()],
        None => TEMPORARY.map(PathBuf::from).to_vec(),
    }
}

/// Creates a folder with the simulator's library in the first of the places that can be written to. Nothing in it is
/// executed, so the place may be mounted `noexec`. No other user may enter it, because the library loaded from it is
/// trusted.
fn folder(places: &[PathBuf], library: &[u8]) -> Result<TempDir> {
    let mut failed = None;
    for place in places {
        let mut builder = tempfile::Builder::new();
        builder.prefix("vram-exporter-demo-").permissions(Permissions::from_mode(0o700));
        let created = builder.tempdir_in(place).and_then(|folder| {
            std::fs::write(folder.path().join(LIBRARY), library)?;
            Ok(folder)
        });
        match created {
            Ok(folder) => return Ok(folder),
            Err(error) => failed = Some(error),
        }
    }
    let looked = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ");
    let cause = failed.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
    Err(cause).with_context(|| {
        format!(
            "--demo needs a temporary folder for its simulated /proc, and none can be created in {looked}; set TMPDIR to \
             another one"
        )
    })
}

impl SimulatedMachine {
    /// Creates the folder for the simulator's library and the `/proc` of its processes, and opens the library once.
    ///
    /// # Errors
    /// When the scenario is invalid, no temporary folder can be created, or the simulator cannot be opened.
    pub fn prepare(scenario: &str) -> Result<Self> {
        let folder = folder(&places(), &simulator(scenario)?)?;
        let mut machine = Self { scenario: scenario.into(), folder, cluster: None };
        // Opened once here: unlike a driver, which may appear later, a simulator that cannot be opened now cannot be
        // opened later either.
        let _open = machine.library().open().with_context(|| format!("--demo={scenario} cannot be opened"))?;
        let containers = std::fs::read_to_string(machine.procfs().join(CONTAINERS));
        machine.cluster = containers.ok().and_then(|text| SimulatedCluster::read(&text));
        Ok(machine)
    }

    fn procfs(&self) -> PathBuf {
        self.folder.path().join(PROCFS)
    }

    /// The cluster of the machine; `None` if the scenario has none.
    pub fn cluster(&self) -> Option<SimulatedCluster> {
        self.cluster.clone()
    }

    /// What its processes report about their allocators, with peaks over a window of this length.
    pub fn allocators(&self, window: Duration) -> SimulatedAllocators {
        SimulatedAllocators::new(self.procfs(), window)
    }

    /// The library to open.
    pub fn library(&self) -> Library {
        Library::Simulator {
            library: self.folder.path().join(LIBRARY),
            scenario: self.scenario.clone(),
            procfs: self.procfs(),
        }
    }

    /// Replaces the host's `/proc` and users in the configuration with those of the simulated machine.
    pub fn adapt(&self, mut config: Config) -> Config {
        config.path.procfs = self.procfs();
        config.path.passwd = Some(self.procfs().join("passwd"));
        config
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_several_containers_is_shared() {
        let text = "c1\tteam\ta\tmain\tGPU-1\tGPU-2\nc2\tteam\tb\tmain\tGPU-1\nc3\tteam\tc\tmain\n";
        let cluster = SimulatedCluster::read(text).unwrap();
        let shares: Vec<_> = cluster.allocated.iter().map(|held| held.device.replica.as_deref()).collect();
        assert_eq!(shares, [Some("0"), None, Some("1")]);
        assert_eq!(cluster.allocatable.len(), 3);
    }

    #[test]
    fn a_device_of_a_claim_is_held_unless_the_claim_is_for_monitoring() {
        let text = "c1\tteam\ta\tmain\tclaim=a-c\tmemory=7\tgpu-0=GPU-1\tgpu-1-mig-2=MIG-2\n\
                    c2\tteam\tb\tmain\tclaim=b-c\tadmin=\tgpu-0=GPU-1\n";
        let cluster = SimulatedCluster::read(text).unwrap();
        let line =
            |one: &ClaimAllocation| format!("{} {} {:?} {:?}", one.claim.name, one.name.device, one.device, one.memory);
        let shown: Vec<_> = cluster.claimed.iter().map(line).collect();
        assert_eq!(shown, ["a-c gpu-0 Gpu(\"GPU-1\") Some(7)", "a-c gpu-1-mig-2 Mig(\"MIG-2\") Some(7)"]);
        assert_eq!((cluster.allocated.len(), cluster.allocatable.len(), cluster.pods.containers.len()), (0, 0, 2));
    }

    #[test]
    fn the_folder_is_created_in_the_first_writable_place() {
        let good = tempfile::tempdir().unwrap();
        let places = ["/dev/full".into(), "/nonexistent".into(), good.path().to_owned()];
        let created = folder(&places, b"library").unwrap();
        assert_eq!(created.path().parent(), Some(good.path()));
        assert_eq!(std::fs::metadata(created.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read(created.path().join(LIBRARY)).unwrap(), b"library");
        let refused = folder(&places[..2], b"library").unwrap_err().to_string();
        assert!(refused.contains("/dev/full or /nonexistent"), "{refused}");
    }
}
