//! One scrape of dcgm-exporter's families.
//!
//! Invariant: a scrape never calls the driver, never waits for a lane and changes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::collectors::Collectors;
use super::devices::{self, Format};
use crate::config::DcgmNames;
use crate::snapshot::Snapshot;
use gpu_metrics::{Exposition, Parts, Scrape, Scraped};

/// What the families depend on.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The names of labels.
    pub naming: DcgmNames,
    /// The fields to serve.
    pub collectors: Collectors,
    /// Whether each container that shares a GPU has series of its own.
    pub virtual_gpus: bool,
    /// The machine's name; `None` if it is unknown.
    pub hostname: Option<String>,
}

/// The families of dcgm-exporter.
#[derive(Debug)]
pub struct Families {
    snapshot: Arc<Snapshot>,
    metrics: gpu_metrics::Settings,
    settings: Settings,
    last_length: AtomicUsize,
}

impl Families {
    /// Creates the families, which show what the snapshot contains at the time of each scrape. A value is too old as
    /// in the exporter's own metrics.
    pub fn new(snapshot: Arc<Snapshot>, metrics: gpu_metrics::Settings, mut settings: Settings) -> Arc<Self> {
        // Labels are written in the order of their names.
        let (mut labels, mut columns): (Vec<_>, Vec<_>) =
            std::mem::take(&mut settings.collectors.columns).into_iter().partition(|column| column.kind.is_none());
        labels.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        columns.retain(|column| metrics.selection.shows(&column.name));
        columns.append(&mut labels);
        settings.collectors.columns = columns;
        Arc::new(Self { snapshot, metrics, settings, last_length: AtomicUsize::new(0) })
    }

    /// Begins a scrape.
    pub fn scrape(self: &Arc<Self>, format: gpu_metrics::Format) -> Scrape<Self> {
        Scrape::new(self.clone(), format, format.end().to_vec())
    }
}

impl Scraped for Families {
    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn last_length(&self) -> &AtomicUsize {
        &self.last_length
    }

    fn has_created(&self) -> bool {
        false
    }

    fn write(&self, parts: &Parts, out: &mut Exposition<'_>) {
        let gpus = parts.gpus(&self.metrics);
        let format = Format {
            metrics: &self.metrics,
            naming: self.settings.naming,
            hostname: self.settings.hostname.as_deref(),
            columns: &self.settings.collectors.columns,
            virtual_gpus: self.settings.virtual_gpus,
        };
        let devices: Vec<_> = gpus.iter().flat_map(|view| devices::of(parts, view, format)).collect();
        for column in format.columns {
            let Some(kind) = column.kind else { continue };
            let series = devices.iter().flat_map(|device| device.series(column.field));
            out.add_named((&column.name, kind, &column.help), series);
        }
    }
}
