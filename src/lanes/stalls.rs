//! Driver calls that do not return: which threads they keep, and which GPUs must not be asked meanwhile.
//!
//! Invariant: what hangs belongs to the GPU and not to a session, so that a new session does not lose another thread to the same
//! call; and from [`MAX_STUCK_THREADS`] such threads on no thread is added to them by a lane or an opening.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use super::opening::Closing;
use crate::snapshot::{Gpu, MAX_STUCK_THREADS};

/// How many threads hang in a call, by what they ask.
#[derive(Debug, Default)]
pub(super) struct Stalls(HashMap<String, Arc<AtomicU32>>);

impl Stalls {
    /// The counter of calls to a GPU, which every session shares.
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

    /// Forgets what no session and no thread counts any longer.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|_, calls| Arc::strong_count(calls) > 1);
    }
}

/// The threads that were left alone, and closings that nobody waits for.
#[derive(Default)]
pub(super) struct DetachedThreads {
    /// Their call has not returned within its limit.
    stuck: Vec<JoinHandle<()>>,
    closings: Vec<Closing>,
}

impl DetachedThreads {
    /// A thread whose call has not returned within its limit.
    pub(super) fn leave(&mut self, thread: JoinHandle<()>) {
        self.stuck.push(thread);
    }

    /// A closing that goes on by itself.
    pub(super) fn close(&mut self, closing: Option<Closing>) {
        self.closings.extend(closing);
    }

    /// Forgets the threads that have ended. Says how many closings are slow since now.
    pub(super) fn tidy(&mut self) -> usize {
        self.stuck.retain(|thread| !thread.is_finished());
        let (slow, closings): (Vec<_>, Vec<_>) = std::mem::take(&mut self.closings)
            .into_iter()
            .filter(|closing| !closing.is_done())
            .partition(Closing::is_slow);
        self.closings = closings;
        let count = slow.len();
        self.stuck.extend(slow.into_iter().map(Closing::into_thread));
        count
    }

    /// How many threads are stuck.
    pub(super) fn stuck(&self) -> usize {
        self.stuck.len()
    }

    /// Whether no other thread may be left behind, given how many calls elsewhere are under way and may come to hang.
    pub(super) fn is_full(&self, elsewhere: usize) -> bool {
        self.stuck.len() + self.closings.len() + elsewhere >= MAX_STUCK_THREADS
    }

    /// Whether no closing is under way.
    pub(super) fn is_closed(&self) -> bool {
        self.closings.iter().all(Closing::is_done)
    }
}
