//! The recent past of one value: every change in the last two minutes, and before that the minimum, the maximum and the
//! last value of each second.
//!
//! Invariants: a flat line uses no memory, however long it is; a maximum is kept as long as its second; `changes` are
//! dropped in whole seconds, so that each second is either exact or a range.

use super::blocks::Blocks;
use super::call_peaks::{CallPeakAt, CallPeaks};
use super::{Micros, SECOND};

/// How long every change is kept.
pub(crate) const FINE: Micros = 120 * SECOND;
/// How long the ranges of seconds are kept.
pub(crate) const COARSE: Micros = 7200 * SECOND;
/// The maximum number of changes: two minutes at 100 changes a second. At a higher rate they cover a shorter time.
const MAX_CHANGES: usize = 12_000;
/// The value while nothing is known.
const UNKNOWN: u64 = u64::MAX;

/// A value over time.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// The changes from `exact_from` on, oldest first.
    changes: Blocks<Change>,
    /// The beginning of a second. All changes before it have been dropped from `changes`.
    exact_from: Micros,
    /// The value just before `exact_from`.
    before_exact: Value,
    /// The ranges of the seconds in which the value changed, oldest first.
    seconds: Blocks<Second>,
    /// The range of the second in which the value last changed, if that second has not ended.
    open: Option<Second>,
    /// The value before the oldest of `seconds`.
    before_seconds: Value,
    /// What the driver's memory calls tell beyond the readings.
    calls: Option<Box<CallPeaks>>,
    /// The beginning of the series: nothing is known about the time before it. `None` if the series is empty.
    pub(crate) begin: Option<Micros>,
}

/// A value, or [`UNKNOWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value(u64);

impl Default for Value {
    fn default() -> Self {
        Self(UNKNOWN)
    }
}

impl Value {
    fn known(self) -> Option<u64> {
        (self.0 != UNKNOWN).then_some(self.0)
    }
}

/// From `at` on, the value is `value`.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Micros,
    value: Value,
}

/// The range of the known values in one second, and the value at its end.
#[derive(Debug, Clone, Copy)]
struct Second {
    /// The second begins at `number * SECOND`.
    number: u32,
    range: Range,
}

/// The range of a value within a time span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// [`UNKNOWN`] if no value was known.
    min: u64,
    max: u64,
    last: Value,
}

/// A part of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// When the part begins.
    pub(crate) at: Micros,
    /// The lowest and the highest value; `None` if none was known.
    pub(crate) range: Option<(u64, u64)>,
    /// The value at the end; `None` if it was not known.
    pub(crate) last: Option<u64>,
}

impl Range {
    fn of(value: Value) -> Self {
        Self { min: value.0, max: value.known().unwrap_or(0), last: value }
    }

    fn join(&mut self, later: Self) {
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.last = later.last;
    }

    fn known(&self) -> Option<(u64, u64)> {
        (self.min != UNKNOWN).then_some((self.min, self.max))
    }
}

impl Second {
    fn begin(&self) -> Micros {
        Micros::from(self.number) * SECOND
    }

    fn end(&self) -> Micros {
        self.begin() + SECOND
    }
}

impl Series {
    /// The latest value; `None` if it is unknown.
    pub(crate) fn last(&self) -> Option<u64> {
        self.latest().known()
    }

    /// When the value last changed; `None` if that is too long ago.
    pub(crate) fn last_change(&self) -> Option<Micros> {
        self.changes.back().map(|change| change.at)
    }

    /// Records that the value is `value` from `at` on. Nothing is stored if it is the same as before.
    pub(crate) fn see(&mut self, at: Micros, value: Option<u64>) {
        // The readings of two threads can arrive in either order.
        let at = self.changes.back().map_or(self.exact_from, |change| change.at).max(at);
        self.begin.get_or_insert(at);
        let (before, value) = (self.latest(), Value(value.unwrap_or(UNKNOWN)));
        if value == before {
            return;
        }
        let number = u32::try_from(at / SECOND).unwrap_or(u32::MAX);
        match &mut self.open {
            Some(open) if open.number == number => open.range.join(Range::of(value)),
            _ => {
                if let Some(ended) = self.open.take() {
                    self.seconds.push(ended);
                }
                let mut range = Range::of(before);
                range.join(Range::of(value));
                self.open = Some(Second { number, range });
            }
        }
        if self.changes.len() >= MAX_CHANGES {
            self.drop_changes_before(self.exact_from + SECOND);
        }
        self.changes.push(Change { at, value });
    }

    /// Records that calls tell that the value was at least `bytes` a moment before `at`.
    pub(crate) fn see_call(&mut self, at: Micros, bytes: u64) {
        self.calls.get_or_insert_default().see(at, bytes);
    }

