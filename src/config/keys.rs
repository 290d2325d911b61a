//! The one table of keys. Flags, environment variables, file keys, defaults, help, the printed configuration, the
//! fields of [`Config`](super::Config) and the documentation all come from it.

mod otlp;
mod web;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use otlp::OTLP;
use web::WEB;

pub use super::key::{Key, SECTIONS};
use super::model::{DcgmNames, LogFormat, Probes};
use super::setting::{Field, Kind};

/// The key that the user may have meant when giving only a port.
pub(super) const LISTEN_ADDRESS: &str = "web.listen-address";

/// Every key, by section.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    WEB.iter().chain(OTLP).chain(OTHERS)
}

/// The keys of all other sections.
const OTHERS: &[Key] = &[
    Key::new("metrics.include", None, Kind::Globs(|c| &mut c.metrics.include)).help(
        "Serve only the families with these names, and no others (docs/configuration.md#choosing-families). A name may \
         contain * (any characters), ? (one character) and [ab] (one of these). Give several names as a list in a file, \
         a repeated flag, or comma-separated text. Not set: all families.",
    ),
    Key::new("metrics.exclude", None, Kind::Globs(|c| &mut c.metrics.exclude)).help(
        "Leave out the families with these names, written as in metrics.include. A family that both keys name is left \
         out.",
    ),
    Key::new("dcgm.listen-address", None, Kind::Addresses(|c| &mut c.dcgm.listen_addresses)).help(
        "Additional address that serves /metrics with the families of dcgm-exporter, such as \":9400\" \
         (docs/from-dcgm.md), with the same web.config-file and limits as web.listen-address. Not set: no additional \
         address.",
    ),
    Key::new(
        "dcgm.names",
        Some("exporter-4.8"),
        Kind::Choice(&[
            ("exporter-4.8", |c| c.dcgm.names = DcgmNames::Exporter48),
            ("exporter-4.9", |c| c.dcgm.names = DcgmNames::Exporter49),
        ]),
    )
    .help(
        "Names and units of families, and names of labels. exporter-4.8: those of dcgm-exporter 4.5 to 4.8, with both \
         labels for the machine's name, Hostname (up to 4.8.2) and hostname (since 4.8.3). exporter-4.9: those of \
         dcgm-exporter 4.9, in hertz, joules, bytes and ratios, with the label hostname.",
    ),
    Key::path("dcgm.collectors-file", "FILE", |c| &mut c.dcgm.collectors_file).help(
        "A CSV file of dcgm-exporter that lists the fields to serve, with their types and help texts. The names of the \
         families are those in the file. Not set: the fields that dcgm-exporter serves by default.",
    ),
    Key::switch("dcgm.virtual-gpus", "false", |c| &mut c.dcgm.virtual_gpus).help(
        "Serve one series for each container that shares a GPU (time-slicing, MPS), like KUBERNETES_VIRTUAL_GPUS of \
         dcgm-exporter. The used memory and the utilization of a container are those of its own processes.",
    ),
    Key::path("nvml.library", "FILE", |c| &mut c.nvml.library)
        .help("The driver's library, libnvidia-ml.so.1. Not set: it is searched for where drivers install it."),
    Key::duration("nvml.call-timeout", "2s", millis(10)..=secs(60), |c| &mut c.nvml.call_timeout)
        .help("A driver call that takes longer marks its GPU as stalled."),
    Key::duration("nvml.release-duration", "5m", secs(1)..=secs(86_400), |c| &mut c.nvml.release_duration).help(
        "How long the driver stays closed after SIGUSR1, so that it can be replaced. A second SIGUSR1 opens it at \
         once.",
    ),
    Key::new("path.procfs", Some("/proc"), Kind::Folder(|c| &mut c.path.procfs)).help(
        "Where procfs is mounted. It must be that of the exporter's own pid namespace: the host's procfs needs the \
         host's pid namespace.",
    ),
    Key::path("path.passwd", "FILE", |c| &mut c.path.passwd)
        .help("A passwd file to read user names from. Not set: the system's name service is queried."),
    Key::new("memory.rate", Some("100"), Kind::Hertz(1.0..=1000.0, |c| &mut c.memory.rate))
        .help("Samples of GPU memory per second. A peak shorter than the time between two samples can be missed."),
    Key::new("memory.idle-rate", Some("1"), Kind::Hertz(0.1..=1000.0, |c| &mut c.memory.idle_rate))
        .help("Samples per second while no process uses any GPU; at most memory.rate."),
    Key::duration("memory.peak-window", "60s", secs(1)..=secs(3600), |c| &mut c.memory.peak_window).help(
        "Length of the sliding window of the window peaks. Choose at least the scrape interval, or peaks are lost.",
    ),
    Key::duration("memory.stale-after", "5s", millis(100)..=secs(3600), |c| &mut c.memory.stale_after).help(
        "A GPU without a good sample for this long loses its memory values. At least two periods of memory.idle-rate.",
    ),
    Key::new(
        "memory.probes",
        Some("none"),
        Kind::Choice(&[
            ("none", |c| c.memory.probes = Probes::None),
            ("refusals", |c| c.memory.probes = Probes::Refusals),
            ("all", |c| c.memory.probes = Probes::All),
        ]),
    )
    .help(
        "Watch the calls with which programs ask the driver for memory (docs/probes.md). refusals: see each request that \
         the driver refuses. all: see every call too, so that no peak is too short. Needs rights that nothing else here \
         needs. Where they are missing, vram_exporter_probes_up is 0 and everything else is as with none.",
    ),
    Key::duration("process.interval", "2s", millis(100)..=secs(60), |c| &mut c.process.interval)
        .help("Longest time between two readings of the processes; a change in memory use triggers a reading at once."),
    Key::duration("process.linger", "5m", Duration::ZERO..=secs(86_400), |c| &mut c.process.linger)
        .help("How long the peaks of an ended process stay after its last peak window."),
    Key::count("process.series-limit", "256", 1..=65_536, |c| &mut c.process.series_limit)
        .help("Maximum number of processes shown per GPU; those with the most memory come first."),
    Key::switch("process.series", "true", |c| &mut c.process.series).help(
        "Show individual processes. Without them only the workloads are shown, whose number does not grow with \
         short-lived processes.",
    ),
    Key::switch("process.command-line", "false", |c| &mut c.process.command_line).help(
        "Show the command line of each process. Command lines may contain secrets, and everyone who can read the \
         metrics sees them.",
    ),
    Key::duration("telemetry.interval", "1s", millis(100)..=secs(3600), |c| &mut c.telemetry.interval)
        .help("Interval for cheap readings such as temperature, power and clocks."),
    Key::duration("telemetry.slow-interval", "15s", millis(100)..=secs(3600), |c| &mut c.telemetry.slow_interval).help(
        "Interval for readings that are expensive or rarely change (BAR1, PCIe replays, limited clocks, energy, fans, \
         limits of power and temperature, retired pages, spare rows, highest PCIe link, NVLinks, fabric); at least \
         telemetry.interval.",
    ),
    Key::switch("telemetry.energy", "false", |c| &mut c.telemetry.energy)
        .help(
            "Read the driver's own energy counter too (gpu_driver_energy_joules_total). Its call can hold the driver's lock \
             for many milliseconds.",
        ),
    Key::switch("telemetry.fan-speed", "false", |c| &mut c.telemetry.fan_speed)
        .help("Read the intended speed of the fans of GPUs that have fans, with the slow readings."),
    Key::switch("telemetry.performance-state", "false", |c| &mut c.telemetry.performance_state)
        .help("Read the performance state (P0 to P15) with the cheap readings."),
    Key::switch("telemetry.workload-energy", "false", |c| &mut c.telemetry.workload_energy).help(
        "Apportion the energy of each GPU to the workloads by SM time (docs/README.md#questions), an estimate. It needs no \
         further call. The driver samples the processes five times a second: with a telemetry.interval below 200ms, more of \
         the energy goes to no workload.",
    ),
    Key::switch("telemetry.nvlink-errors-by-link", "false", |c| &mut c.telemetry.nvlink_errors_by_link)
        .help("Read the errors of each NVLink too, with the slow readings: up to four calls for each link, 134 ms for the 18 links of an H200."),
    Key::switch("profiling.enabled", "true", |c| &mut c.profiling.enabled)
        .help("Read the profiling counters (GPM) of GPUs that have them: Hopper and later."),
    Key::duration("profiling.interval", "10s", millis(500)..=secs(60), |c| &mut c.profiling.interval).help(
        "Interval between two samples of the profiling counters. Below the minimum, the values would be too low.",
    ),
    Key::new("kubernetes.node-name", None, Kind::NodeName(|c| &mut c.kubernetes.node_name))
        .help("This node's name in the cluster, as in spec.nodeName of its pods. Required with kubernetes.api-server."),
    Key::new("kubernetes.api-server", None, Kind::ApiServer(|c| &mut c.kubernetes.api_server)).help(
        "The API server to query for the names of pods: \"in-cluster\" (the service account of the exporter's pod) or \
         a URL such as \"https://10.0.0.1:6443\". Only the pods of this node are requested. Not set: no API server is \
         queried.",
    ),
    Key::path("kubernetes.token-file", "FILE", |c| &mut c.kubernetes.token_file)
        .help("A bearer token for the API server, read again when it changes. Not with \"in-cluster\"."),
    Key::path("kubernetes.ca-file", "FILE", |c| &mut c.kubernetes.ca_file)
        .help("The certificates to trust for the API server, in PEM. Not with \"in-cluster\"."),
    Key::new("kubernetes.pod-labels", None, Kind::PodLabels(|c| &mut c.kubernetes.pod_labels)).help(
        "Labels of pods to show in gpu_pod_labels_info, by their keys, such as \"team,example.com/queue\": at most 10. No \
         other label is kept, and no annotation. Give several keys as a list in a file, a repeated flag, or \
         comma-separated text. Needs kubernetes.api-server. Not set: no labels.",
    ),
    Key::path("kubernetes.pod-resources", "SOCKET", |c| &mut c.kubernetes.pod_resources).help(
        "The kubelet's socket that reports which GPU is assigned to which container, usually \
         /var/lib/kubelet/pod-resources/kubelet.sock. Not set: the kubelet is not queried.",
    ),
    Key::duration("kubernetes.pod-resources-interval", "10s", secs(1)..=secs(3600), |c| {
        &mut c.kubernetes.pod_resources_interval
    })
    .help("Time between two requests to the kubelet."),
    Key::duration("kubernetes.timeout", "5s", millis(100)..=secs(300), |c| &mut c.kubernetes.timeout)
        .help("Maximum time for the kubelet or the API server to answer."),
    Key::path("slurm.allocations", "DIR", |c| &mut c.slurm.allocations).help(
        "The folder in which Slurm's prolog and epilog keep which GPU is allocated to which job \
         (docs/deploy/slurm.md), usually /run/vram-exporter-slurm. Only its owner may write to it. Not set: the \
         allocations of jobs are not shown.",
    ),
    Key::path("allocator.socket", "SOCKET", |c| &mut c.allocator.socket).help(
        "A Unix socket on which processes report statistics of their memory allocators (docs/allocators.md). \
         The Python client looks for /run/vram-exporter/allocator.sock. Not set: no socket.",
    ),
    Key::switch("allocator.sites", "false", |c| &mut c.allocator.sites).help(
        "Show what a process reports about its memory by role (weights, gradients, activations) and by call site. The names of \
         files and functions are those of the job, and everyone who can read the metrics sees them. Call sites are never \
         pushed over OTLP.",
    ),
    Key::new("allocator.socket-mode", Some("0666"), Kind::Mode(|c| &mut c.allocator.socket_mode)).help(
        "Permissions of allocator.socket. By default every user of the machine may connect: the kernel reports which \
         process connects, and a process can report about itself only.",
    ),
    Key::new("allocator.socket-group", None, Kind::Group(|c| &mut c.allocator.socket_group)).help(
        "Group of allocator.socket, as a name or a number; for use with a mode such as 0660. Not set: the exporter's \
         own group.",
    ),
    Key::count("recorder.max-memory-mib", "16", 0..=4096, |c| &mut c.recorder.max_memory_mib).help(
        "Memory for the recent past (two hours, or as much as fits) and for the incidents, in MiB. 0 switches the \
         recorder off.",
    ),
    Key::path("recorder.path", "DIR", |c| &mut c.recorder.path).help(
        "An existing folder for the incidents, so that they survive a restart. Not set: they are kept in memory only, \
         the last 8 of each GPU and kind.",
    ),
    Key::count("recorder.max-files", "200", 1..=100_000, |c| &mut c.recorder.max_files).help(
        "Maximum number of incidents in recorder.path. The oldest of the tenant with the most are removed first.",
    ),
    Key::count("recorder.max-disk-mib", "64", 1..=1_048_576, |c| &mut c.recorder.max_disk_mib).help(
        "Maximum size of all incidents in recorder.path in MiB. The oldest of the tenant with the most are removed \
         first.",
    ),
    Key::switch("recorder.log-ended-processes", "true", |c| &mut c.recorder.log_ended_processes).help(
        "Log one line for each process that leaves the GPUs, with its owner, its highest memory and how long it lived; \
         at most 20 lines in 10 seconds.",
    ),
    Key::path("recorder.reports-path", "DIR", |c| &mut c.recorder.reports_path).help(
        "An existing folder for the reports about jobs and other workloads: reports.jsonl, one JSON object on each \
         line, and reports.1.jsonl, the file before it. Not set: the last reports are kept in memory only.",
    ),
    Key::count("recorder.reports-max-mib", "16", 1..=1_048_576, |c| &mut c.recorder.reports_max_mib)
        .help("Maximum size of both files in recorder.reports-path together, in MiB."),
    Key::duration("recorder.report-linger", "6m", secs(1)..=secs(86_400), |c| &mut c.recorder.report_linger).help(
        "How long after its last process a workload is expected to return to the GPUs, and its report is not final. \
         For systemd units and users, five times as long.",
    ),
    Key::new("log.level", Some("info"), Kind::LogFilter(|c| &mut c.log.level)).help(
        "Level of the log on standard error: error, warn, info, debug, trace or off, or levels by target such as \
         \"info,vram_exporter=debug\".",
    ),
    Key::new(
        "log.format",
        Some("logfmt"),
        Kind::Choice(&[("logfmt", |c| c.log.format = LogFormat::Logfmt), ("json", |c| c.log.format = LogFormat::Json)]),
    )
    .help("Format of a log line: key=value pairs, or one JSON object per line."),
];

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A constructor for each kind of value that many keys have. It takes the key's name, its default, and the field of the
/// configuration.
impl Key {
    const fn path(name: &'static str, value_name: &'static str, field: Field<Option<PathBuf>>) -> Self {
        Self::new(name, None, Kind::Path(value_name, field))
    }

