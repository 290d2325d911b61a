//! The process table over time, with made-up timestamps.

use super::*;
use crate::snapshot::{CgroupLocation, Ended, Owner, PodContainer, ProcessKind, Workload, WorkloadKind};

const MIB: u64 = 1 << 20;
const WINDOW: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(300);

fn table(limit: usize) -> ProcessTable {
    ProcessTable::new(Retention { peak_window: WINDOW, linger: LINGER, limit })
}

/// The layout of a GPU without MIG devices.
const LAYOUT: Option<&[Arc<MigDevice>]> = Some(&[]);

/// A process list read in one attempt, with no kind of process left unread.
pub(in crate::lanes::process) fn list(entries: &[ListEntry], at: Instant) -> ProcessList {
    ProcessList {
        entries: entries.to_vec(),
        earlier: Vec::new(),
        used: None,
        mig_used: Vec::new(),
        around: Vec::new(),
        implausible: None,
        unread: Vec::new(),
        began: at,
        at,
    }
}

pub(in crate::lanes::process) fn listed(pid: u32, used: impl Into<Option<u64>>) -> ListEntry {
    ListEntry { pid, kind: ProcessKind::Compute, used: used.into(), instance: None }
}

fn named(start: u64, name: &str) -> Arc<Owner> {
    Arc::new(Owner { name: Some(name.into()), start_ticks: Some(start), ..Owner::default() })
}

fn unseen() -> Arc<Owner> {
    Arc::default()
}

fn fold(table: &mut ProcessTable, entries: &[ListEntry], now: Instant, owner: &Arc<Owner>) {
    table.fold(&list(entries, now), &vec![owner.clone(); entries.len()], LAYOUT);
}

fn only(table: &mut ProcessTable, now: Instant) -> Process {
    let (mut shown, other) = table.show(now);
    assert_eq!((shown.len(), other), (1, None));
    shown.remove(0)
}

#[test]
fn a_reused_pid_starts_at_zero_and_the_old_process_keeps_its_peak() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
    let later = start + Duration::from_millis(10);
    fold(&mut table, &[listed(7, 5 * MIB)], later, &named(2, "serve.py"));
    let (shown, _) = table.show(later);
    let of = |name: &str| shown.iter().find(|p| p.owner.name.as_deref() == Some(name)).unwrap();
    assert_eq!((of("serve.py").used, of("serve.py").peak), (Some(5 * MIB), Some(5 * MIB)));
    assert_eq!((of("train.py").used, of("train.py").peak), (None, Some(900 * MIB)));
    assert!(!of("train.py").alive && of("serve.py").alive);
}

#[test]
fn an_end_is_dated_by_the_lists_before_and_after_it() {
    let (start, mut table) = (Instant::now(), table(9));
    let at = |seconds| start + Duration::from_secs(seconds);
    let train = named(1, "train.py");
    fold(&mut table, &[listed(7, MIB)], at(0), &train);
    fold(&mut table, &[listed(7, MIB)], at(3), &train);
    assert_eq!(only(&mut table, at(4)).ended, None);
    fold(&mut table, &[], at(60), &train);
    fold(&mut table, &[], at(61), &train);
    assert_eq!(only(&mut table, at(61)).ended, Some(Ended { after: at(3), by: at(60) }), "however often it is shown");
    fold(&mut table, &[listed(7, MIB)], at(62), &train);
    assert_eq!(only(&mut table, at(62)).ended, None, "it came back");
    table.end_former(&list(&[listed(7, MIB)], at(64)), &[named(2, "serve.py")]);
    assert_eq!(only(&mut table, at(64)).ended, Some(Ended { after: at(62), by: at(64) }));
}

#[test]
fn a_list_from_before_a_pid_was_reused_is_not_used() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
    let mut ends = |identity| table.end_former(&list(&[listed(7, 900 * MIB)], start), &[identity]);
    assert!(!ends(named(1, "train.py")));
    assert!(!ends(unseen()), "an unseen process does not count as another one");
    assert!(ends(named(2, "serve.py")));
    assert!(!ends(named(2, "serve.py")), "the former process has already been recorded as ended");
    assert!(!only(&mut table, start).alive);
}

#[test]
fn a_set_clock_dates_no_work_in_the_future_or_before_the_process() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, MIB)], start, &named(1, "train.py"));
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000);
    let later = start + Duration::from_secs(10);
    let sample = |seconds: u64| UtilizationSample { pid: 7, timestamp: seconds * 1_000_000, sm: 0.5, active: true };
    // The sample was taken before the clock was set forward by an hour, so it now seems older than the process.
    table.fold_work(&[sample(100_000 - 3600)], (later, wall));
    assert_eq!(only(&mut table, later).last_active, Some(start));
    // The sample was taken before the clock was set back by an hour; it counts as taken now, not in the future.
    table.fold_work(&[sample(100_000 + 3600)], (later, wall));
    assert_eq!(only(&mut table, later).last_active, Some(later));
}

