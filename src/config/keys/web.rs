//! The keys of the web server.

use std::time::Duration;

use super::LISTEN_ADDRESS;
use crate::config::key::Key;
use crate::config::setting::Kind;

/// The keys whose names begin with `web.`.
pub(super) const WEB: &[Key] = &[
    Key {
        name: LISTEN_ADDRESS,
        default: Some(":9836"),
        kind: Kind::Addresses,
        set: |c, s| c.web.listen_addresses = s.addresses(),
        help: "Address to listen on: \":9836\" (all interfaces, IPv6 and IPv4), \"localhost:9836\" (127.0.0.1), \
               \"[::1]:9836\", or a socket file, \"unix:/run/vram-exporter.sock\". Give several addresses as a list in \
               a file, a repeated flag, or comma-separated text. Port 0 selects a free port.",
    },
    Key {
        name: "web.systemd-socket",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.web.systemd_socket = s.switch(),
        help: "Use the sockets that the service manager passes (socket activation) instead of web.listen-address.",
    },
    Key {
        name: "web.health-address",
        default: None,
        kind: Kind::Addresses,
        set: |c, s| c.web.health_addresses = s.addresses(),
        help: "Additional address for /healthz and /readyz only, without TLS and passwords: for probes that have no client \
               certificate. Not set: no additional address.",
    },
    Key {
        name: "web.config-file",
        default: None,
        kind: Kind::Path("FILE"),
        set: |c, s| c.web.config_file = s.path(),
        help: "A web-config file: TLS, client certificates, passwords, headers and a rate limit (docs/web-config.md). Read \
               again when it changes and on SIGHUP. Not set: plain HTTP without authentication.",
    },
    Key {
        name: "web.telemetry-path",
        default: Some("/metrics"),
        kind: Kind::UrlPath,
        set: |c, s| c.web.telemetry_path = s.text().unwrap_or_default(),
        help: "Path of the metrics; none of the exporter's other paths.",
    },
    Key {
        name: "web.disable-exporter-metrics",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.web.disable_exporter_metrics = s.switch(),
        help: "Leave out the metrics about the exporter's own work: process_*, its faults, sampling loops, stuck threads and \
               scrapes. Its version, and whether the values of the GPUs are recent and complete, are still shown.",
    },
    Key {
        name: "web.openmetrics-created",
        default: Some("false"),
        kind: Kind::Switch,
        set: |c, s| c.web.openmetrics_created = s.switch(),
        help: "Send the creation times of counters to scrapers that ask for OpenMetrics: one more sample, with the suffix \
               _created, for each counter and histogram whose start is known. Prometheus stores them as additional series, \
               unless its feature created-timestamp-zero-ingestion is on.",
    },
    Key {
        name: "web.allowed-hosts",
        default: None,
        kind: Kind::Hosts,
        set: |c, s| c.web.allowed_hosts = s.list(),
        help: "Names and addresses, without ports, under which clients may address the exporter, such as \
               \"gpu1.example.com\" or \"10.0.0.7\"; requests with another Host get 421. It keeps pages of other sites from \
               reading the exporter through a browser. /healthz and /readyz are answered under any name. Give several names \
               as a list in a file, a repeated flag, or comma-separated text. Not set: any name.",
    },
    Key {
        name: "web.max-requests",
        default: Some("40"),
        kind: Kind::Count { min: 1, max: 65_536 },
        set: |c, s| c.web.max_requests = s.count(),
        help: "Maximum number of requests answered at the same time, on all addresses together, as far as 32 MiB suffice for \
               the bodies of their responses; further requests get 503. Health probes are always answered.",
    },
    Key {
        name: "web.max-connections",
        default: Some("512"),
        kind: Kind::Count { min: 1, max: 65_536 },
        set: |c, s| c.web.max_connections = s.count(),
        help: "Maximum number of open connections, on web.listen-address and dcgm.listen-address together. If there are \
               more, the one that has been idle or waiting for a request for the longest time is closed. \
               web.health-address has 32 connections of its own.",
    },
    Key {
        name: "web.read-timeout",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(600) },
        set: |c, s| c.web.read_timeout = s.duration(),
        help: "Maximum time for a client to send a request, from connecting or from the request's first byte.",
    },
    Key {
        name: "web.write-timeout",
        default: Some("30s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(600) },
        set: |c, s| c.web.write_timeout = s.duration(),
        help: "Maximum time to send a response, until the client has received all of it.",
    },
    Key {
        name: "web.idle-timeout",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(86_400) },
        set: |c, s| c.web.idle_timeout = s.duration(),
        help: "Maximum time that a connection may be idle between two requests. If it is shorter than the scrape interval, \
               each scrape opens a new connection.",
    },
];
