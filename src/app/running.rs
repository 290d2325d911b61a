//! The exporter while it serves: everything that is started once the listeners are bound, and how it ends.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use web_config::Guard;

use super::exporter::Exporter;
use super::listeners::Listeners;
use super::signals::{self, Signals, Stop};
use super::{service, settings};
use crate::allocator::Allocator;
use crate::dcgm::{self, Families};
use crate::demo;
use crate::http::{self, HttpState, Limits, Listener, Server};
use crate::otlp::{self, Pusher};

/// The connections of `web.health-address` that are open at the same time.
const PROBE_CONNECTIONS: usize = 32;

/// The exporter with its servers and the tasks beside them.
pub(super) struct Running {
    exporter: Exporter,
    guard: Arc<Guard>,
    /// `None` if nothing is pushed.
    pusher: Option<Pusher>,
    servers: Vec<(Arc<Server>, Vec<Listener>)>,
    /// What runs beside the servers until they have ended.
    beside: JoinSet<()>,
    /// It ends when this value is dropped.
    _allocator: Option<Allocator>,
}

impl Running {
    /// Starts to serve. `dcgm` and `otlp` are `None` if these families or pushes are not configured. Call it within a runtime.
    ///
    /// # Errors
    /// When the endpoint of the pushes is not a URL.
    pub(super) fn start(
        exporter: Exporter,
        listeners: Listeners,
        guard: Arc<Guard>,
        dcgm: Option<dcgm::Settings>,
        otlp: Option<otlp::Settings>,
    ) -> Result<Self> {
        let allocator = listeners.allocator.map(|listener| {
            let settings = settings::allocator(&exporter.config);
            Allocator::start(listener, settings, exporter.snapshot.clone(), exporter.faults.clone())
        });
        let push = |settings| {
            Pusher::start(settings, exporter.metrics.clone(), exporter.snapshot.clone(), exporter.faults.clone())
        };
        let pusher = otlp.map(push).transpose()?;
        let state = state(&exporter);
        service::ready();
        let mut beside = JoinSet::new();
        let living = state.clone();
        beside.spawn(service::keep_alive(move || living.unhealthy()));
        beside.spawn(guard.clone().watch());

        let limits = exporter.config.web.limits.clone();
        // Probes have neither a certificate nor a password. Their connections are counted apart, so that other clients
        // cannot take them.
        let open = Arc::new(Guard::open(None, |_| ())?);
        let own = Limits { max_connections: PROBE_CONNECTIONS, ..limits.clone() };
        let probes = Server::new(http::health_router(state.clone()), open, own, exporter.faults.clone());
        let mut servers = vec![(probes, listeners.health)];
        let hosts = exporter.config.web.allowed_hosts.clone();
        let web =
            Server::new(http::router(state.clone()), guard.clone(), limits, exporter.faults.clone()).for_hosts(hosts);
        if let Some(settings) = dcgm {
            let families = Families::new(exporter.snapshot.clone(), exporter.metrics.settings().clone(), settings);
            servers.push((web.beside(http::dcgm_router(state, families)), listeners.dcgm));
        }
        servers.push((web, listeners.web));
        Ok(Self { exporter, guard, pusher, servers, beside, _allocator: allocator })
    }

    /// Serves until a signal ends the exporter, and stops everything.
    ///
    /// # Errors
    /// When the lanes do not end.
    pub(super) async fn until_stopped(self, signals: Signals) -> Result<()> {
        // The allocator's listener ends with this function.
        let Self { exporter, guard, pusher, servers, mut beside, _allocator } = self;
        let (lease, duration) = (exporter.lanes.driver_lease(), exporter.config.nvml.release_duration);
        beside.spawn(signals::follow_reread(signals.reread, guard));
        beside.spawn(signals::follow_release_signal(signals.release, lease, duration));
        serve_until(servers, signals.stop).await;
        if let Some(pusher) = pusher {
            // Before the lanes stop, while the values are current.
            pusher.finish().await;
        }
        beside.abort_all();
        let stop = move || {
            exporter.lanes.stop();
            exporter.recorder.iter().for_each(|recorder| recorder.stop());
        };
        tokio::task::spawn_blocking(stop).await.context("the lanes did not end")
    }
}

/// What the web server shows.
fn state(exporter: &Exporter) -> HttpState {
    let Exporter { config, metrics, snapshot, faults, .. } = exporter;
    HttpState {
        recorder: exporter.recorder.clone(),
        host: settings::host(config),
        sights: config.demo.as_deref().map(demo::sights).unwrap_or_default(),
        ..HttpState::new(metrics.clone(), snapshot.clone(), faults.clone(), &config.web.telemetry_path)
    }
}

/// Serves on every listener until a signal ends the exporter.
async fn serve_until(servers: Vec<(Arc<Server>, Vec<Listener>)>, stop: Stop) {
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
    stop.arrived().await;
    service::stopping();
    end.send_replace(true);
    // Each server limits how long its shutdown takes.
    while serving.join_next().await.is_some() {}
}
