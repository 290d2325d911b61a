//! The configuration that the metrics depend on.

use std::time::Duration;

use super::selection::Selection;
use gpu_readings::faults::Source;

/// The part of the configuration that concerns the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The length of the peak window.
    pub peak_window: Duration,
    /// A GPU whose last good sample is older than this loses its values.
    pub stale_after: Duration,
    /// The longest time between two reads of the process lists.
    pub process_interval: Duration,
    /// Whether the exporter sees the machine's processes; `None` if that is unknown.
    pub host_pid_namespace: Option<bool>,
    /// Whether individual processes are shown.
    pub process_series: bool,
    /// The time between two requests to the kubelet.
    pub pod_resources_interval: Duration,
    /// The time between two fast telemetry readings.
    pub telemetry_interval: Duration,
    /// The time between two slow telemetry readings.
    pub telemetry_slow_interval: Duration,
    /// The time between two samples of the profiling counters.
    pub profiling_interval: Duration,
    /// The families to show.
    pub selection: Selection,
    /// Whether the metrics about the exporter's own work are shown.
    pub exporter_metrics: bool,
    /// Whether pushes to an OTLP receiver are configured.
    pub otlp: bool,
    /// Whether OpenMetrics contains the creation times of counters.
    pub created_samples: bool,
    /// The sources of faults that the configuration uses.
    pub fault_sources: Vec<Source>,
}

/// The defaults of the exporter's configuration. What depends on the machine has its usual value: the exporter sees all processes,
/// and every source of faults is in use.
impl Default for Settings {
    fn default() -> Self {
        Self {
            peak_window: Duration::from_secs(60),
            stale_after: Duration::from_secs(5),
            process_interval: Duration::from_secs(2),
            host_pid_namespace: Some(true),
            process_series: true,
            pod_resources_interval: Duration::from_secs(10),
            telemetry_interval: Duration::from_secs(1),
            telemetry_slow_interval: Duration::from_secs(15),
            profiling_interval: Duration::from_secs(10),
            selection: Selection::default(),
            exporter_metrics: true,
            otlp: false,
            created_samples: false,
            fault_sources: Source::ALL.to_vec(),
        }
    }
}
