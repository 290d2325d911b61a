//! From settings, each good in itself, to the checked configuration: what several keys owe each other is held here.

use std::path::PathBuf;
use std::time::Duration;

use super::forms::IN_CLUSTER;
use super::layers::Effective;
use super::problem::Problem;
use super::setting::Setting;
use super::units::format_duration;
use super::{
    ApiServer, Config, Kubernetes, ListenAddress, Log, LogFormat, Memory, Nvml, Paths, Process, Telemetry, Web,
};

/// A GPU may miss one idle sample before it counts as stale.
const IDLE_PERIODS: f64 = 2.0;

/// What does not fit together. Keys that are already known as bad are left out, since their value here is not what
/// the user gave.
pub(super) fn fit(effective: &Effective, problems: &[Problem]) -> Vec<Problem> {
    let bad = |key: &str| problems.iter().any(|problem| problem.bad_key() == Some(key));
    let mut found = Vec::new();
    let mut hold = |key: &'static str, other: &str, fits: bool, owes: String| {
        if !fits && !bad(key) && !bad(other) {
            let value = effective.get(key).to_toml().unwrap_or_default();
            let why = format!("must be {owes} ({})", effective.origin(other));
            found.push(Problem::Together { key, value, origin: effective.origin(key).to_owned(), why });
        }
    };
    let (rate, idle) = (number(effective, "memory.rate"), number(effective, "memory.idle-rate"));
    hold("memory.idle-rate", "memory.rate", idle <= rate, format!("at most memory.rate = {rate}"));

    let least = Duration::from_secs_f64(IDLE_PERIODS / idle);
    let enough = duration(effective, "memory.stale-after") >= least;
    let owes = format!("at least {}, two periods of memory.idle-rate = {idle}", format_duration(least));
    hold("memory.stale-after", "memory.idle-rate", enough, owes);

    let quick = duration(effective, "telemetry.interval");
    let slower = duration(effective, "telemetry.slow-interval") >= quick;
    let owes = format!("at least telemetry.interval = {}", format_duration(quick));
    hold("telemetry.slow-interval", "telemetry.interval", slower, owes);

    let requests = count(effective, "web.max-requests");
    let enough = requests <= count(effective, "web.max-connections");
    hold("web.max-connections", "web.max-requests", enough, format!("at least web.max-requests = {requests}"));

    let (listen, health) = ("web.listen-address", "web.health-address");
    // With sockets of the service manager the first are not listened on.
    let systemd = switch(effective, "web.systemd-socket");
    let pairs = [(listen, listen, !systemd), (health, health, true), (health, listen, !systemd)];
    for (key, other, _) in pairs.into_iter().filter(|(_, _, bound)| *bound) {
        let overlap = overlap(&addresses(effective, key), &addresses(effective, other), key == other);
        let owes = overlap.as_ref().map(|(one, two)| match key == other {
            true => format!("addresses that do not overlap, as {one} and {two} do"),
            false => format!("addresses that do not overlap with {other}, as {one} does with {two}"),
        });
        hold(key, other, overlap.is_none(), owes.unwrap_or_default());
    }

    let server = text(effective, "kubernetes.api-server");
    let named = server.is_none() || text(effective, "kubernetes.node-name").is_some();
    let owes = "given together with kubernetes.node-name, since only this node's pods are asked for".to_owned();
    hold("kubernetes.api-server", "kubernetes.node-name", named, owes);
    for file in ["kubernetes.token-file", "kubernetes.ca-file"] {
        let used = text(effective, file).is_none() || server.as_deref().is_some_and(|server| server != IN_CLUSTER);
        hold(file, "kubernetes.api-server", used, "given together with a URL as kubernetes.api-server".to_owned());
    }
    found
}

/// Two addresses that cannot both be listened on: one of each list, or two of the same.
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

