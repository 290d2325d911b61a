//! The process lane: lists the processes of a GPU as soon as its memory changes, and those of every GPU at least once
//! per interval. Between two passes it takes the telemetry readings, one driver call at a time.
//!
//! ```text
//!  driver ── list_source ──> list_cache ──> list ──> state ──> snapshot
//!                                                     ├── table: the processes over time
//!                                                     └── workloads: their sums over time, and the limits of these
//!  driver ── driver_limits ──> limits ────────────────────┤
//!  driver ── telemetry ──> energy: whose it is ───────────┘
//! ```

mod accounting;
mod driver_limits;
mod energy;
mod guests;
mod lane;
mod layout;
mod limits;
mod list;
mod list_cache;
mod list_source;
mod over_limit;
mod raised;
mod retention;
mod state;
mod table;
mod tracked;
mod workload_cgroups;
mod workload_entry;
mod workloads;

pub(super) use lane::ProcessLane;
pub use lane::Settings;
