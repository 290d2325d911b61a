//! What is known about the calls for each GPU, across sessions: how many hang, and which lanes have a thread for this GPU
//! alone.
//!
//! Invariant: a call that hangs or is slow is attributed to its GPU and not to a session, so that a new session does not
//! lose another thread, or another reading of the other GPUs, to the same GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use super::apart::Apart;
use crate::nvml::Driver;
use crate::snapshot::{Gpu, Lane};

/// The calls for one target: a GPU, the driver, or the events of a GPU.
#[derive(Debug, Default)]
struct Calls {
    /// The number of threads hanging in a call.
    hanging: AtomicU32,
    /// Whether a lane serves the target with a thread of its own; indexed by lane.
    apart: [Apart; Lane::ALL.len()],
}

/// The calls by target.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    calls: HashMap<String, Arc<Calls>>,
    trouble: Arc<AtomicUsize>,
}

/// What all sessions share about the calls of one of them.
#[derive(Debug, Clone)]
pub(super) struct SessionCalls {
    /// By slot: one for each GPU, one for the driver itself, and one for the events of each GPU.
    slots: Vec<Arc<Calls>>,
    /// How many calls hang or have outlived their session, and how many slots are apart. While it is 0, which is nearly
    /// always, a tick need not look at the slots, whose memory would not be in a cache.
    trouble: Arc<AtomicUsize>,
}

impl SessionCalls {
    /// Whether a thread is hanging in a call for the slot. If so, no other thread may make a call for it.
    pub(super) fn stalled(&self, slot: usize) -> bool {
        self.is_troubled() && self.slots[slot].hanging.load(Ordering::Relaxed) > 0
    }

    /// Whether any call hangs, or any slot is apart.
    fn is_troubled(&self) -> bool {
        self.trouble.load(Ordering::Acquire) > 0
    }

    fn add_trouble(&self) {
        self.trouble.fetch_add(1, Ordering::Release);
    }

    fn end_trouble(&self) {
        self.trouble.fetch_sub(1, Ordering::Release);
    }

    /// Records that a call for the slot is hanging.
    pub(super) fn mark_stalled(&self, slot: usize) {
        self.slots[slot].hanging.fetch_add(1, Ordering::Relaxed);
        self.add_trouble();
    }

    /// Records that a call that hung has returned.
    pub(super) fn mark_recovered(&self, slot: usize) {
        self.slots[slot].hanging.fetch_sub(1, Ordering::Relaxed);
        self.end_trouble();
    }

    /// Leaves a slot to a thread of the lane that serves it alone.
    pub(super) fn leave(&self, lane: Lane, slot: usize, now: Instant) {
        if self.apart(lane, slot).leave(now) {
            self.add_trouble();
        }
    }

    /// Gives a slot back to the thread of the lane that serves the others, after this many quick calls in a row, if they are
    /// enough. Returns whether they are: the thread that has the slot for itself then has nothing left to do.
    pub(super) fn come_back(&self, lane: Lane, slot: usize, quick_calls: u32, now: Instant) -> bool {
        let apart = self.apart(lane, slot);
        let is_quick = apart.is_quick(quick_calls);
        if is_quick && apart.come_back(now) {
            self.end_trouble();
        }
        is_quick
    }

    /// Records that the session was replaced during a slow call of the lane for the slot.
    pub(super) fn mark_outlived(&self, lane: Lane, slot: usize) {
        self.apart(lane, slot).outlived.fetch_add(1, Ordering::Relaxed);
        self.add_trouble();
    }

    /// Records that a call that outlived its session has returned.
    pub(super) fn mark_returned(&self, lane: Lane, slot: usize) {
        self.apart(lane, slot).outlived.fetch_sub(1, Ordering::Relaxed);
        self.end_trouble();
    }

    /// Whether a thread of the lane serves the slot alone.
    pub(super) fn is_apart(&self, lane: Lane, slot: usize) -> bool {
        self.is_troubled() && self.apart(lane, slot).is_apart()
    }

    /// Whether a call of the lane for the slot, which began in an earlier session, is still under way.
    pub(super) fn waits(&self, lane: Lane, slot: usize) -> bool {
        self.is_troubled() && self.apart(lane, slot).outlived.load(Ordering::Relaxed) > 0
    }

    /// The slots that each have a thread of the lane for themselves.
    pub(super) fn slots_apart(&self, lane: Lane) -> impl Iterator<Item = usize> {
        let slots = if self.is_troubled() { self.slots.len() } else { 0 };
        (0..slots).filter(move |&slot| self.apart(lane, slot).is_apart())
    }

    fn apart(&self, lane: Lane, slot: usize) -> &Apart {
        &self.slots[slot].apart[lane as usize]
    }
}

impl Stalls {
    /// The calls of a session.
    pub(super) fn of(&mut self, driver: &Driver) -> SessionCalls {
        let gpus = driver.gpus().map(|gpu| gpu.key());
        let events = driver.gpus().map(|gpu| format!("events of {}", gpu.key()));
        let keys = gpus.chain(["driver".to_owned()]).chain(events);
        let slots: Vec<Arc<Calls>> = keys.map(|key| self.calls.entry(key).or_default().clone()).collect();
        // A GPU that has left the machine is not slow any more.
        self.calls.retain(|_, calls| {
            let is_used = Arc::strong_count(calls) > 1;
            let apart = calls.apart.iter().filter(|apart| apart.is_apart()).count();
            self.trouble.fetch_sub(if is_used { 0 } else { apart }, Ordering::Release);
            is_used
        });
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
