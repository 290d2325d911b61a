//! `--demo`: the whole product on simulated GPUs.
//!
//! A simulated machine has a simulated cluster too: what the scenario says of containers, nobody has to be asked for.
//!
//! The exporter never links the simulator: it loads `libnvml_sim.so` at run time through the same door as the real
//! library, and shows everywhere that the GPUs are simulated.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;

use crate::config::Config;
use crate::nvml::{Library, OpenError};
use crate::snapshot::{AllocatedDevice, Allocation, Allocations, DeviceName, PodContainer, Pods};

/// The simulator's file name.
const SIMULATOR: &str = "libnvml_sim.so";
/// The file in the simulated `/proc` that says what a cluster would know of the containers.
const CONTAINERS: &str = "containers";
/// What a cluster would hand a whole GPU out as.
const RESOURCE: &str = "nvidia.com/gpu";
/// Where packages and images put it.
const INSTALLED: &str = "/usr/lib/vram-exporter";

/// Why there can be no demo.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The simulator's library is not there.
    #[error(
        "--demo needs {SIMULATOR}, and it is not at {}; it is built with the exporter unless the feature `demo` is off",
        looked.join(", ")
    )]
    NoSimulator {
        /// Where it was looked for.
        looked: Vec<String>,
    },
    /// No folder for the simulated `/proc`.
    #[error("--demo needs a temporary folder for its simulated /proc")]
    NoFolder(#[source] std::io::Error),
    /// The scenario is not good; what is wrong with it, the simulator writes to standard error.
    #[error("--demo={scenario} makes no machine")]
    Scenario {
        /// As it was asked for.
        scenario: String,
        /// What the simulator answered.
        #[source]
        cause: OpenError,
    },
}

/// A simulated machine. Its `/proc` is removed when this is dropped.
#[derive(Debug)]
pub struct SimulatedMachine {
    library: PathBuf,
    scenario: OsString,
    folder: TempDir,
    cluster: Option<SimulatedCluster>,
}

/// What a cluster would know of a simulated machine.
#[derive(Debug, Clone)]
pub struct SimulatedCluster {
    pods: Pods,
    allocated: Arc<Vec<Allocation>>,
    allocatable: Arc<Vec<AllocatedDevice>>,
}

impl SimulatedCluster {
    /// Reads the simulator's lines: id, namespace, pod, name and the UUIDs handed out, parted by tabs. `None` where there is
    /// no container, so no cluster.
    fn read(text: &str) -> Option<Self> {
        let (mut containers, mut allocated) = (HashMap::new(), Vec::new());
        for line in text.lines() {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next();
            let (id, namespace, pod, container) = (next()?, next()?, next()?, next()?);
            let holder = Arc::new(PodContainer { namespace, pod, container });
            containers.insert(id, holder.clone());
            allocated.extend(fields.map(|uuid| Allocation { holder: holder.clone(), device: device(uuid) }));
        }
        let mut allocatable: Vec<_> = allocated.iter().map(|allocation| allocation.device.clone()).collect();
        allocatable.sort_by(|a, b| format!("{:?}", a.device).cmp(&format!("{:?}", b.device)));
        allocatable.dedup();
        let pods = Pods { up: Some(true), containers: Arc::new(containers), ..Pods::default() };
        let cluster = Self { pods, allocated: Arc::new(allocated), allocatable: Arc::new(allocatable) };
        (!cluster.pods.containers.is_empty()).then_some(cluster)
    }

    /// What the API server would say.
    pub fn pods(&self) -> Pods {
        self.pods.clone()
    }

    /// What the kubelet would say now.
    pub fn allocations(&self) -> Allocations {
        Allocations {
            up: Some(true),
            at: Some(Instant::now()),
            allocated: self.allocated.clone(),
            allocatable: Some(self.allocatable.clone()),
        }
    }
}

fn device(uuid: String) -> AllocatedDevice {
    let device = if uuid.starts_with("MIG-") { DeviceName::Mig(uuid) } else { DeviceName::Gpu(uuid) };
    AllocatedDevice { resource: RESOURCE.to_owned(), device, replica: None }
}

impl SimulatedMachine {
    /// Finds the simulator and makes room for the `/proc` of its processes.
    ///
    /// # Errors
    /// When the simulator's library cannot be found, no temporary folder can be made, or the scenario is not good.
    pub fn prepare(scenario: &str) -> Result<Self, Error> {
        let executable = std::env::current_exe().ok();
        let beside = executable.as_deref().and_then(Path::parent);
        // Cargo leaves a dependency's library in `deps`.
        let folders = beside.map(|folder| [folder.to_owned(), folder.join("deps")]).into_iter().flatten();
        let places: Vec<PathBuf> = folders.chain([INSTALLED.into()]).map(|folder| folder.join(SIMULATOR)).collect();
        let Some(library) = places.iter().find(|place| place.is_file()).cloned() else {
            return Err(Error::NoSimulator {
                looked: places.iter().map(|place| place.display().to_string()).collect(),
            });
        };
        let folder = tempfile::Builder::new().prefix("vram-exporter-demo-").tempdir().map_err(Error::NoFolder)?;
        let mut machine = Self { library, scenario: scenario.into(), folder, cluster: None };
        // Tried once here: a driver may come later, a scenario that is wrong stays wrong.
        let opened = machine.library().open();
        let _open = opened.map_err(|cause| Error::Scenario { scenario: scenario.to_owned(), cause })?;
        let containers = std::fs::read_to_string(machine.folder.path().join(CONTAINERS));
        machine.cluster = containers.ok().and_then(|text| SimulatedCluster::read(&text));
        Ok(machine)
    }

    /// What a cluster would know of the machine; `None` where the scenario has none.
    pub fn cluster(&self) -> Option<SimulatedCluster> {
        self.cluster.clone()
    }

    /// The library to open.
    pub fn library(&self) -> Library {
        Library::Simulator {
            library: self.library.clone(),
            scenario: self.scenario.clone(),
            procfs: self.folder.path().to_owned(),
        }
    }

    /// The configuration with the simulated machine's `/proc` and users in place of the host's.
    pub fn adapt(&self, mut config: Config) -> Config {
        config.path.procfs = self.folder.path().to_owned();
        config.path.passwd = Some(self.folder.path().join("passwd"));
        config
    }
}
