//! One thread of a lane, as its supervisor sees it: working, in a slow driver call, hung in one, finished or panicked.

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::bell::{Bell, RingOnDrop};
use super::session::Session;
use super::stalls::SessionCalls;
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
    /// Its call for this slot has not returned in time, which is recorded. It is superseded from now on; the call may still
    /// return later.
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
                    session.calls.mark_recovered(slot);
                    tracing::info!(thread = thread_name(lane), slot, "driver call returned after its limit");
                }
                Err(Superseded { slot, why: Why::Outlived }) => session.calls.mark_returned(lane, slot),
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

    /// How long the thread may stay in its current call before the call counts as hanging.
    pub(super) fn until_hanging(&self, limit: Duration) -> Option<Duration> {
        self.watch.until_hanging(limit)
    }

    /// Whether the alarm of the thread's round has gone off, so that it does not tell of a slow call later in the round.
    pub(super) fn is_round_long(&self) -> bool {
        self.is_shared() && self.watch.is_round_long()
    }

    /// How long the thread has been in a slow call that delays other GPUs, beyond the limit; `None` if it is not in one.
    pub(super) fn slow_for(&self) -> Option<Duration> {
        self.watch.slow_for().filter(|_| self.is_shared())
    }

    /// The thread's folder in `/proc`.
    pub(super) fn thread_path(&self) -> Option<&str> {
        self.path.get().map(String::as_str)
    }

    /// Abandons the thread if it is in a slow call, because its session is replaced.
    ///
    /// # Errors
    /// The worker, if its thread is in no slow call.
    pub(super) fn outlive(self, session: &Session) -> Result<(Outlived, JoinHandle<()>), Self> {
        let Some(call) = self.watch.slow().filter(|_| !self.thread.is_finished()) else { return Err(self) };
        // Recorded first, because the call may return at any time.
        session.calls.mark_outlived(self.lane, call.slot);
        if !self.watch.outlive(call) {
            session.calls.mark_returned(self.lane, call.slot);
            return Err(self);
        }
        let gpu = session.gpu_of_slot(call.slot).map(|gpu| gpu.index);
        let outlived =
            Outlived { lane: self.lane, gpu, slot: call.slot, watch: self.watch, calls: session.calls.clone() };
        Ok((outlived, self.thread))
    }

    /// Checks the thread. `limit` is the time after which a driver call counts as hanging.
    pub(super) fn check(mut self, session: &Session, limit: Duration, slow: Slow) -> WorkerStatus {
        // Checked first, because after a panic inside a driver call the watch still shows the call as in progress.
        if !self.thread.is_finished() {
            if let Some(slot) = give_up(&self.watch, &session.calls, limit) {
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

/// A call that outlived its session.
#[derive(Debug)]
pub(super) struct Outlived {
    pub(super) lane: Lane,
    /// The GPU's index; `None` for the driver itself.
    pub(super) gpu: Option<u32>,
    slot: usize,
    pub(super) watch: Arc<Watch>,
    calls: SessionCalls,
}

impl Outlived {
    /// Records that the call hangs, if it has not returned within the limit. Returns whether it hangs.
    pub(super) fn hangs_after(&self, limit: Duration) -> bool {
        let hangs = give_up(&self.watch, &self.calls, limit).is_some();
        if hangs {
            self.calls.mark_returned(self.lane, self.slot);
        }
        hangs
    }
}

/// Supersedes a thread whose call has been under way for longer than the limit, and records that it hangs. Returns the
/// call's slot.
fn give_up(watch: &Watch, calls: &SessionCalls, limit: Duration) -> Option<usize> {
    let call = watch.hanging(limit)?;
    // Recorded first, because the call may return at any time.
    calls.mark_stalled(call.slot);
    if !watch.supersede(call) {
        calls.mark_recovered(call.slot);
        return None;
    }
    Some(call.slot)
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
