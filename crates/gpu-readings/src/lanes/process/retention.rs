//! Limits on the processes and workloads that are remembered: how many, and for how long.

use std::time::{Duration, Instant};

/// The limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retention {
    pub(super) peak_window: Duration,
    /// How long an entry is kept after its end, in addition to one peak window.
    pub(super) linger: Duration,
    /// How many entries are shown, and how many entries that have ended are kept.
    pub(super) limit: usize,
}

impl Retention {
    /// Whether an entry that ended at this time, or has not ended, is still remembered.
    pub(super) fn keeps(&self, ended: Option<Instant>, now: Instant) -> bool {
        ended.is_none_or(|at| now.saturating_duration_since(at) <= self.peak_window + self.linger)
    }
}
