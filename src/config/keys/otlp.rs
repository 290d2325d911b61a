//! The keys of the pushes to an OTLP receiver.

use std::time::Duration;

use super::Key;
use crate::config::model::OtlpNames;
use crate::config::setting::Kind;

/// The keys of the section `otlp`.
pub(super) const OTLP: &[Key] = &[
    Key {
        name: "otlp.endpoint",
        default: None,
        kind: Kind::OtlpEndpoint,
        set: |c, s| c.otlp.endpoint = s.text(),
        help: "URL of an OTLP/HTTP receiver to which the metrics are pushed (docs/collectors.md), such as \
               \"http://localhost:4318\" or \"https://prometheus:9090/api/v1/otlp\". /v1/metrics is appended unless the URL \
               ends with it. Not set: nothing is pushed.",
    },
    Key {
        name: "otlp.interval",
        default: Some("30s"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) },
        set: |c, s| c.otlp.interval = s.duration(),
        help: "Time between two pushes; at most memory.peak-window. At half of it, one lost push loses no peak.",
    },
    Key {
        name: "otlp.timeout",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(300) },
        set: |c, s| c.otlp.timeout = s.duration(),
        help: "Maximum time for one attempt, from connecting to the end of the response.",
    },
    Key {
        name: "otlp.compression",
        default: Some("gzip"),
        kind: Kind::Choice(&["gzip", "none"]),
        set: |c, s| c.otlp.gzip = s.text().as_deref() == Some("gzip"),
        help: "Compression of the requests.",
    },
    Key {
        name: "otlp.headers-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.otlp.headers_file = s.path(),
        help: "A file with headers for every request, one \"Name: value\" per line, for example with a token. Read again for \
               every push; its content is never shown. OTEL_EXPORTER_OTLP_HEADERS is used too.",
    },
    Key {
        name: "otlp.ca-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.otlp.ca_file = s.path(),
        help: "The certificates to trust for the receiver, in PEM, read again for every push. Not set: the system's \
               certificates.",
    },
    Key {
        name: "otlp.names",
        default: Some("scrape"),
        kind: Kind::Choice(&OtlpNames::WORDS),
        set: |c, s| c.otlp.names = OtlpNames::of(s.text().as_deref()),
        help: "Names of the metrics. scrape: the names of a scrape. semantic-conventions: hw.gpu.* and others where \
               OpenTelemetry's conventions name the value, and otherwise the name of a scrape. both: all of them.",
    },
];
