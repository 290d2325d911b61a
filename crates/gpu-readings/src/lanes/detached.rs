//! Threads that nothing waits for: those that hang in a driver call, and those that close a driver in the background.
//!
//! Invariant: once [`MAX_STUCK_THREADS`] threads hang, neither a lane nor an attempt to open the driver adds
//! another.

use std::thread::JoinHandle;

use super::opening::Closing;
use crate::snapshot::MAX_STUCK_THREADS;

/// The threads that nothing waits for.
#[derive(Default)]
pub(super) struct DetachedThreads {
    stuck: Vec<StuckThread>,
    closings: Vec<Closing>,
}

/// A thread whose call has not returned within its limit.
struct StuckThread {
    thread: JoinHandle<()>,
    /// The index of the GPU that the hanging call was made to, if the thread is opening the driver.
    opening_at: Option<u32>,
}

impl DetachedThreads {
    /// Adds a thread whose call has not returned within its limit.
    pub(super) fn add_stuck(&mut self, thread: JoinHandle<()>, opening_at: Option<u32>) {
        self.stuck.push(StuckThread { thread, opening_at });
    }

    /// Adds a [`Closing`] that continues in the background.
    pub(super) fn add_closing(&mut self, closing: Option<Closing>) {
        self.closings.extend(closing);
    }

    /// Removes the threads that have ended. Returns the number of threads that have taken too long to close a driver;
    /// from now on, they count as stuck.
    pub(super) fn reap(&mut self) -> usize {
        self.stuck.retain(|stuck| !stuck.thread.is_finished());
        let closings = std::mem::take(&mut self.closings).into_iter().filter(|closing| !closing.is_done());
        let (slow, closings): (Vec<_>, Vec<_>) = closings.partition(Closing::is_slow);
        self.closings = closings;
        let count = slow.len();
        slow.into_iter().for_each(|closing| self.add_stuck(closing.thread, None));
        count
    }

    /// The number of threads that are stuck.
    pub(super) fn stuck(&self) -> usize {
        self.stuck.len()
    }

    /// For each thread that hangs while opening the driver, the index of the GPU that it called.
    pub(super) fn hung_openings(&self) -> impl Iterator<Item = u32> {
        self.stuck.iter().filter(|stuck| !stuck.thread.is_finished()).filter_map(|stuck| stuck.opening_at)
    }

    /// Whether the limit on abandoned threads has been reached, given the number of other calls that are in progress
    /// and may hang.
    pub(super) fn is_full(&self, in_progress: usize) -> bool {
        self.stuck.len() + self.closings.len() + in_progress >= MAX_STUCK_THREADS
    }

    /// Whether all threads that close a driver have ended, apart from those that are stuck.
    pub(super) fn closings_done(&self) -> bool {
        self.closings.iter().all(Closing::is_done)
    }
}
