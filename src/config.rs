//! What the user asked for, read once and checked. Nothing here binds, opens or starts anything.
//!
//! [`load()`] lays defaults, file, environment and flags over one another and checks the result; [`keys::KEYS`] is the one
//! table from which all of them, the help and the documentation are made.

mod address;
mod check;
mod environment;
mod file;
mod flags;
mod forms;
pub mod keys;
mod layers;
mod load;
mod problem;
pub mod setting;
mod show;
mod units;
mod yaml;

pub use address::ListenAddress;
pub use load::{Command, load};
pub use problem::{Error, Problem};
pub use show::reference;

use std::path::PathBuf;
use std::time::Duration;

/// The exit code where command line, environment or file are wrong: `EX_USAGE` of `sysexits.h`.
pub const EXIT_USAGE: u8 = 64;

/// The checked configuration. Afterwards it is only read.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `web.*`
    pub web: Web,
    /// `nvml.*`
    pub nvml: Nvml,
    /// `path.*`
    pub path: Paths,
    /// `memory.*`
    pub memory: Memory,
    /// `process.*`
    pub process: Process,
    /// `telemetry.*`
    pub telemetry: Telemetry,
    /// `kubernetes.*`
    pub kubernetes: Kubernetes,
    /// `log.*`
    pub log: Log,
    /// `--demo`: the scenario's name or path, where the GPUs are simulated.
    pub demo: Option<String>,
}

/// What holds where nothing is said.
impl Default for Config {
    fn default() -> Self {
        check::config(&layers::Effective::defaults(), None)
    }
}

/// The web server.
#[derive(Debug, Clone, PartialEq)]
pub struct Web {
    /// `web.listen-address`: at least one.
    pub listen_addresses: Vec<ListenAddress>,
    /// `web.systemd-socket`: whether the service manager's sockets are taken instead.
    pub systemd_socket: bool,
    /// `web.health-address`: where health is told beside the pages, or nowhere.
    pub health_addresses: Vec<ListenAddress>,
    /// `web.config-file`: a web-config file, where the server is to be guarded.
    pub config_file: Option<PathBuf>,
    /// `web.telemetry-path`: begins with `/` and is none of the exporter's other paths.
    pub telemetry_path: String,
    /// `web.max-requests`: answered at once.
    pub max_requests: usize,
    /// `web.max-connections`: open at once.
    pub max_connections: usize,
    /// `web.read-timeout`
    pub read_timeout: Duration,
    /// `web.write-timeout`
    pub write_timeout: Duration,
    /// `web.idle-timeout`
    pub idle_timeout: Duration,
}

/// The driver's library.
#[derive(Debug, Clone, PartialEq)]
pub struct Nvml {
    /// `nvml.library`: a path, where the library is not to be searched for.
    pub library: Option<PathBuf>,
    /// `nvml.call-timeout`: a call that takes longer marks its GPU as stalled.
    pub call_timeout: Duration,
    /// `nvml.release-duration`: how long SIGUSR1 lets the driver go.
    pub release_duration: Duration,
}

/// Where the host's files lie.
#[derive(Debug, Clone, PartialEq)]
pub struct Paths {
    /// `path.procfs`
    pub procfs: PathBuf,
    /// `path.passwd`: a passwd file to read user names from, instead of asking the system.
    pub passwd: Option<PathBuf>,
}

/// The memory lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// `memory.rate`: samples a second, 1 to 1000.
    pub rate: f64,
    /// `memory.idle-rate`: samples a second while no process uses any GPU, at most `rate`.
    pub idle_rate: f64,
    /// `memory.peak-window`
    pub peak_window: Duration,
    /// `memory.stale-after`: a GPU without a good sample for so long loses its values.
    pub stale_after: Duration,
}

/// The process lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// `process.interval`: the longest time between two lists.
    pub interval: Duration,
    /// `process.linger`: how long after a peak window the peaks of an ended process stay.
    pub linger: Duration,
    /// `process.series-limit`: processes shown for each GPU.
    pub series_limit: usize,
    /// `process.series`: whether single processes are shown, or workloads alone.
    pub series: bool,
    /// `process.command-line`: whether `gpu_process_info` bears the command line.
    pub command_line: bool,
}

/// The telemetry readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// `telemetry.interval`
    pub interval: Duration,
    /// `telemetry.slow-interval`
    pub slow_interval: Duration,
    /// `telemetry.energy`: whether the dear energy counter is read.
    pub energy: bool,
}

/// Whom to ask about the pods of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Kubernetes {
    /// `kubernetes.node-name`; there where `api_server` is.
    pub node_name: Option<String>,
    /// `kubernetes.api-server`, with `token-file` and `ca-file`.
    pub api_server: Option<ApiServer>,
    /// `kubernetes.pod-resources`: the kubelet's socket.
    pub pod_resources: Option<PathBuf>,
    /// `kubernetes.pod-resources-interval`
    pub pod_resources_interval: Duration,
    /// `kubernetes.timeout`
    pub timeout: Duration,
}

/// Where the API server is.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiServer {
    /// As the service account of the exporter's pod says.
    InCluster,
    /// Somewhere else.
    At {
        /// `https://host:port`, or `http://` on this machine.
        url: String,
        /// `kubernetes.token-file`
        token_file: Option<PathBuf>,
        /// `kubernetes.ca-file`
        ca_file: Option<PathBuf>,
    },
}

/// The log on standard error.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// `log.level`: error, warn, info, debug, trace or off, or levels by target.
    pub level: String,
    /// `log.format`
    pub format: LogFormat,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// key=value.
    Logfmt,
    /// One JSON object a line.
    Json,
}
