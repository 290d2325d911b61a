//! What the metrics need to know of the configuration.

use std::time::Duration;

use crate::config::Config;
use crate::faults::Source;

/// The part of the configuration that concerns the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The length of the peak window.
    pub peak_window: Duration,
    /// A GPU whose last good sample is older than this loses its values.
    pub stale_after: Duration,
    /// The longest time between two lists of processes.
    pub process_interval: Duration,
    /// Whether the exporter sees the machine's processes; `None` where that is unknown.
    pub host_pid_namespace: Option<bool>,
    /// Whether single processes are shown.
    pub process_series: bool,
    /// The time between two requests to the kubelet.
    pub pod_resources_interval: Duration,
    /// The time between two fast telemetry readings.
    pub telemetry_interval: Duration,
    /// The time between two slow telemetry readings.
    pub telemetry_slow_interval: Duration,
    /// Whether the metrics about the exporter's own work are shown.
    pub exporter_metrics: bool,
    /// The sources of faults that the configuration uses.
    pub fault_sources: Vec<Source>,
}

impl Settings {
    /// Takes the settings from the configuration. `host_pid_namespace`: whether the exporter sees the machine's processes.
    pub fn new(config: &Config, host_pid_namespace: Option<bool>) -> Self {
        Self {
            peak_window: config.memory.peak_window,
            stale_after: config.memory.stale_after,
            process_interval: config.process.interval,
            host_pid_namespace,
            process_series: config.process.series,
            pod_resources_interval: config.kubernetes.pod_resources_interval,
            telemetry_interval: config.telemetry.interval,
            telemetry_slow_interval: config.telemetry.slow_interval,
            exporter_metrics: !config.web.disable_exporter_metrics,
            fault_sources: Source::ALL.iter().copied().filter(|source| is_used(*source, config)).collect(),
        }
    }
}

/// Whether the part of the exporter that the source names is at work.
fn is_used(source: Source, config: &Config) -> bool {
    match source {
        Source::PodResources => config.kubernetes.pod_resources.is_some(),
        Source::KubernetesApi => config.kubernetes.api_server.is_some(),
        Source::WebConfig => config.web.config_file.is_some(),
        Source::Library
        | Source::Topology
        | Source::Memory
        | Source::Process
        | Source::Telemetry
        | Source::Attribution
        | Source::Http => true,
    }
}
