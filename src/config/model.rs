//! The checked configuration.

use std::path::PathBuf;
use std::time::Duration;

use super::address::ListenAddress;

/// The checked configuration. It does not change while the exporter runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `web.*`
    pub web: Web,
    /// `metrics.*`
    pub metrics: Metrics,
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
    /// `profiling.*`
    pub profiling: Profiling,
    /// `kubernetes.*`
    pub kubernetes: Kubernetes,
    /// `slurm.*`
    pub slurm: Slurm,
    /// `dcgm.*`
    pub dcgm: Dcgm,
    /// `allocator.*`
    pub allocator: Allocator,
    /// `recorder.*`
    pub recorder: Recorder,
    /// `otlp.*`
    pub otlp: Otlp,
    /// `log.*`
    pub log: Log,
    /// `--demo`: the scenario's name or path, if the GPUs are simulated.
    pub demo: Option<String>,
}

impl Config {
    /// A configuration in which no key is set yet.
    pub(super) fn unset() -> Self {
        Self {
            web: Web::default(),
            metrics: Metrics::default(),
            nvml: Nvml::default(),
            path: Paths::default(),
            memory: Memory::default(),
            process: Process::default(),
            telemetry: Telemetry::default(),
            profiling: Profiling::default(),
            kubernetes: Kubernetes::default(),
            slurm: Slurm::default(),
            dcgm: Dcgm::default(),
            allocator: Allocator::default(),
            recorder: Recorder::default(),
            otlp: Otlp::default(),
            log: Log::default(),
            demo: None,
        }
    }
}

/// The web server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Web {
    /// `web.listen-address`: at least one.
    pub listen_addresses: Vec<ListenAddress>,
    /// `web.systemd-socket`: whether the service manager's sockets are used instead.
    pub systemd_socket: bool,
    /// `web.health-address`: additional addresses for health only.
    pub health_addresses: Vec<ListenAddress>,
    /// `web.config-file`: a web-config file, if the server is guarded.
    pub config_file: Option<PathBuf>,
    /// `web.telemetry-path`: begins with `/` and is none of the exporter's other paths.
    pub telemetry_path: String,
    /// `web.disable-exporter-metrics`: whether the metrics about the exporter's own work are left out.
    pub disable_exporter_metrics: bool,
    /// `web.openmetrics-created`: whether OpenMetrics contains the creation times of counters.
    pub openmetrics_created: bool,
    /// `web.allowed-hosts`: the names that requests may address, in lower case; none allows any.
    pub allowed_hosts: Vec<String>,
    /// What clients may use of it.
    pub limits: Limits,
}

/// The limits of the web server, for all of its listeners together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Limits {
    /// `web.max-requests`: how many requests are answered at the same time, from the first byte of the request until the
    /// last byte of the response has been sent. Health probes are not counted.
    pub max_requests: usize,
    /// `web.max-connections`: how many connections are open at the same time.
    pub max_connections: usize,
    /// `web.read-timeout`: how long a client may take from connecting, or from a request's first byte, to the last header.
    pub read_timeout: Duration,
    /// `web.write-timeout`: how long sending a response may take.
    pub write_timeout: Duration,
    /// `web.idle-timeout`: how long a connection may be idle between two requests.
    pub idle_timeout: Duration,
}

/// The families that are served.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    /// `metrics.include`: patterns; none serves all families.
    pub include: Vec<String>,
    /// `metrics.exclude`: patterns.
    pub exclude: Vec<String>,
}

/// The driver's library.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Nvml {
    /// `nvml.library`: a path; `None` searches for the library.
    pub library: Option<PathBuf>,
    /// `nvml.call-timeout`: a call that takes longer marks its GPU as stalled.
    pub call_timeout: Duration,
    /// `nvml.release-duration`: how long the driver stays closed after SIGUSR1.
    pub release_duration: Duration,
}

/// Paths of the host's files.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Paths {
    /// `path.procfs`
    pub procfs: PathBuf,
    /// `path.passwd`: a passwd file to read user names from, instead of querying the system.
    pub passwd: Option<PathBuf>,
}

/// The memory lane.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// `memory.rate`: samples per second, 1 to 1000.
    pub rate: f64,
    /// `memory.idle-rate`: samples per second while no process uses any GPU, at most `rate`.
    pub idle_rate: f64,
    /// `memory.peak-window`
    pub peak_window: Duration,
    /// `memory.stale-after`: the values of a GPU are dropped after this long without a good sample.
    pub stale_after: Duration,
    /// `memory.probes`: which of the driver's memory calls are seen.
    pub probes: Probes,
}

/// Which of the driver's memory calls are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probes {
    /// None: nothing is loaded into the kernel.
    #[default]
    None,
    /// Those that are refused.
    Refusals,
    /// All.
    All,
}

/// The process lane.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Process {
    /// `process.interval`: the longest time between two process lists.
    pub interval: Duration,
    /// `process.linger`: how long the peaks of a process that has ended are kept after its last peak window.
    pub linger: Duration,
    /// `process.series-limit`: processes shown per GPU.
    pub series_limit: usize,
    /// `process.series`: whether individual processes are shown, or only workloads.
    pub series: bool,
    /// `process.command-line`: whether `gpu_process_info` has the command line.
    pub command_line: bool,
}

