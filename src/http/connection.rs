//! What one connection is doing, and since when.
//!
//! Invariant: the share of a response is given back when its last byte has been sent to the client, or when the
//! connection ends, and never earlier.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::origin::Origin;
use super::shares::Share;
use crate::config::Limits;

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
    pub(super) origin: Origin,
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
    /// What the response in progress holds.
    shares: Vec<Share>,
}

impl Progress {
    fn enter(&mut self, stage: Stage) {
        (self.stage, self.since, self.stalled_since, self.body_taken) = (stage, Instant::now(), None, false);
    }
}

impl Connection {
    pub(super) fn new(origin: Origin) -> Arc<Self> {
        let progress = Progress {
            stage: Stage::ReadingRequest,
            since: Instant::now(),
            stalled_since: None,
            body_taken: false,
            closing: false,
            shares: Vec::new(),
        };
        Arc::new(Self { origin, progress: Mutex::new(progress), close: Notify::new() })
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

    /// Holds a share until the response has been sent.
    pub(super) fn hold(&self, share: Share) {
        self.progress.lock().shares.push(share);
    }

    pub(super) fn holds_a_share(&self) -> bool {
        !self.progress.lock().shares.is_empty()
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

    /// When the current stage will have taken longer than allowed.
    pub(super) fn deadline(&self, limits: &Limits) -> Instant {
        let progress = self.progress.lock();
        let limit = match progress.stage {
            Stage::ReadingRequest => limits.read_timeout,
            Stage::Idle => limits.idle_timeout,
            Stage::Responding => limits.write_timeout,
        };
        progress.since + limit
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
            let sent = std::mem::take(&mut progress.shares);
            progress.enter(Stage::Idle);
            drop(progress);
            drop(sent);
        }
    }
}
