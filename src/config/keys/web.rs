//! The keys of the web server.

use super::{Key, Kind, LISTEN_ADDRESS, millis, secs};

/// The keys whose names begin with `web.`.
pub(super) const WEB: &[Key] = &[
    Key::new(LISTEN_ADDRESS, Some(":9836"), Kind::Addresses(|c| &mut c.web.listen_addresses)).help(
        "Address to listen on: \":9836\" (all interfaces, IPv6 and IPv4), \"localhost:9836\" (127.0.0.1), \
         \"[::1]:9836\", or a socket file, \"unix:/run/vram-exporter.sock\". Give several addresses as a list in a \
         file, a repeated flag, or comma-separated text. Port 0 selects a free port.",
    ),
    Key::switch("web.systemd-socket", "false", |c| &mut c.web.systemd_socket)
        .help("Use the sockets that the service manager passes (socket activation) instead of web.listen-address."),
    Key::new("web.health-address", None, Kind::Addresses(|c| &mut c.web.health_addresses)).help(
        "Additional address for /healthz and /readyz only, without TLS and passwords: for probes that have no client \
         certificate. Not set: no additional address.",
    ),
    Key::path("web.config-file", "FILE", |c| &mut c.web.config_file).help(
        "A web-config file: TLS, client certificates, passwords, headers and a rate limit (docs/web-config.md). Read \
         again when it changes and on SIGHUP. Not set: plain HTTP without authentication.",
    ),
    Key::new("web.telemetry-path", Some("/metrics"), Kind::UrlPath(|c| &mut c.web.telemetry_path))
        .help("Path of the metrics; none of the exporter's other paths."),
    Key::switch("web.disable-exporter-metrics", "false", |c| &mut c.web.disable_exporter_metrics).help(
        "Leave out the metrics about the exporter's own work: process_*, its faults, sampling loops, stuck threads and \
         scrapes. Its version, and whether the values of the GPUs are recent and complete, are still shown.",
    ),
    Key::switch("web.openmetrics-created", "false", |c| &mut c.web.openmetrics_created).help(
        "Send the creation times of counters to scrapers that ask for OpenMetrics: one more sample, with the suffix \
         _created, for each counter and histogram whose start is known. Prometheus stores them as additional series, \
         unless its feature created-timestamp-zero-ingestion is on.",
    ),
    Key::new("web.allowed-hosts", None, Kind::Hosts(|c| &mut c.web.allowed_hosts)).help(
        "Names and addresses, without ports, under which clients may address the exporter, such as \
         \"gpu1.example.com\" or \"10.0.0.7\"; requests with another Host get 421. It keeps pages of other sites from \
         reading the exporter through a browser. /healthz and /readyz are answered under any name. Give several names \
         as a list in a file, a repeated flag, or comma-separated text. Not set: any name.",
    ),
    Key::count("web.max-requests", "40", 1..=65_536, |c| &mut c.web.limits.max_requests).help(
        "Maximum number of requests answered at the same time, on all addresses together, as far as 32 MiB suffice for \
         the bodies of their responses; further requests get 503. Health probes are always answered.",
    ),
    Key::count("web.max-connections", "512", 1..=65_536, |c| &mut c.web.limits.max_connections).help(
        "Maximum number of open connections, on web.listen-address and dcgm.listen-address together. If there are \
         more, the one that has been idle or waiting for a request for the longest time is closed. web.health-address \
         has 32 connections of its own.",
    ),
    Key::duration("web.read-timeout", "10s", millis(100)..=secs(600), |c| &mut c.web.limits.read_timeout)
        .help("Maximum time for a client to send a request, from connecting or from the request's first byte."),
    Key::duration("web.write-timeout", "30s", millis(100)..=secs(600), |c| &mut c.web.limits.write_timeout)
        .help("Maximum time to send a response, until the client has received all of it."),
    Key::duration("web.idle-timeout", "5m", millis(100)..=secs(86_400), |c| &mut c.web.limits.idle_timeout).help(
        "Maximum time that a connection may be idle between two requests. If it is shorter than the scrape interval, \
         each scrape opens a new connection.",
    ),
];
