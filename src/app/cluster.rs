//! Starts what follows the cluster, as far as the configuration asks for it, and looks after it; or plays the cluster of a
//! simulated machine.
//!
//! Invariant: a follower that died is a fault and does not show as answering; it is started again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

use crate::config::{ApiServer, Kubernetes};
use crate::demo::SimulatedCluster;
use crate::faults::{Faults, Reason, Source};
use crate::kubernetes::{api, pod_resources};
use crate::snapshot::{Allocations, Pods, Snapshot};

/// Between the end of a follower by a panic and its next start.
const REVIVAL: Duration = Duration::from_secs(5);

/// A follower is not meant to end.
#[derive(Debug, thiserror::Error)]
#[error("what follows the cluster ended by a panic and is started again in {REVIVAL:?}")]
struct Died(#[source] JoinError);

/// Follows the API server and the kubelet until the set is dropped. To be called within a runtime.
pub(super) fn follow(config: &Kubernetes, snapshot: &Arc<Snapshot>, faults: &Arc<Faults>) -> JoinSet<()> {
    let mut followers = JoinSet::new();
    if let (Some(server), Some(node)) = (&config.api_server, &config.node_name) {
        let server = match server.clone() {
            ApiServer::InCluster => api::Server::InCluster,
            ApiServer::At { url, token_file, ca_file } => api::Server::At { url, token_file, ca_file },
        };
        let settings =
            api::Settings { server, node: node.clone(), timeout: config.timeout, list_again: api::LIST_AGAIN };
        let (snapshot, faults) = (snapshot.clone(), faults.clone());
        let died = died(Source::KubernetesApi, &snapshot, &faults);
        let start = move || api::follow(settings.clone(), snapshot.clone(), faults.clone());
        followers.spawn(look_after(start, died, REVIVAL));
    }
    if let Some(socket) = config.pod_resources.clone() {
        let interval = config.pod_resources_interval;
        let settings = pod_resources::Settings { socket, interval, timeout: config.timeout };
        let (snapshot, faults) = (snapshot.clone(), faults.clone());
        let died = died(Source::PodResources, &snapshot, &faults);
        let start = move || pod_resources::follow(settings.clone(), snapshot.clone(), faults.clone());
        followers.spawn(look_after(start, died, REVIVAL));
    }
    followers
}

/// Starts a follower, and again a `pause` after each time that it `died`. It ends with the future.
async fn look_after<F>(start: impl Fn() -> F, died: impl Fn(JoinError), pause: Duration)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let mut follower = JoinSet::new();
        follower.spawn(start());
        if let Some(Err(error)) = follower.join_next().await {
            died(error);
        }
        tokio::time::sleep(pause).await;
    }
}

/// What is to be done when the follower of `source` died. What it told stays, and is no longer said to be fresh.
fn died(source: Source, snapshot: &Arc<Snapshot>, faults: &Arc<Faults>) -> impl Fn(JoinError) + Send + use<> {
    let (snapshot, faults) = (snapshot.clone(), faults.clone());
    move |error| {
        faults.report(source, Reason::Panicked, None, &Died(error));
        if source == Source::KubernetesApi {
            snapshot.pods.rcu(|pods| Pods { up: Some(false), ..(**pods).clone() });
        } else {
            snapshot.allocations.rcu(|allocations| Allocations { up: Some(false), ..(**allocations).clone() });
        }
    }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::snapshot::PodContainer;

    const SOON: Duration = Duration::from_millis(1);
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn eventually(done: impl Fn() -> bool) {
        let wait = async {
            while !done() {
                tokio::time::sleep(SOON).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    }

    /// A snapshot in which both have answered, and no fault.
    fn answered() -> (Arc<Snapshot>, Arc<Faults>) {
        let snapshot = Snapshot::new();
        let main = PodContainer { namespace: "team".into(), pod: "trainer".into(), container: "main".into() };
        let containers = Arc::new(HashMap::from([("c1".to_owned(), Arc::new(main))]));
        snapshot.pods.store(Arc::new(Pods { up: Some(true), containers, ..Pods::default() }));
        snapshot.allocations.store(Arc::new(Allocations { up: Some(true), ..Allocations::default() }));
        (snapshot, Arc::new(Faults::default()))
    }

    #[tokio::test]
    async fn a_follower_that_panics_is_a_fault_shows_as_down_and_is_started_again() {
        for source in [Source::KubernetesApi, Source::PodResources] {
            let (snapshot, faults) = answered();
            let starts = Arc::new(AtomicU32::new(0));
            let counted = starts.clone();
            let start = move || {
                let before = counted.fetch_add(1, Ordering::SeqCst);
                async move {
                    assert!(before >= 2, "as a test wants it");
                    pending().await
                }
            };
            let task = tokio::spawn(look_after(start, died(source, &snapshot, &faults), SOON));
            eventually(|| starts.load(Ordering::SeqCst) == 3).await;
            assert_eq!(faults.count(source, Reason::Panicked), 2);
            let up = (snapshot.pods.load().up, snapshot.allocations.load().up);
            let api = source == Source::KubernetesApi;
            assert_eq!(up, (Some(!api), Some(api)), "{source:?}");
            assert!(snapshot.pods.load().containers.contains_key("c1"), "names are not taken away");
            task.abort();
        }
    }

    #[tokio::test]
    async fn a_follower_ends_with_who_looks_after_it() {
        let held = Arc::new(());
        let follower = held.clone();
        let start = move || {
            let follower = follower.clone();
            async move {
                let _held = follower;
                pending().await
            }
        };
        let task = tokio::spawn(look_after(start, |_| (), SOON));
        eventually(|| Arc::strong_count(&held) == 3).await;
        task.abort();
        eventually(|| Arc::strong_count(&held) == 1).await;
    }
}
