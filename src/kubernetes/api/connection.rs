//! A client for the API server, made of the settings and of nothing else: no kubeconfig, no command that prints a
//! token, no proxy from the environment, no retries that nobody counts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::client::ClientBuilder;
use kube::config::InClusterError;
use kube::{Client, Config};
use tokio::sync::Notify;

use super::error::{Error, innermost};
use super::gate::{Gate, GateLayer, TokenFile};
use super::reading::Reading;
use super::{Server, Settings};

/// The certificates' key, for messages.
const CERTIFICATES: &str = "the certificates to trust (kubernetes.ca-file)";
/// Where a pod's own certificates and token are.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The way to the API server, which makes one client after another.
pub(super) struct Connection {
    settings: Settings,
    watching: Arc<Notify>,
    opening: Reading<Result<Client, Error>>,
    token: Arc<Reading<io::Result<String>>>,
}

impl Connection {
    /// `watching` rings when a watch begins.
    pub(super) fn new(settings: Settings, watching: Arc<Notify>) -> Self {
        Self { settings, watching, opening: Reading::default(), token: Arc::default() }
    }

    /// Makes a client. Nothing is connected yet, but certificates are read.
    pub(super) async fn open(&self) -> Result<Client, Error> {
        let (settings, watching, token) = (self.settings.clone(), self.watching.clone(), self.token.clone());
        let opened = self.opening.take(settings.timeout, move || client(&settings, watching, token));
        opened.await.unwrap_or_else(|error| Err(self.unread(&error)))
    }

    /// What could not be read, as far as the settings tell.
    fn unread(&self, error: &io::Error) -> Error {
        match &self.settings.server {
            Server::InCluster => Error::file(Path::new(SERVICE_ACCOUNT), "the pod's service account", error),
            Server::At { ca_file: Some(path), .. } => Error::file(path, CERTIFICATES, error),
            Server::At { ca_file: None, .. } => Error::NoTrust(error.to_string()),
        }
    }
}

fn client(
    settings: &Settings,
    watching: Arc<Notify>,
    reading: Arc<Reading<io::Result<String>>>,
) -> Result<Client, Error> {
    // The gate reads the token at every question, so that a new one holds at once.
    let (mut config, token_file, purpose) = match &settings.server {
        Server::InCluster => {
            let mut config = Config::incluster_env().map_err(|error| no_service_account(&error))?;
            let token_file = config.auth_info.token_file.take().map(PathBuf::from);
            (config, token_file, "the token for the API server")
        }
        Server::At { url, token_file, ca_file } => {
            let purpose = "the token for the API server (kubernetes.token-file)";
            (at(url, ca_file.as_deref())?, token_file.clone(), purpose)
        }
    };
    // The gate gives up first; this ends a connection that is made in the background.
    config.connect_timeout = Some(settings.timeout.saturating_mul(2));
    config.default_retry = false;
    let token_file = token_file.map(|path| TokenFile { path, purpose, reading });
    let gate = Gate::new(token_file, settings.timeout, watching);
    let builder = ClientBuilder::try_from(config).map_err(|error| Error::NoTrust(innermost(&error)))?;
    Ok(builder.with_layer(&GateLayer(Arc::new(gate))).build())
}

fn at(url: &str, ca_file: Option<&Path>) -> Result<Config, Error> {
    let url: hyper::Uri = url.parse().map_err(|error: hyper::http::uri::InvalidUri| Error::Url(error.to_string()))?;
    // Without TLS there is nobody to trust, and the system's certificates need not be read for it.
    let plain = url.scheme_str() == Some("http");
    let mut config = Config::new(url);
    if let Some(path) = ca_file {
        // kube says what is wrong with the file, but not which one it is.
        std::fs::File::open(path).map_err(|e| Error::file(path, CERTIFICATES, &e))?;
        config.root_cert_file = Some(path.to_owned());
    }
    config.root_cert = (plain || ca_file.is_some()).then(Vec::new);
    Ok(config)
}

fn no_service_account(error: &InClusterError) -> Error {
    match error {
        InClusterError::ParseCertificates(_) => Error::NoTrust(innermost(error)),
        _ => Error::NoServiceAccount(error.to_string()),
    }
}
