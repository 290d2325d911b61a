//! What one process holds at least on one device: the last reading, and what calls tell since.
//!
//! Two things are known at any moment. The process holds what its last reading showed, plus what it took since, minus what
//! it may have given back. And it holds the allocations that are known to live. The higher of the two is the bound.
//!
//! What a call changes depends on where the driver takes the memory from ([`Class`]). Measured with NVML beside the calls
//! (`docs/probes.md`): an allocation of 2 MiB or more has memory of its own, which goes back when it is freed. Smaller ones
//! share blocks of 2 MiB, and those of a pool share its reserve: such a request may be met from memory that the process
//! holds already, so it adds nothing to a reading, and a free may give back more than its size.
//!
//! Invariant: a call that was in progress while a reading was taken may be in the reading or not, and counts as what makes
//! the bound lower.

use std::collections::VecDeque;
use std::time::Duration;

/// The size of the blocks that small allocations share.
pub(super) const BLOCK: u64 = 2 << 20;
/// The maximum number of calls of a process that give memory back at the same time.
const GIVEN: usize = 4096;

/// Where the driver takes the memory of a request from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// From the device, for this request alone.
    Own,
    /// From a block that several small requests share.
    Packed,
    /// From a pool.
    Pool,
    /// Calls do not tell: managed memory, memory of the host, memory of another process.
    Unfollowed,
}

/// When a call began and ended, on CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: Duration,
    pub(super) end: Duration,
}

/// A reading, and what calls have changed since.
#[derive(Debug, Clone, Copy)]
struct Base {
    reading: u64,
    /// When the reading was complete. A call that began before may be in it.
    complete: Duration,
    /// Bytes: what was taken since, minus what was given back, of memory for one allocation alone.
    grown: i64,
    /// Bytes: the most that may have been given back besides.
    released: u64,
    /// Whether memory was given back of which calls do not tell how much.
    is_lost: bool,
    /// Bytes: the plain sum of the sizes, for the correction; `None` before the first call.
    sum: Option<i64>,
}

impl Base {
    fn add(&mut self, bytes: u64) {
        self.sum = Some(self.sum.unwrap_or(0).saturating_add(signed(bytes)));
    }

    fn subtract(&mut self, bytes: u64) {
        self.sum = Some(self.sum.unwrap_or(0).saturating_sub(signed(bytes)));
    }

    fn take(&mut self, class: Class, bytes: u64, span: Span) {
        if class == Class::Unfollowed || span.start <= self.complete {
            return;
        }
        self.add(bytes);
        if class == Class::Own {
            self.grown = self.grown.saturating_add(signed(bytes));
        }
    }

    fn give(&mut self, class: Class, bytes: u64) {
        match class {
            Class::Own => self.grown = self.grown.saturating_sub(signed(bytes)),
            Class::Packed => self.released = self.released.saturating_add(BLOCK),
            // The pool may give back all that it keeps.
            Class::Pool => self.is_lost = true,
            Class::Unfollowed => return,
        }
        self.subtract(bytes);
    }

    fn at_least(&self) -> Option<u64> {
        let expected = signed(self.reading).saturating_add(self.grown).saturating_sub(signed(self.released));
        (!self.is_lost).then(|| u64::try_from(expected).unwrap_or(0))
    }
}

/// What one process holds on one device.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    current: Option<Base>,
    /// The base before, which is valid until the reading of the current one was complete.
    former: Option<Base>,
    /// Calls that gave memory back and may be in progress while the next reading is taken: when each ended, and what it
    /// gave.
    given: VecDeque<(Duration, Class, u64)>,
    /// Until when memory may have been given back of which nothing is remembered: a reading that began before may have it.
    forgotten: Option<Duration>,
    /// Whether the process has used a pool. Then memory goes back to the device without a call that says so.
    has_pool: bool,
}

impl Held {
    /// Of a process that may have given memory back until this moment.
    pub(super) fn after(forgotten: Option<Duration>) -> Self {
        Self { forgotten, ..Self::default() }
    }

