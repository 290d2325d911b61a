//! A scrape that has begun, of whatever writes its families into an [`Exposition`].
//!
//! Invariant: a scrape never calls the driver and never waits for a lane. It sees one state of the machine from its
//! first line to its last.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::exposition::Exposition;
use super::openmetrics::Format;
use super::view::Parts;
use gpu_readings::snapshot::Snapshot;

/// The length in bytes above which the text is sent while it is being written.
const LONG: usize = 256 * 1024;

/// Families that can be written as text.
pub trait Scraped: Send + Sync + 'static {
    /// Where the values are.
    fn snapshot(&self) -> &Snapshot;
    /// The length of the last scrape's text.
    fn last_length(&self) -> &AtomicUsize;
    /// Whether the creation times of counters are written, if the format has them.
    fn has_created(&self) -> bool;
    /// Writes all families for which the parts contain values.
    fn write(&self, parts: &Parts, out: &mut Exposition<'_>);
}

/// A scrape that has begun. Only its text remains to be written.
#[derive(Debug)]
pub struct Scrape<S> {
    source: Arc<S>,
    format: Format,
    /// What follows the families.
    end: Vec<u8>,
}

impl<S: Scraped> Scrape<S> {
    /// A scrape of `source`, whose text `end` follows.
    pub fn new(source: Arc<S>, format: Format, end: Vec<u8>) -> Self {
        Self { source, format, end }
    }

    /// Whether the text should be sent while it is being written, judging by the length of the last scrape's text.
    pub fn is_long(&self) -> bool {
        self.source.last_length().load(Ordering::Relaxed) > LONG
    }

    /// The bytes of the machine's state that writing the text keeps in use, although it may have been replaced.
    pub fn held_bytes(&self) -> usize {
        Parts::load(self.source.snapshot()).bytes() + self.end.len()
    }

    /// Renders the whole text.
    pub fn whole(self) -> Vec<u8> {
        whole(&*self.source, self.format, &self.end)
    }

    /// Renders the exposition in chunks and passes each to `take`, until `take` returns `false`.
    pub fn in_chunks(self, mut take: impl FnMut(Vec<u8>) -> bool) {
        let last = finish(&*self.source, &self.end, Exposition::in_chunks(self.format, &mut take));
        last.map(take);
    }
}

/// The whole text, followed by `end`.
pub(super) fn whole<S: Scraped>(source: &S, format: Format, end: &[u8]) -> Vec<u8> {
    // Consecutive scrapes have about the same length, so room for the last length and a little more avoids
    // reallocating the text.
    let room = source.last_length().load(Ordering::Relaxed);
    let out = Exposition::whole(format, room + room / 16);
    finish(source, end, out).expect("nothing stops an exposition that is kept whole")
}

/// Writes everything. Returns the text or its last chunk; `None` if the receiver stopped before the end.
fn finish<S: Scraped>(source: &S, end: &[u8], out: Exposition<'_>) -> Option<Vec<u8>> {
    let mut out = out.with_created(source.has_created());
    source.write(&Parts::load(source.snapshot()), &mut out);
    let (last, length) = out.end(end)?;
    source.last_length().store(length, Ordering::Relaxed);
    Some(last)
}
