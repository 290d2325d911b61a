//! The pushes to an OTLP receiver: their settings, from the configuration, the environment and the machine.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::exporter::Exporter;
use super::settings;
use crate::config::{Config, OtlpNames};
use crate::otlp::{self, Names, Pusher};

/// The files that hold the machine's id, the first that exists.
const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// Files that exist in a container only.
const CONTAINER: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// The settings of the pushes; `None` if nothing is pushed.
///
/// # Errors
/// When a variable is not UTF-8.
pub(super) fn settings(config: &Config) -> Result<Option<otlp::Settings>, otlp::Error> {
    let Some(endpoint) = config.otlp.endpoint.clone() else { return Ok(None) };
    Ok(Some(otlp::Settings {
        endpoint,
        interval: config.otlp.interval,
        timeout: config.otlp.timeout,
        gzip: config.otlp.gzip,
        headers_file: config.otlp.headers_file.clone(),
        headers: variable("OTEL_EXPORTER_OTLP_HEADERS")?,
        ca_file: config.otlp.ca_file.clone(),
        names: match config.otlp.names {
            OtlpNames::Both => Names::Both,
            OtlpNames::Scrape => Names::Scrape,
            OtlpNames::SemanticConventions => Names::SemanticConventions,
        },
        resource: resource(config),
        resource_attributes: variable("OTEL_RESOURCE_ATTRIBUTES")?,
        service_name: variable("OTEL_SERVICE_NAME")?,
        started: SystemTime::now(),
    }))
}

/// A variable's value; `None` if it is not set or empty.
fn variable(name: &'static str) -> Result<Option<String>, otlp::Error> {
    let value = std::env::var_os(name).map(std::ffi::OsString::into_string).transpose();
    let value = value.map_err(|_| otlp::Error::Variable(name))?;
    Ok(value.filter(|value| !value.is_empty()))
}

/// Starts to push what the exporter measures, if a receiver is configured. Call it within a runtime.
///
/// # Errors
/// When the endpoint is not a URL.
pub(super) fn start(settings: Option<otlp::Settings>, exporter: &Exporter) -> Result<Option<Pusher>, otlp::Error> {
    let start = |settings| {
        Pusher::start(settings, exporter.metrics.clone(), exporter.snapshot.clone(), Arc::clone(&exporter.faults))
    };
    settings.map(start).transpose()
}

/// What is known about the exporter and its machine. An unknown value is left out.
fn resource(config: &Config) -> Vec<(&'static str, String)> {
    let (node, host) = (config.kubernetes.node_name.clone(), settings::host(config));
    let contained = node.is_some()
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || CONTAINER.iter().any(|path| Path::new(path).exists());
    // In a container, the file is that of the image, if there is one.
    let id = || MACHINE_ID.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let id = (!contained).then(id).flatten().map(|id| id.trim().to_owned());
    let known = [
        ("service.name", Some(env!("CARGO_PKG_NAME").to_owned())),
        ("service.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("service.instance.id", host.clone()),
        ("host.name", host),
        ("host.id", id),
        ("os.type", Some("linux".to_owned())),
        ("k8s.node.name", node),
    ];
    known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
