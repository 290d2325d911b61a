//! What Kubernetes knows of this node: which container is which pod's, and who was given which GPU.
//!
//! Two sources that know nothing of one another and of which either may be missing. Each follows its peer for ever, writes
//! its own part of the snapshot, and says there whether it is answered. A name that is shown is a name that the
//! cluster gave; a device is no proof of who uses it.

pub mod api;
pub mod pod_resources;
