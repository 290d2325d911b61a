//! Sums over the processes of a device: who counts, and what is too much.

use super::*;

#[test]
fn a_process_that_ended_may_have_made_room() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB), (8, "b", 60 * GIB)]), span(10, 11));
    rig.take(7, 20, 60 * GIB);
    rig.machine.ended.borrow_mut().insert(8);
    let peaks = rig.peaks(100);
    let expected = [("a", 61 * GIB), ("gpu 0", 0), ("process 7", 61 * GIB)];
    assert_eq!(told(&peaks), expected, "the two never held 121 GiB");
}

#[test]
fn a_process_that_is_giving_memory_back_is_left_out() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB), (8, "b", 40 * GIB)]), span(10, 11));
    // A thread of process 8 has been in cuCtxDestroy since 15 ms, and has not returned.
    rig.giving.insert(8);
    rig.take(7, 20, 30 * GIB);
    rig.take(8, 30, 10 * GIB);
    assert_eq!(told(&rig.peaks(100)), [("a", 31 * GIB), ("gpu 0", 31 * GIB + 8 * MIB), ("process 7", 31 * GIB)]);
    rig.giving.clear();
    rig.take(7, 120, 2 * GIB);
    assert_eq!(told(&rig.peaks(200)), [("a", 33 * GIB), ("gpu 0", 0), ("process 7", 33 * GIB)], "83 GiB are too many");
}

#[test]
fn what_no_process_holds_counts_once_it_has_stayed() {
    let mut rig = Rig::new();
    let gpu = gpu(0);
    let read = |rig: &mut Rig, millis, unattributed| {
        let mut list = (*list(&gpu, &[(7, "a", GIB)])).clone();
        list.unattributed = Some(unattributed);
        rig.account.list(&Arc::new(list), span(millis, millis + 1));
        rig.take(7, millis + 10, 30 * GIB);
        rig.free(7, millis + 20, 30 * GIB);
        let peaks = rig.peaks(millis + 50);
        peaks.iter().find(|(who, _)| who == "gpu 0").map(|(_, bytes)| bytes - 31 * GIB)
    };
    assert_eq!(read(&mut rig, 100, 300 * MIB), Some(300 * MIB));
    // A process of 40 GiB is ending: no list has it any more, and its memory goes before this process takes its own.
    assert_eq!(read(&mut rig, 200, 40 * GIB), Some(300 * MIB));
    assert_eq!(read(&mut rig, 300, 300 * MIB), Some(300 * MIB));
    // What stays counts, after 30 s at the earliest and 60 s at the latest.
    let stays: Vec<_> = (1..=9).map(|tenth| read(&mut rig, 10_000 * tenth, 500 * MIB)).collect();
    assert_eq!((stays[2], stays[8]), (Some(300 * MIB), Some(500 * MIB)), "{stays:?}");
}

#[test]
fn more_than_can_be_allocated_is_not_believed() {
    let mut rig = Rig::new();
    rig.account.list(&list(&gpu(0), &[(7, "a", GIB)]), span(10, 11));
    rig.take(7, 20, 500 * GIB);
    assert!(rig.peaks(100).is_empty());
    rig.take(7, 120, u64::MAX);
    assert!(rig.peaks(200).is_empty());
}
