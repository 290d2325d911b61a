//! Starts, checks and replaces the lanes' threads in a session.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Supervisor;
use super::phase::{AfterEnding, POLL, Phase};
use super::restart::{LONGEST_PAUSE, RestartPolicy};
use crate::faults::{Reason, Source};
use crate::lanes::opening::OpenedDriver;
use crate::lanes::session::Session;
use crate::lanes::watch::{LATE, Role};
use crate::lanes::worker::{LaneTask, Slow, Worker, WorkerStatus, thread_name};
use crate::nvml;
use crate::snapshot::Lane;

/// A call that takes longer than this many periods of the memory lane, and at least [`SLOW_AT_LEAST`], is slow.
const SLOW_PERIODS: u32 = 5;
/// How often the supervisor looks at a lane whose round of calls lasts long, and that is in no call.
const LONG_ROUND: Duration = Duration::from_millis(10);
/// A single reading may wait 10 to 24 ms while the driver itself allocates memory; that is not slow.
const SLOW_AT_LEAST: Duration = Duration::from_millis(50);

impl Supervisor {
    /// Starts the lanes on an opened driver.
    pub(super) fn start_session(&mut self, opened: OpenedDriver) -> Phase {
        self.raise_failures(&opened);
        let OpenedDriver { driver, description, .. } = opened;
        tracing::info!(
            gpus = description.gpus.len(),
            driver = description.driver_version,
            nvml = description.nvml_version,
            simulated = description.simulated,
            "the driver is open"
        );
        if description.simulated {
            tracing::warn!("the GPUs are SIMULATED: no number is a measurement");
        }
        nvml::remember(&mut self.known, &description.gpus);
        let session = Arc::new(Session::new(driver, &self.alive, &mut self.stalls));
        self.tasks.iter().for_each(|(_, task)| task.resume(&session));
        // Earlier readings of the same GPUs remain published until the lanes have read them again, a moment later.
        self.snapshot.observer.iter().for_each(|observer| observer.opened(&description));
        self.snapshot.driver.store(Arc::new(description));
        let now = Instant::now();
        Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
        let gpus: Vec<u32> = session.driver.gpus().map(|gpu| gpu.index).collect();
        self.snapshot.vitals.count_missed_of(&gpus);
        let mut workers = Vec::new();
        self.start_missing(&session, &mut workers, |_| true);
        Phase::Open { session, since: Instant::now(), workers }
    }

    /// Starts a thread of a lane. Reports the error if the system cannot create a thread.
    pub(super) fn start(
        &self,
        (lane, role): (Lane, Role),
        task: &Arc<dyn LaneTask>,
        session: &Arc<Session>,
    ) -> Option<Worker> {
        let worker = Worker::start((lane, role), task.clone(), session.clone(), self.slow_after(), &self.control.bell);
        worker.inspect_err(|error| self.faults.raise(source(lane), Reason::Panicked, None, error)).ok()
    }

    /// Starts the threads that are missing and `may_start`: in each lane one that serves all GPUs, and one for each GPU that
    /// is served alone.
    fn start_missing(
        &self,
        session: &Arc<Session>,
        workers: &mut Vec<Worker>,
        may_start: impl Fn((Lane, Role)) -> bool,
    ) {
        for (lane, task) in &self.tasks {
            for role in std::iter::once(Role::Shared).chain(session.calls.slots_apart(*lane).map(Role::Own)) {
                let is_running = workers.iter().any(|worker| (worker.lane, worker.role) == (*lane, role));
                if !is_running && may_start((*lane, role)) {
                    workers.extend(self.start((*lane, role), task, session));
                }
            }
        }
    }

    /// The time after which a call is slow and its GPU gets a thread of its own.
    pub(super) fn slow_after(&self) -> Duration {
        (self.settings.memory.period * SLOW_PERIODS).max(SLOW_AT_LEAST)
    }

    /// How long the supervisor may sleep while the lanes run: no longer than until a call that is under way is slow, or hangs.
    /// For calls that begin later, the lanes set an alarm.
    pub(super) fn pause(&self, workers: &[Worker]) -> Duration {
        let slow = workers.iter().filter_map(Worker::until_slow);
        let hanging = workers.iter().filter_map(|worker| worker.until_hanging(self.settings.call_timeout));
        let between = workers.iter().filter(|worker| worker.is_round_long()).map(|_| LONG_ROUND);
        slow.chain(hanging).chain(between).min().map_or(POLL, |left| POLL.min(left + LATE))
    }