/// The configuration of settings that fit together.
pub(super) fn config(effective: &Effective, demo: Option<String>) -> Config {
    let e = effective;
    Config {
        web: Web {
            listen_addresses: addresses(e, "web.listen-address"),
            systemd_socket: switch(e, "web.systemd-socket"),
            health_addresses: addresses(e, "web.health-address"),
            config_file: path(e, "web.config-file"),
            telemetry_path: text(e, "web.telemetry-path").unwrap_or_default(),
            max_requests: count(e, "web.max-requests"),
            max_connections: count(e, "web.max-connections"),
            read_timeout: duration(e, "web.read-timeout"),
            write_timeout: duration(e, "web.write-timeout"),
            idle_timeout: duration(e, "web.idle-timeout"),
        },
        nvml: Nvml {
            library: path(e, "nvml.library"),
            call_timeout: duration(e, "nvml.call-timeout"),
            release_duration: duration(e, "nvml.release-duration"),
        },
        path: Paths { procfs: path(e, "path.procfs").unwrap_or_default(), passwd: path(e, "path.passwd") },
        memory: Memory {
            rate: number(e, "memory.rate"),
            idle_rate: number(e, "memory.idle-rate"),
            peak_window: duration(e, "memory.peak-window"),
            stale_after: duration(e, "memory.stale-after"),
        },
        process: Process {
            interval: duration(e, "process.interval"),
            linger: duration(e, "process.linger"),
            series_limit: count(e, "process.series-limit"),
            series: switch(e, "process.series"),
            command_line: switch(e, "process.command-line"),
        },
        telemetry: Telemetry {
            interval: duration(e, "telemetry.interval"),
            slow_interval: duration(e, "telemetry.slow-interval"),
            energy: switch(e, "telemetry.energy"),
        },
        kubernetes: Kubernetes {
            node_name: text(e, "kubernetes.node-name"),
            api_server: text(e, "kubernetes.api-server").map(|server| match server.as_str() {
                IN_CLUSTER => ApiServer::InCluster,
                _ => ApiServer::At {
                    token_file: path(e, "kubernetes.token-file"),
                    ca_file: path(e, "kubernetes.ca-file"),
                    url: server,
                },
            }),
            pod_resources: path(e, "kubernetes.pod-resources"),
            pod_resources_interval: duration(e, "kubernetes.pod-resources-interval"),
            timeout: duration(e, "kubernetes.timeout"),
        },
        log: Log {
            level: text(e, "log.level").unwrap_or_default(),
            format: match text(e, "log.format").as_deref() {
                Some("json") => LogFormat::Json,
                _ => LogFormat::Logfmt,
            },
        },
        demo,
    }
}

// The kind of each key is fixed by the table, so that each of these meets the one shape it names.

fn text(effective: &Effective, key: &str) -> Option<String> {
    if let Setting::Text(text) = effective.get(key) { Some(text.clone()) } else { None }
}

fn addresses(effective: &Effective, key: &str) -> Vec<ListenAddress> {
    if let Setting::Addresses(list) = effective.get(key) { list.clone() } else { Vec::new() }
}

fn path(effective: &Effective, key: &str) -> Option<PathBuf> {
    text(effective, key).map(PathBuf::from)
}

fn duration(effective: &Effective, key: &str) -> Duration {
    let Setting::Duration(v) = effective.get(key) else { unreachable!("{key} is a duration by the table of keys") };
    *v
}

fn number(effective: &Effective, key: &str) -> f64 {
    let Setting::Number(v) = effective.get(key) else { unreachable!("{key} is a number by the table of keys") };
    *v
}

fn count(effective: &Effective, key: &str) -> usize {
    let Setting::Count(v) = effective.get(key) else { unreachable!("{key} is a count by the table of keys") };
    usize::try_from(*v).unwrap_or(usize::MAX)
}

fn switch(effective: &Effective, key: &str) -> bool {
    let Setting::Switch(v) = effective.get(key) else { unreachable!("{key} is a switch by the table of keys") };
    *v
}
