//! Translates the configuration into the settings of each module. The modules themselves do not use [`Config`].

use std::time::Duration;

use super::descriptors;
use crate::config::{Config, DcgmNames, Recorder, Web};
use crate::dcgm::{self, Collectors, Naming};
use crate::faults::Source;
use crate::http::Limits;
use crate::lanes::{self, MemorySettings, ProcessSettings, TelemetrySettings};
use crate::nvml::Library;
use crate::recorder::{self, ReportFileSettings, ReportSettings, StoreSettings};
use crate::snapshot::Feed;
use crate::{allocator, attribution, metrics};

/// The settings of the lanes, with the library to open.
pub fn lanes(config: &Config, library: Library) -> lanes::Settings {
    let Config { memory, process, telemetry, .. } = config;
    lanes::Settings {
        library,
        call_timeout: config.nvml.call_timeout,
        memory: MemorySettings {
            period: Duration::from_secs_f64(1.0 / memory.rate),
            idle_period: Duration::from_secs_f64(1.0 / memory.idle_rate),
            peak_window: memory.peak_window,
            stale_after: memory.stale_after,
        },
        process: ProcessSettings {
            interval: process.interval,
            peak_window: memory.peak_window,
            linger: process.linger,
            series_limit: process.series_limit,
            telemetry: TelemetrySettings {
                interval: telemetry.interval,
                slow_interval: telemetry.slow_interval,
                energy: telemetry.energy,
                profiling_interval: config.profiling.enabled.then_some(config.profiling.interval),
                unseen: unseen(config),
            },
        },
    }
}

/// The families that are excluded. With dcgm-exporter's families, which have the same values under other names, none counts.
fn unseen(config: &Config) -> Vec<&'static str> {
    if !config.dcgm.listen_addresses.is_empty() {
        return Vec::new();
    }
    let seen = metrics::Selection::new(&[], &config.metrics.exclude, metrics::families());
    seen.left_out().to_vec()
}

/// The settings of the metrics. `host_pid_namespace` indicates whether the exporter sees the host's processes.
pub fn metrics(config: &Config, host_pid_namespace: Option<bool>) -> metrics::Settings {
    metrics::Settings {
        peak_window: config.memory.peak_window,
        stale_after: config.memory.stale_after,
        process_interval: config.process.interval,
        host_pid_namespace,
        process_series: config.process.series,
        pod_resources_interval: config.kubernetes.pod_resources_interval,
        telemetry_interval: config.telemetry.interval,
        telemetry_slow_interval: config.telemetry.slow_interval,
        profiling_interval: config.profiling.interval,
        selection: metrics::Selection::new(&config.metrics.include, &config.metrics.exclude, metrics::families()),
        exporter_metrics: !config.web.disable_exporter_metrics,
        otlp: config.otlp.endpoint.is_some(),
        created_samples: config.web.openmetrics_created,
        fault_sources: Source::ALL.iter().copied().filter(|source| is_used(*source, config)).collect(),
    }
}

/// Whether the configuration uses the part of the exporter that the source names.
fn is_used(source: Source, config: &Config) -> bool {
    match source {
        Source::PodResources => config.kubernetes.pod_resources.is_some(),
        Source::KubernetesApi => config.kubernetes.api_server.is_some(),
        Source::Slurm => config.slurm.allocations.is_some(),
        Source::WebConfig => config.web.config_file.is_some(),
        Source::Allocator => config.allocator.socket.is_some(),
        Source::Otlp => config.otlp.endpoint.is_some(),
        Source::Recorder => config.recorder.max_memory_mib > 0,
        Source::Library
        | Source::Topology
        | Source::Memory
        | Source::Process
        | Source::Telemetry
        | Source::Attribution
        | Source::Budget
        | Source::Http => true,
    }
}

/// The settings of attribution.
pub(super) fn attribution(config: &Config) -> attribution::Settings {
    attribution::Settings {
        procfs: config.path.procfs.clone(),
        passwd: config.path.passwd.clone(),
        command_line: config.process.command_line,
        hold: descriptors::for_directories(),
    }
}

/// The settings of the module `allocator`.
pub(super) fn allocator(config: &Config) -> allocator::Settings {
    let procfs = config.path.procfs.clone();
    allocator::Settings {
        peak_window: config.memory.peak_window,
        start_ticks: allocator::StartTicks::new(move |pid| attribution::process(&procfs, pid)),
        outcomes: None,
    }
}

/// The settings of the recorder; `None` if it is switched off. A demo writes its incidents to the same path as any
/// other run.
pub(super) fn recorder(config: &Config) -> Option<recorder::Settings> {
    let Recorder { max_memory_mib, path, max_files, max_disk_mib, .. } = config.recorder.clone();
    let Recorder { reports_path, reports_max_mib, report_linger, log_ended_processes, .. } = config.recorder.clone();
    let store = path.map(|path| StoreSettings { path, max_files, max_bytes: (max_disk_mib as u64) << 20 });
    let report_file = |path| ReportFileSettings { path, max_bytes: (reports_max_mib as u64) << 20 };
    (max_memory_mib > 0).then(|| recorder::Settings {
        memory_limit: max_memory_mib << 20,
        store,
        reports: ReportSettings {
            linger: report_linger,
            list_interval: config.process.interval,
            activity_interval: config.telemetry.interval,
        },
        report_file: reports_path.map(report_file),
        log_ended: log_ended_processes,
        host: host(config),
    })
}

/// The machine's name: the node name if one is configured, because a pod has a host name of its own.
pub(super) fn host(config: &Config) -> Option<String> {
    let own = || nix::unistd::gethostname().ok()?.into_string().ok();
    config.kubernetes.node_name.clone().or_else(own).filter(|name| !name.is_empty())
}

/// The feed from the lanes to the recorder, with room for twice the samples that sixteen GPUs produce between two
/// rounds of the recorder.
pub(super) fn feed(config: &Config) -> Feed {
    const GPUS: f64 = 16.0;
    if config.recorder.max_memory_mib == 0 {
        return Feed::default();
    }
    Feed::with_room((2.0 * recorder::PERIOD.as_secs_f64() * config.memory.rate * GPUS).ceil() as usize)
}

/// The settings of dcgm-exporter's families.
///
/// # Errors
/// When the collectors file is refused.
pub(super) fn dcgm(config: &Config) -> Result<dcgm::Settings, dcgm::Error> {
    let naming = naming(config.dcgm.names);
    let collectors = match &config.dcgm.collectors_file {
        Some(path) => Collectors::from_file(path)?,
        None => Collectors::by_default(naming),
    };
    let hostname = host(config);
    Ok(dcgm::Settings { naming, collectors, virtual_gpus: config.dcgm.virtual_gpus, hostname })
}

fn naming(names: DcgmNames) -> Naming {
    match names {
        DcgmNames::Exporter48 => Naming::Exporter48,
        DcgmNames::ExporterMain => Naming::ExporterMain,
        DcgmNames::Dcgm46 => Naming::Dcgm46,
    }
}

/// The limits of the web server.
pub(super) fn limits(web: &Web) -> Limits {
    Limits {
        max_requests: web.max_requests,
        max_connections: web.max_connections,
        read_timeout: web.read_timeout,
        write_timeout: web.write_timeout,
        idle_timeout: web.idle_timeout,
    }
}
