//! The kubelet's pod-resources socket: which device is allocated to which container.
//!
//! Invariant: what is published is one whole answer of the kubelet, with the time at which it came. A failure removes
//! nothing and makes nothing look newer: the reader of the snapshot judges by the age.

pub(crate) mod answer;
pub(crate) mod device;
mod error;
mod follower;
mod kubelet;
mod settings;
// Generated from v1.proto; tests/it/pod_resources.rs generates it again and compares.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, reason = "generated code")]
pub(crate) mod v1;

pub use follower::follow;
pub use settings::Settings;
