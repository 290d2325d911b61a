//! What happened in a run, apart from the measurement.

use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use super::child::Ended;
use super::reported::Reported;

/// What happened, apart from the measurement.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) command: Vec<OsString>,
    pub(super) begun: SystemTime,
    /// The same moment as `begun`.
    pub(super) start: Instant,
    pub(super) ended: Ended,
    pub(super) duration: Duration,
    pub(super) followed: Option<Followed>,
    /// Whether descendants of the command are still running.
    pub(super) left: bool,
    /// Whether the machine's other processes are visible; `None` if that is unknown.
    pub(super) sees_host: Option<bool>,
    /// What the processes reported about their allocators.
    pub(super) reported: Reported,
}

/// The time between the end of the command and the end of its descendants.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) time: Duration,
    /// The number of descendants with GPU memory when the command ended.
    pub(super) processes: usize,
    /// The signal that ended this period; `None` if the period ended because the descendants ended.
    pub(super) until: Option<Signal>,
}
