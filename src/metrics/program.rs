//! What the exporter says of itself as a program, in a Prometheus registry: its version, its scrapes, and its own process.

use std::collections::HashMap;

use prometheus::core::Desc;
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, IntCounter, IntGauge, Opts, Registry, TextEncoder};

use super::Error;
use super::family::{Family, Kind, Section, Unit, When};
use super::own_process::OwnProcess;

static BUILD_INFO: Family = Family::gauge(
    "vram_exporter_build_info",
    Unit::Info,
    When::Scrape,
    &["version"],
    "Always 1; the label is the exporter's version.",
);
static SCRAPES: Family = Family::counter(
    "vram_exporter_scrapes_total",
    Unit::Number,
    When::Scrape,
    &[],
    "Scrapes that were answered, this one included.",
);

pub(super) static SECTION: Section = Section {
    title: "The exporter as a program",
    intro: "Beside the standard families of every Prometheus client.",
    families: &[&BUILD_INFO, &SCRAPES],
};

/// Bytes that the text takes, and some more.
const ROOM: usize = 4 * 1024;

/// The registry and what is counted in it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) registry: Registry,
    pub(super) scrapes: IntCounter,
}

impl Program {
    /// # Errors
    /// When the registry refuses a collector.
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let options = |family: &Family| Opts::new(family.name, family.help());
        let build = IntGauge::with_opts(options(&BUILD_INFO).const_label("version", env!("CARGO_PKG_VERSION")))?;
        build.set(1);
        let scrapes = IntCounter::with_opts(options(&SCRAPES))?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(scrapes.clone()))?;
        registry.register(Box::new(OwnProcess::new()?))?;
        Ok(Self { registry, scrapes })
    }

    /// What the registry holds, as text.
    pub(super) fn text(&self) -> Result<Vec<u8>, Error> {
        let mut text = Vec::with_capacity(ROOM);
        TextEncoder::new().encode(&self.registry.gather(), &mut text).map_err(Error::Encode)?;
        Ok(text)
    }
}

/// How a registry knows a family without labels.
pub(super) fn description(family: &Family) -> Result<Desc, prometheus::Error> {
    Desc::new(family.name.to_owned(), family.help(), Vec::new(), HashMap::new())
}

/// A family without labels and its one value, as a registry takes them.
pub(super) fn measured(family: &Family, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    let mut measured = MetricFamily::default();
    if family.kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
        measured.set_field_type(MetricType::COUNTER);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
        measured.set_field_type(MetricType::GAUGE);
    }
    measured.set_name(family.name.to_owned());
    measured.set_help(family.help());
    measured.set_metric(vec![metric]);
    measured
}
