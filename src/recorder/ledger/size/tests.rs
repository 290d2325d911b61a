//! The limit of the memory against storms of every kind.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::super::tests::listed;
use super::super::*;
use crate::recorder::history::{Event, EventKind, SECOND};
use crate::snapshot::{Gpu, GpuState, MigDevice, Owner, Process, Snapshot, Workload, WorkloadKind, XidPart};

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

/// What a storm consists of.
#[derive(Debug, Clone, Copy)]
struct Storm {
    gpus: u32,
    /// GPU instances of each GPU; 0 for GPUs that are not divided.
    instances: u32,
    /// Processes on each GPU, each of a workload of its own.
    processes: u32,
    /// Whether every process is replaced by another one in each round.
    are_short: bool,
    /// The length of the names of workloads and users.
    name: usize,
    rounds: u64,
    /// The limits under which it is let loose: each combination is the hardest of its kind.
    limits: &'static [usize],
}

const STORMS: [Storm; 5] = [
    Storm { gpus: 1, instances: 0, processes: 300, are_short: true, name: 20, rounds: 20, limits: &[MIB, 4 * MIB] },
    Storm { gpus: 16, instances: 0, processes: 640, are_short: false, name: 20, rounds: 4, limits: &[16 * MIB] },
    Storm { gpus: 2, instances: 0, processes: 640, are_short: true, name: 200, rounds: 5, limits: &[2 * MIB] },
    Storm { gpus: 16, instances: 7, processes: 14, are_short: true, name: 100, rounds: 8, limits: &[MIB, 16 * MIB] },
    Storm { gpus: 4, instances: 0, processes: 1000, are_short: false, name: 1000, rounds: 3, limits: &[4 * MIB] },
];

fn gpu(storm: Storm, index: u32) -> Arc<Gpu> {
    let device = |n: u32| {
        Arc::new(MigDevice { index: n, uuid: format!("MIG-{index}-{n}"), gpu_instance: n, ..MigDevice::default() })
    };
    Arc::new(Gpu {
        index,
        uuid: format!("GPU-{index}"),
        mig_mode: Some(storm.instances > 0),
        mig: (0..storm.instances).map(device).collect(),
        ..Gpu::default()
    })
}

fn process(storm: Storm, gpu: &Gpu, n: u32, round: u64) -> Process {
    let life = if storm.are_short { round } else { 0 };
    let name = format!("{}-{n}-{life}-{}", gpu.index, "x".repeat(storm.name));
    let owner = Owner {
        name: Some("train.py".into()),
        user: Some(name.clone()),
        start_ticks: Some(life * 100_000 + u64::from(n)),
        workload: Some(Arc::new(Workload { name, kind: WorkloadKind::Slurm, pod: None })),
        ..Owner::default()
    };
    let used = Some(u64::from(n) * 1000 + if n.is_multiple_of(2) { round } else { 0 });
    let mig = (storm.instances > 0).then(|| gpu.mig[(n % storm.instances) as usize].clone());
    Process { used, peak: used, mig, ..Process::for_tests(1 + n, owner) }
}

fn list(storm: Storm, gpu: &Arc<Gpu>, round: u64, at: Instant) -> GpuProcesses {
    let processes: Vec<_> = (0..storm.processes).map(|n| process(storm, gpu, n, round)).collect();
    let workloads = processes.iter().map(listed).collect();
    GpuProcesses { gpu: gpu.clone(), at: Some(at), processes, workloads, ..GpuProcesses::default() }
}

