//! The addresses and sockets on which the exporter listens.

use anyhow::{Context, Result, bail};
use nix::unistd::Group;

use crate::allocator;
use crate::config::{Allocator, Config, ListenAddress, Web};
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
            allocator: bind_allocator(&config.allocator).await?,
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

/// Binds `allocator.socket`, if it is set. Must be called within a runtime.
///
/// # Errors
/// When the group is unknown, or the socket cannot be bound.
async fn bind_allocator(config: &Allocator) -> Result<Option<allocator::Listener>> {
    let Some(path) = &config.socket else { return Ok(None) };
    let group = config.socket_group.as_deref().map(group).transpose()?;
    let listener = allocator::Listener::bind(path, config.socket_mode, group).await.with_context(|| {
        format!(
            "cannot listen on {}; choose another path with --allocator.socket, in a folder that exists",
            path.display()
        )
    })?;
    tracing::info!(socket = %listener.path().display(), "processes can report about their allocators");
    Ok(Some(listener))
}

/// The number of a group.
fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match Group::from_name(name).with_context(|| format!("cannot look up the group {name}"))? {
        Some(group) => Ok(group.gid.as_raw()),
        None => bail!("there is no group {name}; choose another with --allocator.socket-group"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_number_or_a_known_name() {
        assert_eq!(group("42").unwrap(), 42);
        assert_eq!(group("root").unwrap(), 0);
        assert!(group("no-such-group").unwrap_err().to_string().contains("--allocator.socket-group"));
    }

    #[tokio::test]
    async fn without_a_path_there_is_no_socket() {
        assert!(bind_allocator(&Allocator::default()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_error_names_the_path_and_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "").unwrap();
        let config = Allocator { socket: Some(path.clone()), socket_mode: 0o666, ..Allocator::default() };
        let error = format!("{:#}", bind_allocator(&config).await.unwrap_err());
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--allocator.socket"), "{error}");
        assert!(error.contains("remove it"), "{error}");
    }
}
