//! Which NVML library is opened, and where `libnvidia-ml.so.1` is searched for.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::driver::Driver;
use super::error::Error;
use super::raw;
use crate::faults::Reason;

/// Where the library is searched for when none is configured, in this order: first where the loader finds it, then in
/// the folders where container runtimes and cluster operators mount the driver.
const SEARCH_PATHS: [&str; 10] = [
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
];

/// Which library to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Library {
    /// The first library that can be opened in the usual places.
    Search,
    /// Only the library at this path.
    At(PathBuf),
    /// The simulator, with its scenario and the folder for its `/proc`.
    Simulator {
        /// The simulator's library.
        library: PathBuf,
        /// The name of a built-in scenario, or a file.
        scenario: OsString,
        /// The folder in which the simulator keeps the `/proc` of its simulated processes.
        procfs: PathBuf,
    },
}

/// Why NVML could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// None of the searched places contains a library that loads.
    #[error(
        "no NVML library: looked for {}; install the NVIDIA driver or name the library with --nvml.library",
        looked.join(", ")
    )]
    NotFound {
        /// The places that were searched, with the loader's message if a file exists but does not load.
        looked: Vec<String>,
    },
    /// The library loads but cannot reach a driver.
    #[error("the NVML library {library} could not be initialised")]
    Init {
        /// The library.
        library: String,
        /// NVML's error.
        #[source]
        cause: Error,
    },
    /// The simulator rejected the scenario.
    #[error("the simulator {} refused the scenario: {answer}", library.display())]
    Simulator {
        /// The simulator's library file.
        library: PathBuf,
        /// What went wrong.
        answer: String,
    },
}

impl OpenError {
    /// The reason under which the failure is counted.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotFound { .. } | Self::Simulator { .. } => Reason::LibraryNotFound,
            Self::Init { cause, .. } => cause.reason(),
        }
    }
}

impl Library {
    /// Loads and initialises the library.
    ///
    /// # Errors
    /// If several places are searched, the error from a library that loads but cannot reach its driver is returned,
    /// because it is more informative than the error for a place without a library.
    pub fn open(&self) -> Result<Driver, OpenError> {
        match self {
            Self::Search => open_first(&SEARCH_PATHS.map(Path::new)),
            Self::At(path) => open_first(&[path]),
            Self::Simulator { library, scenario, procfs } => {
                raw::configure_simulator(library, scenario, procfs)
                    .map_err(|answer| OpenError::Simulator { library: library.clone(), answer })?;
                open_first(&[library])
            }
        }
    }
}

fn open_first(places: &[&Path]) -> Result<Driver, OpenError> {
    let mut looked = Vec::new();
    let mut failed = None;
    for place in places {
        match Nvml::builder().lib_path(OsStr::new(place)).init() {
            Ok(nvml) => return Ok(Driver::new(nvml, raw::is_simulator(place))),
            Err(NvmlError::LibloadingError(error)) => looked.push(if place.is_file() {
                format!("{} ({error})", place.display())
            } else {
                place.display().to_string()
            }),
            Err(error) => {
                failed.get_or_insert_with(|| OpenError::Init {
                    library: place.display().to_string(),
                    cause: Error::new("nvmlInit_v2", error),
                });
            }
        }
    }
    Err(failed.unwrap_or(OpenError::NotFound { looked }))
}
