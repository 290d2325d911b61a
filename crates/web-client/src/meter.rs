//! Limits what a server can make a client read.
//!
//! Invariant: what is read from a connection, below TLS, costs an allowance that only the bytes of a body renew: interim
//! responses (1xx), heads, chunk extensions, trailers, and bodies in tiny pieces end the connection soon, whatever they
//! are made of. So do TLS records without content.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The allowance at the beginning, and the most that can be left: several times the longest TLS handshake and head.
const MOST: i64 = 256 << 10;
/// What a read costs besides its bytes: waking for it takes about as long as parsing this many.
const READ: i64 = 32;
/// What a byte of a body renews. More than it costs, so that an answer in usual pieces never ends for want of allowance.
const RENEWED: i64 = 2;

/// The server sent much more than its answer needs.
#[derive(Debug, thiserror::Error)]
#[error("the server sent much more than an answer needs, such as interim responses (1xx) without end, or tiny pieces")]
struct Wasteful;

/// What a server may still make the client read. Below 0 it is a debt, which the next bytes of a body pay off first.
#[derive(Debug, Clone)]
pub(super) struct Allowance(Arc<AtomicI64>);

impl Allowance {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(MOST)))
    }

    /// Renews the allowance for these bytes of a body.
    pub(super) fn renew(&self, bytes: usize) {
        let renewed = count(bytes).saturating_mul(RENEWED);
        self.update(|left| left.saturating_add(renewed).min(MOST));
    }

    fn spend(&self, bytes: usize) {
        self.update(|left| left.saturating_sub(count(bytes)).saturating_sub(READ));
    }

    fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }

    // Only the tasks of one connection change it, on one thread at a time.
    fn update(&self, change: impl Fn(i64) -> i64) {
        self.0.store(change(self.0.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

fn count(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A connection whose reads cost an allowance.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    allowance: Allowance,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, allowance: Allowance) -> Self {
        Self { stream, allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.allowance.is_spent() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, Wasteful)));
        }
        let before = to.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, to));
        self.allowance.spend(to.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
