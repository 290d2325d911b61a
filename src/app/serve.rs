//! Serves the metrics until a signal ends the exporter.

use std::sync::Arc;

use anyhow::Result;

use super::exporter::Exporter;
use super::listeners::Listeners;
use super::running::Running;
use super::signals::Signals;
use super::{dcgm_fields, descriptors, runtime, settings, web_guard};
use crate::config::{Config, ListenAddress, Web};
use crate::demo;
use crate::faults::Faults;
use crate::http::Listener;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When the exporter cannot listen on an address, or the demo has no simulator.
pub fn serve(config: Config) -> Result<()> {
    runtime::run(&config.log.clone(), run(config))
}

async fn run(config: Config) -> Result<()> {
    descriptors::raise();
    let signals = Signals::install()?;
    let faults = Arc::new(Faults::default());
    let guard = Arc::new(web_guard::open(config.web.config_file.as_deref(), faults.clone())?);
    let dcgm = settings::dcgm(&config)?;
    if let Some(dcgm) = &dcgm {
        dcgm_fields::log(&config, &dcgm.collectors);
    }
    let otlp = settings::otlp(&config)?;
    // Bound before the driver is opened, so that a wrong address has no other effect.
    let listeners = Listeners::bind(&config).await?;
    if let Some(scenario) = &config.demo {
        introduce(scenario, &config.web, &listeners.web, guard.tls().is_some());
    }
    let exporter = Exporter::start(config, faults)?;
    Running::start(exporter, listeners, guard, dcgm, otlp)?.until_stopped(signals).await
}

/// Logs the addresses of a demo and what it shows.
fn introduce(scenario: &str, web: &Web, listeners: &[Listener], tls: bool) {
    // A socket file has no URL.
    let tcp = listeners.iter().find_map(|listener| match listener.name().parse() {
        Ok(ListenAddress::Tcp(address)) => Some(address),
        _ => None,
    });
    let Some(address) = tcp else { return };
    let address =
        if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() };
    let page = format!("{}://{address}", if tls { "https" } else { "http" });
    for line in demo::introduction(scenario, &page, &format!("{page}{}", web.telemetry_path)) {
        tracing::info!("demo: {line}");
    }
}