    /// Abandons the threads that still are in a slow call for their own slots, if no other thread is left and the session is
    /// to be replaced: the next session must not wait for one GPU. Returns the threads that are left.
    pub(super) fn abandon_slow(&mut self, session: &Session, workers: Vec<Worker>) -> Vec<Worker> {
        if workers.iter().any(|worker| worker.role == Role::Shared) {
            return workers;
        }
        let mut left = Vec::new();
        for worker in workers {
            if self.is_full() {
                left.push(worker);
                continue;
            }
            match worker.outlive(session) {
                Ok((outlived, thread)) => {
                    self.outlived.push(outlived);
                    self.detached.add_stuck(thread, None);
                }
                // A thread in a usual call ends by itself.
                Err(worker) => left.push(worker),
            }
        }
        left
    }

    /// One round of supervision of an open session.
    pub(super) fn supervise(&mut self, session: Arc<Session>, since: Instant, workers: Vec<Worker>) -> Phase {
        let mut workers = self.check_workers(&session, workers);
        if !session.ending() {
            self.start_missing(&session, &mut workers, |thread| {
                self.restarts.get(&thread).is_none_or(RestartPolicy::is_due)
            });
        }
        if self.control.released_for(Instant::now()).is_some() {
            session.end("the driver is released on request");
        }
        if session.ending() {
            self.link.wake_all();
            let why = session.end_reason().unwrap_or_default().to_owned();
            tracing::warn!(why, "the driver is closed and will be reopened");
            self.publish_problem(why);
            let mut retry_at = Instant::now();
            if since.elapsed() < LONGEST_PAUSE {
                retry_at += self.backoff.next_pause();
            }
            return Phase::Ending { session, workers, then: AfterEnding::RetryAt(retry_at) };
        }
        if since.elapsed() > LONGEST_PAUSE {
            self.backoff.reset();
        }
        match self.poll_reopening(&session, since) {
            Some(opened) => {
                session.replace();
                self.link.wake_all();
                // The last readings remain published, because the lanes pause only for milliseconds.
                Phase::Ending { session, workers, then: AfterEnding::StartSession(opened) }
            }
            None => Phase::Open { session, since, workers },
        }
    }

    /// Looks at the calls that outlived their sessions: those that hang are no longer waited for.
    pub(super) fn check_outlived(&mut self) {
        let limit = self.settings.call_timeout;
        let (hanging, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.outlived)
            .into_iter()
            .filter(|call| !call.watch.is_idle())
            .partition(|call| call.hangs_after(limit));
        hanging.iter().for_each(|call| self.report_hanging(call.lane, call.gpu));
        self.outlived = others;
    }

    fn report_hanging(&self, lane: Lane, gpu: Option<u32>) {
        let limit = self.settings.call_timeout;
        let error = io::Error::other(format!("a driver call has not returned within {limit:?}"));
        self.faults.raise(source(lane), Reason::Stalled, gpu, &error);
    }

    /// Leaves slow GPUs to the threads that are in a call to them, abandons threads whose driver call does not return, and
    /// removes those that ended. Returns the others.
    pub(super) fn check_workers(&mut self, session: &Session, workers: Vec<Worker>) -> Vec<Worker> {
        let limit = self.settings.call_timeout;
        let may_leave = if self.starvation.may_explain(&workers, self.slow_after()) { Slow::Kept } else { Slow::Left };
        let mut working = Vec::new();
        for worker in workers {
            let (lane, role) = (worker.lane, worker.role);
            // At the limit a thread that hangs is not replaced, so its lane goes silent, which the health check
            // reports.
            match worker.check(session, if self.is_full() { Duration::MAX } else { limit }, may_leave) {
                WorkerStatus::Working(worker) => working.push(worker),
                WorkerStatus::Slow(slot, worker) => {
                    session.calls.leave(lane, slot, Instant::now());
                    let gpu = session.gpu_of_slot(slot).map(|gpu| gpu.index);
                    let after = self.slow_after();
                    let error =
                        format!("a driver call has taken longer than {after:?}: other GPUs no longer wait for it");
                    self.faults.raise(source(lane), Reason::Slow, gpu, &io::Error::other(error));
                    working.push(worker);
                }
                WorkerStatus::Hung(slot, thread) => {
                    self.report_hanging(lane, session.gpu_of_slot(slot).map(|gpu| gpu.index));
                    self.detached.add_stuck(thread, None);
                }
                WorkerStatus::Finished => {}
                WorkerStatus::Panicked => {
                    let error = io::Error::other(format!("the thread {} panicked", thread_name(lane)));
                    self.faults.raise(source(lane), Reason::Panicked, None, &error);
                    self.restarts.entry((lane, role)).or_insert_with(RestartPolicy::new).postpone();
                }
            }
        }
        working
    }
}

fn source(lane: Lane) -> Source {
    match lane {
        Lane::Memory => Source::Memory,
        Lane::Process => Source::Process,
        Lane::Telemetry => Source::Telemetry,
    }
}