    /// The peaks that calls tell and no reading within a second of them shows: the highest of each part of length `step`.
    pub(crate) fn call_peaks(&self, from: Micros, to: Micros, step: Micros) -> Vec<CallPeakAt> {
        self.calls.as_ref().map(|calls| calls.within(from, to, step)).unwrap_or_default()
    }

    /// Drops what is too old at `now`.
    pub(crate) fn age(&mut self, now: Micros) {
        if let Some(mut calls) = self.calls.take() {
            calls.settle(now, now.saturating_sub(COARSE), |from, to| self.highest(from, to).map(|(_, value)| value));
            self.calls = Some(calls);
        }
        self.drop_changes_before(now.saturating_sub(FINE));
        if let Some(ended) = self.open.take_if(|open| open.end() <= now) {
            self.seconds.push(ended);
        }
        self.drop_seconds_before(now.saturating_sub(COARSE));
    }

    /// Drops the older half of the seconds or, if there are few seconds, of the changes. Returns whether anything was
    /// dropped.
    pub(crate) fn halve(&mut self) -> bool {
        if self.calls.as_mut().is_some_and(|calls| calls.halve()) {
            return true;
        }
        let old = self.seconds.partition_point(|second| second.end() <= self.exact_from);
        if let Some(kept) = self.seconds.get(old / 2).filter(|_| old >= 8) {
            self.drop_seconds_before(kept.begin());
            return true;
        }
        let Some(middle) = self.changes.get(self.changes.len() / 2).filter(|_| self.changes.len() >= 64) else {
            return false;
        };
        // Nothing is dropped if the older half is in one second.
        let before = self.changes.len();
        self.drop_changes_before(middle.at);
        self.changes.len() < before
    }

    /// Frees the unused capacity. Called once the last value is known.
    pub(crate) fn trim(&mut self) {
        self.changes.trim();
        self.seconds.trim();
        self.calls.iter_mut().for_each(|calls| calls.trim());
    }

    /// The memory that the series uses in addition to the size of the struct itself.
    pub(crate) fn bytes(&self) -> usize {
        self.changes.bytes() + self.seconds.bytes() + self.calls.as_ref().map_or(0, |calls| calls.bytes())
    }

    /// The value at a moment; `None` if it was unknown. If only the ranges of seconds are kept for that time, it is the
    /// value at the end of the previous second.
    pub(crate) fn at(&self, moment: Micros) -> Option<u64> {
        self.begin.filter(|&begin| begin <= moment)?;
        if moment >= self.exact_from {
            let after = self.changes.partition_point(|change| change.at <= moment);
            let change = after.checked_sub(1).and_then(|index| self.changes.get(index));
            return change.map_or(self.before_exact, |change| change.value).known();
        }
        let after = self.seconds.partition_point(|second| second.end() <= moment);
        let second = after.checked_sub(1).and_then(|index| self.seconds.get(index));
        second.map_or(self.before_seconds, |second| second.range.last).known()
    }

    /// The highest known value from `from` to `to`, and when it was first reached; `None` if none is known.
    pub(crate) fn highest(&self, from: Micros, to: Micros) -> Option<(Micros, u64)> {
        let within = self.pieces().filter(|(at, _)| (from..=to).contains(at));
        let values = within.filter_map(|(at, range)| range.known().map(|(_, max)| (at, max)));
        let from = self.begin.map_or(from, |begin| begin.max(from));
        let begin = self.at(from).map(|value| (from, value));
        begin.into_iter().chain(values).reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// The last moment, up to `until`, at which the value was `level` or more. Looks only at exact changes.
    pub(crate) fn last_at_least(&self, level: u64, until: Micros) -> Option<Micros> {
        let is_high = |value: Value| value.known().is_some_and(|value| value >= level);
        let mut end = until;
        for change in self.changes.iter().rev().filter(|change| change.at <= until) {
            if is_high(change.value) {
                return Some(end);
            }
            end = change.at;
        }
        is_high(self.before_exact).then_some(end)
    }

    /// When the value next changed after `moment`; `None` if it has not changed since. Looks only at exact changes.
    pub(crate) fn next_change(&self, moment: Micros) -> Option<Micros> {
        self.changes.get(self.changes.partition_point(|change| change.at <= moment)).map(|change| change.at)
    }

    /// The values from `from` to `to`, in parts of length `step`.
    pub(crate) fn points(&self, from: Micros, to: Micros, step: Micros) -> Vec<Point> {
        let mut pieces = self.pieces().skip_while(|(at, _)| *at < from).peekable();
        let mut value = Value(self.at(from).unwrap_or(UNKNOWN));
        let mut points = Vec::new();
        let mut begin = from;
        while begin < to {
            let end = begin.saturating_add(step.max(1)).min(to);
            // A value that is replaced exactly when the part begins does not belong to the part.
            let mut part = pieces.next_if(|(at, _)| *at == begin).map_or(Range::of(value), |(_, range)| range);
            while let Some((_, range)) = pieces.next_if(|(at, _)| *at < end) {
                part.join(range);
            }
            value = part.last;
            points.push(Point { at: begin, range: part.known(), last: value.known() });
            begin = end;
        }
        points
    }

    fn latest(&self) -> Value {
        self.changes.back().map_or(self.before_exact, |change| change.value)
    }

    /// All that is kept, oldest first: the value at the beginning, the ranges of seconds, then the exact changes.
    fn pieces(&self) -> impl Iterator<Item = (Micros, Range)> + '_ {
        let seconds = self.seconds.iter().chain(self.open).take_while(|second| second.begin() < self.exact_from);
        let changes = self.changes.iter().map(|change| (change.at, Range::of(change.value)));
        let first = self.begin.map(|begin| (begin, Range::of(self.before_seconds)));
        first.into_iter().chain(seconds.map(|second| (second.begin(), second.range))).chain(changes)
    }

