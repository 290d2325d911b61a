//! Counts of driver calls that hang, kept across sessions.
//!
//! Invariant: a call that hangs is counted for its GPU and not for a session, so that a new session does not lose another thread
//! to the same call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::snapshot::Gpu;

/// The number of threads that hang in a call, by what they call.
#[derive(Debug, Default)]
pub(super) struct Stalls(HashMap<String, Arc<AtomicU32>>);

impl Stalls {
    /// The counter of calls to a GPU, which all sessions share.
    pub(super) fn of_gpu(&mut self, gpu: &Gpu) -> Arc<AtomicU32> {
        self.0.entry(gpu.key()).or_default().clone()
    }

    /// The counter of calls for a GPU's events.
    pub(super) fn of_events(&mut self, gpu: &Gpu) -> Arc<AtomicU32> {
        self.0.entry(format!("events of {}", gpu.key())).or_default().clone()
    }

    /// The counter of calls to the driver itself.
    pub(super) fn of_driver(&mut self) -> Arc<AtomicU32> {
        self.0.entry("driver".to_owned()).or_default().clone()
    }

    /// Whether a call to the GPU hangs.
    pub(super) fn is_stalled(&self, gpu: &Gpu) -> bool {
        self.0.get(&gpu.key()).is_some_and(|calls| calls.load(Ordering::Relaxed) > 0)
    }

    /// Drops the counters that no session and no thread uses any longer.
    pub(super) fn remove_unused(&mut self) {
        self.0.retain(|_, calls| Arc::strong_count(calls) > 1);
    }
}
