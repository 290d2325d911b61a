//! Workloads over time, with made-up timestamps.

use std::time::Duration;

use super::*;
use crate::snapshot::{MigDevice, PodContainer, ProcessKind, WorkloadKind};

const MIB: u64 = 1 << 20;
const WINDOW: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(300);

fn workloads(limit: usize) -> Workloads {
    Workloads::new(Retention { peak_window: WINDOW, linger: LINGER, limit })
}

fn unit(name: &str) -> Arc<Workload> {
    Arc::new(Workload { name: format!("unit:{name}"), kind: WorkloadKind::Systemd, pod: None })
}

fn of(workload: &Arc<Workload>, pid: u32, used: impl Into<Option<u64>>) -> WorkloadMember<'_> {
    let (before, used) = (Some(workload), used.into());
    WorkloadMember { pid, instance: None, mig: None, workload, before, alive: true, used, limit: None, cgroup: None }
}

fn listed(pid: u32, used: u64) -> ListEntry {
    ListEntry { pid, kind: ProcessKind::Compute, used: Some(used), instance: None }
}

fn only(workloads: &mut Workloads, now: Instant) -> WorkloadUse {
    let (mut shown, other) = workloads.show(now, false);
    assert_eq!((shown.len(), other), (1, None));
    shown.remove(0)
}

#[test]
fn the_peak_is_the_peak_of_the_sum_and_not_the_sum_of_the_peaks() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    workloads.fold(&[of(&job, 1, 900 * MIB), of(&job, 2, 100 * MIB)], &[], start);
    workloads.fold(&[of(&job, 1, 100 * MIB), of(&job, 2, 700 * MIB)], &[], start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.processes, shown.used), (2, Some(800 * MIB)));
    assert_eq!((shown.window_peak, shown.peak), (Some(1000 * MIB), Some(1000 * MIB)));
}

#[test]
fn memory_that_moved_between_processes_is_not_counted_twice() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    let earlier = [vec![listed(1, 900 * MIB), listed(2, 0)], vec![listed(1, 500 * MIB), listed(2, 600 * MIB)]];
    workloads.fold(&[of(&job, 1, 0), of(&job, 2, 900 * MIB)], &earlier, start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.used, shown.peak), (Some(900 * MIB), Some(1100 * MIB)));
}

#[test]
fn a_restarted_process_goes_on_with_its_workload() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    workloads.fold(&[of(&job, 1, 900 * MIB)], &[], start);
    workloads.fold(&[], &[], start + WINDOW);
    let between = only(&mut workloads, start + WINDOW);
    assert_eq!((between.processes, between.used, between.peak), (0, None, Some(900 * MIB)));
    workloads.fold(&[of(&job, 2, 5 * MIB)], &[], start + 2 * WINDOW);
    let again = only(&mut workloads, start + 2 * WINDOW);
    assert_eq!((again.processes, again.used, again.peak), (1, Some(5 * MIB), Some(900 * MIB)));
    workloads.fold(&[], &[], start + 3 * WINDOW);
    workloads.fold(&[], &[], start + 4 * WINDOW + LINGER);
    assert_eq!(only(&mut workloads, start + 4 * WINDOW + LINGER).window_peak, Some(0));
    workloads.fold(&[], &[], start + 5 * WINDOW + LINGER);
    assert!(workloads.show(start, false).0.is_empty());
}

#[test]
fn an_unknown_member_makes_the_sum_unknown_and_not_smaller() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    workloads.fold(&[of(&job, 1, 900 * MIB), of(&job, 2, None)], &[], start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.processes, shown.used, shown.window_peak, shown.peak), (2, None, None, None));
}

#[test]
fn a_name_that_comes_late_keeps_what_was_seen_before_it() {
    let (start, mut workloads) = (Instant::now(), workloads(9));
    let container = Arc::new(Workload { name: "container:3b1f".into(), kind: WorkloadKind::Container, pod: None });
    let pod = PodContainer { namespace: "team-b".into(), pod: "nb".into(), container: "main".into() };
    let named =
        Arc::new(Workload { name: "team-b/nb/main".into(), kind: WorkloadKind::Kubernetes, pod: Some(pod.into()) });
    workloads.fold(&[of(&container, 1, 900 * MIB)], &[], start);
    let late = |pid, used| WorkloadMember { before: Some(&container), ..of(&named, pid, Some(used)) };
    workloads.fold(&[late(1, 5 * MIB)], &[], start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.workload.name.as_str(), shown.peak), ("team-b/nb/main", Some(900 * MIB)));
    // A new container of the same pod, seen before the cluster reported its name.
    workloads.fold(&[of(&container, 2, 950 * MIB)], &[], start);
    assert_eq!(workloads.entries.len(), 2);
    workloads.fold(&[late(2, 5 * MIB)], &[], start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.processes, shown.peak, shown.window_peak), (1, Some(950 * MIB), Some(950 * MIB)));
}

