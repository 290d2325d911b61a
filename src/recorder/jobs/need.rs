//! What a workload needs of a device, as far as its processes report about their allocators.
//!
//! Invariant: a need is an upper bound. A process that does not report how much of its memory is needed needs all of
//! it.

use crate::recorder::history::Micros;
use crate::sizing;
use crate::snapshot::{AllocatorReport, RESERVED_MARGIN};

/// How long memory outside the allocators must last to count. The driver's figure and that of a process are read at
/// different times, so after a change their difference is wrong until both have been read.
const LASTING: Micros = 5_000_000;

/// What one process has shown on a device.
#[derive(Debug, Default)]
pub(super) struct ProcessNeed {
    /// Bytes: the highest memory that its allocators had allocated. `None` if it has not reported that.
    allocated: Option<u64>,
    outside: Outside,
    /// Whether one of its allocators does not report what it keeps.
    is_partial: bool,
}

impl ProcessNeed {
    /// Applies what the process reports at `at`. `used` is its memory according to the last list, `peak` the highest
    /// one. Returns what its allocators have allocated, now and at most; `None` if it does not report that, or reports
    /// more than the driver does.
    pub(super) fn see<'r>(
        &mut self,
        reports: impl Iterator<Item = &'r AllocatorReport>,
        used: Option<u64>,
        peak: Option<u64>,
        at: Micros,
    ) -> Option<(u64, u64)> {
        let (mut sums, mut reserved) = (None, Some(0_u64));
        for figures in reports.map(|report| report.figures) {
            reserved = reserved.zip(figures.reserved).map(|(sum, more)| sum.saturating_add(more));
            let Some(highest) = figures.peak.or(figures.allocated) else { continue };
            let (sum, most): (u64, u64) = sums.unwrap_or_default();
            sums = Some((sum.saturating_add(figures.allocated.unwrap_or(0)), most.max(highest)));
        }
        let (sum, most) = sums?;
        if peak.is_some_and(|peak| sum.max(most) > peak.saturating_add(RESERVED_MARGIN)) {
            return None;
        }
        self.allocated = self.allocated.max(Some(sum.max(most)));
        self.is_partial |= reserved.is_none();
        if let Some(outside) = used.zip(reserved).and_then(|(used, reserved)| used.checked_sub(reserved)) {
            self.outside.see(outside, at);
        }
        Some((sum, most))
    }

    fn is_reported(&self) -> bool {
        self.allocated.is_some()
    }

    /// Bytes that the process needs at most. `peak` is its highest memory according to the driver.
    fn bytes(&self, peak: Option<u64>) -> Option<u64> {
        let outside = self.outside.bytes().filter(|_| !self.is_partial);
        let reported = self.allocated.zip(outside).map(|(allocated, outside)| allocated.saturating_add(outside));
        match (reported, peak) {
            (Some(reported), Some(peak)) => Some(reported.min(peak)),
            (reported, peak) => reported.or(peak),
        }
    }
}

/// The memory of a process outside its allocators, in bytes.
#[derive(Debug, Default)]
struct Outside {
    /// The lowest since `since`.
    low: Option<u64>,
    since: Micros,
    /// The highest that lasted.
    lasting: Option<u64>,
}

impl Outside {
    fn see(&mut self, bytes: u64, at: Micros) {
        match self.low {
            Some(low) if at.saturating_sub(self.since) < LASTING => self.low = Some(low.min(bytes)),
            low => {
                self.lasting = self.lasting.max(low);
                (self.low, self.since) = (Some(bytes), at);
            }
        }
    }

    /// The highest that lasted; of a short life, the lowest.
    fn bytes(&self) -> Option<u64> {
        self.lasting.or(self.low)
    }
}

/// What the processes of a workload need of a device together: the sum over as many as were there at the same time,
/// those that need most.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// The highest number of processes in one list.
    at_once: usize,
    /// The needs of those that have left, highest first: at most `at_once`. An unknown need is more than any device
    /// has.
    gone: Vec<u64>,
    /// Whether one of those that have left reported about its allocators.
    is_reported: bool,
}

impl Needs {
    /// Records that a list contains this many processes of the workload.
    pub(super) fn list(&mut self, processes: usize) {
        self.at_once = self.at_once.max(processes);
    }

    /// Records that a process with this need and this peak has left.
    pub(super) fn leave(&mut self, need: &ProcessNeed, peak: Option<u64>) {
        self.is_reported |= need.is_reported();
        self.gone.push(need.bytes(peak).unwrap_or(u64::MAX));
        self.gone.sort_unstable_by(|a, b| b.cmp(a));
        self.gone.truncate(self.at_once);
    }

    /// Adds the needs of a part of the workload that had another name.
    pub(super) fn absorb(&mut self, other: Self) {
        self.at_once += other.at_once;
        self.gone.extend(other.gone);
        self.is_reported |= other.is_reported;
    }

    /// Bytes that the workload needs at most, with the processes that are still there. `None` if no process has
    /// reported.
    pub(super) fn bytes<'p>(&self, here: impl Iterator<Item = (&'p ProcessNeed, Option<u64>)>) -> Option<u64> {
        let mut is_reported = self.is_reported;
        let mut all = self.gone.clone();
        for (need, peak) in here {
            is_reported |= need.is_reported();
            all.push(need.bytes(peak).unwrap_or(u64::MAX));
        }
        is_reported.then(|| sizing::largest_at_once(&mut all, self.at_once))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.gone.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(allocated: u64, outside: u64) -> ProcessNeed {
        let outside = Outside { low: Some(outside), ..Outside::default() };
        ProcessNeed { allocated: Some(allocated), outside, is_partial: false }
    }

    #[test]
    fn a_difference_that_does_not_last_is_not_memory_outside_the_allocators() {
        let mut outside = Outside::default();
        for (second, bytes) in [(0, 500), (1, 500), (2, 36_000), (4, 500), (5, 500), (7, 36_000), (9, 510), (10, 600)] {
            outside.see(bytes, second * 1_000_000);
        }
        assert_eq!(outside.bytes(), Some(500));
        outside.see(600, 16_000_000);
        assert_eq!(outside.bytes(), Some(600), "it lasted");
        let mut short = Outside::default();
        short.see(900, 0);
        short.see(400, 1_000_000);
        assert_eq!(short.bytes(), Some(400));
    }

    #[test]
    fn a_workload_needs_no_more_than_its_largest_processes_at_once() {
        let mut needs = Needs::default();
        needs.list(2);
        needs.leave(&need(1000, 500), Some(100_000));
        needs.leave(&need(300, 100), Some(350));
        needs.leave(&ProcessNeed::default(), Some(70));
        let here = need(900, 100);
        assert_eq!(needs.bytes([(&here, Some(4000))].into_iter()), Some(2500));
        needs.leave(&ProcessNeed::default(), None);
        assert_eq!(needs.bytes(std::iter::empty()), Some(u64::MAX), "it may need all that it held");
    }

    #[test]
    fn without_a_report_nothing_is_known() {
        let mut needs = Needs::default();
        needs.list(1);
        needs.leave(&ProcessNeed::default(), Some(70));
        assert_eq!(needs.bytes(std::iter::empty()), None);
    }

    #[test]
    fn an_allocator_that_does_not_say_what_it_keeps_needs_all() {
        let partial = ProcessNeed { is_partial: true, ..need(10, 5) };
        assert_eq!(partial.bytes(Some(90)), Some(90));
        assert_eq!(need(10, 5).bytes(Some(90)), Some(15));
    }
}
