//! Checks what several keys require of each other. Each setting is valid on its own.

use std::time::Duration;

use super::address::ListenAddress;
use super::layers::{DEFAULT, Layer};
use super::model::{ApiServer, Config};
use super::problem::Problem;
use super::units::format_duration;

/// A GPU may miss one idle sample before it counts as stale.
const IDLE_PERIODS: f64 = 2.0;

/// The keys that a simulated machine overrules, and what it has of its own.
const OVERRULED_BY_DEMO: [(&str, &str); 4] = [
    ("nvml.library", "a driver"),
    ("path.procfs", "a /proc"),
    ("path.passwd", "users"),
    ("allocator.socket", "processes that report"),
];

/// The combinations that are not allowed. Keys that are already known to be wrong are left out, because their effective
/// value is not the one that the user gave.
pub(super) fn fit(config: &Config, effective: &Layer, problems: &[Problem]) -> Vec<Problem> {
    let bad =
        |key: &str| problems.iter().any(|problem| matches!(problem, Problem::Value { key: bad, .. } if *bad == key));
    let mut found = Vec::new();
    let mut require = |key: &'static str, other: &str, fits: bool, must_be: String| {
        if !fits && !bad(key) && !bad(other) {
            let (value, origin) = effective.get(key);
            let why = format!("must be {must_be} ({})", effective.get(other).1);
            let value = value.unwrap_or_default().to_owned();
            found.push(Problem::Together { key, value, origin: origin.to_owned(), why });
        }
    };
    let (rate, idle) = (config.memory.rate, config.memory.idle_rate);
    require("memory.idle-rate", "memory.rate", idle <= rate, format!("at most memory.rate = {rate}"));

    let least = Duration::from_secs_f64(IDLE_PERIODS / idle);
    let must_be = format!("at least {}, two periods of memory.idle-rate = {idle}", format_duration(least));
    require("memory.stale-after", "memory.idle-rate", config.memory.stale_after >= least, must_be);

    let telemetry = &config.telemetry;
    let must_be = format!("at least telemetry.interval = {}", format_duration(telemetry.interval));
    let fits = telemetry.slow_interval >= telemetry.interval;
    require("telemetry.slow-interval", "telemetry.interval", fits, must_be);

    let (requests, connections) = (config.web.limits.max_requests, config.web.limits.max_connections);
    let must_be = format!("at least web.max-requests = {requests}");
    require("web.max-connections", "web.max-requests", requests <= connections, must_be);

    let listen = ("web.listen-address", &config.web.listen_addresses);
    let health = ("web.health-address", &config.web.health_addresses);
    let dcgm = ("dcgm.listen-address", &config.dcgm.listen_addresses);
    let pairs = [(listen, listen), (health, health), (health, listen), (dcgm, dcgm), (dcgm, listen), (dcgm, health)];
    // With sockets from the service manager, web.listen-address is not used.
    for ((key, some), (other, others)) in
        pairs.into_iter().filter(|(_, other)| *other != listen || !config.web.systemd_socket)
    {
        let overlap = overlap(some, others, key == other);
        let must_be = overlap.as_ref().map(|(one, two)| {
            if key == other {
                format!("addresses that do not overlap; {one} and {two} do")
            } else {
                format!("addresses that do not overlap with {other}; {one} overlaps with {two}")
            }
        });
        require(key, other, overlap.is_none(), must_be.unwrap_or_default());
    }

    let fits = config.dcgm.collectors_file.is_none() || !config.dcgm.listen_addresses.is_empty();
    let must_be = "given together with dcgm.listen-address, which serves the fields".to_owned();
    require("dcgm.collectors-file", "dcgm.listen-address", fits, must_be);

    let (interval, window) = (config.otlp.interval, config.memory.peak_window);
    let fits = config.otlp.endpoint.is_none() || interval <= window;
    let must_be = format!("at most memory.peak-window = {}, or peaks are lost", format_duration(window));
    require("otlp.interval", "memory.peak-window", fits, must_be);
    for (key, file) in [("otlp.headers-file", &config.otlp.headers_file), ("otlp.ca-file", &config.otlp.ca_file)] {
        let fits = config.otlp.endpoint.is_some() || file.is_none();
        require(key, "otlp.endpoint", fits, "given together with otlp.endpoint".to_owned());
    }

    let cluster = &config.kubernetes;
    let named = cluster.api_server.is_none() || cluster.node_name.is_some();
    let must_be = "given together with kubernetes.node-name, since only this node's pods are requested".to_owned();
    require("kubernetes.api-server", "kubernetes.node-name", named, must_be);
    let has_url = matches!(cluster.api_server, Some(ApiServer::At(_)));
    for (key, file) in [("kubernetes.token-file", &cluster.token_file), ("kubernetes.ca-file", &cluster.ca_file)] {
        let fits = has_url || file.is_none();
        require(key, "kubernetes.api-server", fits, "given together with a URL as kubernetes.api-server".to_owned());
    }
    let fits = cluster.pod_labels.is_empty() || cluster.api_server.is_some();
    let must_be = "given together with kubernetes.api-server, which reports the labels".to_owned();
    require("kubernetes.pod-labels", "kubernetes.api-server", fits, must_be);
    if config.demo.is_some() {
        found.extend(overruled_by_demo(effective));
    }
    found
}

/// The keys that are set although they would have no effect beside `--demo`.
fn overruled_by_demo(effective: &Layer) -> impl Iterator<Item = Problem> {
    OVERRULED_BY_DEMO.into_iter().filter_map(|(key, own)| {
        let (value, origin) = effective.get(key);
        let why = format!("has no effect with --demo, whose machine has {own} of its own: remove one of the two");
        let value = value.unwrap_or_default().to_owned();
        (origin != DEFAULT).then(|| Problem::Together { key, value, origin: origin.to_owned(), why })
    })
}

/// Two addresses that cannot both be listened on: one from each list, or two from the same list.
fn overlap(
    some: &[ListenAddress],
    others: &[ListenAddress],
    same_list: bool,
) -> Option<(ListenAddress, ListenAddress)> {
    some.iter().enumerate().find_map(|(index, one)| {
        let from = if same_list { index + 1 } else { 0 };
        let other = others.iter().skip(from).find(|other| one.overlaps(other))?;
        Some((one.clone(), other.clone()))
    })
}
