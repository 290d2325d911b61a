//! The range of the history, divided into intervals.

/// The most whole intervals into which the range is divided.
const INTERVALS: u64 = 1344;
/// The shortest interval, in seconds.
pub(super) const SHORTEST: u64 = 60;

/// The range, divided into intervals that end at multiples of their length, counted from the Unix epoch. Servers that round the
/// times of a range query to its step, such as VictoriaMetrics and the query frontend of Thanos, therefore change nothing. The
/// last interval ends with the range, and can be shorter. An interval contains its end, but not its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// The beginning, in seconds since the Unix epoch: a multiple of the interval.
    pub(super) begin: u64,
    /// The end, in seconds since the Unix epoch.
    pub(super) end: u64,
    /// The length of an interval in seconds.
    pub(super) interval: u64,
}

impl Span {
    /// Contains at least the last `range` seconds before `end`.
    pub(super) fn new(range: u64, end: u64) -> Self {
        let interval = Self::interval_of(range);
        let begin = end.saturating_sub(range);
        Self { begin: begin - begin % interval, end, interval }
    }

    /// The length of the intervals of a range, both in seconds.
    pub(super) fn interval_of(range: u64) -> u64 {
        range.div_ceil(INTERVALS).max(SHORTEST)
    }

    /// The length of the range in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.end - self.begin
    }

    /// The number of intervals of the whole length.
    pub(super) fn whole(&self) -> u64 {
        self.seconds() / self.interval
    }

    /// The length of the last interval in seconds if it is shorter than the others.
    pub(super) fn rest(&self) -> Option<u64> {
        Some(self.seconds() % self.interval).filter(|rest| *rest > 0)
    }

    /// The beginning of the interval with this index, which counts from 0.
    pub(super) fn begin_of(&self, index: u32) -> u64 {
        self.begin + self.interval * u64::from(index)
    }

    /// The end of the interval with this index.
    pub(super) fn end_of(&self, index: u32) -> u64 {
        (self.begin_of(index) + self.interval).min(self.end)
    }

    /// The index of the interval that ends at this time.
    pub(super) fn index(&self, time: u64) -> Option<u32> {
        let since = time.checked_sub(self.begin).filter(|since| *since > 0 && time <= self.end)?;
        let is_end = since % self.interval == 0 || time == self.end;
        is_end.then(|| u32::try_from(since.div_ceil(self.interval) - 1).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_weeks_are_quarters_of_an_hour() {
        const END: u64 = 1_764_000_000;
        let span = Span::new(14 * 86_400, END);
        assert_eq!((span.interval, span.whole(), span.rest(), span.seconds()), (900, 1344, None, 14 * 86_400));
        assert_eq!((span.end_of(1343), span.begin_of(1343), span.end_of(0)), (END, END - 900, END - 1343 * 900));
        assert_eq!((span.index(END), span.index(END - 900)), (Some(1343), Some(1342)));
        assert_eq!(span.index(END - 1343 * 900), Some(0));
        for outside in [END - 1345 * 900, END - 1344 * 900, END - 1, END + 1, END + 900] {
            assert_eq!(span.index(outside), None);
        }
    }

    #[test]
    fn the_last_interval_ends_with_the_range() {
        let span = Span::new(14 * 86_400, 1_764_000_100);
        assert_eq!((span.begin, span.whole(), span.rest()), (1_764_000_000 - 14 * 86_400, 1344, Some(100)));
        assert_eq!((span.begin_of(1344), span.end_of(1344)), (1_764_000_000, 1_764_000_100));
        assert_eq!((span.index(1_764_000_000), span.index(1_764_000_100)), (Some(1343), Some(1344)));
        assert_eq!((span.index(1_764_000_050), span.index(1_764_000_900)), (None, None));
    }

    #[test]
    fn a_range_is_rounded_up_to_begin_at_a_multiple() {
        let span = Span::new(61, 1_700_000_000);
        assert_eq!((span.interval, span.whole(), span.rest(), span.seconds()), (60, 1, Some(20), 80));
        let span = Span::new(1345 * 60, 1_700_000_000);
        assert_eq!((span.interval, span.begin % 61, span.seconds()), (61, 0, 80_731));
    }
}