fn started(start: u64, at: SystemTime) -> Arc<Owner> {
    Arc::new(Owner { start: Some(at), ..(*named(start, "serve.py")).clone() })
}

#[test]
fn a_process_started_after_the_first_sight_is_another_one() {
    let (start, mut table) = (Instant::now(), table(9));
    let wall = SystemTime::now();
    fold(&mut table, &[listed(7, 900 * MIB)], start, &unseen());
    fold(&mut table, &[listed(7, 5 * MIB)], start + WINDOW, &started(1, wall + WINDOW));
    let (shown, _) = table.show(start + WINDOW);
    let of = |name: Option<&str>| shown.iter().find(|p| p.owner.name.as_deref() == name).unwrap();
    assert_eq!((of(Some("serve.py")).peak, of(None).peak), (Some(5 * MIB), Some(900 * MIB)));

    let mut table = self::table(9);
    fold(&mut table, &[listed(7, 900 * MIB)], start, &unseen());
    fold(&mut table, &[listed(7, 5 * MIB)], start + WINDOW, &started(1, wall - WINDOW));
    assert_eq!(only(&mut table, start + WINDOW).peak, Some(900 * MIB), "it is the same process");
}

#[test]
fn a_list_read_before_its_process_was_identified_is_not_used_where_the_pid_had_another_process() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, MIB)], start, &named(1, "first.py"));
    fold(&mut table, &[], start, &unseen());
    // A second process was listed with 3 MiB, but by the time /proc was read, a third one had the pid.
    let list = list(&[listed(7, 3 * MIB), listed(8, MIB)], start);
    let owners = [named(3, "third.py"), named(1, "other.py")];
    assert!(table.end_former(&list, &owners));
    assert!(!table.end_former(&list, &owners), "this list was read after the third process had been identified");
    assert!(table.end_former(&list, &[named(4, "fourth.py"), named(1, "other.py")]));
}

#[test]
fn an_earlier_entry_of_a_reused_pid_is_recognised() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, MIB), listed(8, MIB)], start, &named(1, "train.py"));
    let earlier = vec![vec![listed(7, 900 * MIB), listed(8, MIB)]];
    let gone: Vec<_> = ProcessList { earlier, ..list(&[listed(8, MIB)], start) }.gone().into_iter().collect();
    assert_eq!(gone, [listed(7, 900 * MIB)]);
    assert!(table.is_passed_on(&gone[0], &named(2, "serve.py")));
    assert!(!table.is_passed_on(&gone[0], &unseen()), "it ended, and no process has its pid");
}

#[test]
fn a_moved_process_forgets_its_workload_and_a_renamed_one_does_not() {
    let (start, mut table) = (Instant::now(), table(9));
    let at = |unit: &str, workload: &str| {
        let workload = Workload { name: workload.into(), kind: WorkloadKind::Systemd, pod: None };
        let location = CgroupLocation { unit: Some(unit.into()), ..CgroupLocation::default() };
        let workload = Some(Arc::new(workload));
        Arc::new(Owner { location, workload, start_ticks: Some(1), ..Owner::default() })
    };
    let before = |table: &ProcessTable| table.members().next().unwrap().before.map(|workload| workload.name.clone());
    fold(&mut table, &[listed(7, MIB)], start, &at("a", "unit:a"));
    fold(&mut table, &[listed(7, MIB)], start, &at("a", "named"));
    assert_eq!(before(&table).as_deref(), Some("unit:a"));
    fold(&mut table, &[listed(7, MIB)], start, &at("b", "unit:b"));
    assert_eq!(before(&table), None);
}

#[test]
fn one_name_in_two_pods_is_two_processes() {
    let (start, mut table) = (Instant::now(), table(9));
    let in_pod = |start: u64, pod: &str| {
        let names = PodContainer { namespace: "n".into(), pod: pod.into(), container: "c".into() };
        let name = format!("n/{pod}/c");
        let workload = Workload { name, kind: WorkloadKind::Kubernetes, pod: Some(names.into()) };
        Arc::new(Owner { workload: Some(Arc::new(workload)), ..(*named(start, "python3")).clone() })
    };
    fold(&mut table, &[listed(7, 900 * MIB)], start, &in_pod(1, "a"));
    fold(&mut table, &[listed(7, 5 * MIB)], start, &in_pod(2, "b"));
    assert_eq!(table.show(start).0.len(), 2, "the process that ended keeps its peak");
}

