//! One scrape of dcgm-exporter's families.
//!
//! Invariant: a scrape never calls the driver, never waits for a lane and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::collectors::Collectors;
use super::devices::{self, Format};
use super::fields::Naming;
use crate::metrics::{self, Exposition, Parts};
use crate::snapshot::Snapshot;

/// The length in bytes above which the text is sent while it is being written.
const LONG: usize = 256 * 1024;

/// What the families depend on.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The names of labels.
    pub naming: Naming,
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
    metrics: metrics::Settings,
    settings: Settings,
    last_length: AtomicUsize,
}

impl Families {
    /// Creates the families, which show what the snapshot contains at the time of each scrape. A value is too old as
    /// in the exporter's own metrics.
    pub fn new(snapshot: Arc<Snapshot>, metrics: metrics::Settings, mut settings: Settings) -> Arc<Self> {
        // Labels are written in the order of their names.
        let (mut labels, mut columns): (Vec<_>, Vec<_>) =
            std::mem::take(&mut settings.collectors.columns).into_iter().partition(|column| column.kind.is_none());
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        columns.retain(|column| metrics.selection.shows(&column.name));
        columns.append(&mut labels);
        settings.collectors.columns = columns;
        Arc::new(Self { snapshot, metrics, settings, last_length: AtomicUsize::new(0) })
    }

    /// Begins a scrape.
    pub fn scrape(self: &Arc<Self>, format: metrics::Format) -> Scrape {
        Scrape { families: self.clone(), format }
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

/// A scrape that has begun. Only its text remains to be written.
#[derive(Debug)]
pub struct Scrape {
    families: Arc<Families>,
    format: metrics::Format,
}

impl Scrape {
    /// Whether the text should be sent while it is being written, judging by the length of the last scrape's text.
    pub fn is_long(&self) -> bool {
        self.families.last_length.load(Ordering::Relaxed) > LONG
    }

    /// Renders the whole text.
    pub fn whole(self) -> Vec<u8> {
        let Self { families, format } = self;
        let room = families.last_length.load(Ordering::Relaxed);
        let mut out = Exposition::whole(format, room + room / 16);
        families.write(&Parts::load(&families.snapshot), &mut out);
        let (text, length) = out.end(format.end()).unwrap_or_default();
        families.last_length.store(length, Ordering::Relaxed);
        text
    }

    /// Renders the text in chunks and passes each to `take`, until `take` returns `false`.
    pub fn in_chunks(self, mut take: impl FnMut(Vec<u8>) -> bool) {
        let Self { families, format } = self;
        let mut out = Exposition::in_chunks(format, &mut take);
        families.write(&Parts::load(&families.snapshot), &mut out);
        let Some((last, length)) = out.end(format.end()) else { return };
        families.last_length.store(length, Ordering::Relaxed);
        take(last);
    }
}
