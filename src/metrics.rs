//! From the snapshot to Prometheus' text: one table of families, one pass over the latest parts.
//!
//! Invariant: a scrape calls no driver, waits for no lane and changes no value; what is unknown or too old has no
//! series; no two series bear the same name and labels.
//!
//! What was read of the machine goes from the snapshot straight into the text. What the exporter says of itself as a
//! program stands in a [`prometheus::Registry`], and follows.

mod build_metrics;
mod driver;
mod exporter;
mod exposition;
mod family;
mod gpu_memory;
mod kubernetes;
pub(crate) mod label;
mod label_cache;
mod mig;
mod own_process;
mod processes;
mod reference;
mod table;
mod telemetry;
mod view;
mod workloads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::Registry;

use self::build_metrics::BuildMetrics;
use self::exporter::ExporterStats;
use self::exposition::Exposition;
use self::label_cache::LabelCache;
use self::own_process::OwnProcess;
use crate::config::Config;
use crate::faults::Faults;
use crate::snapshot::Snapshot;

pub use family::{Family, Kind, Section, Unit, When};
pub use reference::reference;
pub use table::{SECTIONS, families};
pub use view::{GpuView, Parts};

/// The content type of [`Metrics::encode`]'s bytes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bytes: a text that is longer is sent while it is written.
const LONG: usize = 256 * 1024;

/// What the metrics have to know of the configuration.
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

impl Settings {
    /// The part of the configuration that concerns the metrics, and whether the exporter sees the machine's processes.
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
        }
    }
}

/// Why there is no exposition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry refused a collector.
    #[error("the registry refused a collector")]
    Register(#[source] prometheus::Error),
    /// The encoder refused a family of the registry.
    #[error("the metrics could not be written as text")]
    Encode(#[source] prometheus::Error),
}

/// A scrape that was begun: whatever it costs from here on is writing text.
#[derive(Debug)]
pub struct Scrape {
    metrics: Arc<Metrics>,
    program: Vec<u8>,
}

impl Scrape {
    /// Whether the text will be so long that it is better sent while it is written, going by the last one.
    pub fn is_long(&self) -> bool {
        self.metrics.last_length.load(Ordering::Relaxed) > LONG
    }

    /// Renders the whole exposition.
    pub fn whole(self) -> Vec<u8> {
        self.metrics.text(&self.program)
    }

    /// Writes the text and hands it over piece by piece, until `take` says that nobody wants more.
    pub fn in_chunks(self, mut take: impl FnMut(Vec<u8>) -> bool) {
        let mut out = Exposition::in_chunks(&mut take);
        self.metrics.write(&Parts::load(&self.metrics.snapshot), &mut out);
        let Some((last, length)) = out.end(&self.program) else { return };
        self.metrics.last_length.store(length, Ordering::Relaxed);
        take(last);
    }
}

/// The metrics of the machine, and of the exporter.
#[derive(Debug)]
pub struct Metrics {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    settings: Settings,
    own_process: OwnProcess,
    build_metrics: BuildMetrics,
    labels: LabelCache,
    last_length: AtomicUsize,
}

impl Metrics {
    /// The metrics of what the snapshot holds, whenever they are asked for.
    ///
    /// # Errors
    /// When the registry refuses what the exporter says of stats.
    pub fn new(snapshot: Arc<Snapshot>, faults: Arc<Faults>, settings: Settings) -> Result<Self, Error> {
        let build_metrics = BuildMetrics::new().map_err(Error::Register)?;
        Ok(Self {
            snapshot,
            faults,
            settings,
            own_process: OwnProcess::new(),
            build_metrics,
            labels: LabelCache::default(),
            last_length: AtomicUsize::new(0),
        })
    }

    /// Counts one scrape, and begins it.
    ///
    /// # Errors
    /// When a family of the registry cannot be written. What was begun ends well.
    pub fn scrape(self: &Arc<Self>) -> Result<Scrape, Error> {
        self.build_metrics.scrapes.inc();
        Ok(Scrape { program: self.build_metrics.text()?, metrics: self.clone() })
    }

    /// All metrics as text ([`CONTENT_TYPE`]), without counting a scrape.
    ///
    /// # Errors
    /// When a family of the registry cannot be written.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        Ok(self.text(&self.build_metrics.text()?))
    }

    /// Renders the latest parts, followed by the text of the registry.
    fn text(&self, registry: &[u8]) -> Vec<u8> {
        // Two scrapes have about the same length: room for the last one and a little more saves moving the text.
        let room = self.last_length.load(Ordering::Relaxed);
        let mut out = Exposition::whole(room + room / 16);
        self.write(&Parts::load(&self.snapshot), &mut out);
        let (text, length) = out.end(registry).expect("nothing stops an exposition that is kept whole");
        self.last_length.store(length, Ordering::Relaxed);
        text
    }

    /// The registry of what the exporter says of itself as a program. What else is registered there follows the metrics; it
    /// does not know the names in [`families`], and a second family of one of them would make Prometheus refuse the scrape.
    pub fn registry(&self) -> &Registry {
        &self.build_metrics.registry
    }

    /// What the metrics know of the configuration.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Writes everything that the parts hold, in the order of the table.
    fn write(&self, parts: &Parts, out: &mut Exposition<'_>) {
        let gpus = parts.gpus(&self.settings);
        gpu_memory::collect(&gpus, out);
        mig::collect(&gpus, out);
        if self.settings.process_series {
            processes::collect(&gpus, parts.now, &self.labels, out);
        }
        workloads::collect(&gpus, out);
        kubernetes::collect(parts, &self.settings, out);
        telemetry::collect(&gpus, out);
        driver::collect(&parts.driver, &gpus, out);
        let vitals = &self.snapshot.vitals;
        let nvml_up = parts.driver.up;
        exporter::collect(
            &ExporterStats { settings: &self.settings, vitals, faults: &self.faults, nvml_up },
            &gpus,
            out,
        );
        self.own_process.collect(out);
    }
}
