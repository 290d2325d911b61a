//! Serves the metrics until a signal ends the exporter.

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use web_config::Guard;

use super::exporter::Exporter;
use super::{dcgm, descriptors, otlp, reports, runtime, service, settings, signals, web_guard};
use crate::allocator::Allocator;
use crate::config::{Config, ListenAddress, Web};
use crate::demo;
use crate::faults::Faults;
use crate::http::{self, HttpState, Limits, Listener, Server};

/// The connections of `web.health-address` that are open at the same time.
const PROBE_CONNECTIONS: usize = 32;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When the exporter cannot listen on an address, or the demo has no simulator.
pub fn serve(config: Config) -> Result<()> {
    runtime::run(&config.log.clone(), run(config))
}

async fn run(config: Config) -> Result<()> {
    descriptors::raise();
    let stop = signals::stop_signal()?;
    let reread = signals::reread_signal()?;
    let release = signals::release_signal()?;
    let faults = Arc::new(Faults::default());
    let guard = Arc::new(web_guard::open(config.web.config_file.as_deref(), faults.clone())?);
    let dcgm_settings = dcgm::settings(&config)?;
    let otlp_settings = otlp::settings(&config)?;
    // Bound before anything is opened, so that a wrong address has no other effect. The addresses are logged after all of
    // them are bound: a process that has read one of them in the log can connect to every other one.
    let listeners = listen(&config.web).await?;
    let health = bind(&config.web.health_addresses, "web.health-address").await?;
    let dcgm = bind(&config.dcgm.listen_addresses, "dcgm.listen-address").await?;
    let reports = reports::listen(&config.allocator).await?;
    listeners.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening"));
    health.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening for probes"));
    dcgm.iter().for_each(|listener| {
        tracing::info!(address = listener.name(), "listening for scrapes of dcgm-exporter's families")
    });
    if let Some(scenario) = &config.demo {
        introduce(scenario, &config.web, &listeners, guard.tls().is_some());
    }
    let exporter = Exporter::start(config, faults)?;
    let _allocator = reports.map(|listener| {
        let settings = settings::allocator(&exporter.config);
        Allocator::start(listener, settings, exporter.snapshot.clone(), exporter.faults.clone())
    });
    let pusher = otlp::start(otlp_settings, &exporter)?;
    let lease = exporter.lanes.driver_lease();
    tokio::spawn(signals::follow_release_signal(release, lease, exporter.config.nvml.release_duration));
    let state = HttpState::new(
        exporter.metrics.clone(),
        exporter.snapshot.clone(),
        exporter.faults.clone(),
        &exporter.config.web.telemetry_path,
    )
    .with_recorder(exporter.recorder.clone())
    .with_page(settings::host(&exporter.config), exporter.config.demo.as_deref().map(demo::sights).unwrap_or_default());
    service::ready();
    let living = state.clone();
    let keeping_alive = tokio::spawn(service::keep_alive(move || living.unhealthy()));
    let limits = settings::limits(&exporter.config.web);
    // Probes have neither a certificate nor a password. Their connections are counted apart, so that other clients cannot
    // take them.
    let open = Arc::new(Guard::open(None, |_| ())?);
    let own = Limits { max_connections: PROBE_CONNECTIONS, ..limits.clone() };
    let probes = Server::new(http::health_router(state.clone()), open, own, exporter.faults.clone());
    tokio::spawn(signals::follow_reread(reread, guard.clone()));
    let watching = tokio::spawn(guard.clone().watch());
    let mut servers = vec![(probes, health)];
    let hosts = exporter.config.web.allowed_hosts.clone();
    let web = Server::new(http::router(state.clone()), guard, limits, exporter.faults.clone()).for_hosts(hosts);
    if let Some(settings) = dcgm_settings {
        let families = dcgm::families(settings, &exporter);
        servers.push((web.beside(http::dcgm_router(state, families)), dcgm));
    }
    servers.push((web, listeners));
    serve_until(servers, stop).await;
    if let Some(pusher) = pusher {
        // Before the lanes stop, while the values are current.
        pusher.finish().await;
    }
    watching.abort();
    keeping_alive.abort();
    let stop = move || {
        exporter.lanes.stop();
        exporter.recorder.iter().for_each(|recorder| recorder.stop());
    };
    tokio::task::spawn_blocking(stop).await.context("the lanes did not end")
}

async fn listen(web: &Web) -> Result<Vec<Listener>> {
    if web.systemd_socket {
        return Listener::inherited()
            .context("--web.systemd-socket needs the sockets of a systemd .socket unit; if there is none, omit it");
    }
    bind(&web.listen_addresses, "web.listen-address").await
}

async fn bind(addresses: &[ListenAddress], key: &str) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = Listener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}; choose another with --{key}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Serves on every listener until `stop` is ready.
async fn serve_until(servers: Vec<(Arc<Server>, Vec<Listener>)>, stop: impl Future<Output = ()>) {
    let (end, ending) = watch::channel(false);
    let mut serving = JoinSet::new();
    for (server, listeners) in servers {
        for listener in listeners {
            let mut ending = ending.clone();
            let shutdown = async move {
                // An error means that the sender is gone, which ends the server too.
                let _ = ending.wait_for(|ends| *ends).await;
            };
            serving.spawn(server.clone().serve(listener, shutdown));
        }
    }
    stop.await;
    service::stopping();
    end.send_replace(true);
    // Each server limits how long its shutdown takes.
    while serving.join_next().await.is_some() {}
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