/// The telemetry readings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Telemetry {
    /// `telemetry.interval`
    pub interval: Duration,
    /// `telemetry.slow-interval`
    pub slow_interval: Duration,
    /// `telemetry.energy`: whether the expensive energy counter is read.
    pub energy: bool,
    /// `telemetry.fan-speed`: whether the fans are read.
    pub fan_speed: bool,
    /// `telemetry.performance-state`: whether the performance state is read.
    pub performance_state: bool,
    /// `telemetry.workload-energy`: whether the energy is apportioned to workloads.
    pub workload_energy: bool,
    /// `telemetry.nvlink-errors-by-link`: whether the errors of each NVLink are read.
    pub nvlink_errors_by_link: bool,
}

/// The profiling counters.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profiling {
    /// `profiling.enabled`
    pub enabled: bool,
    /// `profiling.interval`: at least 0.5 s.
    pub interval: Duration,
}

/// Where the exporter learns about the pods of this node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kubernetes {
    /// `kubernetes.node-name`; set if `api_server` is.
    pub node_name: Option<String>,
    /// `kubernetes.api-server`
    pub api_server: Option<ApiServer>,
    /// `kubernetes.token-file`; only with an API server at a URL.
    pub token_file: Option<PathBuf>,
    /// `kubernetes.ca-file`; only with an API server at a URL.
    pub ca_file: Option<PathBuf>,
    /// `kubernetes.pod-labels`: at most 10 keys of labels, each with its own name in the metrics; only with an API server.
    pub pod_labels: Vec<String>,
    /// `kubernetes.pod-resources`: the kubelet's socket.
    pub pod_resources: Option<PathBuf>,
    /// `kubernetes.pod-resources-interval`
    pub pod_resources_interval: Duration,
    /// `kubernetes.timeout`
    pub timeout: Duration,
}

/// Where the exporter learns about Slurm's jobs on this node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Slurm {
    /// `slurm.allocations`: the folder with one file for each job.
    pub allocations: Option<PathBuf>,
}

/// The API server.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiServer {
    /// The server of the cluster that the exporter's pod runs in, accessed with the pod's service account.
    InCluster,
    /// A server at a URL: `https://host:port`, or `http://` on this machine.
    At(String),
}

/// The listener that serves dcgm-exporter's families.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dcgm {
    /// `dcgm.listen-address`: additional addresses; none if the families are not served.
    pub listen_addresses: Vec<ListenAddress>,
    /// `dcgm.names`
    pub names: DcgmNames,
    /// `dcgm.collectors-file`: a list of fields in dcgm-exporter's CSV format.
    pub collectors_file: Option<PathBuf>,
    /// `dcgm.virtual-gpus`: whether each container that shares a GPU has its own series.
    pub virtual_gpus: bool,
}

/// The names of dcgm-exporter's families and labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DcgmNames {
    /// `exporter-4.8`: those of dcgm-exporter 4.5 to 4.8.
    #[default]
    Exporter48,
    /// `exporter-4.9`: those of dcgm-exporter 4.9, with its units.
    Exporter49,
}

/// The socket on which processes report the state of their memory allocators.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Allocator {
    /// `allocator.socket`; `None`: there is no socket.
    pub socket: Option<PathBuf>,
    /// `allocator.sites`: whether files, lines and functions that allocated memory are shown.
    pub sites: bool,
    /// `allocator.socket-mode`: permissions, at most 0o777.
    pub socket_mode: u32,
    /// `allocator.socket-group`: a name or a number.
    pub socket_group: Option<String>,
}

/// The recorder of the recent past.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recorder {
    /// `recorder.max-memory-mib`: 0 switches the recorder off.
    pub max_memory_mib: usize,
    /// `recorder.path`: a folder for the incidents.
    pub path: Option<PathBuf>,
    /// `recorder.max-files`
    pub max_files: usize,
    /// `recorder.max-disk-mib`
    pub max_disk_mib: usize,
    /// `recorder.reports-path`: a folder for the reports about workloads.
    pub reports_path: Option<PathBuf>,
    /// `recorder.reports-max-mib`
    pub reports_max_mib: usize,
    /// `recorder.report-linger`
    pub report_linger: Duration,
    /// `recorder.log-ended-processes`
    pub log_ended_processes: bool,
}

/// The log on standard error.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Log {
    /// `log.level`: error, warn, info, debug, trace or off, or levels by target.
    pub level: String,
    /// `log.format`
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// key=value.
    #[default]
    Logfmt,
    /// One JSON object per line.
    Json,
}

/// The pushes to an OTLP receiver.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Otlp {
    /// `otlp.endpoint`: the URL of an OTLP/HTTP receiver; `None`: nothing is pushed.
    pub endpoint: Option<String>,
    /// `otlp.interval`: at most `memory.peak-window`.
    pub interval: Duration,
    /// `otlp.timeout`
    pub timeout: Duration,
    /// `otlp.compression`: whether the requests are compressed.
    pub gzip: bool,
    /// `otlp.headers-file`: headers of the requests, which may contain secrets.
    pub headers_file: Option<PathBuf>,
    /// `otlp.ca-file`: the certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `otlp.names`
    pub names: OtlpNames,
}

/// The names of the metrics that are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpNames {
    /// `scrape`: the names of a scrape, which the shipped rules and dashboards use.
    #[default]
    Scrape,
    /// `semantic-conventions`: those of OpenTelemetry's semantic conventions, and otherwise those of a scrape.
    SemanticConventions,
    /// `both`: the names of a scrape, and those of the conventions where they have one.
    Both,
}
