//! What was measured, accumulated sample by sample and list by list. Pure: nothing here reads a clock or a device.
//!
//! Invariant: a sum of processes is taken from lists that were read at one moment. While the memory of one process in a
//! sum is unknown, the sum is unknown. A time is counted from the start of the command.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// The share of the allocatable memory from which on a GPU counts as nearly full.
pub(super) const NEARLY_FULL: f64 = 0.9;
/// A longer gap between two samples is not counted as time at the level of its first sample.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// Bytes: a peak is a spike without a list if it was this much higher than any level whose processes are known.
const SPIKE: u64 = 32 << 20;

/// An extreme value and when it was first measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extreme {
    pub(super) bytes: u64,
    pub(super) at: Duration,
}

/// A process: its pid and its start time in clock ticks, `None` if `/proc` does not show the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ProcessKey {
    pub(super) pid: u32,
    pub(super) start: Option<u64>,
}

/// Whose process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// The command, or a descendant of it.
    Tree,
    /// A process that the command did not start.
    Other,
    /// `/proc` does not show the process, so its ancestors are unknown.
    Unidentified,
}

/// A process in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: ProcessKey,
    pub(super) membership: Membership,
    /// Bytes; `None` if the driver does not report them.
    pub(super) used: Option<u64>,
}

/// The memory of a GPU or MIG device at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) used: u64,
    pub(super) allocatable: u64,
}

/// One process on one GPU or MIG device.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessRecord {
    pub(super) membership: Membership,
    /// `None` if the driver never reported its memory.
    pub(super) peak: Option<Extreme>,
}

/// One GPU or MIG device.
#[derive(Debug, Clone, Default)]
pub(super) struct PlaceRecord {
    /// `None` if the driver does not report the memory of the device.
    pub(super) allocatable: Option<u64>,
    /// The highest memory in use, by whatever process.
    pub(super) own_peak: Option<Extreme>,
    /// The lowest free memory.
    pub(super) least_free: Option<Extreme>,
    /// The time at or above [`NEARLY_FULL`].
    pub(super) nearly_full: Duration,
    /// The highest memory in use both before and after a list was read: the highest level whose processes are known.
    pub(super) listed_peak: Option<u64>,
    /// The highest sum of the command's processes.
    pub(super) tree_peak: Option<Extreme>,
    /// The number of the command's processes at that moment.
    pub(super) tree_processes: usize,
    /// `None` before the first list.
    pub(super) processes: Option<BTreeMap<ProcessKey, ProcessRecord>>,
    /// Whether the driver listed a process of the command without its memory.
    pub(super) unknown_memory: bool,
    /// Failed calls to the device, and the first of them.
    pub(super) failures: u64,
    pub(super) first_failure: Option<String>,
    /// The sum of the command's processes in the last list; `None` if it is unknown.
    tree_now: Option<u64>,
    last: Option<(Duration, bool)>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) places: Vec<PlaceRecord>,
    /// The highest sum of the command's processes over all devices.
    pub(super) together: Option<Extreme>,
    /// When the first sample was taken.
    pub(super) first: Option<Duration>,
    /// Rounds of samples over all devices.
    pub(super) rounds: u64,
    /// Rounds of lists.
    pub(super) lists: u64,
    pub(super) longest_gap: Duration,
    pub(super) longest_list_gap: Duration,
    last_round: Option<Duration>,
    last_list: Option<Duration>,
}

impl Record {
    pub(super) fn new(places: usize) -> Self {
        Self { places: vec![PlaceRecord { tree_now: Some(0), ..PlaceRecord::default() }; places], ..Self::default() }
    }

    /// A round of samples begins.
    pub(super) fn begin_round(&mut self, at: Duration) {
        self.first.get_or_insert(at);
        self.rounds += 1;
        let gap = self.last_round.replace(at).map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.longest_gap = self.longest_gap.max(gap);
    }

    /// The memory of a device.
    pub(super) fn sample(&mut self, place: usize, at: Duration, level: Level) {
        let place = &mut self.places[place];
        place.allocatable = Some(level.allocatable);
        place.close_step(at);
        place.last = Some((at, level.used as f64 >= NEARLY_FULL * level.allocatable as f64));
        raise(&mut place.own_peak, level.used, at);
        let free = level.allocatable.saturating_sub(level.used);
        if place.least_free.is_none_or(|least| free < least.bytes) {
            place.least_free = Some(Extreme { bytes: free, at });
        }
    }