#[test]
fn a_pid_reused_under_the_same_name_leaves_one_entry() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
    fold(&mut table, &[listed(7, 5 * MIB)], start + WINDOW, &named(2, "train.py"));
    assert_eq!(only(&mut table, start + WINDOW).peak, Some(5 * MIB));
}

#[test]
fn a_process_that_is_listed_after_it_left_proc_stays_itself() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
    fold(&mut table, &[listed(7, 300 * MIB)], start, &unseen());
    let shown = only(&mut table, start);
    assert_eq!((shown.owner.name.as_deref(), shown.used), (Some("train.py"), Some(300 * MIB)));
}

#[test]
fn a_process_seen_before_its_proc_could_be_read_gets_its_name() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &unseen());
    fold(&mut table, &[listed(7, 300 * MIB)], start, &named(1, "train.py"));
    let shown = only(&mut table, start);
    assert_eq!((shown.owner.name.as_deref(), shown.peak), (Some("train.py"), Some(900 * MIB)));
}

#[test]
fn the_peaks_of_an_ended_process_stay_for_window_and_linger() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, 900 * MIB)], start, &named(1, "train.py"));
    let end = start + Duration::from_secs(1);
    fold(&mut table, &[], end, &unseen());
    let at_once = only(&mut table, end);
    assert_eq!((at_once.used, at_once.window_peak, at_once.peak), (None, Some(900 * MIB), Some(900 * MIB)));
    let after_window = only(&mut table, end + 2 * WINDOW);
    assert_eq!((after_window.window_peak, after_window.peak), (Some(0), Some(900 * MIB)));
    fold(&mut table, &[], end + WINDOW + LINGER + Duration::from_secs(1), &unseen());
    assert_eq!(table.show(end + WINDOW + LINGER).0.len(), 0);
}

#[test]
fn unknown_memory_is_absent_and_makes_the_sum_unknown() {
    let (start, mut table) = (Instant::now(), table(9));
    fold(&mut table, &[listed(7, None)], start, &named(1, "Xorg"));
    let shown = only(&mut table, start);
    assert_eq!((shown.used, shown.window_peak, shown.peak), (None, None, None));
    assert_eq!(table.used(), None);
    fold(&mut table, &[listed(7, 3 * MIB)], start, &named(1, "Xorg"));
    assert_eq!(table.used(), Some(3 * MIB));
}

#[test]
fn the_cap_keeps_the_largest_and_sums_the_rest() {
    let (start, mut table) = (Instant::now(), table(2));
    let entries: Vec<_> = (1..=5).map(|pid| listed(pid, u64::from(pid) * MIB)).collect();
    let identities: Vec<_> = (1..=5).map(|start| named(start, "job")).collect();
    table.fold(&list(&entries, start), &identities, LAYOUT);
    let (shown, other) = table.show(start);
    assert_eq!(shown.iter().map(|p| p.pid).collect::<Vec<_>>(), [5, 4]);
    assert_eq!(other, Some(Other { entries: 3, processes: 3, used: Some(6 * MIB) }));
    assert_eq!(table.used(), Some(15 * MIB));
}

#[test]
fn the_sum_of_the_rest_is_unknown_where_the_memory_of_one_is() {
    let (start, mut table) = (Instant::now(), table(1));
    let identities: Vec<_> = (1..=3).map(|start| named(start, "job")).collect();
    table.fold(&list(&[listed(1, 9 * MIB), listed(2, 5 * MIB), listed(3, None)], start), &identities, LAYOUT);
    assert_eq!(table.show(start).1, Some(Other { entries: 2, processes: 2, used: None }));
    table.fold(&list(&[listed(1, 9 * MIB), listed(2, 5 * MIB)], start), &identities[..2], LAYOUT);
    assert_eq!(table.show(start).1, Some(Other { entries: 2, processes: 1, used: Some(5 * MIB) }));
}

#[test]
fn ten_thousand_short_processes_leave_no_more_than_the_cap() {
    let (start, mut table) = (Instant::now(), table(256));
    for round in 0..10_000_u32 {
        let now = start + Duration::from_millis(360) * round;
        fold(&mut table, &[listed(round, MIB)], now, &named(u64::from(round), "short"));
    }
    assert!(table.processes.len() <= 257, "{}", table.processes.len());
}

