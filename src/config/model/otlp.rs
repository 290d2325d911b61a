//! The configuration of the pushes to an OTLP receiver.

use std::path::PathBuf;
use std::time::Duration;

/// The pushes to an OTLP receiver.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Otlp {
    /// `otlp.endpoint`: the URL of an OTLP/HTTP receiver; `None`: nothing is pushed.
    pub endpoint: Option<String>,
    /// `otlp.interval`: at most `memory.peak-window`.
    pub interval: Duration,
    /// `otlp.timeout`
    pub timeout: Duration,
    /// `otlp.compression`: whether the requests are compressed.
    pub gzip: bool,
    /// `otlp.headers-file`: headers of the requests, which may contain secrets.
    pub headers_file: Option<PathBuf>,
    /// `otlp.ca-file`: the certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `otlp.names`
    pub names: OtlpNames,
}

/// The names of the metrics that are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpNames {
    /// `scrape`: the names of a scrape, which the shipped rules and dashboards use.
    #[default]
    Scrape,
    /// `semantic-conventions`: those of OpenTelemetry's semantic conventions where they have one, and otherwise those of
    /// a scrape.
    SemanticConventions,
    /// `both`: the names of a scrape, and those of the conventions where they have one.
    Both,
}