    const fn duration(
        name: &'static str,
        default: &'static str,
        allowed: RangeInclusive<Duration>,
        field: Field<Duration>,
    ) -> Self {
        Self::new(name, Some(default), Kind::Duration(allowed, field))
    }

    const fn count(
        name: &'static str,
        default: &'static str,
        allowed: RangeInclusive<usize>,
        field: Field<usize>,
    ) -> Self {
        Self::new(name, Some(default), Kind::Count(allowed, field))
    }

    const fn switch(name: &'static str, default: &'static str, field: Field<bool>) -> Self {
        Self::new(name, Some(default), Kind::Switch(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        for (index, key) in keys().enumerate() {
            let (section, leaf) = key.parts();
            assert!(SECTIONS.iter().any(|(name, _)| *name == section), "{} has no section", key.name);
            assert!(!leaf.contains('.') && !key.help.is_empty() && key.help.ends_with('.'), "{}", key.name);
            assert!(keys().take(index).all(|other| other.variable() != key.variable()), "{} is there twice", key.name);
            assert_eq!(key.default.is_none(), key.default_setting().is_none(), "{}", key.name);
            let is_set = matches!(key.kind, Kind::UrlPath(_) | Kind::Folder(_) | Kind::Mode(_) | Kind::LogFilter(_));
            let is_set = is_set || matches!(key.kind, Kind::Hertz(..) | Kind::Choice(_));
            assert!(key.default.is_some() || !is_set, "{} has no default, and its field cannot be empty", key.name);
        }
        for (section, _) in SECTIONS {
            assert!(keys().any(|key| key.parts().0 == *section), "{section} has no key");
        }
    }
}
