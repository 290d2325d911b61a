//! Counts of driver calls that hang, kept across sessions.
//!
//! Invariant: a call that hangs is attributed to its GPU and not to a session, so that a new session does not lose
//! another thread to the same call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::nvml::Driver;
use crate::snapshot::Gpu;

/// The number of threads hanging in a call, by the target of the call: a GPU, the driver, or the events of a GPU.
#[derive(Debug, Default)]
pub(super) struct Stalls(HashMap<String, Arc<AtomicU32>>);

impl Stalls {
    /// The counters that all sessions share: one for each GPU, one for the driver itself, and one for the events of
    /// each GPU.
    pub(super) fn counters(&mut self, driver: &Driver) -> Vec<Arc<AtomicU32>> {
        let gpus = driver.gpus().map(|gpu| gpu.key());
        let events = driver.gpus().map(|gpu| format!("events of {}", gpu.key()));
        let keys = gpus.chain(["driver".to_owned()]).chain(events);
        keys.map(|key| self.0.entry(key).or_default().clone()).collect()
    }

    /// Whether a call to the GPU is hanging.
    pub(super) fn is_stalled(&self, gpu: &Gpu) -> bool {
        self.0.get(&gpu.key()).is_some_and(|calls| calls.load(Ordering::Relaxed) > 0)
    }

    /// Drops the counters that no session and no thread uses any longer.
    pub(super) fn remove_unused(&mut self) {
        self.0.retain(|_, calls| Arc::strong_count(calls) > 1);
    }
}
