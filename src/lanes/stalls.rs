//! What is known about the calls for each GPU, across sessions: how many hang, and which lanes have a thread for this GPU
//! alone.
//!
//! Invariant: a call that hangs or is slow is attributed to its GPU and not to a session, so that a new session does not
//! lose another thread, or another reading of the other GPUs, to the same GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::apart::Apart;
use crate::nvml::Driver;
use crate::snapshot::{Gpu, Lane};

/// The calls for one target: a GPU, the driver, or the events of a GPU.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The number of threads hanging in a call.
    pub(super) hanging: AtomicU32,
    /// Whether a lane serves the target with a thread of its own; indexed by lane.
    pub(super) apart: [Apart; Lane::ALL.len()],
}

/// The calls by target.
#[derive(Debug, Default)]
pub(super) struct Stalls(HashMap<String, Arc<Calls>>);

impl Stalls {
    /// What all sessions share: one entry for each GPU, one for the driver itself, and one for the events of each GPU.
    pub(super) fn of(&mut self, driver: &Driver) -> Vec<Arc<Calls>> {
        let gpus = driver.gpus().map(|gpu| gpu.key());
        let events = driver.gpus().map(|gpu| format!("events of {}", gpu.key()));
        let keys = gpus.chain(["driver".to_owned()]).chain(events);
        keys.map(|key| self.0.entry(key).or_default().clone()).collect()
    }

    /// Whether a call to the GPU is hanging.
    pub(super) fn is_stalled(&self, gpu: &Gpu) -> bool {
        self.0.get(&gpu.key()).is_some_and(|calls| calls.hanging.load(Ordering::Relaxed) > 0)
    }

    /// Drops the entries that no session and no thread uses any longer.
    pub(super) fn remove_unused(&mut self) {
        self.0.retain(|_, calls| Arc::strong_count(calls) > 1);
    }
}
