//! The version of the exporter and the count of its scrapes, in a Prometheus registry.

use std::time::SystemTime;

use prometheus::{Encoder, IntCounter, IntGauge, Opts, Registry, TextEncoder};

use super::exposition::Exposition;
use super::family::{Cadence, Family, Series};
use super::label::Labels;
use super::openmetrics::Counted;
use super::section::Section;
use super::selection::Selection;

static BUILD_INFO: Family = Series::new(Cadence::Scrape, &["version", "revision", "rustversion"]).family(
    "vram_exporter_build_info",
    "Always 1; the labels are the exporter's version, the commit of which release/compile.sh made it (left out if it was made otherwise, or of files that were not committed), and the version of the Rust compiler.",
);

/// The labels of the build: the commit is set by `release/compile.sh`, and the version of the compiler by the build script.
const BUILD: [(&str, Option<&str>); 3] = [
    ("version", Some(env!("CARGO_PKG_VERSION"))),
    ("revision", option_env!("VRAM_EXPORTER_REVISION")),
    ("rustversion", option_env!("VRAM_EXPORTER_RUSTVERSION")),
];
static SCRAPES: Family =
    Series::ONE.family("vram_exporter_scrapes_total", "Scrapes that were answered, this one included.");

pub(super) static SECTION: Section = Section {
    title: "Version and scrapes",
    intro: "`vram_exporter_scrapes_total` is left out with `web.disable-exporter-metrics`.",
    families: &[&BUILD_INFO, &SCRAPES],
    // The text of the registry follows the other sections.
    collect: |_, _| {},
};

/// The initial size of the buffer in bytes: a little more than the length of the text.
pub(super) const ROOM: usize = 1024;

/// The registry and its counters.
#[derive(Debug)]
pub(super) struct BuildMetrics {
    pub(super) registry: Registry,
    pub(super) scrapes: IntCounter,
    show_build: bool,
    show_scrapes: bool,
}

impl BuildMetrics {
    /// `show_scrapes`: whether the count of scrapes is exported, if it is selected.
    ///
    /// # Errors
    /// When the registry refuses a collector.
    pub(super) fn new(show_scrapes: bool, selection: &Selection) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let (show_build, show_scrapes) =
            (selection.shows_own(&BUILD_INFO), show_scrapes && selection.shows_own(&SCRAPES));
        let options = |family: &Family| Opts::new(family.name, family.help());
        let add = |options: Opts, (name, value): (_, Option<&str>)| match value {
            Some(value) => options.const_label(name, value),
            None => options,
        };
        let build = BUILD.into_iter().fold(options(&BUILD_INFO), add);
        let build = IntGauge::with_opts(build)?;
        build.set(1);
        let scrapes = IntCounter::with_opts(options(&SCRAPES))?;
        if show_build {
            registry.register(Box::new(build))?;
        }
        if show_scrapes {
            registry.register(Box::new(scrapes.clone()))?;
        }
        Ok(Self { registry, scrapes, show_build, show_scrapes })
    }

    /// Encodes the registry as text.
    pub(super) fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(ROOM);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Adds what the registry contains. Used for everything but the text format, because the library encodes only that.
    /// `started`: when the first scrape had not been counted yet.
    pub(super) fn collect(&self, started: SystemTime, out: &mut Exposition<'_>) {
        if self.show_build {
            let labels =
                BUILD.into_iter().fold(Labels::default(), |labels, (name, value)| labels.and_known(name, value));
            out.add(&BUILD_INFO, [(labels, 1.0)]);
        }
        if self.show_scrapes {
            out.add_one(&SCRAPES, Counted::since(Some(started), self.scrapes.get() as f64));
        }
    }
}