#[test]
fn a_process_that_moves_alone_takes_no_peak_along() {
    let (start, old, new, mut workloads) = (Instant::now(), unit("old"), unit("new"), workloads(9));
    workloads.fold(&[of(&old, 1, 900 * MIB), of(&old, 2, MIB)], &[], start);
    let moved = WorkloadMember { before: Some(&old), ..of(&new, 2, MIB) };
    workloads.fold(&[of(&old, 1, 900 * MIB), moved], &[], start);
    let (shown, _) = workloads.show(start, false);
    let peak = |name: &str| shown.iter().find(|shown| shown.workload.name == name).unwrap().peak;
    assert_eq!((peak("unit:old"), peak("unit:new")), (Some(901 * MIB), Some(MIB)));
}

#[test]
fn a_spike_that_ended_its_process_within_a_pass_is_the_workloads_too() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    workloads.fold(&[of(&job, 1, 100 * MIB), of(&job, 2, 5 * MIB)], &[], start);
    let died = WorkloadMember { alive: false, used: None, ..of(&job, 1, 0) };
    let earlier = [vec![listed(1, 900 * MIB), listed(2, 5 * MIB)]];
    workloads.fold(&[died, of(&job, 2, 5 * MIB)], &earlier, start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.processes, shown.used, shown.peak), (1, Some(5 * MIB), Some(905 * MIB)));
    let died = WorkloadMember { alive: false, used: None, ..of(&job, 2, 0) };
    workloads.fold(&[died], &[vec![listed(2, 950 * MIB)]], start);
    let shown = only(&mut workloads, start);
    assert_eq!((shown.processes, shown.used, shown.peak), (0, None, Some(950 * MIB)));
}

#[test]
fn a_late_name_does_not_make_a_peak_younger() {
    let (start, mut workloads) = (Instant::now(), workloads(9));
    let (container, named) = (unit("c"), unit("n"));
    let at = |seconds| start + Duration::from_secs(seconds);
    workloads.fold(&[of(&named, 1, 5 * MIB), of(&container, 2, 950 * MIB)], &[], at(0));
    for second in 1..59 {
        workloads.fold(&[of(&named, 1, 5 * MIB), of(&container, 2, 5 * MIB)], &[], at(second));
    }
    let late = WorkloadMember { before: Some(&container), ..of(&named, 2, 5 * MIB) };
    workloads.fold(&[of(&named, 1, 5 * MIB), late], &[], at(59));
    assert_eq!(only(&mut workloads, at(59)).window_peak, Some(950 * MIB));
    for second in 60..116 {
        workloads.fold(&[of(&named, 1, 5 * MIB), of(&named, 2, 5 * MIB)], &[], at(second));
    }
    assert_eq!(only(&mut workloads, at(115)).window_peak, Some(10 * MIB));
}

#[test]
fn a_mig_device_inherits_nothing_from_the_one_that_had_its_ids() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    let device = |uuid: &str| Arc::new(MigDevice { uuid: uuid.into(), gpu_instance: 1, ..MigDevice::default() });
    let (a, b) = (device("MIG-a"), device("MIG-b"));
    let on =
        |mig, pid, mib| WorkloadMember { instance: Some((1, 0)), mig: Some(mig), ..of(&job, pid, Some(mib * MIB)) };
    workloads.fold(&[on(&a, 1, 60_000)], &[], start);
    for _ in 0..2 {
        workloads.fold(&[on(&b, 2, 5)], &[], start);
        let (shown, _) = workloads.show(start, false);
        let on = |uuid: &str| shown.iter().find(|w| w.mig.as_ref().unwrap().uuid == uuid).unwrap();
        assert_eq!((on("MIG-b").peak, on("MIG-b").used), (Some(5 * MIB), Some(5 * MIB)));
        assert_eq!((on("MIG-a").peak, on("MIG-a").used), (Some(60_000 * MIB), None));
    }
}

