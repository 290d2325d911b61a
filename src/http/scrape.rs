//! The body of a scrape's response: whole, or streamed while it is being written.

use std::future::ready;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Version;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};

use crate::{dcgm, metrics};

/// How many chunks of a streamed scrape may wait for the client.
const QUEUED_CHUNKS: usize = 8;
/// How many scrapes are streamed at the same time. Each occupies a thread for as long as its client takes to read;
/// further scrapes are written completely before they are sent.
const WRITERS: usize = 4;

/// A text that is written for one response.
pub(super) trait Text: Send {
    /// Whether it should be sent while it is being written.
    fn is_long(&self) -> bool;
    /// Writes it completely.
    fn whole(self: Box<Self>) -> Vec<u8>;
    /// Passes it to `take` in chunks, until `take` returns `false`.
    fn in_chunks(self: Box<Self>, take: &mut dyn FnMut(Vec<u8>) -> bool);
}

impl Text for metrics::Scrape {
    fn is_long(&self) -> bool {
        self.is_long()
    }

    fn whole(self: Box<Self>) -> Vec<u8> {
        (*self).whole()
    }

    fn in_chunks(self: Box<Self>, take: &mut dyn FnMut(Vec<u8>) -> bool) {
        (*self).in_chunks(take);
    }
}

impl Text for dcgm::Scrape {
    fn is_long(&self) -> bool {
        self.is_long()
    }

    fn whole(self: Box<Self>) -> Vec<u8> {
        (*self).whole()
    }

    fn in_chunks(self: Box<Self>, take: &mut dyn FnMut(Vec<u8>) -> bool) {
        (*self).in_chunks(take);
    }
}

/// The threads that write streamed scrapes.
#[derive(Debug, Clone)]
pub(super) struct ScrapeWriters(Arc<Semaphore>);

impl ScrapeWriters {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(WRITERS)))
    }

    /// The text of a scrape. A long one is streamed while it is being written, if a writer is free: it is never in
    /// memory as a whole, and writing pauses for a slow client and ends if the client is gone. Responses to HTTP/1.0
    /// are not streamed, because there a truncated response looks complete.
    pub(super) fn body(&self, scrape: Box<dyn Text>, version: Version) -> Body {
        let writer = (scrape.is_long() && version >= Version::HTTP_11).then(|| self.0.clone().try_acquire_owned().ok());
        let Some(writer) = writer.flatten() else { return scrape.whole().into() };
        let (send, mut receive) = mpsc::channel(QUEUED_CHUNKS);
        let writing = tokio::task::spawn_blocking(move || {
            scrape.in_chunks(&mut |chunk| send.blocking_send(chunk).is_ok());
            // Released only here, because the writer counts as busy until its thread is free.
            drop(writer);
        });
        let chunks = stream::poll_fn(move |context| receive.poll_recv(context)).map(Ok);
        // The stream ends with an error if the writer panicked: a truncated scrape must not look complete.
        let panicked = stream::once(writing).filter_map(|ended| ready(ended.err().map(Err)));
        // The compression layer polls once more after the end.
        Body::from_stream(chunks.chain(panicked).fuse())
    }
}
