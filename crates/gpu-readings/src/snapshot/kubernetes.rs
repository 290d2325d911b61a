//! What Kubernetes reports about this node: the pod of each container, and the GPUs allocated to each container.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use pod_resources::{Allocation, Claim, Device, DeviceName, PodContainer, PoolDevice};

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
    /// The pods in a terminal phase, including recently deleted ones: the kubelet's last list may still contain them.
    pub ended: Arc<EndedPods>,
    /// The budgets that the pods declare, including those of containers that have not started yet; only containers with
    /// at least one are listed. A list is sorted and contains no budget twice.
    pub budgets: Arc<Budgets>,
    /// The labels of pods that are to be shown, including those of pods that were deleted recently; only pods with at least
    /// one are listed. Sorted by namespace and name, and no pod is listed twice.
    pub labels: Arc<Vec<PodLabels>>,
}

/// The labels of a pod that are to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLabels {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The names of the labels in the metrics, in the order of the configuration, with their values: at most 63 bytes.
    pub labels: Vec<(Arc<str>, String)>,
}

impl Pods {
    /// Whether the last that the API server has reported about a container's pod is that it has ended. A name can be reused,
    /// so a report does not count while the API server is not followed.
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
    /// The devices of device plugins that are allocated.
    pub allocated: Arc<Vec<Allocation>>,
    /// The devices of claims (dynamic resource allocation) that belong to a GPU here; a device that a claim may only monitor is
    /// not among them. Sorted by container.
    pub claimed: Arc<Vec<ClaimAllocation>>,
    /// The containers with a device of a claim of which it is not known which GPU it is. Sorted.
    pub unassigned: Arc<Vec<Arc<PodContainer>>>,
    /// Whether a device in [`Allocations::unassigned`] may soon be assigned, or its claim cannot be read.
    pub pending: bool,
    /// The devices that can be allocated, including those that already are; `None` if the kubelet does not report them.
    pub allocatable: Option<Arc<Vec<Device>>>,
}

impl Allocations {
    /// The containers with their devices, whether a device plugin or a claim gave them.
    pub fn held(&self) -> impl Iterator<Item = (&PodContainer, &DeviceName)> {
        let devices = self.allocated.iter().map(|allocation| (&*allocation.holder, &allocation.device.device));
        devices.chain(self.claimed.iter().map(|allocation| (&*allocation.holder, &allocation.device)))
    }
}

/// A device of a claim that a container may use. Each container of a claim has every device of it, although the claim may have
/// a request for each container: the processes show who uses which device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimAllocation {
    /// The container.
    pub holder: Arc<PodContainer>,
    /// The claim.
    pub claim: Arc<Claim>,
    /// The device as its driver names it.
    pub name: PoolDevice,
    /// The GPU or MIG device: [`DeviceName::Gpu`] or [`DeviceName::Mig`].
    pub device: DeviceName,
    /// Bytes of the device's memory that the claim consumes, for all its containers together. `None` if the device is not shared with
    /// other claims, or without a limit.
    pub memory: Option<u64>,
}