#[test]
fn work_is_dated_by_the_driver_and_idleness_counts_from_the_first_sight() {
    let (start, mut table) = (Instant::now(), table(9));
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let sample = |timestamp, active| UtilizationSample { pid: 7, timestamp, sm: 0.5, active };
    fold(&mut table, &[listed(7, MIB)], start, &named(1, "train.py"));
    // A sample from before the process was first seen does not move its last activity back to that time.
    table.fold_work(&[sample(990_000_000, true)], (start, wall));
    assert_eq!(only(&mut table, start).last_active, Some(start));
    let later = start + Duration::from_secs(10);
    table.fold_work(&[sample(1_009_500_000, true)], (later, wall + Duration::from_secs(10)));
    let shown = only(&mut table, later);
    assert_eq!(shown.last_active, Some(later - Duration::from_millis(500)));
    assert_eq!(shown.sm_utilization, Some(0.5));
    table.fold_work(&[], (later + WINDOW, wall + Duration::from_secs(70)));
    let idle = only(&mut table, later + WINDOW);
    assert_eq!((idle.sm_utilization, idle.last_active), (None, Some(later - Duration::from_millis(500))));
}

#[test]
fn samples_in_any_order_are_given_to_their_processes() {
    let (start, mut table) = (Instant::now(), table(9));
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    fold(&mut table, &[listed(8, MIB), listed(7, MIB), listed(9, MIB), listed(10, MIB)], start, &named(1, "train.py"));
    let sample =
        |pid, timestamp: u64, sm| UtilizationSample { pid, timestamp: timestamp * 1_000_000, sm, active: true };
    let samples =
        [(9, 1_002, 0.9), (7, 1_003, 0.7), (8, 1_001, 0.8), (7, 1_001, 0.1), (11, 1_004, 1.0), (9, 1_001, 0.2)];
    let later = start + Duration::from_secs(5);
    table.fold_work(&samples.map(|(pid, at, sm)| sample(pid, at, sm)), (later, wall + Duration::from_secs(5)));
    let (shown, _) = table.show(later);
    let work = |pid| {
        let process = shown.iter().find(|process| process.pid == pid).unwrap();
        (process.sm_utilization, process.last_active.map(|at| later - at))
    };
    let ago = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!([work(7), work(8), work(9)], [(Some(0.7), ago(2)), (Some(0.8), ago(4)), (Some(0.9), ago(3))]);
    assert_eq!(work(10), (None, ago(5)));
}

#[test]
fn a_process_of_a_refused_list_stays_alive_with_unknown_memory() {
    let (start, mut table) = (Instant::now(), table(9));
    let xorg = ListEntry { kind: ProcessKind::Graphics, ..listed(8, 3 * MIB) };
    let identities = [named(1, "train.py"), named(1, "Xorg")];
    table.fold(&list(&[listed(7, MIB), xorg], start), &identities, LAYOUT);
    let without_graphics = |entry| ProcessList { unread: vec![ProcessKind::Graphics], ..list(&[entry], start) };
    table.fold(&without_graphics(listed(7, MIB)), &identities[..1], LAYOUT);
    assert_eq!((table.alive(), table.used()), (2, None));
    let (shown, _) = table.show(start);
    let of = |pid| shown.iter().find(|process| process.pid == pid).unwrap();
    assert_eq!((of(7).used, of(8).used, of(8).peak), (Some(MIB), None, Some(3 * MIB)));
    // A process that is also in another list keeps its type.
    let both = ListEntry { kind: ProcessKind::Compute, ..xorg };
    table.fold(&without_graphics(both), &identities[1..], LAYOUT);
    assert_eq!(table.show(start).0.iter().find(|process| process.pid == 8).unwrap().kind, ProcessKind::Graphics);
    table.fold(&list(&[], start), &[], LAYOUT);
    assert_eq!(table.alive(), 0);
}

#[test]
fn while_the_layout_is_unknown_a_process_keeps_its_mig_device() {
    let (start, mut table) = (Instant::now(), table(9));
    let device = Arc::new(MigDevice { uuid: "MIG-a".into(), gpu_instance: 1, ..MigDevice::default() });
    let on = |pid| ListEntry { instance: Some((1, 0)), ..listed(pid, MIB) };
    let layout = [device];
    let identities = [named(1, "old"), named(2, "new")];
    let mig = |table: &mut ProcessTable, pid| {
        let (shown, _) = table.show(start);
        shown.iter().find(|process| process.pid == pid).unwrap().mig.as_ref().map(|mig| mig.uuid.clone())
    };
    table.fold(&list(&[on(7)], start), &identities[..1], Some(&layout));
    table.fold(&list(&[on(7), on(8)], start), &identities, None);
    assert_eq!((mig(&mut table, 7).as_deref(), mig(&mut table, 8)), (Some("MIG-a"), None));
    table.fold(&list(&[on(7), on(8)], start), &identities, Some(&layout));
    assert_eq!(mig(&mut table, 8).as_deref(), Some("MIG-a"));
}
