//! What the supervisor leaves behind: threads that hang, closings that go on aside, and everything at the end of the exporter.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{AfterEnding, Phase, SHORT, Supervisor};
use crate::lanes::opening::{Closing, Opening, Progress};
use crate::lanes::session::Session;
use crate::lanes::worker::Worker;
use crate::snapshot::MAX_STUCK_THREADS;

/// How long the end waits for threads; one that hangs in the driver is left behind. With the second that the web server
/// gives its clients, the whole end takes less than two.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);

impl Supervisor {
    /// Forgets what has ended, and tells how many calls hang.
    pub(super) fn tidy(&mut self, phase: &Phase) {
        for _ in 0..self.detached.tidy() {
            self.report_slow("closing the driver", false);
        }
        self.stalls.tidy();
        if !matches!(phase, Phase::Open { .. } | Phase::Ending { .. }) {
            // The session beside which it was begun has ended: `open` goes on with it, unless it ends before.
            self.reopening = match self.reopening.take().map(Opening::progress) {
                Some(Progress::Pending(opening)) => Some(opening),
                Some(Progress::Slow(opening)) => {
                    self.report_slow("opening the driver", false);
                    Some(opening)
                }
                Some(Progress::Done(opened)) => {
                    self.detached.close(Closing::begin(opened));
                    None
                }
                Some(Progress::Panicked) | None => None,
            };
        }
        let opening = match phase {
            Phase::Opening(opening) => Some(opening),
            _ => self.reopening.as_ref(),
        };
        let stuck = self.detached.stuck() + usize::from(opening.is_some_and(Opening::is_slow));
        if stuck >= MAX_STUCK_THREADS && self.snapshot.vitals.stuck() < MAX_STUCK_THREADS {
            tracing::error!(stuck, "as many driver calls hang as may: no thread replaces another one that hangs");
        }
        self.snapshot.vitals.set_stuck(stuck);
    }

    pub(super) fn shutdown(&mut self, phase: Phase) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let in_time = |done: &dyn Fn() -> bool| {
            while !done() && Instant::now() < deadline {
                thread::park_timeout(SHORT);
            }
            done()
        };
        self.detached.close(self.reopening.take().and_then(Closing::begin));
        let ended = match phase {
            Phase::Open { session, workers, .. }
            | Phase::Ending { session, workers, then: AfterEnding::RetryAt(_) } => self.end(session, workers, &in_time),
            Phase::Ending { session, workers, then: AfterEnding::StartSession(found) } => {
                self.detached.close(Closing::begin(found));
                self.end(session, workers, &in_time)
            }
            Phase::Opening(opening) => {
                self.detached.close(Closing::begin(opening));
                true
            }
            Phase::Closing { closing, .. } => {
                self.detached.close(Some(closing));
                true
            }
            Phase::Closed(_) | Phase::Released { .. } => true,
        };
        let closed = ended && in_time(&|| self.detached.is_closed());
        if !closed {
            tracing::warn!("a driver call does not return: its thread is left behind");
        }
    }

    /// Ends a session; its driver is closed aside. Says whether all its threads ended in time.
    fn end(
        &mut self,
        session: Arc<Session>,
        workers: Vec<Worker>,
        in_time: &dyn Fn(&dyn Fn() -> bool) -> bool,
    ) -> bool {
        session.end("the exporter ends");
        self.link.rouse();
        let ended = in_time(&|| workers.iter().all(Worker::is_finished));
        if ended {
            self.detached.close(Closing::begin(session));
        }
        ended
    }
}
