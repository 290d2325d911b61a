//! What one connection is doing, and since when.
//!
//! Invariant: a request permit is released when the last byte of the response has been sent to the client, or when the
//! connection ends, and never earlier.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::limits::Limits;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The exporter is waiting for a request: the client has connected, or has begun to send one.
    ReadingRequest,
    /// The last request was answered, and another one may follow.
    Idle,
    /// The exporter is answering a request.
    Responding,
}

/// A connection, shared by its task, its stream and the pool.
#[derive(Debug)]
pub(super) struct Connection {
    progress: Mutex<Progress>,
    close: Notify,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    /// When the stage began.
    since: Instant,
    /// When the client stopped reading although there is something to read.
    stalled_since: Option<Instant>,
    /// hyper has taken the whole body; the rest of the response is in hyper's buffers.
    body_taken: bool,
    closing: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Progress {
    fn enter(&mut self, stage: Stage) {
        (self.stage, self.since, self.stalled_since, self.body_taken) = (stage, Instant::now(), None, false);
    }
}

impl Connection {
    pub(super) fn new() -> Arc<Self> {
        let progress = Progress {
            stage: Stage::ReadingRequest,
            since: Instant::now(),
            stalled_since: None,
            body_taken: false,
            closing: false,
            permit: None,
        };
        Arc::new(Self { progress: Mutex::new(progress), close: Notify::new() })
    }

    /// Requests the end of the connection, whatever it is doing. The connection stays in the pool until its task
    /// has ended.
    pub(super) fn close(&self) {
        self.progress.lock().closing = true;
        self.close.notify_one();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.progress.lock().closing
    }

    /// Waits for [`Self::close`].
    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }

    pub(super) fn begin_response(&self) {
        self.progress.lock().enter(Stage::Responding);
    }

    /// Holds a request permit until the response has been sent.
    pub(super) fn hold_permit(&self, permit: OwnedSemaphorePermit) {
        self.progress.lock().permit = Some(permit);
    }

    pub(super) fn has_permit(&self) -> bool {
        self.progress.lock().permit.is_some()
    }

    pub(super) fn is_responding(&self) -> bool {
        self.progress.lock().stage == Stage::Responding
    }

    /// What the connection is doing, and for how long.
    pub(super) fn stage(&self, now: Instant) -> (Stage, Duration) {
        let progress = self.progress.lock();
        (progress.stage, now.saturating_duration_since(progress.since))
    }

    /// For how long the client has read nothing although there is something to read.
    pub(super) fn stalled_for(&self, now: Instant) -> Option<Duration> {
        self.progress.lock().stalled_since.map(|since| now.saturating_duration_since(since))
    }

    /// Whether the current stage has taken longer than allowed.
    pub(super) fn is_overdue(&self, now: Instant, limits: &Limits) -> bool {
        let (stage, elapsed) = self.stage(now);
        let limit = match stage {
            Stage::ReadingRequest => limits.read_timeout,
            Stage::Idle => limits.idle_timeout,
            Stage::Responding => limits.write_timeout,
        };
        elapsed > limit
    }

    /// The client sent something.
    pub(super) fn note_read(&self) {
        let mut progress = self.progress.lock();
        if progress.stage == Stage::Idle {
            progress.enter(Stage::ReadingRequest);
        }
    }

    /// A write or a flush was attempted: it succeeded, or the buffers to the client are full.
    pub(super) fn note_write<T>(&self, attempt: &Poll<T>) {
        let mut progress = self.progress.lock();
        match attempt {
            Poll::Ready(_) => progress.stalled_since = None,
            Poll::Pending => {
                progress.stalled_since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// hyper has taken the whole body of the response.
    pub(super) fn note_body_taken(&self) {
        self.progress.lock().body_taken = true;
    }

    /// Everything written so far has been sent. If the whole body was taken, the response has been sent too.
    pub(super) fn note_flush(&self) {
        let mut progress = self.progress.lock();
        if progress.stage == Stage::Responding && progress.body_taken {
            progress.permit = None;
            progress.enter(Stage::Idle);
        }
    }
}
