//! The telemetry readings: a queue of single driver calls that the process lane's thread works through between two
//! process lists, so that an expensive call never delays a list by more than its own duration.

mod energy;
mod gpu;
mod lane;
mod moment;
mod profiling;
mod queue;
pub(crate) mod reading;
mod work_until;

pub(super) use energy::Energies;
pub(super) use gpu::{Spent, Told, Work};
pub use lane::Settings;
pub(super) use lane::Telemetry;
pub(super) use profiling::Totals;
