//! The supervisor's loop: the steps from one phase to the next.

use std::time::{Duration, Instant, SystemTime};

use super::Supervisor;
use super::phase::{AfterEnding, POLL, Phase};
use crate::faults::Source;
use crate::lanes::opening::{Closing, Progress};
use crate::nvml::OpenError;

/// The longest remaining release time that is published. Computing a much later end time could overflow.
const LONGEST_RELEASE_SHOWN: Duration = Duration::from_secs(365 * 24 * 3600);

impl Supervisor {
    pub(in crate::lanes) fn run(mut self) {
        let mut phase = Phase::Closed(Instant::now());
        while !self.control.stopped() {
            let before = std::mem::discriminant(&phase);
            phase = self.step(phase);
            self.reap(&phase);
            self.beat_for_idle_lanes(&phase);
            if std::mem::discriminant(&phase) == before {
                let pause = match &phase {
                    Phase::Open { workers, .. } => self.pause(workers),
                    phase => phase.pause(),
                };
                self.control.bell.wait(pause);
            }
        }
        self.shutdown(phase);
    }

    pub(super) fn step(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Closed(retry_at) => match self.control.released_for(Instant::now()) {
                Some(left) => self.enter_released(left),
                None if Instant::now() < retry_at => phase,
                None if self.is_full() => Phase::Closed(Instant::now() + POLL),
                None => self.open(),
            },
            Phase::Released { holders } => match self.control.released_for(Instant::now()) {
                Some(_) if holders == self.holders() => phase,
                // The published text states whether a call still holds the driver, so it is published again.
                Some(left) => self.enter_released(left),
                None => {
                    tracing::info!("driver: the release has ended");
                    self.backoff.reset();
                    Phase::Closed(Instant::now())
                }
            },
            Phase::Opening(opening) => match opening.progress() {
                Progress::Pending(opening) => Phase::Opening(self.replace_hung_opening(opening)),
                Progress::Slow(opening) => {
                    let problem = self.raise_slow("opening the driver");
                    self.publish_problem(problem);
                    Phase::Opening(opening)
                }
                Progress::Done(result) => match *result {
                    Ok(opened) => self.start_session(opened),
                    Err(error) => self.fail_to_open(&error),
                },
                Progress::Panicked => {
                    self.raise_panicked_opening();
                    self.retry()
                }
            },
            Phase::Open { session, since, workers } => self.supervise(session, since, workers),
            Phase::Ending { session, workers, then } => {
                let mut workers = self.check_workers(&session, workers);
                if matches!(then, AfterEnding::StartSession(_)) {
                    workers = self.abandon_slow(&session, workers);
                }
                if !workers.is_empty() {
                    return Phase::Ending { session, workers, then };
                }
                match (Closing::begin(session), then) {
                    (closing, AfterEnding::StartSession(opened)) => {
                        self.detached.add_closing(closing);
                        self.start_session(*opened)
                    }
                    (Some(closing), AfterEnding::RetryAt(retry_at)) => Phase::Closing { closing, retry_at },
                    (None, AfterEnding::RetryAt(retry_at)) => Phase::Closed(retry_at),
                }
            }
            Phase::Closing { closing, retry_at } if closing.is_done() => Phase::Closed(retry_at),
            Phase::Closing { closing, retry_at } if closing.is_slow() => {
                let problem = self.raise_slow("closing the driver");
                self.publish_problem(problem);
                self.detached.add_stuck(closing.thread, None);
                Phase::Closed(retry_at)
            }
            Phase::Closing { .. } => phase,
        }
    }

    /// Publishes that the driver is closed and stays closed for this long.
    fn enter_released(&mut self, left: Duration) -> Phase {
        let holders = self.holders();
        let held = if holders > 0 { "; a driver call that does not return still holds it" } else { "" };
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + left.min(LONGEST_RELEASE_SHOWN));
        let problem = format!("the driver was released on request until {until} at the latest{held}");
        tracing::info!("{problem}");
        self.publish_problem(problem);
        Phase::Released { holders }
    }

    fn open(&mut self) -> Phase {
        // An attempt to open the driver may have begun during a session and outlasted it. It is then continued, so
        // that there are never two at once.
        match self.reopening.opening.take().or_else(|| self.begin_opening(None)) {
            Some(opening) => Phase::Opening(opening),
            None => self.retry(),
        }
    }

    fn fail_to_open(&mut self, error: &OpenError) -> Phase {
        self.faults.raise(Source::Library, error.reason(), None, error);
        self.publish_problem(crate::faults::chain(error));
        self.retry()
    }

    fn retry(&mut self) -> Phase {
        Phase::Closed(Instant::now() + self.backoff.next_pause())
    }
}
