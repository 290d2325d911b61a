//! One thread of a lane, as its supervisor sees it: working, hung in a driver call, finished or panicked.

use std::sync::Arc;
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::session::Session;
use super::watch::{Superseded, Watch};
use crate::snapshot::Lane;

/// The work of a lane. It outlives the lane's threads and sessions.
pub(super) trait LaneTask: Send + Sync {
    /// Called before the first thread of a session starts.
    fn resume(&self, session: &Session);

    /// Works until the session ends or the thread is superseded.
    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded>;
}

/// A thread of a lane.
pub(super) struct Worker {
    pub(super) lane: Lane,
    watch: Arc<Watch>,
    thread: JoinHandle<()>,
}

/// The status of a worker.
pub(super) enum WorkerStatus {
    /// It is running.
    Working(Worker),
    /// Its call for this slot has not returned in time. It is superseded from now on; the call may still return later.
    Hung(usize, JoinHandle<()>),
    /// It has ended.
    Finished,
    /// It has panicked.
    Panicked,
}

impl Worker {
    /// Starts a thread that runs the task. When that thread ends, it unparks the calling thread.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(super) fn start(lane: Lane, task: Arc<dyn LaneTask>, session: Arc<Session>) -> std::io::Result<Self> {
        let watch = Arc::new(Watch::new());
        let (watched, unpark) = (watch.clone(), UnparkOnDrop::current());
        let thread = thread::Builder::new().name(thread_name(lane).to_owned()).spawn(move || {
            let _unpark = unpark;
            if let Err(Superseded { slot }) = task.run(&session, &watched) {
                // The hung call has returned after all, so the thread that took over may make calls for the slot again.
                session.mark_recovered(slot);
                tracing::info!(thread = thread_name(lane), slot, "driver call returned after its limit");
            }
        })?;
        Ok(Self { lane, watch, thread })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Checks the thread. `limit` is the time that a driver call may take.
    pub(super) fn check(self, limit: Duration) -> WorkerStatus {
        // Checked first, because after a panic inside a driver call the watch still shows the call as in progress.
        if !self.thread.is_finished() {
            return match self.watch.give_up_after(limit) {
                Some(slot) => WorkerStatus::Hung(slot, self.thread),
                None => WorkerStatus::Working(self),
            };
        }
        match self.thread.join() {
            Ok(()) => WorkerStatus::Finished,
            Err(_) => WorkerStatus::Panicked,
        }
    }
}

/// The name of a lane's thread. The telemetry is read on the process lane's thread; the thread of [`Lane::Telemetry`]
/// watches for Xid events.
pub(super) fn thread_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Memory => "memory-lane",
        Lane::Process => "process-lane",
        Lane::Telemetry => "xid-watch",
    }
}

/// Unparks a thread when dropped, that is, when the thread that owns this guard ends or panics.
pub(super) struct UnparkOnDrop(Thread);

impl UnparkOnDrop {
    /// Creates a guard that unparks the calling thread.
    pub(super) fn current() -> Self {
        Self(thread::current())
    }
}

impl Drop for UnparkOnDrop {
    fn drop(&mut self) {
        self.0.unpark();
    }
}
