//! `--demo`: the whole product on simulated GPUs.
//!
//! The exporter never links the simulator: it loads `libnvml_sim.so` at run time through the same door as the real
//! library, and shows everywhere that the GPUs are simulated.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::config::Config;
use crate::nvml::{Library, OpenError};

/// The simulator's file name.
const SIMULATOR: &str = "libnvml_sim.so";
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
        let machine = Self { library, scenario: scenario.into(), folder };
        // Tried once here: a driver may come later, a scenario that is wrong stays wrong.
        match machine.library().open() {
            Ok(_) => Ok(machine),
            Err(cause) => Err(Error::Scenario { scenario: scenario.to_owned(), cause }),
        }
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
