//! Tests of the record.

use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn entry(pid: u32, membership: Membership, used: Option<u64>) -> Entry {
    Entry { key: ProcessId { pid, start_ticks: Some(u64::from(pid)) }, membership, used }
}

fn tree(pid: u32, used: u64) -> Entry {
    entry(pid, Membership::Tree, Some(used))
}

fn extreme(bytes: u64, at: u64) -> Option<Extreme> {
    Some(Extreme { bytes, at: ms(at) })
}

impl Record {
    /// The record of this many devices.
    pub(in super::super) fn of(places: usize) -> Self {
        let mut record = Self::default();
        record.has_places(places);
        record
    }

    /// Records the memory of a device that can allocate this much.
    pub(in super::super) fn see(&mut self, place: usize, at: Duration, used: u64, total: u64) {
        self.sample(place, at, Some(MemoryFigures { total, used, ..MemoryFigures::default() }), None, Duration::ZERO);
    }

    /// Records a list of a device that holds what the processes hold.
    fn hold(&mut self, place: usize, at: u64, entries: &[Entry]) {
        let used = Some(entries.iter().filter_map(|entry| entry.used).sum());
        self.list(place, ms(at), entries, [used; 2]);
    }
}

#[test]
fn a_sum_is_of_one_moment_and_not_of_peaks() {
    let mut record = Record::of(1);
    for (at, one, other) in [(0, 10, 50), (100, 50, 10), (200, 30, 31)] {
        record.hold(0, at, &[tree(1, one), tree(2, other)]);
    }
    assert_eq!(record.together, extreme(61, 200));
    assert_eq!(record.places[0].tree_peak, extreme(61, 200));
    let peaks: Vec<_> = record.places[0].processes.iter().flatten().map(|(_, process)| process.peak).collect();
    assert_eq!(peaks, [extreme(50, 100), extreme(50, 0)]);
    // One list is of one moment by itself, even if memory changed while it was read.
    record.list(0, ms(300), &[tree(1, 70)], [Some(70), Some(20)]);
    assert_eq!((record.together, record.together_is_at_least()), (extreme(70, 300), false));
}

#[test]
fn devices_are_summed_at_one_moment_too() {
    let mut record = Record::of(2);
    record.hold(0, 0, &[tree(1, 40)]);
    record.hold(1, 2, &[tree(1, 5)]);
    assert_eq!(record.together, None, "the first device may have changed before the second was listed");
    record.see(0, ms(3), 40, 100);
    assert_eq!((record.together, record.together_is_at_least()), (extreme(45, 2), false));
    // A change of each device, and a list after each change.
    for (place, used) in [(0, 10), (1, 20)] {
        record.see(place, ms(10), used, 100);
    }
    record.hold(0, 11, &[tree(1, 10)]);
    record.hold(1, 12, &[tree(1, 20)]);
    record.see(0, ms(20), 10, 100);
    record.see(1, ms(20), 20, 100);
    record.end();
    assert_eq!((record.together, record.together_is_at_least()), (extreme(45, 2), false));
    assert_eq!([0, 1].map(|place| record.places[place].tree_peak), [extreme(40, 0), extreme(20, 12)]);
}

#[test]
fn a_sum_of_several_moments_is_no_peak_and_makes_the_peak_a_lower_bound() {
    let changed = |second: &dyn Fn(&mut Record)| {
        let mut record = Record::of(2);
        record.hold(0, 0, &[tree(1, 40)]);
        second(&mut record);
        record.end();
        (record.together, record.together_is_at_least())
    };
    // The first device changed before the second was listed, or may have.
    let seen_after = |record: &mut Record| {
        record.hold(1, 2, &[tree(1, 5)]);
        record.see(0, ms(3), 10, 100);
    };
    assert_eq!(changed(&seen_after), (None, true));
    assert_eq!(changed(&|record| record.hold(1, 2, &[tree(1, 5)])), (None, true), "it is not read again");
    let while_listed = |record: &mut Record| record.list(1, ms(2), &[tree(1, 5)], [Some(5), Some(9)]);
    assert_eq!(changed(&|record| (0..2).for_each(|_| while_listed(record))), (None, true));
    // The next list of the first device is of the level of the one before it: it had not changed in between.
    let listed_again = |record: &mut Record| {
        record.hold(1, 2, &[tree(1, 5)]);
        record.hold(0, 100, &[tree(1, 40)]);
        record.see(1, ms(101), 5, 100);
    };
    assert_eq!(changed(&listed_again), (extreme(45, 2), false));
    // Memory that moves from one device to another is in the lists of both for a moment.
    let moved = |record: &mut Record| {
        record.hold(1, 2, &[tree(1, 5)]);
        record.see(0, ms(3), 40, 100);
        record.see(0, ms(4), 0, 100);
        record.see(1, ms(4), 45, 100);
        record.hold(1, 5, &[tree(1, 45)]);
        record.hold(0, 6, &[]);
        record.see(1, ms(7), 45, 100);
    };
    assert_eq!(changed(&moved), (extreme(45, 2), false));
}

