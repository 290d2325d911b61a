//! The one table of keys. Flags, environment variables, file keys, defaults, help, the printed configuration, the
//! fields of [`Config`](super::Config) and the documentation all come from it.

mod dcgm;
mod metrics;
mod otlp;
mod web;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use dcgm::DCGM;
use metrics::METRICS;
use otlp::OTLP;
use web::WEB;

use super::address::ListenAddress;
pub use super::key::{Key, SECTIONS};
use super::model::{ApiServer, LogFormat};
use super::setting::{Field, Kind, Word};

/// The key that the user may have meant when giving only a port.
pub(super) const LISTEN_ADDRESS: &str = "web.listen-address";

/// Every key, by section.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    WEB.iter().chain(METRICS).chain(DCGM).chain(OTLP).chain(OTHERS)
}

/// The keys of all other sections.
const OTHERS: &[Key] = &[
    Key::path("nvml.library", "FILE", |c| &mut c.nvml.library)
        .help("The driver's library, libnvidia-ml.so.1. Not set: it is searched for where drivers install it."),
    Key::duration("nvml.call-timeout", "2s", millis(10)..=secs(60), |c| &mut c.nvml.call_timeout)
        .help("A driver call that takes longer marks its GPU as stalled."),
    Key::duration("nvml.release-duration", "5m", secs(1)..=secs(86_400), |c| &mut c.nvml.release_duration).help(
        "How long the driver stays closed after SIGUSR1, so that it can be replaced. A second SIGUSR1 opens it at \
         once.",
    ),
    Key::folder("path.procfs", "/proc", |c| &mut c.path.procfs).help(
        "Where procfs is mounted. It must be that of the exporter's own pid namespace: the host's procfs needs the \
         host's pid namespace.",
    ),
    Key::path("path.passwd", "FILE", |c| &mut c.path.passwd)
        .help("A passwd file to read user names from. Not set: the system's name service is queried."),
    Key::hertz("memory.rate", "100", 1.0..=1000.0, |c| &mut c.memory.rate)
        .help("Samples of GPU memory per second. A peak shorter than the time between two samples can be missed."),
    Key::hertz("memory.idle-rate", "1", 0.1..=1000.0, |c| &mut c.memory.idle_rate)
        .help("Samples per second while no process uses any GPU; at most memory.rate."),
    Key::duration("memory.peak-window", "60s", secs(1)..=secs(3600), |c| &mut c.memory.peak_window).help(
        "Length of the sliding window of the window peaks. Choose at least the scrape interval, or peaks are lost.",
    ),
    Key::duration("memory.stale-after", "5s", millis(100)..=secs(3600), |c| &mut c.memory.stale_after).help(
        "A GPU without a good sample for this long loses its memory values. At least two periods of memory.idle-rate.",
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
        "Interval for readings that are expensive or rarely change (BAR1, PCIe replays, energy, retired pages, spare \
         rows, highest PCIe link); at least telemetry.interval.",
    ),
    Key::switch("telemetry.energy", "false", |c| &mut c.telemetry.energy)
        .help("Read the energy counter. Its call can hold the driver's lock for many milliseconds."),
    Key::switch("profiling.enabled", "true", |c| &mut c.profiling.enabled)
        .help("Read the profiling counters (GPM) of GPUs that have them: Hopper and later."),
    Key::duration("profiling.interval", "10s", millis(500)..=secs(60), |c| &mut c.profiling.interval).help(
        "Interval between two samples of the profiling counters. Below the minimum, the values would be too low.",
    ),
    Key::node_name("kubernetes.node-name", |c| &mut c.kubernetes.node_name)
        .help("This node's name in the cluster, as in spec.nodeName of its pods. Required with kubernetes.api-server."),
    Key::api_server("kubernetes.api-server", |c| &mut c.kubernetes.api_server).help(
        "The API server to query for the names of pods: \"in-cluster\" (the service account of the exporter's pod) or \
         a URL such as \"https://10.0.0.1:6443\". Only the pods of this node are requested. Not set: no API server is \
         queried.",
    ),
    Key::path("kubernetes.token-file", "FILE", |c| &mut c.kubernetes.token_file)
        .help("A bearer token for the API server, read again when it changes. Not with \"in-cluster\"."),
    Key::path("kubernetes.ca-file", "FILE", |c| &mut c.kubernetes.ca_file)
        .help("The certificates to trust for the API server, in PEM. Not with \"in-cluster\"."),
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
    Key::mode("allocator.socket-mode", "0666", |c| &mut c.allocator.socket_mode).help(
        "Permissions of allocator.socket. By default every user of the machine may connect: the kernel reports which \
         process connects, and a process can report about itself only.",
    ),
    Key::group("allocator.socket-group", |c| &mut c.allocator.socket_group).help(
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
    Key::log_filter("log.level", "info", |c| &mut c.log.level).help(
        "Level of the log on standard error: error, warn, info, debug, trace or off, or levels by target such as \
         \"info,vram_exporter=debug\".",
    ),
    Key::choice(
        "log.format",
        "logfmt",
        &[("logfmt", |c| c.log.format = LogFormat::Logfmt), ("json", |c| c.log.format = LogFormat::Json)],
    )
    .help("Format of a log line: key=value pairs, or one JSON object per line."),
];

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A constructor for each kind of value. It takes the key's name, its default, and the field of the configuration. The
/// kind fixes the type of the field. Only a key whose field can be empty may be without a default.
impl Key {
    const fn addresses(name: &'static str, default: Option<&'static str>, field: Field<Vec<ListenAddress>>) -> Self {
        Self::new(name, default, Kind::Addresses(field))
    }

    const fn globs(name: &'static str, field: Field<Vec<String>>) -> Self {
        Self::new(name, None, Kind::Globs(field))
    }

    const fn hosts(name: &'static str, field: Field<Vec<String>>) -> Self {
        Self::new(name, None, Kind::Hosts(field))
    }

    const fn url_path(name: &'static str, default: &'static str, field: Field<String>) -> Self {
        Self::new(name, Some(default), Kind::UrlPath(field))
    }

    const fn path(name: &'static str, value_name: &'static str, field: Field<Option<PathBuf>>) -> Self {
        Self::new(name, None, Kind::Path(value_name, field))
    }

    const fn folder(name: &'static str, default: &'static str, field: Field<PathBuf>) -> Self {
        Self::new(name, Some(default), Kind::Folder(field))
    }

    const fn duration(
        name: &'static str,
        default: &'static str,
        allowed: RangeInclusive<Duration>,
        field: Field<Duration>,
    ) -> Self {
        Self::new(name, Some(default), Kind::Duration(allowed, field))
    }

    const fn hertz(name: &'static str, default: &'static str, allowed: RangeInclusive<f64>, field: Field<f64>) -> Self {
        Self::new(name, Some(default), Kind::Hertz(allowed, field))
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

    const fn choice(name: &'static str, default: &'static str, words: &'static [Word]) -> Self {
        Self::new(name, Some(default), Kind::Choice(words))
    }

    const fn log_filter(name: &'static str, default: &'static str, field: Field<String>) -> Self {
        Self::new(name, Some(default), Kind::LogFilter(field))
    }

    const fn node_name(name: &'static str, field: Field<Option<String>>) -> Self {
        Self::new(name, None, Kind::NodeName(field))
    }

    const fn api_server(name: &'static str, field: Field<Option<ApiServer>>) -> Self {
        Self::new(name, None, Kind::ApiServer(field))
    }

    const fn otlp_endpoint(name: &'static str, field: Field<Option<String>>) -> Self {
        Self::new(name, None, Kind::OtlpEndpoint(field))
    }

    const fn mode(name: &'static str, default: &'static str, field: Field<u32>) -> Self {
        Self::new(name, Some(default), Kind::Mode(field))
    }

    const fn group(name: &'static str, field: Field<Option<String>>) -> Self {
        Self::new(name, None, Kind::Group(field))
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
        }
        for (section, _) in SECTIONS {
            assert!(keys().any(|key| key.parts().0 == *section), "{section} has no key");
        }
    }
}
