//! What Kubernetes reports about this node: the pod of each container, and the GPUs allocated to each container.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use pod_resources::{Allocation, Device, PodContainer};

use super::Budget;

/// The budgets that a pod declares for a container.
pub type Budgets = HashMap<PodContainer, Vec<Budget>>;

/// The names of pods, by namespace.
pub type EndedPods = HashMap<String, HashSet<String>>;

/// The containers of this node's pods, as reported by the API server. Written by the follower of the API server.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    /// Whether the API server responds; `None` if the exporter does not follow it.
    pub up: Option<bool>,
    /// Keyed by the runtime's full container id. Entries are kept while the API server is not responding, because an id
    /// is never reused.
    pub containers: Arc<HashMap<String, Arc<PodContainer>>>,
    /// The pods in a terminal phase.
    pub ended: Arc<EndedPods>,
    /// The budgets that the pods declare, including those of containers that have not started yet; only containers with
    /// at least one are listed. A list is sorted and contains no budget twice.
    pub budgets: Arc<Budgets>,
}

impl Pods {
    /// Whether the API server currently reports that a container's pod has ended. A name can be reused, so an earlier
    /// report does not count.
    pub fn has_ended(&self, holder: &PodContainer) -> bool {
        let ended = || self.ended.get(&holder.namespace).is_some_and(|pods| pods.contains(&holder.pod));
        self.up == Some(true) && ended()
    }
}

/// The devices that the kubelet has allocated, and those that it can allocate. Written by the follower of the
/// pod-resources socket.
#[derive(Debug, Clone, Default)]
pub struct Allocations {
    /// Whether the kubelet responds; `None` if the exporter does not query it.
    pub up: Option<bool>,
    /// When the kubelet last responded.
    pub at: Option<Instant>,
    /// The allocated devices.
    pub allocated: Arc<Vec<Allocation>>,
    /// The devices that can be allocated, including those that already are; `None` if the kubelet does not report them.
    pub allocatable: Option<Arc<Vec<Device>>>,
}