    /// The memory of a device could not be read: it is unknown until the next sample.
    pub(super) fn no_sample(&mut self, place: usize, at: Duration, error: &dyn Display) {
        let place = &mut self.places[place];
        place.fail(error);
        place.close_step(at);
    }

    /// The processes of a device could not be read: their sum is unknown until the next list.
    pub(super) fn no_list(&mut self, place: usize, error: &dyn Display) {
        let place = &mut self.places[place];
        place.fail(error);
        place.tree_now = None;
    }

    /// The processes of a device. `level`: the memory in use before and after the list was read, the lower of the two.
    pub(super) fn list(&mut self, place: usize, at: Duration, entries: &[Entry], level: Option<u64>) {
        let place = &mut self.places[place];
        place.listed_peak = place.listed_peak.max(level);
        let (mut sum, mut count) = (Some(0_u64), 0);
        let processes = place.processes.get_or_insert_default();
        for entry in entries {
            let new = ProcessRecord { membership: entry.membership, peak: None };
            let process = processes.entry(entry.key).or_insert(new);
            if let Some(used) = entry.used {
                raise(&mut process.peak, used, at);
            }
            if entry.membership == Membership::Tree {
                count += 1;
                sum = sum.zip(entry.used).map(|(sum, used)| sum.saturating_add(used));
            }
        }
        place.unknown_memory |= sum.is_none();
        place.tree_now = sum;
        if let Some(sum) = sum.filter(|_| count > 0)
            && raise(&mut place.tree_peak, sum, at)
        {
            place.tree_processes = count;
        }
    }

    /// All lists of a round have been read: sums them over the devices.
    pub(super) fn end_lists(&mut self, at: Duration) {
        self.lists += 1;
        let gap = self.last_list.replace(at).map_or(Duration::ZERO, |last| at.saturating_sub(last));
        self.longest_list_gap = self.longest_list_gap.max(gap);
        let sum = self.places.iter().try_fold(0_u64, |sum, place| Some(sum.saturating_add(place.tree_now?)));
        if let Some(sum) = sum.filter(|&sum| sum > 0) {
            raise(&mut self.together, sum, at);
        }
    }

    /// The measurement ends.
    pub(super) fn end(&mut self, at: Duration) {
        self.places.iter_mut().for_each(|place| place.close_step(at));
    }
}

impl PlaceRecord {
    /// The peak of the device, if it was too short for a list of its processes.
    pub(super) fn spike(&self) -> Option<Extreme> {
        self.own_peak.filter(|peak| peak.bytes > self.listed_peak.unwrap_or(0).saturating_add(SPIKE))
    }

    fn fail(&mut self, error: &dyn Display) {
        self.failures += 1;
        self.first_failure.get_or_insert_with(|| error.to_string());
    }

    fn close_step(&mut self, at: Duration) {
        if let Some((since, true)) = self.last.take() {
            let step = at.saturating_sub(since);
            self.nearly_full += if step <= LONGEST_STEP { step } else { Duration::ZERO };
        }
    }
}