    /// Drops the changes of all seconds before the one that contains `moment`.
    fn drop_changes_before(&mut self, moment: Micros) {
        let whole = moment - moment % SECOND;
        if whole <= self.exact_from {
            return;
        }
        let kept = self.changes.partition_point(|change| change.at < whole);
        if let Some(last) = self.changes.drop_front(kept) {
            self.before_exact = last.value;
        }
        self.exact_from = whole;
    }

    /// Drops the seconds before the one that contains `moment`.
    fn drop_seconds_before(&mut self, moment: Micros) {
        let moment = moment - moment % SECOND;
        let kept = self.seconds.partition_point(|second| second.end() <= moment);
        if let Some(last) = self.seconds.drop_front(kept) {
            self.before_seconds = last.range.last;
        }
        if let Some(begin) = &mut self.begin {
            *begin = (*begin).max(moment.min(self.exact_from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Micros = 1000;

    fn range(series: &Series, from: Micros, to: Micros) -> Option<(u64, u64)> {
        let points = series.points(from, to, to - from);
        assert_eq!(points.len(), 1);
        points[0].range
    }

    #[test]
    fn a_flat_line_takes_no_memory() {
        let mut series = Series::default();
        for second in 0..7200 {
            series.see(second * SECOND, Some(7));
            series.age(second * SECOND);
        }
        assert!(series.bytes() < 256, "{}", series.bytes());
        assert_eq!(series.at(3000 * SECOND), Some(7));
        assert_eq!(series.points(0, 7200 * SECOND, 60 * SECOND).len(), 120);
        assert!(series.points(0, 7200 * SECOND, 60 * SECOND).iter().all(|point| point.range == Some((7, 7))));
    }

    #[test]
    fn a_spike_is_exact_for_two_minutes_and_stays_in_its_second_for_two_hours() {
        let mut series = Series::default();
        series.see(0, Some(10));
        series.see(5 * SECOND + 300 * MILLI, Some(90));
        series.see(5 * SECOND + 320 * MILLI, Some(10));
        assert_eq!(series.at(5 * SECOND + 310 * MILLI), Some(90));
        assert_eq!(series.highest(0, 60 * SECOND), Some((5 * SECOND + 300 * MILLI, 90)));
        assert_eq!(series.next_change(5 * SECOND + 300 * MILLI), Some(5 * SECOND + 320 * MILLI));
        series.age(3600 * SECOND);
        assert_eq!(series.highest(0, 60 * SECOND), Some((5 * SECOND, 90)));
        assert_eq!(range(&series, 5 * SECOND, 6 * SECOND), Some((10, 90)));
        assert_eq!(range(&series, 6 * SECOND, 7 * SECOND), Some((10, 10)));
        assert_eq!(series.last(), Some(10));
        series.age(7206 * SECOND);
        assert_eq!(series.highest(0, 7206 * SECOND), Some((6 * SECOND, 10)), "the second of the spike is gone");
        assert_eq!(series.at(5 * SECOND), None);
    }

    #[test]
    fn unknown_times_have_no_value_and_no_range() {
        let mut series = Series::default();
        assert_eq!((series.last(), series.at(0), series.highest(0, SECOND), series.begin), (None, None, None, None));
        series.see(2 * SECOND, Some(5));
        series.see(3 * SECOND, None);
        series.see(5 * SECOND, Some(6));
        let points = series.points(0, 6 * SECOND, SECOND);
        let ranges: Vec<_> = points.iter().map(|point| (point.range, point.last)).collect();
        let (five, six) = (Some((5, 5)), Some((6, 6)));
        assert_eq!(ranges, [(None, None), (None, None), (five, Some(5)), (None, None), (None, None), (six, Some(6))]);
        series.age(600 * SECOND);
        assert_eq!(series.at(4 * SECOND), None, "the value at the end of the second before");
        assert_eq!(series.at(7 * SECOND), Some(6));
    }

    #[test]
    fn the_last_time_at_a_level_is_found() {
        let mut series = Series::default();
        series.see(0, Some(10));
        series.see(SECOND, Some(80));
        series.see(2 * SECOND, Some(30));
        assert_eq!(series.last_at_least(80, 9 * SECOND), Some(2 * SECOND));
        assert_eq!(series.last_at_least(30, 9 * SECOND), Some(9 * SECOND));
        assert_eq!(series.last_at_least(81, 9 * SECOND), None);
        assert_eq!(series.last_at_least(80, SECOND + MILLI), Some(SECOND + MILLI));
    }

    #[test]
    fn halving_drops_the_oldest_and_keeps_the_rest() {
        let mut series = Series::default();
        (0..3000).for_each(|second| series.see(second * SECOND, Some(second)));
        series.age(3000 * SECOND);
        let before = series.bytes();
        assert!(series.halve() && series.bytes() < before * 2 / 3, "{before} {}", series.bytes());
        assert_eq!(series.at(1000 * SECOND), None);
        assert_eq!(series.at(2990 * SECOND), Some(2990));
        assert_eq!(series.highest(0, 2995 * SECOND), Some((2995 * SECOND, 2995)));
        while series.halve() {}
        assert_eq!(series.last(), Some(2999));
    }

    #[test]
    fn halving_ends_even_if_all_changes_are_in_one_second() {
        let mut series = Series::default();
        (0..500).for_each(|milli| series.see(90 * SECOND + milli * MILLI, Some(milli)));
        assert!(!series.halve(), "nothing can be dropped");
        assert_eq!(series.highest(90 * SECOND, 91 * SECOND), Some((90 * SECOND + 499 * MILLI, 499)));
    }

    #[test]
    fn more_changes_than_fit_cover_a_shorter_time_exactly() {
        let mut series = Series::default();
        for milli in 0..60_000 {
            series.see(milli * MILLI, Some(milli));
        }
        assert!(series.changes.len() <= MAX_CHANGES);
        assert_eq!(series.at(59 * SECOND + 7 * MILLI), Some(59_007));
        assert_eq!(range(&series, 10 * SECOND, 11 * SECOND), Some((9_999, 10_999)), "with the value before it");
    }

    #[test]
    fn charts_agree_with_a_search_through_every_value() {
        // A fixed linear congruential sequence of values at irregular times.
        let (mut random, mut now, mut values) = (7u64, 0, Vec::new());
        let mut series = Series::default();
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += (random >> 33) % (400 * MILLI);
            let value = Some((random >> 40) % 50).filter(|value| *value > 3);
            series.see(now, value);
            series.age(now);
            values.push((now, value));
        }
        let at = |moment: Micros| values.iter().rev().find(|(at, _)| *at <= moment).and_then(|(_, value)| *value);
        for (index, point) in series.points(0, now, SECOND).iter().enumerate() {
            let (begin, end) = (index as u64 * SECOND, (index as u64 + 1) * SECOND);
            let within =
                values.iter().filter(|(at, _)| (begin..end.min(now)).contains(at)).filter_map(|(_, value)| *value);
            let all: Vec<u64> = at(begin).into_iter().chain(within).collect();
            let found = all.iter().min().copied().zip(all.iter().max().copied());
            let exact = begin >= series.exact_from;
            let (least, most) = (found.map(|range| range.0), found.map(|range| range.1));
            // For an older second, it is not known whether the value before that second was still current when the
            // second began.
            let shown = (point.range.map(|range| range.0), point.range.map(|range| range.1));
            let held = begin.checked_sub(1).and_then(at);
            let least = if exact { least } else { least.into_iter().chain(held).min() };
            let most = if exact { most } else { most.max(held) };
            let changed = values.iter().any(|(at, _)| (begin..end.min(now)).contains(at));
            assert!(shown == (least, most) || (!exact && !changed), "{index}: {shown:?} {least:?} {most:?}");
            assert_eq!(point.last, at(end.min(now) - 1), "{index}");
        }
    }
}
