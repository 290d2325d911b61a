//! What Kubernetes reports about this node: which container belongs to which pod, and which GPU was allocated to which
//! container.
//!
//! The two sources are independent, and either may be missing; only the GPUs of claims (dynamic resource allocation) need both. Each has a follower that never ends, writes its own part
//! of the snapshot, and records there whether the source responds. A published name is one that the cluster reported;
//! an allocated device does not prove that the container uses it.

pub mod api;
pub(crate) mod claims;
pub mod kubelet;
