//! Sees the driver's memory calls of all processes with probes ([`cuda_probe`]), and makes of them what no reading shows:
//! requests that the driver refused, peaks shorter than the time between two readings, and the time in the calls.
//!
//! ```text
//!  probes ──> watch ──> requests ── refused, retried ──> tally ──> snapshot
//!               │  └──> memory  ── lower bounds ──────> the lanes' peaks
//!  lists of the process lane ──┘
//! ```
//!
//! Invariants: a reading always overrules what calls tell; a bound is never more than was held, or it is not passed on; a
//! process can lie about itself only; without probes everything else is as it would be without this room.

mod account;
mod batch;
mod bounds;
mod clocks;
mod contexts;
mod finder;
mod held;
mod libraries;
mod meaning;
mod memory;
mod ordinals;
mod places;
mod process_memory;
mod requests;
mod sieve;
mod tally;
mod view;
mod watch;

pub use cuda_probe::Mode;
pub use watch::{CallWatch, Settings};
