//! What the supervisor publishes and reports: idle lanes' heartbeats, problems with the driver, and threads that hang.

use std::io;
use std::time::Instant;

use super::Supervisor;
use super::phase::Phase;
use crate::faults::{Reason, Source};
use crate::lanes::opening::{Closing, OpenedDriver, Opening, Progress, SLOW};
use crate::snapshot::{self, Lane, MAX_STUCK_THREADS};

impl Supervisor {
    /// Records a heartbeat for each lane that has nothing to do.
    pub(super) fn beat_for_idle_lanes(&self, phase: &Phase) {
        let now = Instant::now();
        for &lane in Lane::ALL.iter().filter(|&&lane| phase.is_idle(lane)) {
            self.snapshot.vitals.beat(lane, now);
        }
    }

    /// Removes the threads that have ended, including those that were opening or closing the driver, and publishes
    /// the number of threads that hang.
    pub(super) fn reap(&mut self, phase: &Phase) {
        for _ in 0..self.detached.reap() {
            self.raise_slow("closing the driver");
        }
        self.check_outlived();
        self.stalls.remove_unused();
        if !matches!(phase, Phase::Open { .. } | Phase::Ending { .. }) {
            // The session during which this attempt to open the driver began has ended. If the attempt is still in
            // progress when the driver must be opened again, it is continued.
            self.reopening.opening = match self.reopening.opening.take().map(Opening::progress) {
                Some(Progress::Pending(opening)) => Some(opening),
                Some(Progress::Slow(opening)) => {
                    self.raise_slow("opening the driver");
                    Some(opening)
                }
                Some(Progress::Done(opened)) => {
                    self.detached.add_closing(Closing::begin(opened));
                    None
                }
                Some(Progress::Panicked) | None => None,
            };
        }
        let opening = match phase {
            Phase::Opening(opening) => Some(opening),
            _ => self.reopening.opening.as_ref(),
        };
        let stuck = self.detached.stuck() + usize::from(opening.is_some_and(|opening| opening.is_slow));
        if stuck >= MAX_STUCK_THREADS && self.snapshot.vitals.stuck() < MAX_STUCK_THREADS {
            tracing::error!(stuck, "too many driver calls hang: threads that hang are no longer replaced");
        }
        self.snapshot.vitals.set_stuck(stuck);
    }

    /// Whether the limit on threads that hang has been reached, counting the calls in progress that may hang.
    pub(super) fn is_full(&self) -> bool {
        self.detached.is_full(usize::from(self.reopening.opening.is_some()))
    }

    /// The number of threads that hold the driver, in a call that does not return or in an attempt to open it.
    pub(super) fn holders(&self) -> usize {
        self.detached.stuck() + usize::from(self.reopening.opening.is_some())
    }

    /// Publishes that the driver is closed, and why.
    pub(super) fn publish_problem(&self, problem: String) {
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
    }

    /// Raises the fault that opening or closing the driver is slow, and returns its text.
    pub(super) fn raise_slow(&self, what: &str) -> String {
        let problem = format!("{what} has not ended within {SLOW:?}");
        self.faults.raise(Source::Library, Reason::Stalled, None, &io::Error::other(problem.clone()));
        problem
    }

    /// Raises the fault that the thread that opened the driver panicked.
    pub(super) fn raise_panicked_opening(&self) {
        let error = io::Error::other("the thread that opened the driver panicked");
        self.faults.raise(Source::Library, Reason::Panicked, None, &error);
    }

    /// Raises a fault for each GPU call that failed while the driver was being opened.
    pub(super) fn raise_failures(&self, opened: &OpenedDriver) {
        for (index, error) in &opened.failures {
            self.faults.raise(Source::Topology, error.reason(), Some(*index), error);
        }
    }
}
