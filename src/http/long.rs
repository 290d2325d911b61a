//! A long body, which a thread writes while the client reads.
//!
//! Invariants: no more of it is in memory than [`QUEUED_CHUNKS`] chunks, the one that is being written and the one that is being
//! sent. Writing pauses while the client does not read, and ends with the connection. A body that could not be written
//! to its end does not look complete.

use std::future::ready;
use std::io::{self, Write};

use axum::body::Body;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::mpsc;

use super::shares::Share;

/// How many chunks may wait for the client.
const QUEUED_CHUNKS: usize = 4;
/// The size in bytes of a chunk of what is written through [`Write`].
const CHUNK: usize = 64 << 10;

/// Takes the parts of a body.
pub(super) struct Chunks {
    send: mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Chunks {
    /// Waits until the chunk can be queued. Returns `false` if the client is gone.
    pub(super) fn take(&self, chunk: Vec<u8>) -> bool {
        self.send.blocking_send(chunk).is_ok()
    }

    fn send_buffer(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        if chunk.is_empty() || self.take(chunk) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= CHUNK {
            self.send_buffer()?;
        }
        let count = bytes.len().min(CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_buffer()
    }
}

/// The body that `write` writes on a thread. `writer` is held until the thread is free.
pub(super) fn body(writer: Share, write: impl FnOnce(&mut Chunks) -> io::Result<()> + Send + 'static) -> Body {
    let (send, mut receive) = mpsc::channel(QUEUED_CHUNKS);
    let writing = tokio::task::spawn_blocking(move || {
        let mut chunks = Chunks { send, buffer: Vec::new() };
        let written = write(&mut chunks).and_then(|()| chunks.flush());
        drop(writer);
        written
    });
    let chunks = stream::poll_fn(move |context| receive.poll_recv(context)).map(Ok);
    let failed = stream::once(writing).filter_map(|ended| {
        let ended = ended.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        ready(ended.err().map(Err))
    });
    // The compression layer polls once more after the end.
    Body::from_stream(chunks.chain(failed).fuse())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::super::origin::Origin;
    use super::super::shares::{Load, Shares};
    use super::*;

    const WRITER: Load = Load { responses: 0, bytes: 0, writers: 1 };

    fn writer(shares: &Arc<Shares>) -> Share {
        shares.try_take(Origin::default(), WRITER).unwrap()
    }

    #[tokio::test]
    async fn a_body_is_what_was_written() {
        let shares = Shares::new(WRITER);
        let lines: Vec<String> = (0..50_000).map(|n| format!("line {n}\n")).collect();
        let expected = lines.concat();
        let body = body(writer(&shares), move |out| lines.iter().try_for_each(|line| out.write_all(line.as_bytes())));
        let read = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert!(read == expected.as_bytes());
    }

    #[tokio::test]
    async fn writing_stops_while_no_one_reads_and_ends_with_the_reader() {
        let shares = Shares::new(WRITER);
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let body = body(writer(&shares), move |out| {
            loop {
                out.write_all(&[b'x'; 1024])?;
                count.fetch_add(1024, Ordering::Relaxed);
            }
        });
        let mut before = 0;
        let begin = Instant::now();
        // Nothing more is written once the queue is full.
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = written.load(Ordering::Relaxed);
            if now > 0 && now == before {
                break;
            }
            before = now;
            assert!(begin.elapsed() < Duration::from_secs(30), "an endless body is written without a reader");
        }
        assert!(before <= (QUEUED_CHUNKS + 2) * CHUNK, "{before}");
        drop(body);
        while shares.try_take(Origin::default(), WRITER).is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the writer is still busy");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_body_that_fails_does_not_look_complete() {
        let shares = Shares::new(WRITER);
        let failed = body(writer(&shares), |out| {
            out.write_all(b"a part")?;
            out.flush()?;
            Err(io::Error::other("no more"))
        });
        assert!(axum::body::to_bytes(failed, usize::MAX).await.is_err());
    }
}