/// Lets the storm pass over a ledger with that limit, which must hold after each round.
fn survive(storm: Storm, limit: usize) -> (Ledger, Now) {
    let start = Instant::now();
    let mut ledger = Ledger::new(start, Incidents::new(None, limit), Jobs::for_tests());
    let mut now = ledger.clock.both(start, SystemTime::UNIX_EPOCH);
    let gpus: Vec<_> = (0..storm.gpus).map(|index| gpu(storm, index)).collect();
    ledger.histories.device_index(&gpus[0], None, 0);
    ledger.histories.change_state(0, GpuState::Up, 0);
    ledger.histories.change_state(0, GpuState::Unreadable, 0);
    ledger.histories.change_state(0, GpuState::Up, 0);
    let errors = Some([(79, 1)].into_iter().collect());
    let snapshot = Snapshot::default();
    let part = crate::snapshot::GpuXids { gpu: gpus[0].clone(), errors, counted_since: None, last: None };
    snapshot.xids.store(Arc::new(XidPart { gpus: vec![part] }));
    ledger.compare_snapshot(&snapshot, now);
    for round in 0..storm.rounds {
        for millis in (0..1000).step_by(20) {
            let at = start + Duration::from_millis(round * 1000 + millis);
            let used = Some(GIB + millis);
            for gpu in &gpus {
                let migs = gpu.mig.iter().map(|device| Some(device.clone()));
                for mig in migs.chain([None]) {
                    ledger.sample(&MemorySample { gpu: gpu.clone(), mig, at, used, allocatable: 80 * GIB });
                }
            }
        }
        let at = start + Duration::from_millis(round * 1000 + 990);
        now = ledger.clock.both(at, SystemTime::UNIX_EPOCH + at.duration_since(start));
        gpus.iter().for_each(|gpu| ledger.list(&list(storm, gpu, round, at), now));
        ledger.histories.take_gone(Micros::MAX);
        ledger.histories.started.clear();
        ledger.age(now);
        ledger.jobs.take_complete();
        ledger.bound(now, limit);
        assert!(ledger.bytes() <= limit, "{storm:?}, {limit}, round {round}: {}", ledger.bytes());
    }
    (ledger, now)
}

#[test]
fn the_limit_holds_in_every_storm_and_no_device_xid_or_loss_is_given_up() {
    for storm in STORMS {
        for &limit in storm.limits {
            let (ledger, now) = survive(storm, limit);
            for device in &ledger.histories.devices {
                assert_eq!(device.memory.last(), Some(GIB + 980), "{storm:?}, {limit}: {}", device.uuid());
                assert!(device.memory.at(now.micros - SECOND / 10).is_some(), "{storm:?}, {limit}");
            }
            let events = ledger.histories.events.latest(0, Micros::MAX, 10_000, now, |_| true);
            let has = |wanted: fn(&EventKind) -> bool| events.iter().any(|event: &Event| wanted(&event.what));
            assert!(has(|what| matches!(what, EventKind::Xid { xid: 79, .. })), "{storm:?}, {limit}");
            assert!(has(|what| matches!(what, EventKind::GpuLost)), "{storm:?}, {limit}");
            assert!(
                has(|what| matches!(what, EventKind::ProcessStarted(_))),
                "{storm:?}, {limit}: not all are given up"
            );
        }
    }
}

#[test]
fn idle_processes_are_given_up_before_busy_ones_and_small_ones_before_large_ones() {
    let storm = Storm { gpus: 1, instances: 0, processes: 1000, are_short: false, name: 20, rounds: 3, limits: &[] };
    let (mut ledger, _) = survive(storm, 16 * MIB);
    let device = &mut ledger.histories.devices[0];
    // Only the memory of every second process changes, and two minutes later the others are idle.
    device.seen += 120 * SECOND;
    for process in device.living.iter_mut().filter(|process| process.pid % 2 == 1) {
        process.series.see(device.seen, Some(u64::from(process.pid)));
    }
    device.unfollow(600);
    let pids: Vec<_> = device.living.iter().map(|process| process.pid).collect();
    assert_eq!(pids.len(), 400);
    assert!(pids.iter().all(|pid| pid % 2 == 1 && *pid > 200), "{pids:?}");
}

#[test]
fn a_process_that_is_not_followed_neither_starts_nor_ends_again() {
    let storm = Storm { gpus: 1, instances: 0, processes: 10, are_short: false, name: 20, rounds: 1, limits: &[] };
    let (mut ledger, now) = survive(storm, 16 * MIB);
    ledger.histories.devices[0].unfollow(4);
    let count = |ledger: &Ledger| ledger.histories.events.latest(0, Micros::MAX, 10_000, now, |_| true).len();
    let before = count(&ledger);
    let gpu = ledger.histories.devices[0].gpu.clone();
    for (seconds, processes) in [(2, 10), (3, 10), (4, 6)] {
        let at = Instant::now() + Duration::from_secs(seconds);
        ledger.list(&list(Storm { processes, ..storm }, &gpu, 0, at), now);
    }
    assert_eq!((ledger.histories.devices[0].living.len(), ledger.histories.devices[0].ended.len()), (2, 4));
    assert_eq!(count(&ledger), before + 4, "only the ends of processes that were followed");
}
