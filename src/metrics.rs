//! From the snapshot to Prometheus' text: one collector, one table of families.
//!
//! Invariant: a scrape calls no driver, waits for no lane and changes no value; what is unknown or too old has no
//! series; no two series bear the same name and labels.

mod collector;
mod driver;
mod exporter;
mod exposition;
mod family;
mod gpu_memory;
mod kubernetes;
mod label;
mod mig;
mod own_process;
mod processes;
mod reference;
mod table;
mod telemetry;
#[cfg(any(test, fuzzing))]
pub mod trials;
mod view;
mod workloads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::{Encoder, Registry, TextEncoder};

use crate::faults::Faults;
use crate::snapshot::Snapshot;

pub use collector::MetricsCollector;
pub use family::{Family, Kind, Section, Unit, When};
pub use reference::reference;
pub use table::{SECTIONS, families};
pub use view::{GpuView, Parts};

/// The content type of [`Metrics::encode`]'s bytes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the collector has to know of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The length of the peak window.
    pub peak_window: Duration,
    /// A GPU without a good sample for so long loses its values.
    pub stale_after: Duration,
    /// The longest time between two lists of processes.
    pub process_interval: Duration,
    /// Whether the exporter sees the machine's processes; `None` where it cannot tell.
    pub host_pid_namespace: Option<bool>,
    /// Whether single processes are shown.
    pub process_series: bool,
    /// The time between two questions to the kubelet.
    pub pod_resources_interval: Duration,
    /// The time between two quick telemetry readings.
    pub telemetry_interval: Duration,
    /// The time between two slow telemetry readings.
    pub telemetry_slow_interval: Duration,
}

/// Why there is no exposition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry refused the collector.
    #[error("the registry refused the collector")]
    Register(#[source] prometheus::Error),
    /// The encoder refused a family.
    #[error("the metrics could not be written as text")]
    Encode(#[source] prometheus::Error),
}

/// The registry with the one collector in it, and the count of scrapes.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    settings: Settings,
    scrapes: Arc<AtomicU64>,
    last_length: AtomicUsize,
}

impl Metrics {
    /// Registers the collector over the snapshot in a registry of its own.
    pub fn new(snapshot: Arc<Snapshot>, faults: Arc<Faults>, settings: Settings) -> Result<Self, Error> {
        let scrapes = Arc::new(AtomicU64::new(0));
        let collector = MetricsCollector::new(snapshot, faults, settings.clone(), scrapes.clone());
        let registry = Registry::new();
        collector.and_then(|collector| registry.register(Box::new(collector))).map_err(Error::Register)?;
        Ok(Self { registry, settings, scrapes, last_length: AtomicUsize::new(0) })
    }

    /// Counts one scrape, then writes all metrics as text ([`CONTENT_TYPE`]).
    pub fn scrape(&self) -> Result<Vec<u8>, Error> {
        self.scrapes.fetch_add(1, Ordering::Relaxed);
        self.encode()
    }

    /// All metrics as text ([`CONTENT_TYPE`]), without counting a scrape.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        // Two scrapes are about as long as one another: room for the last one and some more saves moving the text.
        let room = self.last_length.load(Ordering::Relaxed);
        let mut text = Vec::with_capacity(room + room / 16);
        TextEncoder::new().encode(&self.registry.gather(), &mut text).map_err(Error::Encode)?;
        self.last_length.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    /// The registry that holds the collector.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What the collector knows of the configuration.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
