use std::time::{Instant, SystemTime};

use super::*;
use crate::recorder::history::{Clock, DeviceKey};
use crate::snapshot::{Gpu, GpuProcesses, Owner, Workload, WorkloadKind};

const GIB: u64 = 1 << 30;

/// The holders: pid, workload and GiB; 0 is unknown.
fn listed(log: &mut PeakLog, at: Micros, holders: &[(u32, &str, u64)], unattributed: Option<u64>) {
    let processes = holders.iter().map(|(pid, workload, gib)| {
        let workload = Workload { name: (*workload).into(), kind: WorkloadKind::Slurm, pod: None };
        let owner = Owner { name: Some(format!("job{pid}")), workload: Some(Arc::new(workload)), ..Owner::default() };
        Process { used: Some(gib * GIB).filter(|bytes| *bytes > 0), ..Process::for_tests(*pid, owner) }
    });
    let list = GpuProcesses {
        gpu: Arc::new(Gpu::default()),
        processes: processes.collect(),
        unattributed,
        ..GpuProcesses::default()
    };
    let key = DeviceKey::of(&list.gpu, None);
    log.list(&DeviceList::of(&list, &key, 0), at);
}

fn shown(log: &PeakLog) -> Vec<RecordedPeak> {
    let now = Clock::starting(Instant::now()).both(Instant::now(), SystemTime::UNIX_EPOCH);
    log.within(0, Micros::MAX).map(|peak| peak.shown(now)).collect()
}

#[test]
fn each_minute_has_its_peak_with_the_first_list_after_it() {
    let mut log = PeakLog::default();
    log.see(SECOND, 10 * GIB);
    listed(&mut log, SECOND + 1, &[(1, "slurm:1", 10)], Some(0));
    log.see(2 * SECOND, 30 * GIB);
    // Read before, and therefore without what rose.
    listed(&mut log, 2 * SECOND, &[(1, "slurm:1", 10)], Some(0));
    assert_eq!(shown(&log)[0].listed_at, None);
    listed(&mut log, 2 * SECOND + 5, &[(1, "slurm:1", 10), (2, "slurm:2", 20)], Some(0));
    log.see(3 * SECOND, 12 * GIB);
    // A later list is another moment.
    listed(&mut log, 3 * SECOND + 5, &[(1, "slurm:1", 12)], Some(0));
    let peaks = shown(&log);
    assert_eq!((peaks.len(), peaks[0].used_bytes, peaks[0].listed_bytes), (1, 30 * GIB, Some(30 * GIB)));
    assert_eq!(peaks[0].held_by, "held by job2 (pid 2, slurm:2) 20.00 GiB, job1 (pid 1, slurm:1) 10.00 GiB");
}

#[test]
fn a_peak_at_the_end_of_a_minute_gets_its_list_in_the_next_one() {
    let mut log = PeakLog::default();
    log.see(59 * SECOND, 30 * GIB);
    log.roll(61 * SECOND, Some(30 * GIB));
    listed(&mut log, 62 * SECOND, &[(1, "slurm:1", 28)], Some(2 * GIB));
    let peaks = shown(&log);
    let at: Vec<_> = peaks.iter().map(|peak| (peak.minute, peak.used_bytes, peak.listed_bytes)).collect();
    assert_eq!(at, [(0, 30 * GIB, Some(28 * GIB)), (1, 30 * GIB, Some(28 * GIB))]);
    assert_eq!(peaks[1].held_by, "held by job1 (pid 1, slurm:1) 28.00 GiB, no visible process 2.00 GiB");
}

#[test]
fn a_late_sample_belongs_to_its_minute_and_an_announced_peak_stays_without_a_list() {
    let mut log = PeakLog::default();
    log.see(30 * SECOND, 20 * GIB);
    log.roll(60 * SECOND, Some(20 * GIB));
    log.see(59 * SECOND + 990_000, 40 * GIB);
    let peaks: Vec<_> = shown(&log).iter().map(|peak| (peak.minute, peak.used_bytes)).collect();
    assert_eq!(peaks, [(0, 40 * GIB), (1, 20 * GIB)]);
    assert!(log.reached(59 * SECOND + 990_000).is_some());
    log.close(59 * SECOND + 990_000);
    listed(&mut log, 70 * SECOND, &[(1, "slurm:1", 20)], Some(0));
    let listed: Vec<_> = shown(&log).iter().map(|peak| peak.listed_bytes).collect();
    assert_eq!(listed, [None, Some(20 * GIB)]);
}

#[test]
fn a_level_that_stays_costs_no_copy_of_its_holders() {
    let mut log = PeakLog::default();
    log.see(0, 30 * GIB);
    for minute in 0..130 {
        log.roll(minute * MINUTE + 1, Some(30 * GIB));
        listed(&mut log, minute * MINUTE + 2, &[(1, "slurm:1", 30)], Some(0));
        log.age(minute * MINUTE + 2);
    }
    assert_eq!(log.minutes.len(), 121);
    let one = heap_use(&log.minutes[0].listing.as_ref().unwrap().holders);
    assert_eq!(log.bytes(), log.minutes.capacity() * size_of::<Peak>() + one);
    log.bound(one + 8 * size_of::<Peak>());
    assert_eq!((log.minutes.len(), shown(&log).last().unwrap().minute), (8, 129));
    log.bound(0);
    assert_eq!(
        (log.minutes.len(), &*shown(&log)[0].held_by),
        (LAST, "holders unknown: no list of processes is kept for it")
    );
}

#[test]
fn many_processes_are_named_by_their_workloads() {
    let mut log = PeakLog::default();
    log.see(1, 66 * GIB);
    let many: Vec<_> = (1..=60).map(|pid| (pid, if pid % 2 == 0 { "slurm:900" } else { "slurm:1" }, 1)).collect();
    listed(&mut log, 2, &[&many[..], &[(99, "slurm:7", 6), (100, "slurm:7", 0)]].concat(), None);
    let peak = &shown(&log)[0];
    assert_eq!((peak.processes, peak.unreported, peak.holders.len()), (Some(62), 1, 3));
    let names: Vec<_> =
        peak.holders.iter().map(|holder| (holder.pid, holder.processes, holder.used_bytes / GIB)).collect();
    assert_eq!(names, [(None, 30, 30), (None, 30, 30), (None, 1, 6)]);
    assert!(peak.held_by.contains("slurm:900 (30 processes) 30.00 GiB"), "{}", peak.held_by);
}
