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
//! [`snapshot`] is the vocabulary that the rooms share, [`config`], [`faults`] and [`backoff`] are leaves, and only [`app`] knows every
//! room. Three crates of the workspace are beside it: `cgroup_owner` reads cgroup paths for [`attribution`], `web_config` guards [`http`],
//! `nvml_sim` is the simulated driver of [`demo`].

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
