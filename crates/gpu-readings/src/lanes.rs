//! The lanes: the OS threads that call the driver, accumulate the readings and publish them.
//!
//! ```text
//!  supervisor ── opens ──> session (driver + its GPUs)
//!      │ watches                │ called by
//!      ├──> memory lane ── moved? ──> wake bits ──> process lane ──> attribution
//!      │         │                                      │  └─ telemetry, between two process passes
//!      │         └─────────────> snapshot <─────────────┘
//!      ├──> watch for Xid events ──^
//!      ├── a call is slow: its thread keeps that GPU, and a new thread continues with the others
//!      └── a call does not return: a new thread continues without that GPU
//! ```
//!
//! Invariants: every driver call of a lane runs under a [`watch::Watch`]; no lock is held during a driver call;
//! accumulated values (peaks, counters) belong to the lane and outlive sessions and threads.

mod apart;
mod bell;
mod control;
mod detached;
mod guarded;
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
pub(crate) mod telemetry;
mod wake;
mod watch;
mod worker;
mod xids;

pub use control::DriverLease;
pub use manual::ManualLanes;
pub use memory::Settings as MemorySettings;
pub use process::Settings as ProcessSettings;
pub use running::Lanes;
pub use settings::Settings;
pub use telemetry::Settings as TelemetrySettings;
pub use telemetry::reading::numbers as telemetry_numbers;
