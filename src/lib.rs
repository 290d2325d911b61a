//! `vram-exporter`: the memory of every NVIDIA GPU of a machine, who holds it, and how high it really went.
//!
//! One way through the house, and imports follow it (`tests/it/architecture.rs` refuses any other):
//!
//! ```text
//!  NVML ──> nvml ──> lanes ──> snapshot ──> metrics ──> http
//!                      └── asks attribution who owns a pid
//!  cluster ──> kubernetes ──> snapshot (names of containers, which attribution reads; allocations)
//! ```
//!
//! [`snapshot`] is the vocabulary that the rooms share, [`config`] and [`faults`] are leaves, [`web_config`] knows faults alone and
//! guards [`http`], [`app`] alone knows everybody. The crate `cgroup_owner` reads cgroup paths for [`attribution`].

pub mod app;
pub mod attribution;
pub mod backoff;
pub mod config;
pub mod demo;
pub mod faults;
pub mod http;
#[doc(hidden)]
pub mod internals;
pub mod kubernetes;
pub mod lanes;
pub mod metrics;
pub mod nvml;
pub mod snapshot;
pub mod web_config;
