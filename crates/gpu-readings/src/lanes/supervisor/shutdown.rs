//! The end of the exporter: the session ends and the driver is closed, within a bounded time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Supervisor;
use super::phase::{AfterEnding, FAST_POLL, Phase};
use crate::lanes::opening::Closing;
use crate::lanes::session::Session;
use crate::lanes::worker::Worker;

/// How long the shutdown waits for threads; a thread that hangs in a driver call is abandoned. Including the one
/// second that the web server allows its clients, the whole shutdown takes less than two seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);

impl Supervisor {
    pub(super) fn shutdown(&mut self, phase: Phase) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let bell = self.control.bell.clone();
        let in_time = |done: &dyn Fn() -> bool| {
            while !done() && Instant::now() < deadline {
                bell.wait(FAST_POLL);
            }
            done()
        };
        self.detached.add_closing(self.reopening.opening.take().and_then(Closing::begin));
        let ended = match phase {
            Phase::Open { session, workers, .. }
            | Phase::Ending { session, workers, then: AfterEnding::RetryAt(_) } => {
                self.end_session(session, &workers, &in_time)
            }
            Phase::Ending { session, workers, then: AfterEnding::StartSession(opened) } => {
                self.detached.add_closing(Closing::begin(opened));
                self.end_session(session, &workers, &in_time)
            }
            Phase::Opening(opening) => {
                self.detached.add_closing(Closing::begin(opening));
                true
            }
            Phase::Closing { closing, .. } => {
                self.detached.add_closing(Some(closing));
                true
            }
            Phase::Closed(_) | Phase::Released { .. } => true,
        };
        let closed = ended && in_time(&|| self.detached.closings_done());
        if !closed {
            tracing::warn!("a driver call does not return: its thread is abandoned");
        }
    }

    /// Ends a session and closes its driver in the background. Returns whether all its threads ended in time.
    fn end_session(
        &mut self,
        session: Arc<Session>,
        workers: &[Worker],
        in_time: &dyn Fn(&dyn Fn() -> bool) -> bool,
    ) -> bool {
        session.end("the exporter shuts down");
        self.link.wake_all();
        let ended = in_time(&|| workers.iter().all(Worker::is_finished));
        if ended {
            self.detached.add_closing(Closing::begin(session));
        }
        ended
    }
}
