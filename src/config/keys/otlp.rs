//! The keys of the pushes to an OTLP receiver.

use super::{Key, Kind, millis, secs};
use crate::config::model::OtlpNames;

/// The keys of the section `otlp`.
pub(super) const OTLP: &[Key] = &[
    Key::new("otlp.endpoint", None, Kind::OtlpEndpoint(|c| &mut c.otlp.endpoint)).help(
        "URL of an OTLP/HTTP receiver to which the metrics are pushed (docs/collectors.md), such as \
         \"http://localhost:4318\" or \"https://prometheus:9090/api/v1/otlp\". /v1/metrics is appended unless the URL \
         ends with it. Not set: nothing is pushed.",
    ),
    Key::duration("otlp.interval", "30s", secs(1)..=secs(3600), |c| &mut c.otlp.interval)
        .help("Time between two pushes; at most memory.peak-window. At half of it, one lost push loses no peak."),
    Key::duration("otlp.timeout", "10s", millis(100)..=secs(300), |c| &mut c.otlp.timeout)
        .help("Maximum time for one attempt, from connecting to the end of the response."),
    Key::new(
        "otlp.compression",
        Some("gzip"),
        Kind::Choice(&[("gzip", |c| c.otlp.gzip = true), ("none", |c| c.otlp.gzip = false)]),
    )
    .help("Compression of the requests."),
    Key::path("otlp.headers-file", "FILE", |c| &mut c.otlp.headers_file).help(
        "A file with headers for every request, one \"Name: value\" per line, for example with a token. Read again for \
         every push; its content is never shown. OTEL_EXPORTER_OTLP_HEADERS is used too.",
    ),
    Key::path("otlp.ca-file", "FILE", |c| &mut c.otlp.ca_file).help(
        "The certificates to trust for the receiver, in PEM, read again for every push. Not set: the system's \
         certificates.",
    ),
    Key::new(
        "otlp.names",
        Some("scrape"),
        Kind::Choice(&[
            ("scrape", |c| c.otlp.names = OtlpNames::Scrape),
            ("semantic-conventions", |c| c.otlp.names = OtlpNames::SemanticConventions),
            ("both", |c| c.otlp.names = OtlpNames::Both),
        ]),
    )
    .help(
        "Names of the metrics. scrape: the names of a scrape. semantic-conventions: hw.gpu.* and others where \
         OpenTelemetry's conventions name the value, and otherwise the name of a scrape. both: all of them.",
    ),
];
