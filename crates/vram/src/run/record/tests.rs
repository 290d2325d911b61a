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

#[test]
fn a_sum_is_of_one_moment_and_not_of_peaks() {
    let mut record = Record::new(1);
    for (at, one, other) in [(0, 10, 50), (100, 50, 10), (200, 30, 31)] {
        record.list(0, ms(at), &[tree(1, one), tree(2, other)], Some(one + other));
        record.end_lists(ms(at), Pass::OneMoment);
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
    record.end_lists(ms(0), Pass::OneMoment);
    record.list(0, ms(10), &[tree(1, 10)], None);
    record.list(1, ms(10), &[tree(1, 20)], None);
    record.end_lists(ms(10), Pass::OneMoment);
    assert_eq!((record.together, record.together_is_at_least()), (extreme(45, 0), false));
    // The first list is of the moment before both changed, the second of the moment after.
    record.list(0, ms(20), &[tree(1, 40)], None);
    record.list(1, ms(20), &[tree(1, 20)], None);
    record.end_lists(ms(20), Pass::Changed);
    assert_eq!((record.together, record.together_is_at_least()), (extreme(45, 0), true));
    record.list(1, ms(30), &[tree(1, 22)], None);
    record.end_lists(ms(30), Pass::OneMoment);
    assert_eq!((record.together, record.together_is_at_least()), (extreme(62, 30), false));
    assert_eq!([0, 1].map(|place| record.places[place].tree_peak), [extreme(40, 0), extreme(22, 30)]);
}

#[test]
fn processes_of_others_are_no_part_of_the_sum() {
    let mut record = Record::new(1);
    let others = [entry(7, Membership::Other, Some(90)), entry(8, Membership::Unidentified, None)];
    record.list(0, ms(0), &others, Some(100));
    record.end_lists(ms(0), Pass::OneMoment);
    assert_eq!((record.together, record.places[0].tree_peak), (None, None));
    assert!(!record.places[0].unknown_memory);
    assert_eq!(record.places[0].processes.as_ref().map(BTreeMap::len), Some(2));
}

#[test]
fn processes_beyond_the_limit_are_in_the_sum() {
    let mut record = Record::new(1);
    let many: Vec<Entry> = (1..=MOST_PROCESSES as u32 + 3).map(|pid| tree(pid, 2)).collect();
    record.list(0, ms(0), &many[..MOST_PROCESSES], None);
    assert!(!record.places[0].left_out);
    record.list(0, ms(1), &many, None);
    let place = &record.places[0];
    assert_eq!(place.tree_peak, extreme(2 * many.len() as u64, 1));
    assert_eq!((place.processes.as_ref().map(BTreeMap::len), place.left_out), (Some(MOST_PROCESSES), true));
}

#[test]
fn a_sum_with_unknown_memory_is_unknown() {
    let mut record = Record::new(1);
    record.list(0, ms(0), &[tree(1, 40), entry(2, Membership::Tree, None)], None);
    record.end_lists(ms(0), Pass::OneMoment);
    assert_eq!((record.together, record.places[0].tree_peak), (None, None));
    assert!(record.places[0].unknown_memory);
    record.list(0, ms(5), &[tree(1, 40)], None);
    record.end_lists(ms(5), Pass::OneMoment);
    assert_eq!(record.together, extreme(40, 5));
}

#[test]
fn a_list_that_cannot_be_read_makes_the_sum_unknown() {
    let mut record = Record::new(2);
    record.list(0, ms(0), &[tree(1, 40)], None);
    record.no_list(1, &"lost");
    record.end_lists(ms(0), Pass::OneMoment);
    assert_eq!((record.together, record.places[0].tree_peak), (None, extreme(40, 0)));
    assert!(record.places[0].processes.is_some() && record.places[1].processes.is_none());
    record.list(1, ms(9), &[tree(1, 5)], None);
    record.end_lists(ms(9), Pass::OneMoment);
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
    record.end_lists(ms(0), Pass::OneMoment);
    record.begin_round(ms(1));
    record.sample(0, ms(1), level(700));
    record.begin_round(ms(9));
    record.sample(0, ms(9), level(100));
    let place = &record.places[0];
    assert_eq!((place.own_peak, place.listed_peak), (extreme(700, 1), Some(100)));
    assert_eq!((record.rounds, record.lists, record.longest_gap), (3, 1, ms(8)));
}
