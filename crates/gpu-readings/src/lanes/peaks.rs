//! The peaks of a process or workload.

use std::time::{Duration, Instant};

pub(super) use crate::peaks::Peaks;

/// The peaks of a process or workload, which can end and whose memory may be unknown.
#[derive(Debug, Clone)]
pub(super) struct Record {
    peaks: Peaks,
    /// Whether its memory has ever been known.
    measured: bool,
}

impl Record {
    /// Creates a record without values.
    pub(super) fn new(window: Duration) -> Self {
        Self { peaks: Peaks::new(window), measured: false }
    }

    /// Records the memory in use, if it is known.
    pub(super) fn see(&mut self, used: Option<u64>, now: Instant) {
        if let Some(bytes) = used {
            self.measured = true;
            self.peaks.see(bytes, now);
        }
    }

    /// Records what calls tell that was held at least.
    pub(super) fn see_call(&mut self, bytes: u64, now: Instant) {
        self.measured = true;
        self.peaks.see_call(bytes, now);
    }

    /// See [`Peaks::is_of_calls`].
    pub(super) fn is_of_calls(&mut self, now: Instant) -> Option<bool> {
        self.peaks.is_of_calls(now)
    }

    /// Records that the process or workload ended: it holds no memory from now on.
    pub(super) fn end(&mut self, now: Instant) {
        if self.measured {
            self.peaks.see(0, now);
        }
    }

    /// See [`Peaks::raise`].
    pub(super) fn raise(&mut self, peak: u64) {
        self.measured = true;
        self.peaks.raise(peak);
    }

    /// See [`Peaks::absorb`].
    pub(super) fn absorb(&mut self, other: &Self) {
        self.measured |= other.measured;
        self.peaks.absorb(&other.peaks);
    }

    /// The highest memory use within the window that ends now; 0 if the process or workload has `ended` and the window
    /// contains no value. `None` if the memory is unknown.
    pub(super) fn window_peak(&mut self, now: Instant, ended: bool) -> Option<u64> {
        let within = self.peaks.within_window(now);
        if self.measured { within.or(ended.then_some(0)) } else { None }
    }

    /// The highest memory use ever; `None` if it was never known.
    pub(super) fn peak(&self) -> Option<u64> {
        self.measured.then(|| self.peaks.highest())
    }
}
