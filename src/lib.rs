//! `vram-exporter`: the memory of every NVIDIA GPU in a machine, its true peaks, and the processes and workloads that
//! hold it.
//!
//! Data flows in one direction, and imports follow it (`tests/it/architecture.rs` rejects any import that does not):
//!
//! ```text
//!  NVML ──> nvml ──> lanes ──> snapshot ──> metrics ──> http
//!                      │          │        └──> dcgm ──────────────────^
//!                      │          │        └──> otlp ──> an OTLP receiver
//!                      │          └──> recorder (history, incidents) ──^
//!                      └── requests the owner of a pid from attribution
//!  processes ──> allocator ──> snapshot (what their memory allocators report; `run` also gets the final values)
//!  cluster ──> kubernetes ──> snapshot (names of containers, which attribution reads; allocations)
//!  Slurm ──> slurm ──> snapshot (allocations)
//! ```
//!
//! [`snapshot`] contains the types that the modules share, and [`machine`] is the snapshot as the documents of the API.
//! [`config`], [`faults`], [`backoff`], `blocking_read`, `peaks`, `supervise` and `unix_socket` are leaves. Only [`app`] connects
//! all modules and passes each its settings. [`command_line`] prints the demo's scenarios and the completion scripts for
//! shells, and [`subcommand`] is how every command at a terminal ends.
//!
//! Other crates of the workspace: `text_and_sizes` and `web_client` are used by every module under the names below;
//! `cgroup_owner` reads cgroup paths for [`attribution`], `pod_resources` is the kubelet client of [`kubernetes`],
//! `web_config` guards [`http`], and `nvml_sim` is the simulated driver of [`demo`]. The tool `vram` is a package of its own
//! (`crates/vram`).

pub mod allocator;
pub mod app;
pub mod attribution;
pub mod backoff;
mod blocking_read;
pub mod command_line;
pub mod config;
pub mod dcgm;
pub mod demo;
pub mod faults;
pub mod http;
#[doc(hidden)]
pub mod internals;
pub mod kubernetes;
pub mod lanes;
pub mod machine;
pub mod metrics;
pub mod nvml;
pub mod otlp;
mod peaks;
pub mod recorder;
pub mod slurm;
pub mod snapshot;
pub mod subcommand;
mod supervise;
mod unix_socket;

use text_and_sizes::{format, quantity, sizing, text};
use web_client::{self as client, regular_file, server_url};
