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
    Asking,
    /// It was answered, and may ask again.
    Resting,
    /// The exporter answers.
    Answering,
}

/// A connection, as all sides see it.
#[derive(Debug)]
pub(super) struct Connection {
    progress: Mutex<Progress>,
    cut: Notify,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    /// When the stage began.
    since: Instant,
    /// Since when the client takes nothing although there is something to take.
    full: Option<Instant>,
    /// The whole answer was made; what is left of it waits in buffers.
    made: bool,
    cut: bool,
    place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        let progress = Progress { stage: Stage::Asking, since: now, full: None, made: false, cut: false, place: None };
        Arc::new(Self { progress: Mutex::new(progress), cut: Notify::new() })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage) {
        let now = Instant::now();
        let mut progress = self.progress();
        (progress.stage, progress.since, progress.full, progress.made) = (stage, now, None, false);
    }

    /// Ends the connection, whatever it is doing. It stays in the crowd until its task has noticed.
    pub(super) fn cut(&self) {
        self.progress().cut = true;
        self.cut.notify_one();
    }

    /// Whether it was told to end.
    pub(super) fn is_going(&self) -> bool {
        self.progress().cut
    }

    /// Waits until it is cut.
    pub(super) async fn is_cut(&self) {
        self.cut.notified().await;
    }

    pub(super) fn begin_answer(&self) {
        self.enter(Stage::Answering);
    }

    /// Keeps a place until the answer has left.
    pub(super) fn keep(&self, place: OwnedSemaphorePermit) {
        self.progress().place = Some(place);
    }

    pub(super) fn is_answering(&self) -> bool {
        self.progress().stage == Stage::Answering
    }

    /// What it does, and for how long.
    pub(super) fn stage(&self, now: Instant) -> (Stage, Duration) {
        let progress = self.progress();
        (progress.stage, now.saturating_duration_since(progress.since))
    }

    /// For how long the client has taken nothing although there is something to take.
    pub(super) fn stalls(&self, now: Instant) -> Option<Duration> {
        self.progress().full.map(|full| now.saturating_duration_since(full))
    }

    pub(super) fn has_place(&self) -> bool {
        self.progress().place.is_some()
    }

    /// Whether it takes longer than it may.
    pub(super) fn is_overdue(&self, now: Instant, limits: &Limits) -> bool {
        let (stage, lasts) = self.stage(now);
        lasts
            > match stage {
                Stage::Asking => limits.read_timeout,
                Stage::Resting => limits.idle_timeout,
                Stage::Answering => limits.write_timeout,
            }
    }

    fn received(&self) {
        if self.progress().stage == Stage::Resting {
            self.enter(Stage::Asking);
        }
    }

    /// Whether the way to the client takes something.
    fn sends<T>(&self, sent: &Poll<T>) {
        let mut progress = self.progress();
        match sent {
            Poll::Ready(_) => progress.full = None,
            Poll::Pending => {
                progress.full.get_or_insert_with(Instant::now);
            }
        }
    }

    fn made(&self) {
        self.progress().made = true;
    }

    /// All that was written so far has left.
    fn flushed(&self) {
        let place = {
            let mut progress = self.progress();
            if progress.stage != Stage::Answering || !progress.made {
                return;
            }
            progress.place.take()
        };
        drop(place);
        self.enter(Stage::Resting);
    }
}

/// A stream that tells its connection what moves.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    connection: Arc<Connection>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, connection }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.connection.sends(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.connection.sends(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.connection.sends(&flushed);
        ready!(flushed)?;
        self.connection.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer, which tells its connection when it is whole.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    connection: Arc<Connection>,
}

impl Answer {
    pub(super) fn new(body: Body, connection: Arc<Connection>) -> Self {
        Self { body, connection }
    }
}

impl hyper::body::Body for Answer {
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

impl Drop for Answer {
    /// hyper lets go of a body once it has taken all of it, or needs none.
    fn drop(&mut self) {
        self.connection.made();
    }
}
