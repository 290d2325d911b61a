//! The addresses and sockets on which the exporter listens.

use anyhow::{Context, Result};

use super::allocator_socket;
use crate::allocator;
use crate::config::{Config, ListenAddress, Web};
use crate::http::Listener;

/// The bound listeners, by what they serve.
pub(super) struct Listeners {
    /// Everything, behind TLS and passwords if the web-config file requires them.
    pub(super) web: Vec<Listener>,
    /// Probes alone.
    pub(super) health: Vec<Listener>,
    /// The families of dcgm-exporter.
    pub(super) dcgm: Vec<Listener>,
    /// What processes report about their allocators; `None` if it is not configured.
    pub(super) allocator: Option<allocator::Listener>,
}

impl Listeners {
    /// Binds all addresses of the configuration, and then logs them: a process that has read one of them in the log can
    /// connect to every other one. Call it within a runtime.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub(super) async fn bind(config: &Config) -> Result<Self> {
        let all = Self {
            web: bind_web(&config.web).await?,
            health: bind(&config.web.health_addresses, "web.health-address").await?,
            dcgm: bind(&config.dcgm.listen_addresses, "dcgm.listen-address").await?,
            allocator: allocator_socket::bind(&config.allocator).await?,
        };
        all.web.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening"));
        all.health.iter().for_each(|listener| tracing::info!(address = listener.name(), "listening for probes"));
        all.dcgm.iter().for_each(|listener| {
            tracing::info!(address = listener.name(), "listening for scrapes of dcgm-exporter's families")
        });
        Ok(all)
    }
}

async fn bind_web(web: &Web) -> Result<Vec<Listener>> {
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
