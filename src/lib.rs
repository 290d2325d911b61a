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
//! [`snapshot`] contains the types that the modules share. [`config`], [`faults`], [`backoff`], `blocking_read`,
//! `format`, `peaks`, `quantity`, `regular_file`, `server_url`, `sizing`, `supervise`, `text` and `unix_socket` are
//! leaves; `client` is the client of HTTP and HTTPS for [`otlp`], [`kubernetes`], [`report`] and [`advise`], and
//! `subcommand` contains what all subcommands have in common. Only [`app`] connects all modules and passes each its settings. Some
//! modules use other crates of the workspace: `cgroup_owner` reads cgroup paths for [`attribution`], `pod_resources`
//! is the kubelet client of [`kubernetes`], `web_config` guards [`http`], and `nvml_sim` is the simulated driver of
//! [`demo`]. [`run`] is a second program in addition to the exporter: it starts a command and measures its GPU
//! memory. [`report`] prints what a running exporter reports about a job. [`advise`] advises how much memory
//! workloads should request, from the history in a Prometheus server. [`command_line`] starts these three, and prints
//! the demo's scenarios and the completion scripts for shells.

pub mod advise;
pub mod allocator;
pub mod app;
pub mod attribution;
pub mod backoff;
mod blocking_read;
mod client;
pub mod command_line;
pub mod config;
pub mod dcgm;
pub mod demo;
pub mod faults;
mod format;
pub mod http;
#[doc(hidden)]
pub mod internals;
pub mod kubernetes;
pub mod lanes;
pub mod metrics;
pub mod nvml;
pub mod otlp;
mod peaks;
mod quantity;
pub mod recorder;
mod regular_file;
pub mod report;
pub mod run;
mod server_url;
mod sizing;
pub mod slurm;
pub mod snapshot;
mod subcommand;
mod supervise;
mod text;
mod unix_socket;
