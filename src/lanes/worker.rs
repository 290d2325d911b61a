//! One thread of a lane, as its supervisor sees it: working, in a slow driver call, hung in one, finished or panicked.

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::bell::{Bell, RingOnDrop};
use super::session::Session;
use super::watch::{Role, Superseded, Watch, Why};
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
    pub(super) role: Role,
    watch: Arc<Watch>,
    /// The thread's folder in `/proc`, once it runs.
    path: Arc<OnceLock<String>>,
    thread: JoinHandle<()>,
}

/// What becomes of a slow call that delays other GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slow {
    /// Its GPU is left to the thread.
    Left,
    /// The others go on waiting.
    Kept,
}

/// The status of a worker.
pub(super) enum WorkerStatus {
    /// It is running.
    Working(Worker),
    /// It is in a slow call for this slot, which is its own from now on.
    Slow(usize, Worker),
    /// Its call for this slot has not returned in time. It is superseded from now on; the call may still return later.
    Hung(usize, JoinHandle<()>),
    /// It has ended.
    Finished,
    /// It has panicked.
    Panicked,
}

impl Worker {
    /// Starts a thread that runs the task in a role. A call that takes longer than `slow_after` is slow. The bell rings when
    /// the thread ends, and when it should be looked at.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub(super) fn start(
        (lane, role): (Lane, Role),
        task: Arc<dyn LaneTask>,
        session: Arc<Session>,
        slow_after: Duration,
        bell: &Arc<Bell>,
    ) -> std::io::Result<Self> {
        let watch = Arc::new(Watch::new(lane, role, slow_after).ringing(bell.clone()));
        let (watched, ring) = (watch.clone(), RingOnDrop(bell.clone()));
        let path = Arc::new(OnceLock::new());
        let own_path = path.clone();
        let thread = thread::Builder::new().name(thread_name(lane).to_owned()).spawn(move || {
            let _ring = ring;
            if let Ok(own) = std::fs::read_link("/proc/thread-self") {
                let _ = own_path.set(format!("/proc/{}", own.display()));
            }
            // The call has returned after all, so the thread that took over may make calls for the slot again.
            match task.run(&session, &watched) {
                Ok(()) => {}
                Err(Superseded { slot, why: Why::Hung }) => {
                    session.mark_recovered(slot);
                    tracing::info!(thread = thread_name(lane), slot, "driver call returned after its limit");
                }
                Err(Superseded { slot, why: Why::Outlived }) => session.mark_returned(lane, slot),
            }
        })?;
        Ok(Self { lane, role, watch, path, thread })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether a slow call of the thread delays other GPUs. The watch for Xid events is left alone: the driver keeps the
    /// events of the other GPUs until it asks for them.
    fn is_shared(&self) -> bool {
        self.role == Role::Shared && self.lane != Lane::Telemetry
    }

    /// How long the thread may stay in its current call before the call is slow and delays other GPUs.
    pub(super) fn until_slow(&self) -> Option<Duration> {
        self.watch.until_slow().filter(|_| self.is_shared())
    }

    /// How long the thread has been in a slow call that delays other GPUs, beyond the limit; `None` if it is not in one.
    pub(super) fn slow_for(&self) -> Option<Duration> {
        self.watch.slow_for().filter(|_| self.is_shared())
    }

    /// The thread's folder in `/proc`.
    pub(super) fn thread_path(&self) -> Option<&str> {
        self.path.get().map(String::as_str)
    }

    /// Supersedes the thread if it is in a slow call, because its session is replaced, and returns the call's slot and the
    /// thread; otherwise returns the worker.
    ///
    /// # Errors
    /// The worker, if its thread is in no slow call.
    pub(super) fn outlive_slow(self) -> Result<(usize, JoinHandle<()>), Self> {
        match self.watch.outlive_slow().filter(|_| !self.thread.is_finished()) {
            Some(slot) => Ok((slot, self.thread)),
            None => Err(self),
        }
    }

    /// Checks the thread. `limit` is the time after which a driver call counts as hanging.
    pub(super) fn check(mut self, limit: Duration, slow: Slow) -> WorkerStatus {
        // Checked first, because after a panic inside a driver call the watch still shows the call as in progress.
        if !self.thread.is_finished() {
            if let Some(slot) = self.watch.give_up_after(limit) {
                return WorkerStatus::Hung(slot, self.thread);
            }
            if slow == Slow::Left
                && self.is_shared()
                && let Some(slot) = self.watch.leave_slow()
            {
                self.role = Role::Own(slot);
                return WorkerStatus::Slow(slot, self);
            }
            return WorkerStatus::Working(self);
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
