//! Translates the configuration into the settings of each module. The modules themselves do not use [`Config`].

use std::time::{Duration, SystemTime};

use super::{descriptors, resource};
use crate::config::{ApiServer, Config, Probes, Recorder, Telemetry, label_name};
use crate::dcgm::{self, Collectors};
use crate::faults::Source;
use crate::kubernetes::{api, kubelet};
use crate::lanes::{self, MemorySettings, ProcessSettings, TelemetrySettings};
use crate::nvml::Library;
use crate::otlp;
use crate::recorder::{self, ReportFileSettings, ReportSettings, StoreSettings};
use crate::snapshot::{CallFeed, Feed};
use crate::{allocator, attribution};

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
            list_stale_after: gpu_metrics::list_stale_after(memory.stale_after, process.interval),
            procfs: config.path.procfs.clone(),
        },
        process: ProcessSettings {
            interval: process.interval,
            peak_window: memory.peak_window,
            linger: process.linger,
            series_limit: process.series_limit,
            telemetry: Some(TelemetrySettings {
                interval: telemetry.interval,
                slow_interval: telemetry.slow_interval,
                profiling_interval: config.profiling.enabled.then_some(config.profiling.interval),
                unseen: unseen(config),
                workload_energy: telemetry.workload_energy,
            }),
        },
    }
}

/// The families that are excluded or not requested. With dcgm-exporter's families, which have the same values under other
/// names, exclusion does not count.
fn unseen(config: &Config) -> Vec<&'static str> {
    let Telemetry { energy, fan_speed, performance_state, workload_energy, nvlink_errors_by_link, .. } =
        config.telemetry;
    let on_request = [
        ("gpu_driver_energy_joules_total", energy),
        ("gpu_fan_speed_ratio", fan_speed),
        ("gpu_performance_state", performance_state),
        ("gpu_workload_energy_joules_total", workload_energy),
        ("gpu_idle_energy_joules_total", workload_energy),
        ("gpu_nvlink_link_errors_total", nvlink_errors_by_link),
        // Stands for the readings that only a list of dcgm-exporter's fields needs.
        ("dcgm.collectors-file", config.dcgm.collectors_file.is_some()),
    ];
    let not_requested = on_request.into_iter().filter(|(_, wanted)| !wanted).map(|(family, _)| family);
    if !config.dcgm.listen_addresses.is_empty() {
        return not_requested.collect();
    }
    let seen = gpu_metrics::Selection::new(&[], &config.metrics.exclude, gpu_metrics::families());
    not_requested.chain(seen.left_out().iter().copied()).collect()
}

/// The settings of the metrics. `host_pid_namespace` indicates whether the exporter sees the host's processes.
pub fn metrics(config: &Config, host_pid_namespace: Option<bool>) -> gpu_metrics::Settings {
    gpu_metrics::Settings {
        peak_window: config.memory.peak_window,
        stale_after: config.memory.stale_after,
        process_interval: config.process.interval,
        host_pid_namespace,
        process_series: config.process.series,
        pod_resources_interval: config.kubernetes.pod_resources_interval,
        telemetry_interval: config.telemetry.interval,
        telemetry_slow_interval: config.telemetry.slow_interval,
        profiling_interval: config.profiling.interval,
        selection: gpu_metrics::Selection::new(
            &config.metrics.include,
            &config.metrics.exclude,
            gpu_metrics::families(),
        ),
        exporter_metrics: !config.web.disable_exporter_metrics,
        otlp: config.otlp.endpoint.is_some(),
        created_samples: config.web.openmetrics_created,
        fault_sources: Source::ALL.iter().copied().filter(|source| is_used(*source, config)).collect(),
    }
}

/// Whether the configuration uses the part of the exporter that the source names.
fn is_used(source: Source, config: &Config) -> bool {
    match source {
        Source::PodResources | Source::ResourceClaims => config.kubernetes.pod_resources.is_some(),
        Source::KubernetesApi => config.kubernetes.api_server.is_some(),
        Source::Slurm => config.slurm.allocations.is_some(),
        Source::WebConfig => config.web.config_file.is_some(),
        Source::Allocator => config.allocator.socket.is_some(),
        Source::Otlp => config.otlp.endpoint.is_some(),
        Source::Probes => config.memory.probes != Probes::None,
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
        sites: config.allocator.sites,
        start_ticks: allocator::StartTicks::new(move |pid| attribution::process(&procfs, pid)),
        outcomes: None,
    }
}

/// The settings of the recorder; `None` if it is switched off. A demo writes its incidents to the same path as any
/// other run.
pub(super) fn recorder(config: &Config) -> Option<recorder::Settings> {
    let of: &Recorder = &config.recorder;
    let store = |path| StoreSettings { path, max_files: of.max_files, max_bytes: (of.max_disk_mib as u64) << 20 };
    let report_file = |path| ReportFileSettings { path, max_bytes: (of.reports_max_mib as u64) << 20 };
    (of.max_memory_mib > 0).then(|| recorder::Settings {
        memory_limit: of.max_memory_mib << 20,
        store: of.path.clone().map(store),
        reports: ReportSettings {
            linger: of.report_linger,
            list_interval: config.process.interval,
            activity_interval: config.telemetry.interval,
        },
        report_file: of.reports_path.clone().map(report_file),
        log_ended: of.log_ended_processes,
        host: host(config),
    })
}

