//! A client for the API server, made of the settings and of nothing else: no kubeconfig, no command that prints a
//! token, no proxy from the environment, no retries that nobody counts.

use std::io;
use std::sync::Arc;

use kube::Client;
use kube::client::ClientBuilder;
use tokio::sync::Notify;
use tower::Layer;

use super::Settings;
use super::blocking_read::BlockingRead;
use super::caller::Caller;
use super::error::Error;
use super::gate::{Gate, GateLayer, TokenFile};

/// The way to the API server, which makes one client after another.
pub(super) struct Connection {
    settings: Settings,
    watching: Arc<Notify>,
    caller: Caller,
    token: Arc<BlockingRead<io::Result<String>>>,
}

impl Connection {
    /// `watching` rings when a watch begins.
    pub(super) fn new(settings: Settings, watching: Arc<Notify>) -> Self {
        let caller = Caller::new(&settings);
        Self { settings, watching, caller, token: Arc::default() }
    }

    /// Makes a client. Nothing is connected yet, but what is wrong with the settings' files is found.
    pub(super) async fn open(&self) -> Result<Client, Error> {
        let token = self.caller.endpoint().await?.token;
        // The gate reads the token at every question, so that a new one holds at once.
        let token_file = token.map(|(path, purpose)| TokenFile { path, purpose, reading: self.token.clone() });
        let gate = Gate::new(token_file, self.settings.timeout, self.watching.clone());
        // Pods are asked for in all namespaces.
        Ok(ClientBuilder::new(GateLayer(Arc::new(gate)).layer(self.caller.clone()), "").build())
    }
}
