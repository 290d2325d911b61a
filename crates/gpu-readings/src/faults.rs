//! Faults: everything that goes wrong is counted and logged here.
//!
//! Invariant: every fault that is logged is counted, and every fault that is counted is logged unless the same fault
//! was logged recently. The set of (source, reason) pairs is closed, and every pair is counted from the start.
//! `metrics` shows a total for each source, at 0 from the start, so that an alert on an increase fires on the first
//! fault. It shows a pair only after its first fault.
//!
//! A fault that repeats (a missing library, a lost GPU) is counted each time and written to the log when it begins,
//! then once an hour while it lasts.

mod sources;

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

pub use sources::{Reason, Source};

/// A fault that has not occurred for this long has ended, so the next occurrence is a new fault.
const ENDED_AFTER: Duration = Duration::from_secs(90);
/// How often an ongoing fault is written to the log.
const REMINDER: Duration = Duration::from_secs(3600);

/// Hears of every fault, also of those that are not logged again.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// [`Faults::raise`] was called. The caller waits.
    fn raised(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error);
}

/// The counters of all faults since the exporter started. Every part of the exporter shares them; `metrics` reads them.
#[derive(Debug)]
pub struct Faults {
    /// When nothing had been counted yet.
    since: SystemTime,
    counts: Vec<AtomicU64>,
    throttles: Mutex<HashMap<Kind, LogThrottle>>,
    listener: Option<Arc<dyn Listener>>,
}

/// Faults with the same source, reason and GPU are the same fault.
type Kind = (Source, Reason, Option<u32>);

/// When a fault was last logged, when it last occurred, and how many times it occurred in between.
#[derive(Debug)]
struct LogThrottle {
    at: Instant,
    seen: Instant,
    held_back: u64,
}

impl LogThrottle {
    fn now(now: Instant) -> Self {
        Self { at: now, seen: now, held_back: 0 }
    }

    /// Records that the fault occurred again. If it must be logged now, returns how many occurrences were held back
    /// since it was last logged; otherwise `None`.
    fn again(&mut self, now: Instant) -> Option<u64> {
        let lasts = now.saturating_duration_since(self.seen) < ENDED_AFTER;
        if lasts && now.saturating_duration_since(self.at) < REMINDER {
            self.seen = now;
            self.held_back += 1;
            return None;
        }
        Some(std::mem::replace(self, Self::now(now)).held_back)
    }
}

impl Default for Faults {
    fn default() -> Self {
        let pairs = Source::ALL.len() * Reason::ALL.len();
        let counts = (0..pairs).map(|_| AtomicU64::new(0)).collect();
        Self { since: SystemTime::now(), counts, throttles: Mutex::default(), listener: None }
    }
}

impl Faults {
    /// Counters without a fault. The listener hears of each one.
    pub fn heard_by(listener: Arc<dyn Listener>) -> Self {
        Self { listener: Some(listener), ..Self::default() }
    }

    /// When nothing had been counted yet.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Counts a fault and logs it with its whole chain of causes, unless the same fault was logged recently. `gpu` is
    /// the NVML index of the GPU to which the fault belongs, if any.
    pub fn raise(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error) {
        debug_assert!(source.reasons().any(|r| r == reason), "{source:?} never has {reason:?}");
        self.cell(source, reason).fetch_add(1, Ordering::Relaxed);
        if let Some(listener) = &self.listener {
            listener.raised(source, reason, gpu, error);
        }
        let now = Instant::now();
        let mut throttles = self.throttles.lock();
        let known = throttles.get_mut(&(source, reason, gpu));
        let Some(held_back) = known.map_or(Some(0), |known| known.again(now)) else { return };
        throttles.entry((source, reason, gpu)).or_insert_with(|| LogThrottle::now(now));
        drop(throttles);
        let error = chain(error);
        let (source, reason) = (source.label(), reason.label());
        tracing::warn!(source, reason, gpu, held_back, error, "fault");
    }

    /// How many times the pair has been raised.
    pub fn count(&self, source: Source, reason: Reason) -> u64 {
        self.cell(source, reason).load(Ordering::Relaxed)
    }

    /// Every pair of the closed set with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Source, Reason, u64)> + '_ {
        Source::ALL
            .iter()
            .flat_map(move |&source| source.reasons().map(move |reason| (source, reason, self.count(source, reason))))
    }

    fn cell(&self, source: Source, reason: Reason) -> &AtomicU64 {
        &self.counts[source as usize * Reason::ALL.len() + reason as usize]
    }
}

/// The error and all its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let _ = write!(line, ": {next}");
        cause = next.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_exists_from_the_start_and_once() {
        let faults = Faults::default();
        let pairs: Vec<_> = faults.counts().collect();
        assert!(pairs.len() > 60);
        assert!(pairs.iter().all(|&(_, _, n)| n == 0));
        let distinct: std::collections::HashSet<_> = pairs.iter().map(|&(s, r, _)| (s, r)).collect();
        assert_eq!(distinct.len(), pairs.len());
    }

    #[test]
    fn a_repeated_fault_is_counted_each_time() {
        let faults = Faults::default();
        let error = std::io::Error::other("gone");
        for _ in 0..3 {
            faults.raise(Source::Memory, Reason::GpuIsLost, Some(1), &error);
        }
        assert_eq!(faults.count(Source::Memory, Reason::GpuIsLost), 3);
        assert_eq!(faults.count(Source::Process, Reason::GpuIsLost), 0);
    }

    #[test]
    fn a_lasting_fault_is_written_when_it_begins_and_once_an_hour() {
        let begin = Instant::now();
        let mut throttle = LogThrottle::now(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        let written: Vec<_> = (1..=240).filter_map(|n| throttle.again(at(n * 30))).collect();
        assert_eq!(written, [119, 119]);
        assert_eq!(throttle.again(at(240 * 30 + 600)), Some(0), "after a pause it is a new fault");
    }

    #[test]
    fn the_chain_holds_every_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        assert_eq!(chain(&Outer(std::io::Error::other("inner"))), "outer: inner");
    }

    #[test]
    fn a_listener_hears_of_every_fault_although_it_is_logged_once() {
        #[derive(Debug, Default)]
        struct Heard(Mutex<Vec<String>>);
        impl Listener for Heard {
            fn raised(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error) {
                self.0.lock().push(format!("{source:?} {reason:?} {gpu:?} {error}"));
            }
        }
        let heard = Arc::new(Heard::default());
        let faults = Faults::heard_by(heard.clone());
        let error = std::io::Error::other("lost");
        (0..2).for_each(|_| faults.raise(Source::Memory, Reason::GpuIsLost, Some(3), &error));
        assert_eq!(*heard.0.lock(), ["Memory GpuIsLost Some(3) lost"; 2]);
        assert_eq!(faults.count(Source::Memory, Reason::GpuIsLost), 2);
    }
}
