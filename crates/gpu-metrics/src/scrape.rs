//! One scrape: the latest parts of the snapshot, rendered as text.
//!
//! Invariant: a scrape never calls the driver, never waits for a lane and changes only the count of scrapes.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::SystemTime;

use super::build_metrics::{self, BuildMetrics};
use super::exposition::Exposition;
use super::label_cache::LabelCache;
use super::openmetrics::Format;
use super::own_process::OwnProcess;
use super::points::PointSink;
use super::scraped::{self, Scrape, Scraped};
use super::section::{Collect, Pass};
use super::settings::Settings;
use super::table::SECTIONS;
use super::view::Parts;
use gpu_readings::faults::Faults;
use gpu_readings::snapshot::Snapshot;

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

/// The metrics of the machine and of the exporter.
#[derive(Debug)]
pub struct Metrics {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    settings: Settings,
    /// The sections of which any family is selected, in the order of the table.
    shown: Vec<Collect>,
    own_process: OwnProcess,
    build_metrics: BuildMetrics,
    labels: LabelCache,
    /// When the counters of scrapes, of the lanes and of the feed were 0.
    started: SystemTime,
    last_length: AtomicUsize,
}

impl Metrics {
    /// Creates the metrics, which show what the snapshot contains at the time of each scrape.
    ///
    /// # Errors
    /// When the registry refuses a collector.
    pub fn new(snapshot: Arc<Snapshot>, faults: Arc<Faults>, settings: Settings) -> Result<Self, Error> {
        let build_metrics =
            BuildMetrics::new(settings.exporter_metrics, &settings.selection).map_err(Error::Register)?;
        let shown = SECTIONS.iter().filter(|section| section.is_shown(&settings.selection));
        Ok(Self {
            snapshot,
            faults,
            shown: shown.map(|section| section.collect).collect(),
            settings,
            own_process: OwnProcess::new(),
            build_metrics,
            labels: LabelCache::default(),
            started: SystemTime::now(),
            last_length: AtomicUsize::new(0),
        })
    }

    /// Counts one scrape and begins it.
    ///
    /// # Errors
    /// When a family of the registry cannot be encoded. A scrape that has begun does not fail.
    pub fn scrape(self: &Arc<Self>, format: Format) -> Result<Scrape<Self>, Error> {
        self.build_metrics.scrapes.inc();
        Ok(Scrape::new(self.clone(), format, self.registry_text(format)?))
    }

    /// Renders all metrics in a format without counting a scrape.
    ///
    /// # Errors
    /// When a family of the registry cannot be encoded.
    pub fn encode(&self, format: Format) -> Result<Vec<u8>, Error> {
        Ok(scraped::whole(self, format, &self.registry_text(format)?))
    }

    /// Passes the families and series of a scrape to `points` without counting a scrape.
    pub fn visit(&self, parts: &Parts, points: &mut dyn PointSink) {
        let mut out = Exposition::to_points(points);
        self.write(parts, &mut out);
        self.build_metrics.collect(self.started, &mut out);
    }

    /// The part of the configuration that concerns the metrics.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The registry whose families follow the readings in the text format. OpenMetrics has only the exporter's own families of it.
    pub fn registry(&self) -> &prometheus::Registry {
        &self.build_metrics.registry
    }

    fn registry_text(&self, format: Format) -> Result<Vec<u8>, Error> {
        match format {
            Format::Text => self.build_metrics.text().map_err(Error::Encode),
            Format::OpenMetrics => {
                let mut out =
                    Exposition::whole(format, build_metrics::ROOM).with_created(self.settings.created_samples);
                self.build_metrics.collect(self.started, &mut out);
                Ok(out.end(format.end()).map(|(text, _)| text).unwrap_or_default())
            }
        }
    }
}

impl Scraped for Metrics {
    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn last_length(&self) -> &AtomicUsize {
        &self.last_length
    }

    fn has_created(&self) -> bool {
        self.settings.created_samples
    }

    /// In the order of the table.
    fn write(&self, parts: &Parts, out: &mut Exposition<'_>) {
        out.hide(self.settings.selection.hidden());
        let pass = Pass {
            snapshot: &self.snapshot,
            parts,
            gpus: &parts.gpus(&self.settings),
            settings: &self.settings,
            faults: &self.faults,
            labels: &self.labels,
            own_process: &self.own_process,
            started: self.started,
        };
        for collect in &self.shown {
            collect(&pass, out);
        }
    }
}
