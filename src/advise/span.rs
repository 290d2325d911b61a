//! The range of the history, divided into intervals.

/// The most whole intervals into which the range is divided.
const INTERVALS: u64 = 1344;
/// The shortest interval, in seconds.
const SHORTEST: u64 = 60;

/// The range, divided into intervals. An interval contains its end, but not its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// The end, in seconds since the Unix epoch.
    pub(super) end: u64,
    /// The length of an interval in seconds.
    pub(super) interval: u64,
    /// The number of intervals.
    pub(super) intervals: u64,
}

impl Span {
    /// Divides at least the last `range` seconds before `end`.
    pub(super) fn new(range: u64, end: u64) -> Self {
        let interval = Self::interval_of(range);
        Self { end, interval, intervals: range.div_ceil(interval) }
    }

    /// The length of the intervals of a range, both in seconds.
    pub(super) fn interval_of(range: u64) -> u64 {
        range.div_ceil(INTERVALS).max(SHORTEST)
    }

    /// The length of the range in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.interval * self.intervals
    }

    /// The end of the interval with this index, which counts from 0.
    pub(super) fn end_of(&self, index: u32) -> u64 {
        self.end - self.interval * (self.intervals - 1).saturating_sub(index.into())
    }

    /// The index of the interval that ends at this time.
    pub(super) fn index(&self, time: u64) -> Option<u32> {
        let before = self.end.checked_sub(time)?;
        let index = (self.intervals - 1).checked_sub(before / self.interval)?;
        (before % self.interval == 0).then(|| index.try_into().ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_weeks_are_quarters_of_an_hour() {
        let span = Span::new(14 * 86_400, 1_700_000_000);
        assert_eq!((span.interval, span.intervals, span.seconds()), (900, 1344, 14 * 86_400));
        assert_eq!((span.end_of(1343), span.end_of(0)), (1_700_000_000, 1_700_000_000 - 1343 * 900));
        assert_eq!((span.index(1_700_000_000), span.index(1_700_000_000 - 900)), (Some(1343), Some(1342)));
        assert_eq!(span.index(1_700_000_000 - 1343 * 900), Some(0));
        for outside in [1_700_000_000 - 1344 * 900, 1_700_000_000 - 1, 1_700_000_001] {
            assert_eq!(span.index(outside), None);
        }
    }

    #[test]
    fn a_range_is_rounded_up_to_whole_intervals() {
        let span = Span::new(61, 1_700_000_000);
        assert_eq!((span.interval, span.intervals, span.seconds()), (60, 2, 120));
        let span = Span::new(1345 * 60, 1_700_000_000);
        assert_eq!((span.interval, span.intervals, span.seconds()), (61, 1323, 80_703));
    }
}
