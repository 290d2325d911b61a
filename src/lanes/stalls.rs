//! What is known about the calls for each GPU, across sessions: how many hang, and which lanes have a thread for this GPU
//! alone.
//!
//! Invariant: a call that hangs or is slow is attributed to its GPU and not to a session, so that a new session does not
//! lose another thread, or another reading of the other GPUs, to the same GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

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
pub(super) struct Stalls {
    calls: HashMap<String, Arc<Calls>>,
    trouble: Arc<AtomicUsize>,
}

/// What all sessions share about the calls of one of them.
#[derive(Debug)]
pub(super) struct SessionCalls {
    /// By slot: one for each GPU, one for the driver itself, and one for the events of each GPU.
    pub(super) slots: Vec<Arc<Calls>>,
    /// How many calls hang or have outlived their session, and how many slots are apart. While it is 0, which is nearly
    /// always, a tick need not look at the slots, whose memory would not be in a cache.
    pub(super) trouble: Arc<AtomicUsize>,
}

impl Stalls {
    /// The calls of a session.
    pub(super) fn of(&mut self, driver: &Driver) -> SessionCalls {
        let gpus = driver.gpus().map(|gpu| gpu.key());
        let events = driver.gpus().map(|gpu| format!("events of {}", gpu.key()));
        let keys = gpus.chain(["driver".to_owned()]).chain(events);
        let slots = keys.map(|key| self.calls.entry(key).or_default().clone()).collect();
        SessionCalls { slots, trouble: self.trouble.clone() }
    }

    /// Whether a call to the GPU is hanging.
    pub(super) fn is_stalled(&self, gpu: &Gpu) -> bool {
        self.calls.get(&gpu.key()).is_some_and(|calls| calls.hanging.load(Ordering::Relaxed) > 0)
    }

    /// Drops the entries that no session and no thread uses any longer. A GPU that is slow is so in the next session, too.
    pub(super) fn remove_unused(&mut self) {
        self.calls.retain(|_, calls| Arc::strong_count(calls) > 1 || calls.apart.iter().any(Apart::is_apart));
    }
}
