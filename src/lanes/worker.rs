//! One thread of a lane, as its supervisor sees it: it works, it hangs in a driver call, it has ended, or it died.

use std::sync::Arc;
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::session::Session;
use super::watch::{Superseded, Watch};
use crate::snapshot::Lane;

/// What the threads of a lane do. It outlives threads and sessions.
pub(super) trait LaneTask: Send + Sync {
    /// Before the first thread of a session starts.
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

/// What became of a worker.
pub(super) enum WorkerStatus {
    /// It works.
    Working(Worker),
    /// Its call for this slot does not return. From now on it is superseded; its thread may come back some day.
    Hung(usize, JoinHandle<()>),
    /// It ended.
    Finished,
    /// It ended by a panic.
    Panicked,
}

impl Worker {
    /// Starts a thread that does the task. The thread that starts it is woken at its end.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(lane: Lane, task: Arc<dyn LaneTask>, session: Arc<Session>) -> std::io::Result<Self> {
        let watch = Arc::new(Watch::new());
        let (watched, wake) = (watch.clone(), UnparkOnDrop::current());
        let thread = thread::Builder::new().name(thread_name(lane).to_owned()).spawn(move || {
            let _wake = wake;
            if let Err(Superseded { slot }) = task.run(&session, &watched) {
                // The call has come back after all: whoever carried on meanwhile takes the GPU up again.
                session.recover(slot);
                tracing::info!(thread = thread_name(lane), slot, "a driver call that hung has come back");
            }
        })?;
        Ok(Self { lane, watch, thread })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Looks after it. `limit` is how long a driver call may take.
    pub(super) fn check(self, limit: Duration) -> WorkerStatus {
        // First: a panic inside a driver call leaves the watch as if the call went on.
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

/// The name of a lane's thread. The readings of the telemetry are on the process lane's.
pub(super) fn thread_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Memory => "memory-lane",
        Lane::Process => "process-lane",
        Lane::Telemetry => "xid-watch",
    }
}

/// Wakes a thread when it is dropped: at the end of another one, by a panic too.
pub(super) struct UnparkOnDrop(Thread);

impl UnparkOnDrop {
    /// Wakes the calling thread.
    pub(super) fn current() -> Self {
        Self(thread::current())
    }
}

impl Drop for UnparkOnDrop {
    fn drop(&mut self) {
        self.0.unpark();
    }
}