/// Replaces the extreme if the value is higher. Returns whether it was.
fn raise(peak: &mut Option<Extreme>, bytes: u64, at: Duration) -> bool {
    let higher = peak.is_none_or(|peak| bytes > peak.bytes);
    if higher {
        *peak = Some(Extreme { bytes, at });
    }
    higher
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn entry(pid: u32, membership: Membership, used: Option<u64>) -> Entry {
        Entry { key: ProcessKey { pid, start: Some(u64::from(pid)) }, membership, used }
    }

    fn tree(pid: u32, used: u64) -> Entry {
        entry(pid, Membership::Tree, Some(used))
    }

    fn extreme(bytes: u64, at: u64) -> Option<Extreme> {
        Some(Extreme { bytes, at: ms(at) })
    }

    #[test]
    fn a_sum_is_of_one_moment_and_not_of_peaks() {
        let mut record = Record::new(1);
        for (at, one, other) in [(0, 10, 50), (100, 50, 10), (200, 30, 31)] {
            record.list(0, ms(at), &[tree(1, one), tree(2, other)], Some(one + other));
            record.end_lists(ms(at));
        }
        assert_eq!(record.together, extreme(61, 200));
        assert_eq!(record.places[0].tree_peak, extreme(61, 200));
        let peaks: Vec<_> = record.places[0].processes.iter().flatten().map(|(_, process)| process.peak).collect();
        assert_eq!(peaks, [extreme(50, 100), extreme(50, 0)]);
    }

    #[test]
    fn devices_are_summed_at_one_moment_too() {
        let mut record = Record::new(2);
        record.list(0, ms(0), &[tree(1, 40)], None);
        record.list(1, ms(0), &[tree(1, 5)], None);
        record.end_lists(ms(0));
        record.list(0, ms(10), &[tree(1, 10)], None);
        record.list(1, ms(10), &[tree(1, 20)], None);
        record.end_lists(ms(10));
        assert_eq!(record.together, extreme(45, 0));
        assert_eq!([0, 1].map(|place| record.places[place].tree_peak), [extreme(40, 0), extreme(20, 10)]);
    }

    #[test]
    fn processes_of_others_are_no_part_of_the_sum() {
        let mut record = Record::new(1);
        let others = [entry(7, Membership::Other, Some(90)), entry(8, Membership::Unidentified, None)];
        record.list(0, ms(0), &others, Some(100));
        record.end_lists(ms(0));
        assert_eq!((record.together, record.places[0].tree_peak), (None, None));
        assert!(!record.places[0].unknown_memory);
        assert_eq!(record.places[0].processes.as_ref().map(BTreeMap::len), Some(2));
    }

    #[test]
    fn a_sum_with_unknown_memory_is_unknown() {
        let mut record = Record::new(1);
        record.list(0, ms(0), &[tree(1, 40), entry(2, Membership::Tree, None)], None);
        record.end_lists(ms(0));
        assert_eq!((record.together, record.places[0].tree_peak), (None, None));
        assert!(record.places[0].unknown_memory);
        record.list(0, ms(5), &[tree(1, 40)], None);
        record.end_lists(ms(5));
        assert_eq!(record.together, extreme(40, 5));
    }

    #[test]
    fn a_list_that_cannot_be_read_makes_the_sum_unknown() {
        let mut record = Record::new(2);
        record.list(0, ms(0), &[tree(1, 40)], None);
        record.no_list(1, &"lost");
        record.end_lists(ms(0));
        assert_eq!((record.together, record.places[0].tree_peak), (None, extreme(40, 0)));
        assert!(record.places[0].processes.is_some() && record.places[1].processes.is_none());
        record.list(1, ms(9), &[tree(1, 5)], None);
        record.end_lists(ms(9));
        assert_eq!(record.together, extreme(45, 9));
    }

    #[test]
    fn time_counts_from_a_sample_above_the_ratio_to_the_next_sample() {
        let mut record = Record::new(1);
        let level = |used| Level { used, allocatable: 100 };
        for (at, used) in [(0, 89), (10, 90), (20, 95), (30, 10), (40, 99)] {
            record.sample(0, ms(at), level(used));
        }
        record.end(ms(45));
        let place = &record.places[0];
        assert_eq!(place.nearly_full, ms(25));
        assert_eq!((place.own_peak, place.least_free), (extreme(99, 40), extreme(1, 40)));
    }

    #[test]
    fn a_time_without_samples_is_not_counted() {
        let mut record = Record::new(1);
        let full = Level { used: 100, allocatable: 100 };
        record.sample(0, ms(0), full);
        record.sample(0, ms(5000), full);
        record.no_sample(0, ms(5010), &"lost");
        record.sample(0, ms(5900), full);
        record.end(ms(5901));
        let place = &record.places[0];
        assert_eq!((place.nearly_full, place.failures, place.first_failure.as_deref()), (ms(11), 1, Some("lost")));
    }

    #[test]
    fn the_level_of_a_list_shows_which_spikes_had_none() {
        let mut record = Record::new(1);
        let level = |used| Level { used, allocatable: 1000 };
        record.begin_round(ms(0));
        record.sample(0, ms(0), level(100));
        record.list(0, ms(0), &[tree(1, 90)], Some(100));
        record.end_lists(ms(0));
        record.begin_round(ms(1));
        record.sample(0, ms(1), level(700));
        record.begin_round(ms(9));
        record.sample(0, ms(9), level(100));
        let place = &record.places[0];
        assert_eq!((place.own_peak, place.listed_peak), (extreme(700, 1), Some(100)));
        assert_eq!((record.rounds, record.lists, record.longest_gap), (3, 1, ms(8)));
    }
}
