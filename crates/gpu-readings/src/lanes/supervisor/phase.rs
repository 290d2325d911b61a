//! The phases of the supervisor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lanes::opening::{Closing, OpenedDriver, Opening};
use crate::lanes::session::Session;
use crate::lanes::worker::Worker;
use crate::snapshot::Lane;

/// How often the supervisor checks its threads.
pub(super) const POLL: Duration = Duration::from_millis(500);
/// How often it checks them while it waits for them to end.
pub(super) const FAST_POLL: Duration = Duration::from_millis(10);

/// The state of the driver and its session.
pub(super) enum Phase {
    /// The driver is closed; it will be opened at this time.
    Closed(Instant),
    /// The driver is closed on request. `holders` is the number of threads that still held it when the
    /// number was last published.
    Released { holders: usize },
    /// The driver is being opened.
    Opening(Opening),
    /// The lanes are running.
    Open { session: Arc<Session>, since: Instant, workers: Vec<Worker> },
    /// The lanes have been signalled to drop the session.
    Ending { session: Arc<Session>, workers: Vec<Worker>, then: AfterEnding },
    /// The driver is being closed.
    Closing { closing: Closing, retry_at: Instant },
}

/// What happens once the session has ended.
pub(super) enum AfterEnding {
    /// The driver is closed, and opened again at this time.
    RetryAt(Instant),
    /// Another session, which was opened while this one ran, replaces it.
    StartSession(Box<OpenedDriver>),
}

impl Phase {
    /// Whether the lane has nothing to do, so that a missing heartbeat is not a problem. The telemetry is read on
    /// the process lane's thread.
    pub(super) fn is_idle(&self, lane: Lane) -> bool {
        let thread = if lane == Lane::Telemetry { Lane::Process } else { lane };
        match self {
            Self::Open { .. } => false,
            Self::Ending { workers, .. } => !workers.iter().any(|worker| worker.lane == thread),
            Self::Closed(_) | Self::Released { .. } | Self::Opening(_) | Self::Closing { .. } => true,
        }
    }

    /// How long the supervisor may sleep in this phase.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::Closed(retry_at) => retry_at.saturating_duration_since(Instant::now()).min(POLL),
            Self::Open { .. } | Self::Opening(_) | Self::Released { .. } => POLL,
            Self::Ending { .. } | Self::Closing { .. } => FAST_POLL,
        }
    }
}
