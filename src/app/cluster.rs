//! Starts what follows the cluster, as far as the configuration asks for it, or plays the cluster of a simulated machine.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::config::{ApiServer, Kubernetes};
use crate::demo::SimulatedCluster;
use crate::faults::Faults;
use crate::kubernetes::{api, pod_resources};
use crate::snapshot::Snapshot;

/// Follows the API server and the kubelet until the set is dropped. To be called within a runtime.
pub(super) fn follow(config: &Kubernetes, snapshot: &Arc<Snapshot>, faults: &Arc<Faults>) -> JoinSet<()> {
    let mut followers = JoinSet::new();
    if let (Some(server), Some(node)) = (&config.api_server, &config.node_name) {
        let server = match server.clone() {
            ApiServer::InCluster => api::Server::InCluster,
            ApiServer::At { url, token_file, ca_file } => api::Server::At { url, token_file, ca_file },
        };
        let settings = api::Settings { server, node: node.clone(), timeout: config.timeout };
        followers.spawn(api::follow(settings, snapshot.clone(), faults.clone()));
    }
    if let Some(socket) = config.pod_resources.clone() {
        let interval = config.pod_resources_interval;
        let settings = pod_resources::Settings { socket, interval, timeout: config.timeout };
        followers.spawn(pod_resources::follow(settings, snapshot.clone(), faults.clone()));
    }
    followers
}

/// Shows a simulated machine's cluster until the set is dropped. To be called within a runtime.
pub(super) fn simulate(cluster: SimulatedCluster, config: &Kubernetes, snapshot: &Arc<Snapshot>) -> JoinSet<()> {
    let (snapshot, interval) = (snapshot.clone(), config.pod_resources_interval);
    snapshot.pods.store(Arc::new(cluster.pods()));
    let mut players = JoinSet::new();
    players.spawn(async move {
        loop {
            snapshot.allocations.store(Arc::new(cluster.allocations()));
            tokio::time::sleep(interval).await;
        }
    });
    players
}

/// Whether everybody who is asked has answered.
pub(super) fn has_answered(config: &Kubernetes, snapshot: &Snapshot) -> bool {
    let named = config.api_server.is_none() || snapshot.pods.load().up == Some(true);
    named && (config.pod_resources.is_none() || snapshot.allocations.load().up == Some(true))
}
