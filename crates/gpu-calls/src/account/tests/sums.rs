//! Sums over the processes of a device: who counts, and what is too much.

use std::collections::BTreeMap;

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

/// The highest peaks that calls and lists of several processes tell, in an order that looks random. `every`: after how many
/// steps they are followed, when all sums are computed again.
fn peaks_of_many(every: u64) -> Vec<BTreeMap<String, u64>> {
    let mut rig = Rig::new();
    let gpu = gpu(0);
    let names = ["a", "b", "a", "c", "b"];
    // A fixed linear congruential sequence.
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut all = Vec::new();
    let mut highest = BTreeMap::new();
    for step in 1..=3000 {
        let moment = 10 * step;
        let pid = 1 + u32::try_from(next(5)).unwrap();
        match next(10) {
            0..=4 => rig.take(pid, moment, (1 + next(8)) * 128 * MIB),
            5..=7 => rig.free(pid, moment, (1 + next(8)) * 128 * MIB),
            8 => {
                rig.call(pid, moment, Call::Free { address: 5 });
            }
            _ => {
                let processes: Vec<_> = (1..).zip(names).map(|(pid, name)| (pid, name, next(8) * GIB)).collect();
                // Some lists take long, so that calls are made meanwhile.
                rig.account.list(&list(&gpu, &processes), span(moment, moment + 1 + next(60)));
            }
        }
        if step % every == 0 {
            for (who, bytes) in rig.peaks(moment) {
                let known = highest.entry(who).or_default();
                *known = bytes.max(*known);
            }
        }
        if step % 50 == 0 {
            all.push(std::mem::take(&mut highest));
        }
    }
    all
}

#[test]
fn kept_sums_are_those_that_are_computed_again() {
    let kept = peaks_of_many(50);
    assert!(kept.iter().filter(|peaks| peaks.get("gpu 0").is_some_and(|bytes| *bytes > 0)).count() > 20, "{kept:?}");
    assert_eq!(kept, peaks_of_many(1));
}

// To look at every process for every call would take a minute or more.
#[test]
fn a_flood_of_calls_beside_many_processes_costs_little() {
    let mut rig = Rig::new();
    let processes: Vec<_> = (1..=3000).map(|pid| (pid, if pid == 1 { "a" } else { "b" }, 16 * MIB)).collect();
    rig.account.list(&list(&gpu(0), &processes), span(10, 11));
    for spike in 1..=50_000 {
        rig.take(1, 20 + 2 * spike, 4 * MIB + spike);
        rig.free(1, 21 + 2 * spike, 4 * MIB + spike);
    }
    let highest = 4 * MIB + 50_000;
    let expected =
        [("a", 16 * MIB + highest), ("gpu 0", 3000 * 16 * MIB + 8 * MIB + highest), ("process 1", 16 * MIB + highest)];
    assert_eq!(told(&rig.peaks(200_000)), expected);
}
