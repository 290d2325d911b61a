//! The highest value so far, and the highest within a sliding window. Used by the lanes and by `allocator`.
//!
//! Invariant: memory is bounded at any sampling rate, and a scrape changes nothing (docs/adr/0002).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many slots a window is divided into. More slots cost memory (at most 16 bytes each) but shorten the time by
/// which a peak can outlast its window (at most one slot).
const SLOTS: u64 = 100;

/// The maximum number of slots held: those of a window, plus one at each end that is partly inside the window.
const MOST_SLOTS: usize = SLOTS as usize + 2;

/// The highest value within the window, and the highest value ever.
///
/// At any sampling rate a value is kept for at least one window, and for at most one hundredth of a window longer.
/// Memory is bounded by the number of slots.
#[derive(Debug, Clone)]
pub struct Peaks {
    /// Nanoseconds.
    slot: u64,
    /// Nanoseconds.
    window: u64,
    origin: Option<Instant>,
    /// Slot numbers, each with the highest value in the slot; the numbers ascend and the values descend.
    slots: VecDeque<(u64, u64)>,
    highest: u64,
    /// The same of values that calls tell, which no reading shows; `None` until there is one.
    calls: Option<Box<Peaks>>,
}

impl Peaks {
    /// Creates an instance without values.
    pub fn new(window: Duration) -> Self {
        let window = nanos(window);
        Self { slot: (window / SLOTS).max(1), window, origin: None, slots: VecDeque::new(), highest: 0, calls: None }
    }

    /// Creates an instance without values but with room for all slots of a window, so that [`Peaks::see`] never
    /// allocates.
    pub fn with_room(window: Duration) -> Self {
        Self { slots: VecDeque::with_capacity(MOST_SLOTS), ..Self::new(window) }
    }

    /// Records a value. `now` must never decrease.
    pub fn see(&mut self, value: u64, now: Instant) {
        self.highest = self.highest.max(value);
        let slot = self.slot_of(now);
        self.expire(now);
        while self.slots.back().is_some_and(|&(_, lower)| lower <= value) {
            self.slots.pop_back();
        }
        // A higher value in the same slot makes this one redundant: both leave the window together.
        if self.slots.back().is_none_or(|&(last, _)| last < slot) {
            self.slots.push_back((slot, value));
        }
    }

    /// Raises the highest value ever to a maximum that was not sampled but is known from the driver's accounting.
    pub fn raise(&mut self, value: u64) {
        self.highest = self.highest.max(value);
    }

    /// Records a value that calls tell: a lower bound, which counts where no recorded value is as high.
    pub fn see_call(&mut self, value: u64, now: Instant) {
        let new = || Box::new(Self::new(Duration::from_nanos(self.window)));
        self.calls.get_or_insert_with(new).see(value, now);
    }

    /// Whether the highest value within the window that ends now is one that calls tell; `None` if they have told of none.
    pub fn is_of_calls(&mut self, now: Instant) -> Option<bool> {
        let calls = self.calls.as_mut()?.within_window(now);
        Some(calls > self.recorded(now))
    }

    /// Merges the values of another instance with the same window, keeping the times at which they were recorded.
    pub fn absorb(&mut self, other: &Self) {
        self.highest = self.highest.max(other.highest);
        if let Some(theirs) = &other.calls {
            match &mut self.calls {
                Some(ours) => ours.absorb(theirs),
                None => self.calls = Some(theirs.clone()),
            }
        }
        let Some(theirs) = other.origin else { return };
        let mine = *self.origin.get_or_insert(theirs);
        let origin = mine.min(theirs);
        // Rounded up: a value may stay for one slot longer, but never for less than its window.
        let shift = |from: Instant| nanos(from.saturating_duration_since(origin)).div_ceil(self.slot);
        let (ours, others) = (shift(mine), shift(theirs));
        let ours = self.slots.iter().map(|&(slot, value)| (slot + ours, value));
        let others = other.slots.iter().map(|&(slot, value)| (slot + others, value));
        let mut all: Vec<(u64, u64)> = ours.chain(others).collect();
        all.sort_unstable();
        self.slots.clear();
        for (slot, value) in all {
            while self.slots.back().is_some_and(|&(_, lower)| lower <= value) {
                self.slots.pop_back();
            }
            self.slots.push_back((slot, value));
        }
        self.origin = Some(origin);
    }

    /// The highest value within the window that ends now; `None` if there is no value in the window.
    pub fn within_window(&mut self, now: Instant) -> Option<u64> {
        let calls = self.calls.as_mut().and_then(|calls| calls.within_window(now));
        self.recorded(now).max(calls)
    }

    /// The highest value ever; 0 before the first.
    pub fn highest(&self) -> u64 {
        self.highest.max(self.calls.as_ref().map_or(0, |calls| calls.highest))
    }

    /// The highest recorded value within the window.
    fn recorded(&mut self, now: Instant) -> Option<u64> {
        self.expire(now);
        self.slots.front().map(|&(_, value)| value)
    }