/// The machine's name: the node name if one is configured, because a pod has a host name of its own.
pub(super) fn host(config: &Config) -> Option<String> {
    let own = || nix::unistd::gethostname().ok()?.into_string().ok();
    config.kubernetes.node_name.clone().or_else(own).filter(|name| !name.is_empty())
}

/// The feed from the lanes to the recorder, with room for twice the samples that sixteen GPUs produce between two
/// rounds of the recorder. With more GPUs there is room for less time; samples that find none are counted as lost.
pub(super) fn feed(config: &Config) -> Feed {
    const GPUS: f64 = 16.0;
    if config.recorder.max_memory_mib == 0 {
        return Feed::default();
    }
    Feed::with_room((2.0 * recorder::PERIOD.as_secs_f64() * config.memory.rate * GPUS).ceil() as usize)
}

/// The settings of the probes on the driver's memory calls; `None` if there are none.
pub(super) fn calls(config: &Config) -> Option<gpu_calls::Settings> {
    let mode = match config.memory.probes {
        Probes::None => return None,
        Probes::Refusals => gpu_calls::Mode::Refusals,
        Probes::All => gpu_calls::Mode::All,
    };
    let linger = config.process.linger + config.memory.peak_window;
    Some(gpu_calls::Settings { mode, procfs: config.path.procfs.clone(), linger })
}

/// The feed between the lanes and the probes, with room only if there are probes.
pub(super) fn call_feed(config: &Config) -> CallFeed {
    if config.memory.probes == Probes::None { CallFeed::default() } else { CallFeed::with_room() }
}

/// The settings of the follower of the API server; `None` without a server or a node.
pub(super) fn api_server(config: &Config) -> Option<api::Settings> {
    let of = &config.kubernetes;
    let server = match of.api_server.clone()? {
        ApiServer::InCluster => api::Server::InCluster,
        ApiServer::At(url) => api::Server::At { url, token_file: of.token_file.clone(), ca_file: of.ca_file.clone() },
    };
    let labels = of.pod_labels.iter().map(|key| (key.clone(), label_name(key))).collect();
    let (node, timeout) = (of.node_name.clone()?, of.timeout);
    Some(api::Settings { server, node, timeout, list_again: api::LIST_AGAIN, labels })
}

/// The settings of the follower of the kubelet; `None` without its socket.
pub(super) fn kubelet(config: &Config) -> Option<kubelet::Settings> {
    let of = &config.kubernetes;
    let socket = of.pod_resources.clone()?;
    let (interval, timeout) = (of.pod_resources_interval, of.timeout);
    Some(kubelet::Settings { socket, interval, timeout, claims: api_server(config), patience: kubelet::PATIENCE })
}

/// The settings of the pushes over OTLP; `None` if nothing is pushed.
///
/// # Errors
/// When a variable is not UTF-8.
pub(super) fn otlp(config: &Config) -> Result<Option<otlp::Settings>, otlp::Error> {
    let Some(endpoint) = config.otlp.endpoint.clone() else { return Ok(None) };
    Ok(Some(otlp::Settings {
        endpoint,
        interval: config.otlp.interval,
        timeout: config.otlp.timeout,
        gzip: config.otlp.gzip,
        headers_file: config.otlp.headers_file.clone(),
        headers: resource::variable("OTEL_EXPORTER_OTLP_HEADERS")?,
        ca_file: config.otlp.ca_file.clone(),
        names: config.otlp.names,
        resource: resource::attributes(host(config), config.kubernetes.node_name.clone()),
        resource_attributes: resource::variable("OTEL_RESOURCE_ATTRIBUTES")?,
        service_name: resource::variable("OTEL_SERVICE_NAME")?,
        started: SystemTime::now(),
    }))
}

/// The settings of the families of dcgm-exporter; `None` if they are not served.
///
/// # Errors
/// When the collectors file is refused.
pub(super) fn dcgm(config: &Config) -> anyhow::Result<Option<dcgm::Settings>> {
    if config.dcgm.listen_addresses.is_empty() {
        return Ok(None);
    }
    let naming = config.dcgm.names;
    let collectors = match &config.dcgm.collectors_file {
        Some(path) => Collectors::from_file(path)?,
        None => Collectors::by_default(naming),
    };
    let hostname = host(config);
    Ok(Some(dcgm::Settings { naming, collectors, virtual_gpus: config.dcgm.virtual_gpus, hostname }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_metrics_are_those_of_the_configuration() {
        let configured = metrics(&Config::default(), Some(true));
        assert_eq!(
            gpu_metrics::Settings { fault_sources: Source::ALL.to_vec(), ..configured },
            gpu_metrics::Settings::default()
        );
    }
}
