//! The API server: lists this node's pods, watches them, and publishes the names of their
//! containers, the budgets that they declare and the labels that are asked for. Where the kubelet lists claims, it does the same with the ResourceSlices of this
//! node, and reads each claim once.
//!
//! Invariants: the only requests are `GET` of the pods and the slices of this node, and of single claims. A name is published
//! exactly as the server sent it, or not at all, and is kept while the server does not respond. A list is applied in full or not at all; whenever an
//! event may have been lost, all pods are listed again. Everything that is read, kept or waited for is bounded.

mod body;
pub(crate) mod budget_index;
mod budgets;
pub(crate) mod claim;
mod client;
pub(crate) mod container_index;
mod declared;
mod endpoint;
pub(super) mod error;
pub(super) mod follower;
mod label_index;
pub(crate) mod list_watch;
mod pause;
pub(crate) mod pod;
mod pods;
pub(crate) mod slice;
pub(crate) mod slices;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use pods::follow;

/// The default of [`Settings::list_again`]. A watch gives no indication that it has lost events. After the server's
/// store is restored from a backup, versions count up from a lower number, and a watch that starts at a higher one is
/// silent until that number is reached. A list does not depend on versions.
pub const LIST_AGAIN: Duration = Duration::from_secs(600);

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the API server is.
    pub server: Server,
    /// This node's name: only its pods are requested.
    pub node: String,
    /// The time limit for a response to begin, including connecting, and also for receiving a whole list.
    pub timeout: Duration,
    /// The time after which all pods are listed again, minus a random part of up to half. Default: [`LIST_AGAIN`].
    pub list_again: Duration,
    /// The labels of pods to show: their keys, each with the name of its label in the metrics. Default: none.
    pub labels: Arc<[(String, String)]>,
}

/// Where the API server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// As given by the service account of the exporter's own pod.
    InCluster,
    /// At a configured address.
    At {
        /// `https://host:port`, or `http://` for a proxy on this machine.
        url: String,
        /// A file with a bearer token, read again for every request.
        token_file: Option<PathBuf>,
        /// A PEM file with the certificates to trust instead of the system's. If it is `None`, the system's
        /// certificates are trusted; if the system has none, no server is trusted.
        ca_file: Option<PathBuf>,
    },
}
