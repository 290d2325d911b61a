//! `--demo`: the whole product on simulated GPUs.
//!
//! A simulated machine has a simulated cluster too: what the scenario says of containers, nobody has to be asked for.
//!
//! The simulator is built in, and the exporter calls none of its driver functions itself: they are opened as a library, through
//! the same door as the real one, and are shown everywhere as simulated.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;

use crate::config::Config;
use crate::nvml::{Library, OpenError};
use crate::snapshot::{AllocatedDevice, Allocation, Allocations, DeviceName, PodContainer, Pods};

/// The file in the demo's folder by which the simulator is opened.
const LIBRARY: &str = "libnvml_sim.so";
/// The folder of the simulated `/proc` within the demo's folder.
const PROCFS: &str = "proc";
/// The file in the simulated `/proc` that says what a cluster would know of the containers.
const CONTAINERS: &str = "containers";
/// What a cluster would hand a whole GPU out as.
const RESOURCE: &str = "nvidia.com/gpu";
/// The temporary folder, and what can be written where that one cannot: under a container's read-only root file system.
const TEMPORARY: [&str; 2] = ["/tmp", "/dev/shm"];

/// Why there can be no demo.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program was built without the simulator.
    #[error("--demo: this program has no simulated GPUs; it was built without the feature `demo`")]
    NotBuiltIn,
    /// No folder for the simulated `/proc`.
    #[error(
        "--demo needs a temporary folder for its simulated /proc, and none can be made in {looked}; TMPDIR names another"
    )]
    NoFolder {
        /// Where it was tried.
        looked: String,
        /// Why not in the last of these.
        #[source]
        cause: std::io::Error,
    },
    /// The scenario is not good.
    #[error("--demo={scenario} makes no machine: {why}")]
    Scenario {
        /// As it was asked for.
        scenario: String,
        /// What is wrong with it.
        why: String,
    },
    /// The simulator cannot be opened.
    #[error("--demo={scenario} cannot be opened")]
    Open {
        /// As it was asked for.
        scenario: String,
        /// What the simulator answered.
        #[source]
        cause: OpenError,
    },
}

/// Whether a scenario makes a machine. Nothing is opened or written.
///
/// # Errors
/// When the scenario is not good, or the program has no simulator.
pub fn check(scenario: &str) -> Result<(), Error> {
    simulator(scenario).map(drop)
}

/// The bytes of the simulator's library, of use to this process alone, where the scenario is good.
#[cfg(feature = "demo")]
fn simulator(scenario: &str) -> Result<Vec<u8>, Error> {
    let refused = |why| Error::Scenario { scenario: scenario.to_owned(), why };
    nvml_sim::check(scenario).map_err(refused).map(|()| nvml_sim::image())
}

#[cfg(not(feature = "demo"))]
fn simulator(_: &str) -> Result<Vec<u8>, Error> {
    Err(Error::NotBuiltIn)
}

/// A simulated machine. Its folder, which holds its `/proc`, is removed when this is dropped.
#[derive(Debug)]
pub struct SimulatedMachine {
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

/// Where the demo's folder may be: the one place that the environment names, or else the usual ones.
fn places() -> Vec<PathBuf> {
    match std::env::var_os("TMPDIR").filter(|named| !named.is_empty()) {
        Some(named) => vec![named.into()],
        None => TEMPORARY.map(PathBuf::from).to_vec(),
    }
}

/// A folder with the simulator's library in it, in the first place that can be written. Nothing in it is executed, so it may be
/// mounted `noexec`; nobody else may enter it, since what is loaded from it is trusted.
fn folder(places: &[PathBuf], library: &[u8]) -> Result<TempDir, Error> {
    let mut failed = None;
    for place in places {
        let mut builder = tempfile::Builder::new();
        builder.prefix("vram-exporter-demo-").permissions(Permissions::from_mode(0o700));
        let made = builder.tempdir_in(place).and_then(|folder| {
            std::fs::write(folder.path().join(LIBRARY), library)?;
            Ok(folder)
        });
        match made {
            Ok(folder) => return Ok(folder),
            Err(error) => failed = Some(error),
        }
    }
    let looked = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ");
    Err(Error::NoFolder { looked, cause: failed.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()) })
}

impl SimulatedMachine {
    /// Makes room for the simulator's library and the `/proc` of its processes, and opens it once.
    ///
    /// # Errors
    /// When the scenario is not good, no temporary folder can be made, or the simulator cannot be opened.
    pub fn prepare(scenario: &str) -> Result<Self, Error> {
        let folder = folder(&places(), &simulator(scenario)?)?;
        let mut machine = Self { scenario: scenario.into(), folder, cluster: None };
        // Tried once here: a driver may come later, a simulator that does not open never will.
        let opened = machine.library().open();
        let _open = opened.map_err(|cause| Error::Open { scenario: scenario.to_owned(), cause })?;
        let containers = std::fs::read_to_string(machine.procfs().join(CONTAINERS));
        machine.cluster = containers.ok().and_then(|text| SimulatedCluster::read(&text));
        Ok(machine)
    }

    fn procfs(&self) -> PathBuf {
        self.folder.path().join(PROCFS)
    }

    /// What a cluster would know of the machine; `None` where the scenario has none.
    pub fn cluster(&self) -> Option<SimulatedCluster> {
        self.cluster.clone()
    }

    /// The library to open.
    pub fn library(&self) -> Library {
        Library::Simulator {
            library: self.folder.path().join(LIBRARY),
            scenario: self.scenario.clone(),
            procfs: self.procfs(),
        }
    }

    /// The configuration with the simulated machine's `/proc` and users in place of the host's.
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
    fn the_folder_is_made_in_the_first_place_that_can_be_written() {
        let good = tempfile::tempdir().unwrap();
        let places = ["/dev/full".into(), "/nonexistent".into(), good.path().to_owned()];
        let made = folder(&places, b"library").unwrap();
        assert_eq!(made.path().parent(), Some(good.path()));
        assert_eq!(std::fs::metadata(made.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read(made.path().join(LIBRARY)).unwrap(), b"library");
        let refused = folder(&places[..2], b"library").unwrap_err().to_string();
        assert!(refused.contains("/dev/full or /nonexistent"), "{refused}");
    }
}