    fn slot_of(&mut self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_insert(now);
        nanos(now.saturating_duration_since(origin)) / self.slot
    }

    /// Drops the slots that are entirely before the window.
    fn expire(&mut self, now: Instant) {
        let Some(origin) = self.origin else { return };
        let Some(begin) = nanos(now.saturating_duration_since(origin)).checked_sub(self.window) else { return };
        let first_kept = begin / self.slot;
        while self.slots.front().is_some_and(|&(slot, _)| slot < first_kept) {
            self.slots.pop_front();
        }
    }
}

/// Saturates after 584 years.
fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn a_peak_stays_for_the_window_and_no_longer_than_one_slot_more() {
        let start = Instant::now();
        let mut peaks = Peaks::new(WINDOW);
        peaks.see(7, at(start, 0));
        peaks.see(100, at(start, 250));
        peaks.see(5, at(start, 260));
        assert_eq!(peaks.within_window(at(start, 60_250)), Some(100));
        for tick in 1..=61 {
            peaks.see(5, at(start, tick * 1000));
        }
        assert_eq!(peaks.within_window(at(start, 61_000)), Some(5));
        assert_eq!(peaks.highest(), 100);
    }

    #[test]
    fn an_empty_window_holds_nothing() {
        let start = Instant::now();
        let mut peaks = Peaks::new(WINDOW);
        assert_eq!(peaks.within_window(start), None);
        peaks.see(3, start);
        assert_eq!(peaks.within_window(at(start, 130_000)), None);
    }

    #[test]
    fn the_window_agrees_with_a_search_through_every_sample() {
        let start = Instant::now();
        let mut peaks = Peaks::new(WINDOW);
        let mut samples = Vec::new();
        // A fixed linear congruential sequence: sawteeth, plateaus and drops at irregular intervals.
        let (mut random, mut now) = (1u64, 0u64);
        for _ in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += (random >> 33) % 20;
            let value = (random >> 40) % 1000;
            peaks.see(value, at(start, now));
            samples.push((now, value));
            if samples.len() % 97 == 0 {
                let shown = peaks.within_window(at(start, now)).unwrap();
                let within = |span: u64| samples.iter().filter(|s| s.0 + span >= now).map(|s| s.1).max().unwrap();
                assert!(shown >= within(60_000), "a peak within the window was lost");
                assert!(shown <= within(60_600), "a peak stayed for more than a slot too long");
            }
        }
    }

    #[test]
    fn what_is_absorbed_keeps_its_time() {
        let start = Instant::now();
        for (mine, theirs) in [(0, 30_000), (30_000, 0), (7, 8)] {
            let (mut one, mut other) = (Peaks::new(WINDOW), Peaks::new(WINDOW));
            one.see(3, at(start, mine));
            other.see(100, at(start, theirs));
            other.see(2, at(start, theirs + 10));
            one.absorb(&other);
            assert_eq!(one.highest(), 100);
            assert_eq!(one.within_window(at(start, theirs + 59_999)), Some(100));
            one.see(1, at(start, theirs + 61_300));
            assert!(one.within_window(at(start, theirs + 61_300)).unwrap() < 100, "{mine} {theirs}");
        }
    }

    #[test]
    fn what_calls_tell_counts_where_no_recorded_value_is_as_high() {
        let start = Instant::now();
        let mut peaks = Peaks::new(WINDOW);
        peaks.see(10, at(start, 0));
        assert_eq!(peaks.is_of_calls(at(start, 0)), None);
        peaks.see_call(15, at(start, 10));
        assert_eq!((peaks.within_window(at(start, 20)), peaks.highest()), (Some(15), 15));
        assert_eq!(peaks.is_of_calls(at(start, 20)), Some(true));
        let mut other = Peaks::new(WINDOW);
        other.absorb(&peaks);
        assert_eq!(other.is_of_calls(at(start, 20)), Some(true));
        peaks.see(15, at(start, 30));
        assert_eq!(peaks.is_of_calls(at(start, 30)), Some(false), "a reading shows as much");
        peaks.see(2, at(start, 61_300));
        assert_eq!((peaks.within_window(at(start, 61_300)), peaks.highest()), (Some(2), 15));
    }

    #[test]
    fn memory_is_bounded_even_when_every_value_is_lower_than_the_last() {
        let start = Instant::now();
        let (mut peaks, mut roomy) = (Peaks::new(WINDOW), Peaks::with_room(WINDOW));
        let room = roomy.slots.capacity();
        for tick in 0..200_000 {
            peaks.see(1_000_000 - tick, at(start, tick));
            roomy.see(1_000_000 - tick, at(start, tick));
            assert!(roomy.slots.len() <= MOST_SLOTS, "{}", roomy.slots.len());
        }
        assert_eq!(peaks.slots, roomy.slots);
        assert_eq!(roomy.slots.capacity(), room);
    }
}
