//! Starts, checks and replaces the lanes' threads in a session.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Supervisor;
use super::phase::{AfterEnding, Phase};
use super::restart::LONGEST_PAUSE;
use crate::faults::{Reason, Source};
use crate::lanes::opening::OpenedDriver;
use crate::lanes::session::Session;
use crate::lanes::worker::{LaneTask, Worker, WorkerStatus, thread_name};
use crate::nvml;
use crate::snapshot::Lane;

impl Supervisor {
    /// Starts the lanes on an opened driver.
    pub(super) fn start_session(&mut self, opened: OpenedDriver) -> Phase {
        self.report_failures(&opened);
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
        self.snapshot.driver.store(Arc::new(description));
        let now = Instant::now();
        Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
        let workers = self.tasks.iter().filter_map(|(lane, task)| self.start(*lane, task, &session)).collect();
        Phase::Open { session, since: Instant::now(), workers }
    }

    /// Starts a thread of a lane. Reports the error if the system cannot create a thread.
    pub(super) fn start(&self, lane: Lane, task: &Arc<dyn LaneTask>, session: &Arc<Session>) -> Option<Worker> {
        let worker = Worker::start(lane, task.clone(), session.clone());
        worker.inspect_err(|error| self.faults.report(source(lane), Reason::Panicked, None, error)).ok()
    }

    /// One round of supervision of an open session.
    pub(super) fn supervise(&mut self, session: Arc<Session>, since: Instant, workers: Vec<Worker>) -> Phase {
        let mut workers = self.check_workers(&session, workers);
        for (lane, task) in &self.tasks {
            let missing = !workers.iter().any(|worker| worker.lane == *lane);
            if missing && !session.ending() && self.restarts[*lane as usize].is_due() {
                workers.extend(self.start(*lane, task, &session));
            }
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
                session.end("another session replaces it");
                self.link.wake_all();
                // The last readings remain published, because the lanes pause only for milliseconds.
                Phase::Ending { session, workers, then: AfterEnding::StartSession(opened) }
            }
            None => Phase::Open { session, since, workers },
        }
    }

    /// Abandons threads whose driver call does not return, and removes those that ended. Returns the others.
    pub(super) fn check_workers(&mut self, session: &Session, workers: Vec<Worker>) -> Vec<Worker> {
        let limit = self.settings.call_timeout;
        let mut working = Vec::new();
        for worker in workers {
            let lane = worker.lane;
            // At the limit a thread that hangs is not replaced, so its lane goes silent, which the health check
            // reports.
            match worker.check(if self.is_full() { Duration::MAX } else { limit }) {
                WorkerStatus::Working(worker) => working.push(worker),
                WorkerStatus::Hung(slot, thread) => {
                    session.mark_stalled(slot);
                    let gpu = session.gpu_of_slot(slot).map(|gpu| gpu.index);
                    let error = io::Error::other(format!("a driver call has not returned within {limit:?}"));
                    self.faults.report(source(lane), Reason::Stalled, gpu, &error);
                    self.detached.add_stuck(thread);
                }
                WorkerStatus::Finished => {}
                WorkerStatus::Panicked => {
                    let error = io::Error::other(format!("the thread {} panicked", thread_name(lane)));
                    self.faults.report(source(lane), Reason::Panicked, None, &error);
                    self.restarts[lane as usize].postpone();
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
