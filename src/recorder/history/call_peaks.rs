//! Peaks that the driver's memory calls tell and that no reading shows: at most one for each second with one.
//!
//! Invariant: calls tell of memory before a reading can. What a reading shows within a second of a peak is no entry, so
//! memory that is taken and kept is none.

use super::blocks::Blocks;
use super::{Micros, SECOND, allocation};

/// To drop some of fewer peaks frees no memory.
const FEW: usize = 64;

/// Bytes that were held at least, and when.
pub(crate) type CallPeakAt = (Micros, u64);

/// The peaks of one series.
#[derive(Debug, Default)]
pub(crate) struct CallPeaks {
    /// The highest of each of the last seconds, which readings can still show, with the beginning of its second.
    recent: Vec<(Micros, CallPeakAt)>,
    kept: Blocks<CallPeakAt>,
}

impl CallPeaks {
    /// Takes in that at least `bytes` were held a moment before `at`.
    pub(crate) fn see(&mut self, at: Micros, bytes: u64) {
        match self.recent.last_mut() {
            Some((begin, peak)) if at < *begin + SECOND => {
                if bytes > peak.1 {
                    *peak = (at, bytes);
                }
            }
            _ => self.recent.push((at, (at, bytes))),
        }
    }

    /// Keeps what no reading has shown, and drops what is from before `oldest`. `highest`: the highest reading of a time span.
    pub(crate) fn settle(&mut self, now: Micros, oldest: Micros, highest: impl Fn(Micros, Micros) -> Option<u64>) {
        for (_, (at, bytes)) in self.recent.extract_if(.., |(begin, _)| *begin + 2 * SECOND <= now) {
            if highest(at.saturating_sub(SECOND), at + SECOND) < Some(bytes) {
                self.kept.push((at, bytes));
            }
        }
        self.kept.drop_front(self.kept.partition_point(|(at, _)| *at < oldest));
    }

    /// Drops the older half if there are many. Returns whether any were dropped.
    pub(crate) fn halve(&mut self) -> bool {
        self.kept.len() >= FEW && self.kept.drop_front(self.kept.len() / 2).is_some()
    }

    /// The highest peak of each part of a time span that has one.
    pub(crate) fn within(&self, from: Micros, to: Micros, step: Micros) -> Vec<CallPeakAt> {
        let part = |at: Micros| (at - from) / step.max(1);
        let mut found: Vec<CallPeakAt> = Vec::new();
        for (at, bytes) in self.kept.iter().filter(|(at, _)| (from..=to).contains(at)) {
            match found.last_mut() {
                Some(last) if part(last.0) == part(at) => {
                    if bytes > last.1 {
                        *last = (at, bytes);
                    }
                }
                _ => found.push((at, bytes)),
            }
        }
        found
    }

    pub(crate) fn trim(&mut self) {
        self.kept.trim();
    }

    pub(crate) fn bytes(&self) -> usize {
        allocation(size_of::<Self>())
            + allocation(self.recent.capacity() * size_of::<(Micros, CallPeakAt)>())
            + self.kept.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Micros = 1000;

    #[test]
    fn what_a_reading_shows_within_a_second_is_no_peak_of_calls() {
        let mut peaks = CallPeaks::default();
        let readings = |from: Micros, to: Micros| {
            let within = |at: &Micros| (from..=to).contains(at);
            Some(if within(&(10 * SECOND + 500 * MILLI)) { 90 } else { 10 })
        };
        for (at, bytes) in [(9 * SECOND, 90), (10 * SECOND, 90), (11 * SECOND, 91), (20 * SECOND, 90)] {
            peaks.see(at, bytes);
        }
        // Of one second, the highest stays.
        peaks.see(20 * SECOND + 200 * MILLI, 95);
        peaks.see(20 * SECOND + 400 * MILLI, 80);
        peaks.settle(21 * SECOND, 0, readings);
        let found = [(9 * SECOND, 90), (11 * SECOND, 91)];
        assert_eq!(peaks.within(0, 60 * SECOND, SECOND), found, "that of 10 s is shown, that of 20 s may be");
        peaks.settle(22 * SECOND, 0, readings);
        assert_eq!(peaks.within(12 * SECOND, 60 * SECOND, SECOND), [(20 * SECOND + 200 * MILLI, 95)]);
        assert_eq!(peaks.within(0, 60 * SECOND, 60 * SECOND), [(20 * SECOND + 200 * MILLI, 95)], "one in each part");
        peaks.settle(22 * SECOND, 12 * SECOND, readings);
        assert_eq!(peaks.within(0, 60 * SECOND, SECOND).len(), 1, "the others are too old");
    }

    #[test]
    fn a_day_of_spikes_takes_bounded_memory() {
        let mut peaks = CallPeaks::default();
        for tenth in 0..864_000 {
            peaks.see(tenth * SECOND / 10, 90);
            let now = tenth * SECOND / 10;
            peaks.settle(now, now.saturating_sub(7200 * SECOND), |_, _| Some(10));
        }
        assert!(peaks.bytes() < 7300 * 20, "{}", peaks.bytes());
        assert!(peaks.halve() && peaks.bytes() < 3700 * 20);
        while peaks.halve() {}
        assert!((FEW / 2..FEW).contains(&peaks.within(0, Micros::MAX, 1).len()));
    }
}
