//! One connection: what it is doing, since when, and the stream through which that is seen.
//!
//! Invariant: whoever holds a place for an answer gives it back when the last byte has left for the client, or when the
//! connection ends, and never earlier.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::Limits;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client owes a request: it connected, or began one.
    ReadingRequest,
    /// It was answered, and may ask again.
    Idle,
    /// The exporter answers.
    Responding,
}

/// A connection, as all sides see it.
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
    /// Since when the client takes nothing although there is something to take.
    stalled_since: Option<Instant>,
    /// The whole answer was made; what is left of it waits in buffers.
    body_complete: bool,
    close: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        let progress = Progress {
            stage: Stage::ReadingRequest,
            since: now,
            stalled_since: None,
            body_complete: false,
            close: false,
            permit: None,
        };
        Arc::new(Self { progress: Mutex::new(progress), close: Notify::new() })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage) {
        let now = Instant::now();
        let mut progress = self.progress();
        (progress.stage, progress.since, progress.stalled_since, progress.body_complete) = (stage, now, None, false);
    }

    /// Ends the connection, whatever it is doing. It stays in the pool until its task has noticed.
    pub(super) fn close(&self) {
        self.progress().close = true;
        self.close.notify_one();
    }

    /// Whether it was told to end.
    pub(super) fn is_closing(&self) -> bool {
        self.progress().close
    }

    /// Waits until it is cut.
    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }

    pub(super) fn begin_response(&self) {
        self.enter(Stage::Responding);
    }

    /// Keeps a place until the answer has left.
    pub(super) fn hold_permit(&self, permit: OwnedSemaphorePermit) {
        self.progress().permit = Some(permit);
    }

    pub(super) fn is_responding(&self) -> bool {
        self.progress().stage == Stage::Responding
    }

    /// What it does, and for how long.
    pub(super) fn stage(&self, now: Instant) -> (Stage, Duration) {
        let progress = self.progress();
        (progress.stage, now.saturating_duration_since(progress.since))
    }

    /// For how long the client has taken nothing although there is something to take.
    pub(super) fn stalled_for(&self, now: Instant) -> Option<Duration> {
        self.progress().stalled_since.map(|since| now.saturating_duration_since(since))
    }

    pub(super) fn has_permit(&self) -> bool {
        self.progress().permit.is_some()
    }

    /// Whether it takes longer than it may.
    pub(super) fn is_overdue(&self, now: Instant, limits: &Limits) -> bool {
        let (stage, lasts) = self.stage(now);
        lasts
            > match stage {
                Stage::ReadingRequest => limits.read_timeout,
                Stage::Idle => limits.idle_timeout,
                Stage::Responding => limits.write_timeout,
            }
    }

    fn note_read(&self) {
        if self.progress().stage == Stage::Idle {
            self.enter(Stage::ReadingRequest);
        }
    }

    /// Whether the way to the client takes something.
    fn note_write<T>(&self, sent: &Poll<T>) {
        let mut progress = self.progress();
        match sent {
            Poll::Ready(_) => progress.stalled_since = None,
            Poll::Pending => {
                progress.stalled_since.get_or_insert_with(Instant::now);
            }
        }
    }

    fn body_complete(&self) {
        self.progress().body_complete = true;
    }

    /// All that was written so far has left.
    fn note_flush(&self) {
        let permit = {
            let mut progress = self.progress();
            if progress.stage != Stage::Responding || !progress.body_complete {
                return;
            }
            progress.permit.take()
        };
        drop(permit);
        self.enter(Stage::Idle);
    }
}

/// A stream that tells its connection what moves.
#[derive(Debug)]
pub(super) struct TrackedStream<S> {
    stream: S,
    connection: Arc<Connection>,
}

impl<S> TrackedStream<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, connection }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.connection.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.connection.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.connection.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.connection.note_write(&flushed);
        ready!(flushed)?;
        self.connection.note_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer, which tells its connection when it is whole.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    connection: Arc<Connection>,
}

impl TrackedBody {
    pub(super) fn new(body: Body, connection: Arc<Connection>) -> Self {
        Self { body, connection }
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    /// hyper lets go of a body once it has taken all of it, or needs none.
    fn drop(&mut self) {
        self.connection.body_complete();
    }
}
