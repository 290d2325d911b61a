//! The one table of keys. Flags, environment variables, file keys, defaults, help, the printed configuration, the
//! fields of [`Config`](super::Config) and the documentation all come from it.

mod dcgm;
mod metrics;
mod otlp;
mod web;

use std::time::Duration;

use dcgm::DCGM;
use metrics::METRICS;
use otlp::OTLP;
use web::WEB;

pub use super::key::{Key, SECTIONS};
use super::model::{ApiServer, LogFormat};
use super::setting::Kind;

/// The key that the user may have meant when giving only a port.
pub(super) const LISTEN_ADDRESS: &str = "web.listen-address";

/// Every key, by section.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    WEB.iter().chain(METRICS).chain(DCGM).chain(OTLP).chain(OTHERS)
}

/// The keys of all other sections.
const OTHERS: &[Key] = &[
    Key {
        name: "nvml.library",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.nvml.library = s.path(),
        help: "The driver's library, libnvidia-ml.so.1. Not set: it is searched for where drivers install it.",
    },
    Key {
        name: "nvml.call-timeout",
        default: Some("2s"),
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(60) },
        set: |c, s| c.nvml.call_timeout = s.duration(),
        help: "A driver call that takes longer marks its GPU as stalled.",
    },
    Key {
        name: "nvml.release-duration",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        set: |c, s| c.nvml.release_duration = s.duration(),
        help: "How long the driver stays closed after SIGUSR1, so that it can be replaced. A second SIGUSR1 opens it at \
               once.",
    },
    Key {
        name: "path.procfs",
        default: Some("/proc"),
        kind: Kind::Path("DIR"),
        set: |c, s| c.path.procfs = s.path().unwrap_or_default(),
        help: "Where procfs is mounted. It must be that of the exporter's own pid namespace: the host's procfs needs the \
               host's pid namespace.",
    },
    Key {
        name: "path.passwd",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.path.passwd = s.path(),
        help: "A passwd file to read user names from. Not set: the system's name service is queried.",
    },
    Key {
        name: "memory.rate",
        default: Some("100"),
        kind: Kind::Number { min: 1.0, max: 1000.0 },
        set: |c, s| c.memory.rate = s.number(),
        help: "Samples of GPU memory per second. A peak shorter than the time between two samples can be missed.",
    },
    Key {
        name: "memory.idle-rate",
        default: Some("1"),
        kind: Kind::Number { min: 0.1, max: 1000.0 },
        set: |c, s| c.memory.idle_rate = s.number(),
        help: "Samples per second while no process uses any GPU; at most memory.rate.",
    },
    Key {
        name: "memory.peak-window",
        default: Some("60s"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) },
        set: |c, s| c.memory.peak_window = s.duration(),
        help: "Length of the sliding window of the window peaks. Choose at least the scrape interval, or peaks are lost.",
    },
    Key {
        name: "memory.stale-after",
        default: Some("5s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        set: |c, s| c.memory.stale_after = s.duration(),
        help: "A GPU without a good sample for this long loses its memory values. At least two periods of memory.idle-rate.",
    },
    Key {
        name: "process.interval",
        default: Some("2s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(60) },
        set: |c, s| c.process.interval = s.duration(),
        help: "Longest time between two readings of the processes; a change in memory use triggers a reading at once.",
    },
    Key {
        name: "process.linger",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) },
        set: |c, s| c.process.linger = s.duration(),
        help: "How long the peaks of an ended process stay after its last peak window.",
    },
    Key {
        name: "process.series-limit",
        default: Some("256"),
        kind: Kind::Count { min: 1, max: 65_536 },
        set: |c, s| c.process.series_limit = s.count(),
        help: "Maximum number of processes shown per GPU; those with the most memory come first.",
    },
    Key {
        name: "process.series",
        default: Some("true"),
        kind: Kind::Switch,
        set: |c, s| c.process.series = s.switch(),
        help: "Show individual processes. Without them only the workloads are shown, whose number does not grow with \
               short-lived processes.",
    },
    Key {
        name: "process.command-line",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.process.command_line = s.switch(),
        help: "Show the command line of each process. Command lines may contain secrets, and everyone who can read the \
               metrics sees them.",
    },
    Key {
        name: "telemetry.interval",
        default: Some("1s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        set: |c, s| c.telemetry.interval = s.duration(),
        help: "Interval for cheap readings such as temperature, power and clocks.",
    },
    Key {
        name: "telemetry.slow-interval",
        default: Some("15s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        set: |c, s| c.telemetry.slow_interval = s.duration(),
        help: "Interval for readings that are expensive or rarely change (BAR1, PCIe replays, energy, retired pages, spare rows, highest PCIe link); at least telemetry.interval.",
    },
    Key {
        name: "telemetry.energy",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.telemetry.energy = s.switch(),
        help: "Read the energy counter. Its call can hold the driver's lock for many milliseconds.",
    },
    Key {
        name: "profiling.enabled",
        default: Some("true"),
        kind: Kind::Switch,
        set: |c, s| c.profiling.enabled = s.switch(),
        help: "Read the profiling counters (GPM) of GPUs that have them: Hopper and later.",
    },
    Key {
        name: "profiling.interval",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_millis(500), max: Duration::from_secs(60) },
        set: |c, s| c.profiling.interval = s.duration(),
        help: "Interval between two samples of the profiling counters. Below the minimum, the values would be too low.",
    },
    Key {
        name: "kubernetes.node-name",
        default: None,
        kind: Kind::NodeName,
        set: |c, s| c.kubernetes.node_name = s.text(),
        help: "This node's name in the cluster, as in spec.nodeName of its pods. Required with kubernetes.api-server.",
    },
    Key {
        name: "kubernetes.api-server",
        default: None,
        kind: Kind::ApiServer,
        set: |c, s| c.kubernetes.api_server = s.text().map(ApiServer::of),
        help: "The API server to query for the names of pods: \"in-cluster\" (the service account of the exporter's \
               pod) or a URL such as \"https://10.0.0.1:6443\". Only the pods of this node are requested. Not set: no API \
               server is queried.",
    },
    Key {
        name: "kubernetes.token-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.kubernetes.token_file = s.path(),
        help: "A bearer token for the API server, read again when it changes. Not with \"in-cluster\".",
    },
    Key {
        name: "kubernetes.ca-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.kubernetes.ca_file = s.path(),
        help: "The certificates to trust for the API server, in PEM. Not with \"in-cluster\".",
    },
    Key {
        name: "kubernetes.pod-resources",
        default: None,
        kind: Kind::Path("SOCKET"),
        set: |c, s| c.kubernetes.pod_resources = s.path(),
        help: "The kubelet's socket that reports which GPU is assigned to which container, usually \
               /var/lib/kubelet/pod-resources/kubelet.sock. Not set: the kubelet is not queried.",
    },
    Key {
        name: "kubernetes.pod-resources-interval",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) },
        set: |c, s| c.kubernetes.pod_resources_interval = s.duration(),
        help: "Time between two requests to the kubelet.",
    },
    Key {
        name: "kubernetes.timeout",
        default: Some("5s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(300) },
        set: |c, s| c.kubernetes.timeout = s.duration(),
        help: "Maximum time for the kubelet or the API server to answer.",
    },
    Key {
        name: "slurm.allocations",
        default: None,
        kind: Kind::Path("DIR"),
        set: |c, s| c.slurm.allocations = s.path(),
        help: "The folder in which Slurm's prolog and epilog keep which GPU is allocated to which job \
               (docs/deploy/slurm.md), usually /run/vram-exporter-slurm. Only its owner may write to it. Not set: the \
               allocations of jobs are not shown.",
    },
    Key {
        name: "allocator.socket",
        default: None,
        kind: Kind::Path("SOCKET"),
        set: |c, s| c.allocator.socket = s.path(),
        help: "A Unix socket on which processes report statistics of their memory allocators \
               (docs/allocator-protocol.md). The Python client looks for /run/vram-exporter/allocator.sock. Not set: no \
               socket.",
    },
    Key {
        name: "allocator.socket-mode",
        default: Some("0666"),
        kind: Kind::Mode,
        set: |c, s| c.allocator.socket_mode = s.mode(),
        help: "Permissions of allocator.socket. By default every user of the machine may connect: the kernel reports \
               which process connects, and a process can report about itself only.",
    },
    Key {
        name: "allocator.socket-group",
        default: None,
        kind: Kind::Group,
        set: |c, s| c.allocator.socket_group = s.text(),
        help: "Group of allocator.socket, as a name or a number; for use with a mode such as 0660. Not set: the exporter's own \
               group.",
    },
    Key {
        name: "recorder.max-memory-mib",
        default: Some("16"),
        kind: Kind::Count { min: 0, max: 4096 },
        set: |c, s| c.recorder.max_memory_mib = s.count(),
        help: "Memory for the recent past (two hours, or as much as fits) and for the incidents, in MiB. 0 switches the \
               recorder off.",
    },
    Key {
        name: "recorder.path",
        default: None,
        kind: Kind::Path("DIR"),
        set: |c, s| c.recorder.path = s.path(),
        help: "An existing folder for the incidents, so that they survive a restart. Not set: they are kept in memory \
               only, the last 8 of each GPU and kind.",
    },
    Key {
        name: "recorder.max-files",
        default: Some("200"),
        kind: Kind::Count { min: 1, max: 100_000 },
        set: |c, s| c.recorder.max_files = s.count(),
        help: "Maximum number of incidents in recorder.path. The oldest of the tenant with the most are removed first.",
    },
    Key {
        name: "recorder.max-disk-mib",
        default: Some("64"),
        kind: Kind::Count { min: 1, max: 1_048_576 },
        set: |c, s| c.recorder.max_disk_mib = s.count(),
        help: "Maximum size of all incidents in recorder.path in MiB. The oldest of the tenant with the most are removed first.",
    },
    Key {
        name: "recorder.log-ended-processes",
        default: Some("true"),
        kind: Kind::Switch,
        set: |c, s| c.recorder.log_ended_processes = s.switch(),
        help: "Log one line for each process that leaves the GPUs, with its owner, its highest memory and how long it \
               lived; at most 20 lines in 10 seconds.",
    },
    Key {
        name: "recorder.reports-path",
        default: None,
        kind: Kind::Path("DIR"),
        set: |c, s| c.recorder.reports_path = s.path(),
        help: "An existing folder for the reports about jobs and other workloads: reports.jsonl, one JSON object on each \
               line, and reports.1.jsonl, the file before it. Not set: the last reports are kept in memory only.",
    },
    Key {
        name: "recorder.reports-max-mib",
        default: Some("16"),
        kind: Kind::Count { min: 1, max: 1_048_576 },
        set: |c, s| c.recorder.reports_max_mib = s.count(),
        help: "Maximum size of both files in recorder.reports-path together, in MiB.",
    },
    Key {
        name: "recorder.report-linger",
        default: Some("6m"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        set: |c, s| c.recorder.report_linger = s.duration(),
        help: "How long after its last process a workload is expected to return to the GPUs, and its report is not final. \
               For systemd units and users, five times as long.",
    },
    Key {
        name: "log.level",
        default: Some("info"),
        kind: Kind::LogFilter,
        set: |c, s| c.log.level = s.text().unwrap_or_default(),
        help: "Level of the log on standard error: error, warn, info, debug, trace or off, or levels by target such as \
               \"info,vram_exporter=debug\".",
    },
    Key {
        name: "log.format",
        default: Some("logfmt"),
        kind: Kind::Choice(&["logfmt", "json"]),
        set: |c, s| {
            c.log.format = if s.text().as_deref() == Some("json") { LogFormat::Json } else { LogFormat::Logfmt }
        },
        help: "Format of a log line: key=value pairs, or one JSON object per line.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Setting;

    #[test]
    fn the_table_is_sound() {
        for (index, key) in keys().enumerate() {
            let (section, leaf) = key.parts();
            assert!(SECTIONS.iter().any(|(name, _)| *name == section), "{} has no section", key.name);
            assert!(!leaf.contains('.') && !key.help.is_empty() && key.help.ends_with('.'), "{}", key.name);
            assert!(keys().take(index).all(|other| other.variable() != key.variable()), "{} is there twice", key.name);
            assert_eq!(key.default.is_none(), key.default_setting() == Setting::Unset);
        }
        for (section, _) in SECTIONS {
            assert!(keys().any(|key| key.parts().0 == *section), "{section} has no key");
        }
    }
}
