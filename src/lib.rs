//! `vram-exporter`: the memory of every NVIDIA GPU in a machine, its true peaks, and the processes and workloads that
//! hold it.
//!
//! Data flows in one direction, and imports follow it (`tests/it/architecture.rs` rejects any import that does not):
//!
//! ```text
//!  gpu_readings ──> snapshot ──> gpu_metrics ──> http
//!                      │            ├──> dcgm ──────^
//!                      │            └──> otlp ──> an OTLP receiver
//!                      └──> recorder (history, incidents) ──> http
//!  cluster ──> kubernetes ──> snapshot (names of containers, which attribution reads; allocations)
//!  Slurm ──> slurm ──> snapshot (allocations)
//!  probes on the driver's calls ──> gpu_calls ──> snapshot, and peaks for the lanes
//! ```
//!
//! The crate `gpu_readings` reads the GPUs and finds the owners of their processes; its modules are used under the names below.
//! Its `snapshot` contains the types that the modules here share; the crate `gpu_metrics` is the snapshot as the text of a scrape, and
//! [`machine`] as the documents of the API. The crate `gpu_calls` sees what falls between two readings.
//! [`config`] and `blocking_read` are leaves. Only [`app`] connects all modules and passes each its settings. [`command_line`]
//! prints the demo's scenarios and the completion scripts for shells, and [`subcommand`] is how every command at a terminal ends.
//!
//! Other crates of the workspace: `text_and_sizes` and `web_client` are also used under the names below; `pod_resources` is the
//! kubelet client of [`kubernetes`], `web_config` guards [`http`], and `nvml_sim` is the simulated driver of [`demo`]. The tool
//! `vram` is a package of its own (`crates/vram`).

pub mod app;
mod blocking_read;
pub mod command_line;
pub mod config;
pub mod dcgm;
pub mod demo;
pub mod http;
#[doc(hidden)]
pub mod internals;
pub mod kubernetes;
pub mod machine;
pub mod otlp;
pub mod recorder;
pub mod slurm;
pub mod subcommand;

use gpu_readings::{allocator, attribution, backoff, faults, lanes, nvml, peaks, snapshot, supervise, unix_socket};
use text_and_sizes::{format, quantity, sizing, text};
use web_client::{self as client, regular_file, server_url};