    /// Takes in a reading that was taken within `span`; `None` if the driver did not report it. Returns by how many bytes
    /// it differs from what calls told since the last one, if there were any and they tell all.
    pub(super) fn read(&mut self, reading: Option<u64>, span: Span) -> Option<u64> {
        let correction = reading.zip(self.current).and_then(|(now, before)| {
            let told = signed(before.reading).saturating_add(before.sum?);
            (!before.is_lost).then(|| signed(now).abs_diff(told))
        });
        self.former = self.current;
        let is_lost = self.has_pool || self.forgotten.is_some_and(|until| until >= span.start);
        self.current = reading.map(|reading| {
            let base = Base { reading, complete: span.end, grown: 0, released: 0, is_lost, sum: None };
            let late = self.given.iter().filter(|(end, ..)| *end >= span.start);
            let mut given = late.fold(base, |mut base, &(_, class, bytes)| {
                base.give(class, bytes);
                base
            });
            given.sum = None;
            given
        });
        self.given.retain(|(end, ..)| *end >= span.start);
        correction
    }

    /// Bytes in use at the last reading.
    pub(super) fn reading(&self) -> Option<u64> {
        self.current.map(|base| base.reading)
    }

    /// Takes in a request that was granted.
    pub(super) fn take(&mut self, class: Class, bytes: u64, span: Span) {
        self.bases().for_each(|base| base.take(class, bytes, span));
        if class == Class::Pool {
            self.has_pool = true;
            self.lose_known();
        }
    }

    /// Takes in a call that gave memory back.
    pub(super) fn give(&mut self, class: Class, bytes: u64, span: Span) {
        self.bases().for_each(|base| base.give(class, bytes));
        if self.given.len() == GIVEN {
            let oldest = self.given.pop_front().map(|(end, ..)| end);
            self.forgotten = self.forgotten.max(oldest);
        }
        self.given.push_back((span.end, class, bytes));
    }

    /// Takes in a call that gave memory back, and does not tell how much.
    pub(super) fn lose(&mut self, span: Span) {
        self.give(Class::Pool, 0, span);
    }

    /// Takes in that the readings so far tell nothing.
    pub(super) fn lose_known(&mut self) {
        self.bases().for_each(|base| base.is_lost = true);
    }

    /// Takes in that any memory may have been given back until this moment.
    pub(super) fn lose_until(&mut self, moment: Duration) {
        self.lose_known();
        self.forgotten = self.forgotten.max(Some(moment));
    }

    /// Bytes that the process held at least at a moment, according to its readings.
    pub(super) fn at_least(&self, at: Duration) -> Option<u64> {
        let current = self.current?;
        let former = self.former.filter(|_| at <= current.complete);
        current.at_least().max(former.and_then(|former| former.at_least()))
    }