#[test]
fn what_comes_while_the_layout_is_unknown_is_on_no_device_yet() {
    let (start, job) = (Instant::now(), unit("job"));
    let device = |uuid: &str| Arc::new(MigDevice { uuid: uuid.into(), gpu_instance: 1, ..MigDevice::default() });
    let (a, b) = (device("MIG-a"), device("MIG-b"));
    for (found, peaks) in [(&a, &[(Some("MIG-a"), 38)][..]), (&b, &[(Some("MIG-a"), 30), (Some("MIG-b"), 38)])] {
        let mut workloads = workloads(9);
        let on = |mig, pid, mib| WorkloadMember { instance: Some((1, 0)), mig, ..of(&job, pid, Some(mib * MIB)) };
        let mut after = |member: &[WorkloadMember<'_>]| {
            workloads.fold(member, &[], start);
            let (shown, _) = workloads.show(start, false);
            let entry = |w: WorkloadUse| (w.mig.map(|mig| mig.uuid.clone()), w.peak.unwrap() / MIB, w.used);
            let mut shown: Vec<_> = shown.into_iter().map(entry).collect();
            shown.sort();
            shown
        };
        after(&[on(Some(&a), 1, 30)]);
        after(&[]);
        let unknown = after(&[on(None, 2, 38)]);
        assert_eq!(unknown, [(None, 38, Some(38 * MIB)), (Some("MIG-a".into()), 30, None)]);
        // Another process of the same workload keeps the device that it is known to be on.
        let known = after(&[on(None, 2, 3), on(Some(found), 3, 5)]);
        let known: Vec<_> = known.iter().map(|(mig, peak, _)| (mig.as_deref(), *peak)).collect();
        assert_eq!(known, peaks, "{}", found.uuid);
    }
}

#[test]
fn one_workload_on_two_mig_devices_is_two_entries() {
    let (start, job, mut workloads) = (Instant::now(), unit("job"), workloads(9));
    let on = |gpu_instance, pid| WorkloadMember { instance: Some((gpu_instance, 0)), ..of(&job, pid, Some(MIB)) };
    workloads.fold(&[on(1, 1), on(2, 2)], &[], start);
    assert_eq!(workloads.show(start, false).0.len(), 2);
}

#[test]
fn the_cap_keeps_the_largest_and_sums_the_rest() {
    let (start, mut workloads) = (Instant::now(), workloads(2));
    let jobs: Vec<_> = (1..=5).map(|n| unit(&n.to_string())).collect();
    let members: Vec<_> = jobs.iter().zip(1..).map(|(job, n)| of(job, n, u64::from(n) * MIB)).collect();
    workloads.fold(&members, &[], start);
    let (shown, other) = workloads.show(start, false);
    assert_eq!(shown.iter().map(|shown| shown.used).collect::<Vec<_>>(), [Some(5 * MIB), Some(4 * MIB)]);
    assert_eq!(other, Some(Other { entries: 3, processes: 3, used: Some(6 * MIB) }));
}

#[test]
fn the_sum_of_the_rest_is_unknown_while_a_part_is() {
    let (start, mut workloads) = (Instant::now(), workloads(2));
    let jobs: Vec<_> = (1..=5).map(|n| unit(&n.to_string())).collect();
    let used = |n: u32| (n != 2).then_some(u64::from(n) * MIB);
    let members: Vec<_> = jobs.iter().zip(1..).map(|(job, n)| of(job, n, used(n))).collect();
    workloads.fold(&members, &[], start);
    assert_eq!(workloads.show(start, false).1, Some(Other { entries: 3, processes: 3, used: None }));
    // What has ended holds nothing, and makes no sum unknown.
    let members: Vec<_> = members.into_iter().filter(|member| member.used.is_some()).collect();
    workloads.fold(&members, &[], start);
    assert_eq!(workloads.show(start, false).1, Some(Other { entries: 3, processes: 2, used: Some(4 * MIB) }));
}

#[test]
fn ten_thousand_workloads_that_come_and_go_leave_no_more_than_the_cap() {
    let (start, mut workloads) = (Instant::now(), workloads(256));
    for round in 0..10_000_u32 {
        let job = unit(&round.to_string());
        workloads.fold(&[of(&job, round, MIB)], &[], start + Duration::from_millis(360) * round);
    }
    assert!(workloads.entries.len() <= 257, "{}", workloads.entries.len());
    assert!(workloads.show(start, false).0.iter().any(|shown| shown.workload.name == "unit:9998"), "the latest stay");
}
