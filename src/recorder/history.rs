//! What is recorded: the histories of the devices, of their processes and of their workloads, and the events.
//!
//! The other rooms of the recorder build on it, and it imports none of them. The clock and the names of processes are
//! here too, and the forms of a chart, an event and an incident, which the API and the files use.

pub(super) mod answers;
mod blocks;
pub(super) mod chart;
pub(super) mod clock;
pub(super) mod device_history;
pub(super) mod device_list;
pub(super) mod ended_log;
pub(super) mod ending;
pub(super) mod event;
pub(super) mod exit_status;
pub(super) mod failures;
pub(super) mod gone;
pub(super) mod heap_use;
pub(super) mod incident;
pub(super) mod list_times;
pub(super) mod names;
pub(super) mod peak;
mod peak_log;
pub(super) mod process_history;
pub(super) mod series;
pub(super) mod visits;