    fn bases(&mut self) -> impl Iterator<Item = &mut Base> {
        self.current.iter_mut().chain(&mut self.former)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn span(start: u64, end: u64) -> Span {
        Span { start: Duration::from_millis(start), end: Duration::from_millis(end) }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// With a reading of 100 MiB, taken from 10 to 11 ms.
    fn read() -> Held {
        let mut held = Held::default();
        assert_eq!(held.read(Some(100 * MIB), span(10, 11)), None);
        held
    }

    #[test]
    fn what_is_taken_after_a_reading_is_added_and_what_is_given_back_is_subtracted() {
        let mut held = read();
        held.take(Class::Own, 50 * MIB, span(20, 21));
        assert_eq!(held.at_least(at(21)), Some(150 * MIB));
        held.give(Class::Own, 30 * MIB, span(22, 23));
        assert_eq!(held.at_least(at(23)), Some(120 * MIB));
        assert_eq!(held.read(Some(121 * MIB), span(30, 31)), Some(MIB));
        assert_eq!((held.at_least(at(32)), held.reading()), (Some(121 * MIB), Some(121 * MIB)));
    }

    #[test]
    fn calls_in_progress_during_a_reading_make_the_bound_lower() {
        // Taken while the reading was taken: it may be in it.
        let mut held = read();
        held.take(Class::Own, 50 * MIB, span(9, 12));
        assert_eq!(held.at_least(at(12)), Some(100 * MIB));
        // Given back meanwhile: the reading may still have it, before the call was known and after.
        let mut held = Held::default();
        held.give(Class::Own, 30 * MIB, span(9, 10));
        held.read(Some(100 * MIB), span(10, 11));
        assert_eq!(held.at_least(at(12)), Some(70 * MIB));
        let mut held = read();
        held.give(Class::Own, 30 * MIB, span(10, 12));
        assert_eq!(held.at_least(at(12)), Some(70 * MIB));
        // Long before: the reading does not have it.
        let mut held = Held::default();
        held.give(Class::Own, 30 * MIB, span(1, 9));
        held.read(Some(100 * MIB), span(10, 11));
        assert_eq!(held.at_least(at(12)), Some(100 * MIB));
    }

    #[test]
    fn a_spike_during_a_reading_counts_on_the_reading_before() {
        let mut held = read();
        held.read(Some(100 * MIB), span(20, 25));
        held.take(Class::Own, 50 * MIB, span(21, 22));
        assert_eq!(held.at_least(at(22)), Some(150 * MIB));
        held.give(Class::Own, 50 * MIB, span(23, 24));
        assert_eq!(held.at_least(at(26)), Some(50 * MIB), "the reading may be from before the free");
    }

    #[test]
    fn small_requests_add_nothing_and_a_small_free_may_give_back_a_block() {
        let mut held = read();
        for _ in 0..10_000 {
            held.take(Class::Packed, 64 << 10, span(20, 21));
        }
        assert_eq!(held.at_least(at(21)), Some(100 * MIB));
        held.give(Class::Packed, 64 << 10, span(22, 23));
        assert_eq!(held.at_least(at(23)), Some(98 * MIB));
        let correction = held.read(Some(700 * MIB), span(30, 31));
        assert_eq!(correction, Some(9_999 * (64 << 10) - 600 * MIB), "from the plain sum of the sizes");
    }

    #[test]
    fn a_pool_or_an_unknown_free_leaves_no_bound_until_the_next_reading() {
        let mut held = read();
        held.take(Class::Pool, 50 * MIB, span(20, 21));
        assert_eq!(held.at_least(at(21)), None);
        held.read(Some(150 * MIB), span(30, 31));
        assert_eq!(held.at_least(at(32)), None, "a pool gives back without a call");
        let mut held = read();
        held.lose(span(12, 13));
        assert_eq!((held.at_least(at(12)), held.read(Some(5), span(20, 21))), (None, None));
        assert_eq!(held.at_least(at(22)), Some(5));
    }

    #[test]
    fn a_reading_that_began_before_memory_was_given_back_has_no_bound() {
        let unknown = |held: &mut Held| held.lose(span(12, 25));
        let lost = |held: &mut Held| held.lose_until(at(25));
        let ways: [&dyn Fn(&mut Held); 2] = [&unknown, &lost];
        for (way, lose) in ways.iter().enumerate() {
            for (reading, expected) in [(span(20, 21), None), (span(25, 27), None), (span(26, 27), Some(100 * MIB))] {
                let mut held = read();
                lose(&mut held);
                held.read(Some(100 * MIB), reading);
                assert_eq!(held.at_least(at(30)), expected, "{way} {reading:?}");
                // Also if it is known only after the reading.
                let mut held = read();
                held.read(Some(100 * MIB), reading);
                lose(&mut held);
                assert_eq!(held.at_least(at(30)), None, "{way} {reading:?}");
            }
        }
        let mut held = Held::after(Some(at(15)));
        held.read(Some(100 * MIB), span(10, 11));
        assert_eq!(held.at_least(at(30)), None, "the first reading of a device");
    }

    #[test]
    fn a_list_that_comes_late_may_have_what_was_given_back_since_it_began() {
        for count in [10, GIVEN as u64, 2 * GIVEN as u64] {
            let mut held = Held::default();
            held.read(Some(100_000 * MIB), span(10, 11));
            // Each is over before the next, and all come before the list that began earlier than they.
            for call in 0..count {
                held.give(Class::Own, MIB, span(21 + 2 * call, 22 + 2 * call));
            }
            held.read(Some(100_000 * MIB), span(20, 60_000));
            let left = (count <= GIVEN as u64).then(|| (100_000 - count) * MIB);
            assert_eq!(held.at_least(at(60_001)), left, "{count}");
        }
    }

    #[test]
    fn any_number_of_frees_leaves_the_next_reading_as_it_is_unless_they_overlap_it() {
        for (length, expected) in [(1, Some(100 * MIB)), (100_000, None)] {
            let mut held = read();
            for call in 0..10_000 {
                held.give(Class::Own, MIB, span(20 + call, 20 + call + length));
            }
            held.read(Some(100 * MIB), span(20_000, 20_001));
            assert_eq!(held.at_least(at(20_002)), expected);
        }
    }

    #[test]
    fn more_may_be_given_back_than_was_held() {
        let mut held = read();
        held.give(Class::Own, u64::MAX, span(20, 21));
        held.take(Class::Own, u64::MAX, span(22, 23));
        held.give(Class::Own, u64::MAX, span(24, 25));
        assert_eq!(held.at_least(at(25)), Some(0));
    }
}
