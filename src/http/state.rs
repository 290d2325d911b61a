//! The state from which all responses are built.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::health;
use crate::faults::Faults;
use crate::recorder::Recorder;
use crate::snapshot::Snapshot;
use gpu_metrics::Metrics;

/// How long a lane may be silent by default.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(10);
/// The state from which the responses are built.
#[derive(Debug, Clone)]
pub struct HttpState {
    /// The registry.
    pub metrics: Arc<Metrics>,
    /// The latest readings.
    pub snapshot: Arc<Snapshot>,
    /// Where a failed response is counted.
    pub faults: Arc<Faults>,
    /// The path of the metrics. It begins with `/` and differs from all of the exporter's other paths.
    pub telemetry_path: String,
    /// When the exporter started.
    pub started: Instant,
    /// How long a lane may be silent before the exporter counts as not alive.
    pub alive_within: Duration,
    /// The recorder; `None` if it is switched off.
    pub recorder: Option<Arc<Recorder>>,
    /// The machine's name, for the page; `None` if it is unknown.
    pub host: Option<String>,
    /// What the page of a demo points out to the reader.
    pub sights: Vec<&'static str>,
}

impl HttpState {
    /// The state of an exporter that starts now, with [`ALIVE_WITHIN`].
    pub fn new(metrics: Arc<Metrics>, snapshot: Arc<Snapshot>, faults: Arc<Faults>, telemetry_path: &str) -> Self {
        let (telemetry_path, started) = (telemetry_path.to_owned(), Instant::now());
        let (recorder, host, sights) = (None, None, Vec::new());
        let alive_within = ALIVE_WITHIN;
        Self { metrics, snapshot, faults, telemetry_path, started, alive_within, recorder, host, sights }
    }

    /// Why the exporter is not alive, as `/healthz` reports it; `None` while it is.
    pub fn unhealthy(&self) -> Option<String> {
        health::unhealthy(&self.snapshot.vitals, self.started.elapsed(), self.alive_within)
    }
}
