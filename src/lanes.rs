//! The lanes: the OS threads that ask the driver, fold what it answers and publish it.
//!
//! ```text
//!  supervisor ── opens ──> session (driver + its GPUs)
//!      │ watches                │ asked by
//!      ├──> memory lane ── changed? ──> bell ──> process lane ──> attribution
//!      │         │                                   │  └─ telemetry, between two process passes
//!      │         └────────────> snapshot <───────────┘
//!      ├──> watch for Xid events ──^
//!      └── a call does not return: a fresh thread carries on without that GPU
//! ```
//!
//! Invariants: every driver call runs under a [`watch::Watch`]; nothing is locked while the driver is asked; what was
//! folded (peaks, counters) belongs to the lane and outlives sessions and threads.

mod accumulator;
mod control;
mod manual;
mod memory;
mod opening;
mod peaks;
mod process;
mod publish;
mod running;
mod schedule;
mod session;
mod settings;
mod stalls;
mod supervisor;
mod telemetry;
mod wake;
mod watch;
mod worker;
mod xids;

pub use control::DriverLease;
pub use control::DriverLease;
#[doc(hidden)]
pub use manual::ManualLanes;
pub use running::Lanes;
pub use settings::Settings;