#[test]
fn sums_that_wait_are_limited() {
    let mut record = Record::of(2);
    record.hold(0, 0, &[tree(1, 40)]);
    (1..=MOST_SUMS as u64 + 5).for_each(|at| record.hold(1, at, &[tree(1, 5)]));
    assert!(record.waiting.len() <= MOST_SUMS && record.together_is_at_least());
}

#[test]
fn processes_of_others_are_no_part_of_the_sum() {
    let mut record = Record::of(1);
    let others = [entry(7, Membership::Other, Some(90)), entry(8, Membership::Unidentified, None)];
    record.hold(0, 0, &others);
    assert_eq!((record.together, record.places[0].tree_peak), (None, None));
    assert!(!record.places[0].unknown_memory);
    assert_eq!(record.places[0].processes.as_ref().map(BTreeMap::len), Some(2));
}

#[test]
fn processes_beyond_the_limit_are_in_the_sum() {
    let mut record = Record::of(1);
    let many: Vec<Entry> = (1..=MOST_PROCESSES as u32 + 3).map(|pid| tree(pid, 2)).collect();
    record.hold(0, 0, &many[..MOST_PROCESSES]);
    assert!(!record.places[0].left_out);
    record.hold(0, 1, &many);
    let place = &record.places[0];
    assert_eq!(place.tree_peak, extreme(2 * many.len() as u64, 1));
    assert_eq!((place.processes.as_ref().map(BTreeMap::len), place.left_out), (Some(MOST_PROCESSES), true));
}

#[test]
fn a_sum_with_unknown_memory_is_unknown() {
    let mut record = Record::of(1);
    record.hold(0, 0, &[tree(1, 40), entry(2, Membership::Tree, None)]);
    assert_eq!((record.together, record.places[0].tree_peak), (None, None));
    assert!(record.places[0].unknown_memory);
    record.hold(0, 5, &[tree(1, 40)]);
    assert_eq!(record.together, extreme(40, 5));
}

#[test]
fn a_device_whose_list_cannot_be_read_makes_the_sum_unknown() {
    let mut record = Record::of(2);
    record.hold(0, 0, &[tree(1, 40)]);
    [0, 1].iter().for_each(|place| record.see(*place, ms(1), 40, 100));
    assert_eq!((record.together, record.places[0].tree_peak), (None, extreme(40, 0)));
    assert!(record.places[0].processes.is_some() && record.places[1].processes.is_none());
    record.hold(1, 9, &[tree(1, 5)]);
    record.see(0, ms(10), 40, 100);
    assert_eq!(record.together, extreme(45, 9));
}

#[test]
fn extremes_are_those_of_every_sample_and_a_sample_that_is_seen_again_counts_once() {
    let mut record = Record::of(1);
    for (at, used) in [(0, 89), (10, 95), (10, 95), (19, 10), (40, 99), (50, 20)] {
        record.see(0, ms(at), used, 100);
    }
    let full = MemoryFigures { total: 100, used: 20, ..MemoryFigures::default() };
    record.sample(0, ms(51), Some(full), None, ms(25));
    let place = &record.places[0];
    assert_eq!((place.own_peak, place.least_free), (extreme(99, 40), extreme(1, 40)));
    assert_eq!((place.allocatable, place.nearly_full, record.has_samples()), (Some(100), ms(25), true));
    assert_eq!((place.samples.count, place.samples.longest_gap), (6, ms(21)));
    assert!(!place.has_no_memory);
    record.sample(0, ms(60), None, None, ms(25));
    assert!(record.places[0].has_no_memory && record.places[0].own_peak.is_some());
}

#[test]
fn the_level_of_a_list_shows_which_spikes_had_none() {
    let mut record = Record::of(1);
    record.see(0, ms(0), 100, 1000);
    record.list(0, ms(0), &[tree(1, 90)], [Some(100), Some(120)]);
    record.see(0, ms(1), 700, 1000);
    record.see(0, ms(9), 100, 1000);
    record.list(0, ms(9), &[tree(1, 90)], [Some(100), None]);
    let place = &record.places[0];
    assert_eq!((place.own_peak, place.listed_peak), (extreme(700, 1), Some(100)));
    assert_eq!((place.samples.count, place.samples.longest_gap), (3, ms(8)));
    assert_eq!((place.lists.count, place.lists.longest_gap), (2, ms(9)));
}
