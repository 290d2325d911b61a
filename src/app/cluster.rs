//! Starts the followers of the cluster and of Slurm that the configuration enables, and restarts them after a panic. For a simulated
//! machine, shows its cluster in place of each source that the configuration does not name.
//!
//! Invariant: a panic in a follower is a fault, and its source is shown as down until it answers again.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::settings;
use crate::config::{Config, Kubernetes};
use crate::demo::{SimulatedAllocators, SimulatedCluster};
use crate::faults::{Faults, Reason, Source};
use crate::kubernetes::{api, kubelet};
use crate::slurm;
use crate::snapshot::{Allocations, Pods, Snapshot};
use crate::supervise::{PAUSE, supervise};

/// The time between two reports of a simulated process, the same as for a real one.
const REPORTS: Duration = Duration::from_millis(200);

/// Follows the API server, the kubelet and the allocations of Slurm's jobs until the set is dropped. Requires a runtime.
pub(super) fn follow(config: &Config, snapshot: &Arc<Snapshot>, faults: &Arc<Faults>) -> JoinSet<()> {
    let mut followers = JoinSet::new();
    let all = &mut followers;
    start(all, Source::Slurm, config.slurm.allocations.clone(), slurm::follow, snapshot, faults);
    start(all, Source::KubernetesApi, settings::api_server(config), api::follow, snapshot, faults);
    start(all, Source::PodResources, settings::kubelet(config), kubelet::follow, snapshot, faults);
    followers
}

/// Starts the follower of a source, unless there are no settings for it.
fn start<S, F>(
    followers: &mut JoinSet<()>,
    source: Source,
    settings: Option<S>,
    follow: fn(S, Arc<Snapshot>, Arc<Faults>) -> F,
    snapshot: &Arc<Snapshot>,
    faults: &Arc<Faults>,
) where
    S: Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let Some(settings) = settings else { return };
    let panicked = panicked(source, snapshot, faults);
    let (snapshot, faults) = (snapshot.clone(), faults.clone());
    let start = move || follow(settings.clone(), snapshot.clone(), faults.clone());
    followers.spawn(supervise(start, panicked, PAUSE));
}

/// What to do after the follower of `source` panics. What the follower published stays,
/// and its source is shown as down; what was read from Slurm's folder is judged by its age alone.
fn panicked(source: Source, snapshot: &Arc<Snapshot>, faults: &Arc<Faults>) -> impl Fn(&dyn Error) + Send + use<> {
    let (snapshot, faults) = (snapshot.clone(), faults.clone());
    move |error: &dyn Error| {
        faults.raise(source, Reason::Panicked, None, error);
        if source == Source::KubernetesApi {
            snapshot.pods.rcu(|pods| Pods { up: Some(false), ..(**pods).clone() });
        } else if source == Source::PodResources {
            snapshot.allocations.rcu(|allocations| Allocations { up: Some(false), ..(**allocations).clone() });
        }
    }
}

/// Shows a simulated machine's cluster until the set is dropped, except what a follower reads from a source that the
/// configuration names. Requires a runtime.
pub(super) fn simulate(
    cluster: SimulatedCluster,
    config: &Kubernetes,
    snapshot: &Arc<Snapshot>,
    simulation: &mut JoinSet<()>,
) {
    if config.api_server.is_none() {
        snapshot.pods.store(Arc::new(cluster.pods()));
    }
    if config.pod_resources.is_none() {
        let (snapshot, interval) = (snapshot.clone(), config.pod_resources_interval);
        simulation.spawn(async move {
            loop {
                snapshot.allocations.store(Arc::new(cluster.allocations()));
                tokio::time::sleep(interval).await;
            }
        });
    }
}

/// Shows what the processes of a simulated machine report about their allocators, until the set is dropped. Requires a
/// runtime.
pub(super) fn simulate_allocators(
    mut allocators: SimulatedAllocators,
    snapshot: &Arc<Snapshot>,
    simulation: &mut JoinSet<()>,
) {
    let snapshot = snapshot.clone();
    simulation.spawn(async move {
        loop {
            let part = allocators.reports(&snapshot.processes.load(), Instant::now());
            snapshot.allocator.store(Arc::new(part));
            tokio::time::sleep(REPORTS).await;
        }
    });
}

/// Whether every source that is followed has answered.
pub(super) fn has_answered(config: &Config, snapshot: &Snapshot) -> bool {
    let Config { kubernetes, slurm, .. } = config;
    let api = kubernetes.api_server.is_none() || snapshot.pods.load().up == Some(true);
    let allocations = snapshot.allocations.load();
    let kubelet = kubernetes.pod_resources.is_none() || (allocations.up == Some(true) && !allocations.pending);
    api && kubelet && (slurm.allocations.is_none() || snapshot.jobs.load().at.is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fmt;

    use super::*;
    use crate::snapshot::PodContainer;

    /// A snapshot in which both sources have answered, and an empty set of faults.
    fn answered() -> (Arc<Snapshot>, Arc<Faults>) {
        let snapshot = Snapshot::new();
        let main = PodContainer { namespace: "team".into(), pod: "trainer".into(), container: "main".into() };
        let containers = Arc::new(HashMap::from([("c1".to_owned(), Arc::new(main))]));
        snapshot.pods.store(Arc::new(Pods { up: Some(true), containers, ..Pods::default() }));
        snapshot.allocations.store(Arc::new(Allocations { up: Some(true), ..Allocations::default() }));
        (snapshot, Arc::new(Faults::default()))
    }

    #[test]
    fn a_follower_that_panics_is_a_fault_and_shows_as_down() {
        for source in [Source::KubernetesApi, Source::PodResources] {
            let (snapshot, faults) = answered();
            panicked(source, &snapshot, &faults)(&fmt::Error);
            assert_eq!(faults.count(source, Reason::Panicked), 1);
            let up = (snapshot.pods.load().up, snapshot.allocations.load().up);
            let api = source == Source::KubernetesApi;
            assert_eq!(up, (Some(!api), Some(api)), "{source:?}");
            assert!(snapshot.pods.load().containers.contains_key("c1"), "names are kept");
        }
    }
}
