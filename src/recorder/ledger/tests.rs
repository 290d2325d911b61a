use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::recorder::history::{DeviceHistory, DeviceKey, Event, EventKind, Exit, IncidentGpu, ProcessHistory};
use crate::recorder::incidents::freeze::freeze;
use crate::snapshot::{
    AllocatorSites, Gpu, MemoryRole, MigDevice, Module, Other, Owner, Process, ProcessId, Site, SiteGrowth, Workload,
    WorkloadKind, WorkloadUse,
};

const GIB: u64 = 1 << 30;
const ALLOCATABLE: u64 = 140 * GIB;
/// The memory that the driver uses for each context in addition to that of the processes.
const CONTEXT: u64 = 8 << 20;

/// One GPU, its processes, and a ledger that receives every change to them just as the lanes would pass it on.
struct Scene {
    start: Instant,
    gpu: Arc<Gpu>,
    ledger: Ledger,
    alive: Vec<Process>,
    ended: Vec<Process>,
    millis: u64,
}

impl Scene {
    fn new() -> Self {
        let start = Instant::now();
        let gpu = Arc::new(Gpu { index: 2, uuid: "GPU-2".into(), ..Gpu::default() });
        let incidents = Incidents::new(Some("node-1".into()), 16 << 20);
        let ledger = Ledger::new(start, incidents, Jobs::for_tests());
        Self { start, gpu, ledger, alive: Vec::new(), ended: Vec::new(), millis: 0 }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + Duration::from_millis(self.millis);
        self.ledger.clock.both(self.at(self.millis), wall)
    }

    /// Lets `millis` milliseconds pass, and lets the recorder do its rounds.
    fn pass(&mut self, millis: u64) -> &mut Self {
        let until = self.millis + millis;
        while self.millis < until {
            self.millis = until.min(self.millis + 250);
            if self.millis % 1000 < 250 {
                let processes = self.alive.iter().chain(&self.ended).cloned().collect();
                self.list_of(processes, None);
            }
            self.round();
        }
        self
    }

    fn round(&mut self) {
        let now = self.now();
        self.ledger.resolve_failures(now);
        self.ledger.compare_snapshot(&Snapshot::default(), now);
        for trigger in std::mem::take(&mut self.ledger.triggers) {
            self.ledger.incidents.record(trigger, &self.ledger.histories, now, false);
        }
        self.ledger.incidents.complete(&self.ledger.histories, now, false);
        self.ledger.age(now);
        self.ledger.bound(now, 16 << 20);
    }

    /// Sets the memory of a process, and starts the process if it is new. The GPU's memory changes first, and the list
    /// follows 3 ms later.
    fn hold(&mut self, pid: u32, gib: f64) -> &mut Self {
        let used = (gib * GIB as f64) as u64;
        if !self.alive.iter().any(|process| process.pid == pid) {
            self.alive.push(process(pid));
        }
        let process = self.alive.iter_mut().find(|process| process.pid == pid).unwrap();
        (process.used, process.peak) = (Some(used), process.peak.max(Some(used)));
        self.sample();
        self.list()
    }

    fn end(&mut self, pid: u32) -> &mut Self {
        let index = self.alive.iter().position(|process| process.pid == pid).unwrap();
        let process = self.alive.remove(index);
        self.ended.push(Process { alive: false, used: None, ..process });
        self.sample();
        self.list()
    }

    fn sample(&mut self) -> &mut Self {
        let used = self.alive.iter().map(|process| process.used.unwrap() + CONTEXT).sum();
        self.sample_of(Some(used))
    }

    fn sample_of(&mut self, used: Option<u64>) -> &mut Self {
        let at = self.at(self.millis);
        self.ledger.sample(&MemorySample { gpu: self.gpu.clone(), mig: None, at, used, allocatable: ALLOCATABLE });
        self
    }

    fn list(&mut self) -> &mut Self {
        self.millis += 3;
        let processes = self.alive.iter().chain(&self.ended).cloned().collect();
        self.list_of(processes, None)
    }

    fn list_of(&mut self, processes: Vec<Process>, other: Option<Other>) -> &mut Self {
        let (gpu, at) = (self.gpu.clone(), Some(self.at(self.millis)));
        let living = processes.iter().filter(|process| process.alive);
        let workloads = living.map(listed).collect();
        let list = GpuProcesses { gpu, at, processes, other, workloads, ..GpuProcesses::default() };
        let now = self.now();
        self.ledger.list(&list, now);
        self
    }

    /// The process reports that it could not allocate 80 GiB.
    fn fail(&mut self, pid: u32) -> &mut Self {
        let failed = FailedAllocation {
            framework: Some("pytorch".into()),
            requested: 80 * GIB,
            free: Some(61 * GIB),
            total: Some(141 * GIB),
            allocated: Some(60 * GIB),
            reserved: Some(70 * GIB),
            snapshot_path: Some("/tmp/\u{202E}snap".into()),
            sites: None,
            ..failed_by(self, pid)
        };
        self.ledger.fail(failed);
        let now = self.now();
        self.ledger.resolve_failures(now);
        self
    }

    /// The moment that a client asks for.
    fn request(&self) -> Trigger {
        Trigger::of_device(Kind::OnDemand, self.now().micros, self.ledger.histories.fullest().unwrap())
    }

    fn gpu(&self) -> &DeviceHistory {
        self.ledger.histories.device(&DeviceKey::of(&self.gpu, None)).unwrap()
    }

    fn kinds(&self) -> Vec<Kind> {
        self.ledger.incidents.all().map(|incident| incident.kind).collect()
    }

    fn incident(&self, kind: Kind) -> Arc<Incident> {
        self.incidents(kind).remove(0)
    }

    fn incidents(&self, kind: Kind) -> Vec<Arc<Incident>> {
        self.ledger.incidents.all().filter(|incident| incident.kind == kind).cloned().collect()
    }
}

/// The workload of a process, as a list shows it.
pub(super) fn listed(process: &Process) -> WorkloadUse {
    WorkloadUse {
        workload: process.owner.workload.clone().unwrap(),
        mig: process.mig.clone(),
        processes: 1,
        used: process.used,
        at_least: None,
        window_peak: None,
        is_peak_of_calls: None,
        peak: process.peak,
        limits: Vec::new(),
        energy: None,
    }
}

fn process(pid: u32) -> Process {
    let workload = Workload { name: format!("slurm:{pid}"), kind: WorkloadKind::Slurm, pod: None };
    let owner = Owner {
        name: Some(format!("job{pid}.py")),
        start: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(pid))),
        start_ticks: Some(u64::from(pid)),
        user: Some("ada".into()),
        workload: Some(Arc::new(workload)),
        ..Owner::default()
    };
    Process::for_tests(pid, owner)
}

#[test]
fn the_victim_of_a_growing_neighbour_leaves_an_incident_that_names_both() {
    let mut scene = Scene::new();
    scene.hold(1, 78.5).hold(2, 10.0).pass(30_000);
    for step in 1..=50 {
        scene.hold(2, 10.0 + f64::from(step)).pass(200);
    }
    scene.pass(300).end(1).pass(500);
    let early = scene.incident(Kind::EndedAtPeak);
    assert!(!early.complete, "it is visible at once");
    scene.pass(12_000);
    let incident = scene.incident(Kind::EndedAtPeak);
    assert_eq!(incident.id, early.id);
    assert!(incident.complete);
    let peak = incident.peak.as_ref().unwrap();
    assert_eq!(peak.used_bytes, (138.5 * GIB as f64) as u64 + 2 * CONTEXT);
    assert_eq!(peak.left_bytes, Some(ALLOCATABLE - peak.used_bytes));
    let held: Vec<_> = incident.processes.iter().map(|holder| (holder.who.pid, holder.used_bytes)).collect();
    assert_eq!(held, [(1, Some((78.5 * GIB as f64) as u64)), (2, Some(60 * GIB))]);
    assert_eq!(peak.listed_bytes, Some((138.5 * GIB as f64) as u64));
    assert_eq!(incident.grew_most, [2]);
    let neighbour = &incident.processes[1];
    assert!(neighbour.grew.second.unwrap() >= 2 << 30, "{:?}", neighbour.grew);
    assert_eq!(neighbour.grew.minute, None, "60 s before, the recorder was not running");
    assert_eq!(incident.processes[0].grew.ten_seconds, Some(0));
    let ended = incident.processes[0].ended.unwrap();
    assert!(ended.by > ended.after && (ended.by - incident.at).abs() < 1e-3);
    let begins = "job1.py (pid 1, slurm:1) ended within 0.3 s of its highest memory use, 78.50 GiB; GPU 2 had 138.5 GiB of 140.0 GiB in use, with 1.48 GiB left.";
    let summary = &incident.summary;
    assert!(summary.starts_with(begins), "{summary}");
    assert!(summary.contains("job2.py (pid 2, slurm:2) grew the most in the 10 s before, by "), "{summary}");
    assert!(!summary.contains("held the most") && summary.contains("refused"), "{summary}");
    assert!(!summary.contains("out of memory"), "the process did not report this");
    assert_eq!(incident.host.as_deref(), Some("node-1"));
    // 98 % was reached on the way.
    assert_eq!(scene.kinds(), [Kind::NearLimit, Kind::EndedAtPeak]);
}

#[test]
fn a_spike_between_two_lists_is_the_peak_and_belongs_to_no_process() {
    let mut scene = Scene::new();
    scene.hold(1, 100.0).hold(2, 20.0).pass(5_000);
    scene.millis += 5;
    scene.sample_of(Some(139 * GIB));
    scene.millis += 2;
    scene.sample().pass(400).end(1).pass(11_000);
    let incident = scene.incident(Kind::EndedAtPeak);
    let peak = incident.peak.as_ref().unwrap();
    assert_eq!((peak.used_bytes, peak.listed_bytes), (139 * GIB, Some(120 * GIB)));
    assert!(peak.listed_at.unwrap() < peak.at, "the list is older than the spike, and its time shows this");
}

#[test]
fn a_training_that_ends_well_and_a_server_that_stays_are_no_incidents() {
    let mut scene = Scene::new();
    scene.hold(1, 0.5).hold(1, 0.9 * 140.0).pass(300_000).hold(1, 100.0).pass(6_000).end(1).pass(11_000);
    scene.hold(2, 0.92 * 140.0).pass(300_000);
    assert_eq!(scene.kinds(), []);
    // The memory of process 2 rises and falls slightly around 98 %, which counts as reaching 98 % once.
    for _ in 0..20 {
        scene.hold(2, 0.981 * 140.0).pass(1_000).hold(2, 0.979 * 140.0).pass(1_000);
    }
    assert_eq!(scene.kinds(), [Kind::NearLimit]);
    scene.hold(2, 0.9 * 140.0).pass(20_000).hold(2, 0.99 * 140.0).pass(1_000);
    assert_eq!((scene.kinds(), scene.incident(Kind::NearLimit).count), (vec![Kind::NearLimit], 2));
}

#[test]
fn a_process_that_ends_at_its_peak_on_a_gpu_with_room_is_no_incident() {
    let mut scene = Scene::new();
    scene.hold(1, 100.0).pass(5_000).end(1).pass(11_000);
    assert_eq!(scene.kinds(), []);
    // A process that ends long after its peak causes no incident either, whatever another process does.
    scene.hold(2, 60.0).hold(2, 20.0).pass(6_000).hold(3, 117.0).end(2).pass(11_000);
    assert_eq!(scene.kinds(), []);
}

#[test]
fn what_did_not_grow_by_more_than_was_left_ended_for_another_reason() {
    // A server that fills 98.6 %, beside which a small process of constant size comes and goes, and ends itself.
    let mut scene = Scene::new();
    scene.hold(1, 137.9).pass(60_000);
    for pid in 2..12 {
        scene.hold(pid, 0.2).pass(2_000).end(pid).pass(4_000);
    }
    scene.end(1).pass(11_000);
    assert_eq!(scene.kinds(), [Kind::NearLimit]);
    // The same process takes more than is left, at once or in steps.
    for steps in [1, 4] {
        let mut scene = Scene::new();
        scene.hold(1, 137.9).pass(60_000);
        (1..=steps).for_each(|step| {
            scene.hold(2, 1.2 * f64::from(step) / f64::from(steps)).pass(200);
        });
        scene.end(2).pass(11_000);
        assert_eq!(scene.kinds(), [Kind::NearLimit, Kind::EndedAtPeak], "{steps}");
        let summary = &scene.incident(Kind::EndedAtPeak).summary;
        assert!(summary.contains("1.20 GiB, after growing by 1.20 GiB in 10 s; GPU 2 had"), "{summary}");
        assert!(!summary.contains("grew the most"), "{summary}");
    }
}

#[test]
fn growth_is_counted_up_to_the_list_that_follows_the_peak() {
    // The recorder has been running for less than ten seconds, so only the growth in the last second is known.
    let mut scene = Scene::new();
    scene.hold(1, 80.0).hold(2, 20.0).pass(3_000);
    for step in 1..=10 {
        scene.hold(2, 20.0 + 3.9 * f64::from(step)).pass(250);
    }
    // The last rise belongs to no process.
    scene.millis += 10;
    scene.sample_of(Some(139 * GIB + (64 << 20))).list().pass(3_000).end(1).pass(11_000);
    let incident = scene.incident(Kind::EndedAtPeak);
    assert_eq!(incident.grew_most, [2], "it grew until the peak, and the plateau after it is longer than a second");
    assert!(incident.peak.as_ref().unwrap().at < incident.at - 2.0, "{incident:?}");
}

#[test]
fn several_ends_within_ten_seconds_are_one_incident() {
    let mut scene = Scene::new();
    for pid in 1..=7 {
        scene.hold(pid, 19.2);
    }
    scene.pass(2_000);
    for pid in 1..=7 {
        scene.end(pid).pass(100);
    }
    scene.pass(11_000);
    assert_eq!(scene.kinds(), [Kind::EndedAtPeak]);
    let incident = scene.incident(Kind::EndedAtPeak);
    assert_eq!(incident.processes.iter().filter(|holder| holder.ended.is_some()).count(), 7);
}

/// Another process with the same pid, which started at `start` clock ticks.
fn reused(pid: u32, start: Option<u64>, name: &str) -> Process {
    let workload = Workload { name: "slurm:99".into(), kind: WorkloadKind::Slurm, pod: None };
    let owner =
        Owner { name: Some(name.into()), start_ticks: start, workload: Some(Arc::new(workload)), ..Owner::default() };
    Process::for_tests(pid, owner)
}

#[test]
fn a_process_that_another_of_the_same_pid_replaces_has_ended() {
    let mut scene = Scene::new();
    scene.hold(1, 10.0).pass(1_000);
    let former = scene.alive.remove(0);
    // The clock was set: only the ticks since boot tell the two apart.
    let next = reused(1, Some(99), "next.py");
    scene.alive.push(Process { used: Some(GIB), peak: Some(GIB), ..next });
    scene.ended.push(Process { alive: false, used: None, ..former });
    scene.sample().list().pass(1_000);
    let gpu = scene.gpu();
    assert_eq!((gpu.living.len(), gpu.ended.len()), (1, 1));
    assert_eq!((gpu.living[0].peak.unwrap().0, gpu.ended[0].peak.unwrap().0), (GIB, 10 * GIB));
    let gone: Vec<_> =
        scene.ledger.histories.take_gone(Micros::MAX).into_iter().map(|gone| (gone.process, gone.peaks[0].1)).collect();
    let first = ProcessId { pid: 1, start_ticks: Some(1) };
    assert_eq!(gone, [(first, Some(10 * GIB))], "it has ended although its pid is in use");
}

#[test]
fn the_end_of_a_process_is_never_that_of_an_earlier_one_with_its_pid() {
    for start in [Some(99), None] {
        let mut scene = Scene::new();
        scene.hold(1, 115.0).hold(5, 23.0).pass(1_000).hold(5, 21.0).pass(7_000).end(5).pass(300);
        let attacker = reused(5, start, "attacker.py");
        scene.alive.push(Process { used: Some(19 * GIB), peak: Some(19 * GIB), ..attacker });
        scene.sample().list().pass(1_500).end(5).pass(12_000);
        assert_eq!(scene.kinds().last(), Some(&Kind::EndedAtPeak), "{start:?}");
        let incident = scene.incident(Kind::EndedAtPeak);
        let begins = "attacker.py (pid 5, slurm:99) ended within 0.8 s of its highest memory use, 19.00 GiB;";
        assert!(incident.summary.starts_with(begins), "{start:?}: {}", incident.summary);
        let of_pid = incident.processes.iter().filter(|holder| holder.who.pid == 5);
        let peaks: Vec<_> = of_pid.map(|holder| (holder.who.name.as_deref(), holder.peak_bytes)).collect();
        assert_eq!(peaks, [(Some("job5.py"), Some(23 * GIB)), (Some("attacker.py"), Some(19 * GIB))], "{start:?}");
        let grown = incident.summary.split("grew the most").next().unwrap();
        assert!(!grown.contains("job5.py"), "{}", incident.summary);
    }
}

#[test]
fn an_exit_status_belongs_to_one_process_of_a_pid() {
    let mut scene = Scene::new();
    scene.hold(5, 1.0).pass(500).end(5);
    scene.alive.push(Process { used: Some(GIB), peak: Some(GIB), ..reused(5, Some(99), "next.py") });
    scene.sample().list().pass(500).end(5).pass(500);
    let how = |status| Some(Exit { status: Some(status), signal: None });
    let started = std::mem::take(&mut scene.ledger.histories.started);
    assert_eq!(started.iter().map(|process| process.start_ticks).collect::<Vec<_>>(), [Some(5), Some(99)]);
    scene.ledger.histories.add_exits(0, &|process: ProcessId| how(if process.start_ticks == Some(99) { 9 } else { 5 }));
    let gpu = scene.gpu();
    let exits: Vec<_> = gpu.ended.iter().map(|process| (process.id().start_ticks, process.exit.status)).collect();
    assert_eq!(exits, [(Some(5), Some(5)), (Some(99), Some(9))]);
    let events = scene.ledger.histories.events.latest(0, Micros::MAX, 1000, scene.now(), |_| true);
    let ended = |event: &Event| match &event.what {
        EventKind::ProcessEnded { exit, who, .. } => Some((who.name.clone()?, exit.status?)),
        _ => None,
    };
    let statuses: Vec<_> = events.iter().filter_map(ended).collect();
    assert_eq!(statuses, [("job5.py".to_owned(), 5), ("next.py".to_owned(), 9)]);
}

#[test]
fn of_processes_with_an_unknown_start_a_list_without_the_pid_separates_two() {
    let mut scene = Scene::new();
    let unseen = |gib: u64| Process { used: Some(gib * GIB), peak: Some(gib * GIB), ..reused(5, None, "hidden.py") };
    scene.alive.push(unseen(3));
    scene.sample().list().pass(2_000);
    assert_eq!(scene.gpu().living.len(), 1, "every list contains it: one process");
    scene.end(5).pass(1_000);
    scene.alive.push(unseen(1));
    scene.sample().list().pass(1_000);
    let gpu = scene.gpu();
    let peaks = |processes: Vec<&ProcessHistory>| {
        processes.iter().map(|process| process.peak.unwrap().0 / GIB).collect::<Vec<_>>()
    };
    assert_eq!(peaks(gpu.living.iter().collect()), [1]);
    assert_eq!(peaks(gpu.ended.iter().map(|process| &**process).collect()), [3]);
}

#[test]
fn a_process_beyond_a_limited_list_has_not_ended() {
    let mut scene = Scene::new();
    scene.hold(1, 10.0).hold(2, 20.0).pass(1_000);
    scene.millis += 10;
    let cut = scene.alive[1..].to_vec();
    let other = Other { entries: 1, processes: 1, used: Some(10 * GIB) };
    scene.list_of(cut, Some(other));
    let gpu = scene.gpu();
    assert_eq!((gpu.living.len(), gpu.ended.len()), (2, 0));
    assert_eq!(gpu.living[0].series.last(), None, "its memory is not known");
}

#[test]
fn only_as_many_processes_are_taken_to_be_left_out_as_the_list_says() {
    let mut scene = Scene::new();
    scene.hold(1, 10.0).hold(2, 20.0).pass(1_000).hold(3, 5.0).hold(4, 6.0).pass(1_000);
    let keep = scene.alive.remove(1);
    scene.alive.clear();
    scene.millis += 10;
    // The list left out one running process and one that had ended.
    let other = Other { entries: 2, processes: 1, used: Some(GIB) };
    scene.list_of(vec![keep.clone()], Some(other));
    let counts = |scene: &Scene| {
        let gpu = scene.gpu();
        (gpu.living.len(), gpu.ended.len())
    };
    assert_eq!(counts(&scene), (2, 2), "the listed process and one more are running");
    scene.millis += 10;
    // This list left out only processes that had ended.
    scene.list_of(vec![keep], Some(Other { entries: 5, processes: 0, used: None }));
    assert_eq!(counts(&scene), (1, 3));
}

#[test]
fn a_process_that_is_listed_as_ended_is_not_one_of_those_left_out() {
    let mut scene = Scene::new();
    scene.hold(1, 10.0).hold(2, 20.0).pass(1_000);
    // Process 1 is left out while it runs, and then process 2 ends: the list shows that.
    let other = Some(Other { entries: 1, processes: 1, used: Some(10 * GIB) });
    scene.millis += 10;
    scene.list_of(scene.alive[1..].to_vec(), other);
    let ended = Process { alive: false, used: None, ..scene.alive[1].clone() };
    scene.millis += 10;
    scene.list_of(vec![ended], other);
    let gpu = scene.gpu();
    assert_eq!(gpu.living.iter().map(|process| process.pid).collect::<Vec<_>>(), [1]);
}

#[test]
fn unknown_memory_leaves_a_gap_and_no_incident_of_its_own() {
    let mut scene = Scene::new();
    scene.hold(1, 50.0).pass(2_000).sample_of(None).pass(2_000);
    let gpu = scene.gpu();
    assert_eq!(gpu.memory.last(), None);
    assert_eq!(scene.kinds(), []);
}

#[test]
fn a_request_records_the_fullest_gpu_and_events_say_what_happened() {
    let mut scene = Scene::new();
    scene.hold(1, 3.0).pass(100).hold(1, 127.0).pass(2_000).end(1).hold(2, 3.0).pass(3_000);
    let now = scene.now();
    let trigger = scene.request();
    let incident = freeze(&scene.ledger.histories, &trigger, now, None, true).unwrap();
    assert_eq!((incident.kind, incident.gpu.index, incident.simulated), (Kind::OnDemand, 2, true));
    let what: Vec<_> =
        incident.events.iter().map(|event| serde_json::to_value(event).unwrap()["kind"].to_string()).collect();
    let expected = ["exporter_started", "reached", "process_started", "new_peak", "process_ended", "process_started"];
    let expected: Vec<_> = expected.iter().map(|kind| format!("{kind:?}")).collect();
    // The peak is announced some time after it was reached, but it was reached before the process ended.
    let mut sorted = what.clone();
    sorted.sort();
    let mut wanted = expected.clone();
    wanted.sort();
    assert_eq!(sorted, wanted);
}

#[test]
fn a_level_that_was_reached_before_the_first_reading_is_no_event() {
    let kinds_after = |first: f64| {
        let mut scene = Scene::new();
        scene.hold(1, first).pass(100).hold(1, 127.0).pass(2_000);
        let now = scene.now();
        let trigger = scene.request();
        let incident = freeze(&scene.ledger.histories, &trigger, now, None, true).unwrap();
        incident.events.iter().any(|event| serde_json::to_value(event).unwrap()["kind"] == "reached")
    };
    assert!(!kinds_after(127.0) && kinds_after(3.0));
}

#[test]
fn a_storm_of_short_processes_stays_within_the_memory_and_counts_what_is_dropped() {
    const LIMIT: usize = 4 << 20;
    let mut scene = Scene::new();
    let mut pid = 10;
    // 150 processes start each second for a minute and a half.
    for _ in 0..90 * 4 {
        for _ in 0..38 {
            scene.alive.push(Process { used: Some(GIB), peak: Some(GIB), ..process(pid) });
            pid += 1;
        }
        scene.sample().list();
        scene.ended = std::mem::take(&mut scene.alive);
        scene.ended.iter_mut().for_each(|process| (process.alive, process.used) = (false, None));
        scene.millis += 200;
        scene.sample().list();
        let now = scene.now();
        scene.ledger.compare_snapshot(&Snapshot::default(), now);
        scene.ledger.triggers.clear();
        scene.ledger.histories.take_gone(Micros::MAX);
        scene.ledger.age(now);
        scene.ledger.bound(now, LIMIT);
        assert!(scene.ledger.bytes() <= LIMIT, "{}", scene.ledger.bytes());
    }
    let gpu = scene.gpu();
    assert!(gpu.ended.len() > 400, "{}", gpu.ended.len());
    assert!(scene.ledger.dropped() > u64::from(pid) / 2, "{}", scene.ledger.dropped());
    assert_eq!(gpu.ended.back().map(|process| process.pid), Some(pid - 1), "the newest are kept");
}

#[test]
fn only_so_many_incidents_are_kept_and_requests_displace_few() {
    let mut scene = Scene::new();
    scene.sample();
    for pid in 2..42 {
        scene.pass(12_000).hold(pid, 139.0).pass(300).end(pid);
    }
    scene.pass(12_000);
    let kept = |scene: &Scene, kind| scene.kinds().iter().filter(|other| **other == kind).count();
    assert_eq!([Kind::NearLimit, Kind::EndedAtPeak].map(|kind| kept(&scene, kind)), [8, 8]);
    assert_eq!(scene.ledger.incidents.counts().map(|counted| counted.count).sum::<u64>(), 80);
    for _ in 0..20 {
        let (now, trigger) = (scene.now(), scene.request());
        scene.ledger.incidents.record(trigger, &scene.ledger.histories, now, false);
        scene.pass(12_000);
    }
    assert_eq!(scene.kinds().iter().filter(|kind| **kind == Kind::OnDemand).count(), 8);
    let ids: std::collections::HashSet<_> = scene.ledger.incidents.all().map(|incident| incident.id.clone()).collect();
    assert_eq!(ids.len(), scene.kinds().len(), "every id is unique");
    assert!(scene.ledger.incidents.bytes() < 16 << 20);
}

#[test]
fn the_last_incident_of_a_kind_is_named_only_while_it_is_kept() {
    let mut scene = Scene::new();
    scene.hold(1, 20.0).pass(1000).hold(1, 139.0).pass(1000);
    let named = |scene: &Scene, kind: Kind| {
        let counts: Vec<_> = scene.ledger.incidents.counts().collect();
        counts.into_iter().find(|counted| counted.kind == kind.label()).unwrap().last_id
    };
    let first = scene.incident(Kind::NearLimit).id.clone();
    assert_eq!(named(&scene, Kind::NearLimit), Some(first.clone()));
    scene.pass(20_000);
    assert!(scene.incident(Kind::NearLimit).complete);
    assert_eq!(named(&scene, Kind::NearLimit), Some(first.clone()), "a complete incident keeps its id");
    // Each of these is an incident with another workload, and the oldest of the kind are dropped.
    for pid in 2..14 {
        scene.hold(1, 20.0).hold(pid, 119.0).pass(1000).end(pid).pass(12_000);
    }
    assert!(scene.ledger.incidents.all().all(|incident| incident.id != first), "{:?}", scene.kinds());
    let is_near = |incident: &&Arc<Incident>| incident.kind == Kind::NearLimit;
    let last = scene.ledger.incidents.all().rfind(is_near).unwrap().clone();
    assert_eq!(named(&scene, Kind::NearLimit), Some(last.id.clone()));
    // Larger incidents of the same tenant take all of the memory.
    for n in 0..8 {
        let restored = Incident { id: n.to_string(), tenant: last.tenant.clone(), ..lost(&last) };
        scene.ledger.incidents.restore(restored, 2 << 20);
    }
    assert_eq!(named(&scene, Kind::NearLimit), None, "{:?}", scene.kinds());
}

#[test]
fn a_failed_allocation_is_an_incident_with_the_words_of_the_process() {
    let mut scene = Scene::new();
    scene.hold(1, 78.5).pass(5000).fail(1).pass(300);
    assert_eq!(scene.kinds(), [Kind::OutOfMemory]);
    scene.pass(12_000);
    let incident = scene.incident(Kind::OutOfMemory);
    assert!(incident.complete);
    let failure = incident.out_of_memory.clone().unwrap();
    assert_eq!((failure.who.pid, failure.requested_bytes, failure.free_bytes), (1, 80 * GIB, Some(61 * GIB)));
    let expected = "job1.py (pid 1, slurm:1) could not allocate 80.00 GiB: pytorch reports 61.00 GiB free, 60.00 GiB allocated, \
                    70.00 GiB reserved. GPU 2 had 78.51 GiB of 140.0 GiB in use, with 61.49 GiB left.";
    assert!(incident.summary.starts_with(expected), "{}", incident.summary);
    let text = super::super::text(&incident);
    assert!(text.contains("the framework wrote /tmp/\\u{202e}snap"), "{text}");
    assert!(
        incident.events.iter().any(|event| matches!(&event.what, EventKind::OutOfMemory(other) if **other == failure))
    );
    let json = serde_json::to_string(&*incident).unwrap();
    assert_eq!(serde_json::from_str::<Incident>(&json).unwrap(), *incident);
    assert!(json.contains(r#""kind":"out_of_memory","pid":1"#), "the event is one flat object: {json}");
}

#[test]
fn a_failure_tells_its_memory_and_what_that_proves() {
    let mut scene = Scene::new();
    scene.hold(1, 78.5).pass(5000);
    let site = |name: &str, bytes| Site { site: name.into(), role: MemoryRole::Activations, bytes };
    let look = AllocatorSites {
        at: scene.at(scene.millis - 1000),
        roles: [Some(13 * GIB), None, None, Some(31 * GIB), None, None, Some(0)],
        sites: vec![site("a.py:1 f", GIB), site("train.py:12 step", 30 * GIB)],
        other: Some(0),
        unrecorded: None,
        growth: Some(SiteGrowth { seconds: 12, sites: vec![site("train.py:12 step", 5 * GIB)] }),
        modules: vec![Module { module: "blocks.3\u{1b}".into(), bytes: 3 * GIB }],
        other_modules: Some(GIB),
    };
    let failed = FailedAllocation {
        requested: 2 * GIB,
        allocated: Some(44 * GIB),
        reserved: Some(47 * GIB),
        largest_free_block: Some(GIB),
        asked_by: Some("train.py:12 step".into()),
        frames: vec!["linear.py:9 \u{1b}g".into(), "train.py:12 step".into()],
        sites: Some(Arc::new(look)),
        ..failed_by(&scene, 1)
    };
    scene.ledger.fail(failed);
    scene.pass(300);
    let incident = scene.incident(Kind::OutOfMemory);
    let failure = incident.out_of_memory.clone().unwrap();
    assert_eq!((failure.largest_free_block_bytes, failure.frames.len()), (Some(GIB), 2));
    let memory = failure.memory.as_deref().unwrap();
    let grew = memory.grew.as_ref().unwrap();
    assert_eq!((grew.seconds, &*grew.sites[0].site, grew.sites[0].bytes), (12, "train.py:12 step", 5 * GIB));
    assert_eq!((memory.modules[0].bytes, memory.other_modules_bytes), (3 * GIB, Some(GIB)));
    assert_eq!(memory.sites[0].bytes, 30 * GIB, "the largest first");
    assert_eq!(incident.facts.len(), 5, "{:?}", incident.facts);
    let text = super::super::text(&incident);
    let lines = [
        &*incident.facts[0],
        "the stack that asked, innermost first",
        "  linear.py:9 \\u{1b}g",
        "the live memory of the framework, 1.0 s before: activations 31.00 GiB, parameters 13.00 GiB",
        " 30.00 GiB  activations      train.py:12 step",
        "the call sites that grew most within the 12 s before that",
        "  5.00 GiB  activations      train.py:12 step",
        "  3.00 GiB  blocks.3\\u{1b}",
        "  1.00 GiB  other modules",
    ];
    for line in lines {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    // There are many events, so they leave out what is large.
    let event = incident.events.iter().find_map(|event| match &event.what {
        EventKind::OutOfMemory(failed) => Some(failed),
        _ => None,
    });
    let brief = event.map(|event| (event.frames.len(), event.memory.as_deref().unwrap()));
    let (frames, seen) = brief.unwrap();
    assert_eq!((frames, seen.sites.len(), seen.roles.len(), seen.modules.len()), (0, 2, 0, 0));
    // The form of files: what is not there in those of an earlier version is not known.
    let mut json = serde_json::to_value(&*incident).unwrap();
    assert_eq!(serde_json::from_value::<Incident>(json.clone()).unwrap(), *incident);
    json.as_object_mut().unwrap().remove("facts");
    for key in ["largest_free_block_bytes", "asked_by", "frames"] {
        assert!(json["out_of_memory"].as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    for key in ["grew", "modules", "other_modules_bytes"] {
        assert!(json["out_of_memory"]["memory"].as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    let old: Incident = serde_json::from_value(json).unwrap();
    assert!(old.facts.is_empty() && old.bytes() < incident.bytes());
    assert_eq!(old.out_of_memory.unwrap().memory.unwrap().grew, None);
}

#[test]
fn a_request_that_the_driver_refused_is_an_incident_of_any_program() {
    let mut scene = Scene::new();
    scene.hold(1, 78.5).hold(2, 57.0).pass(5000);
    let refusal = FailedAllocation { framework: None, requested: 30 * GIB, ..failed_by(&scene, 1) };
    scene.ledger.fail(refusal.clone());
    scene.pass(300);
    let incident = scene.incident(Kind::OutOfMemory);
    let failed = incident.out_of_memory.clone().unwrap();
    // 8 MiB belong to each process' context.
    let left = scene.gpu().allocatable - 135 * GIB - GIB / 2 - (16 << 20);
    assert_eq!((failed.framework, failed.refused_bytes), (None, Some(30 * GIB)));
    assert_eq!((failed.requested_bytes, failed.free_bytes), (30 * GIB, Some(left)));
    let expected = format!(
        "job1.py (pid 1, slurm:1) asked the driver for 30.00 GiB and was refused, with {} free at the last reading before. GPU 2",
        crate::format::bytes(left)
    );
    assert!(incident.summary.starts_with(&expected), "{}", incident.summary);
    assert_eq!(incident.processes.len(), 2, "who held what");
    // The request is repeated: the same incident.
    scene.ledger.fail(FailedAllocation { at: scene.at(scene.millis), ..refusal });
    scene.pass(12_000);
    assert_eq!(scene.incidents(Kind::OutOfMemory).len(), 1);
}

#[test]
fn the_driver_s_refusal_and_the_framework_s_report_are_one_incident() {
    for driver_first in [true, false] {
        let mut scene = Scene::new();
        scene.hold(1, 78.5).pass(5000);
        // PyTorch with expandable segments asks for pieces of 20 MiB.
        let refusal = FailedAllocation { framework: None, requested: 20 << 20, ..failed_by(&scene, 1) };
        if driver_first {
            scene.ledger.fail(refusal);
            scene.pass(1000).fail(1).pass(300);
        } else {
            scene.fail(1).pass(1000);
            scene.ledger.fail(refusal);
            scene.pass(300);
        }
        let incident = scene.incident(Kind::OutOfMemory);
        let expected = "job1.py (pid 1, slurm:1) could not allocate 80.00 GiB: pytorch reports 61.00 GiB free, 60.00 GiB \
                        allocated, 70.00 GiB reserved; the driver refused its request for 20 MiB. GPU 2";
        assert!(incident.summary.starts_with(expected), "{driver_first}: {}", incident.summary);
        scene.pass(12_000);
        let [whole] = &scene.incidents(Kind::OutOfMemory)[..] else { panic!("{driver_first}") };
        assert!(whole.complete && whole.summary.starts_with(expected), "{driver_first}: {}", whole.summary);
        let shown = whole.out_of_memory.as_ref().unwrap();
        assert_eq!((shown.refused_bytes, shown.requested_bytes), (Some(20 << 20), 80 * GIB));
        let failures = whole.events.iter().filter(|event| matches!(event.what, EventKind::OutOfMemory(_)));
        assert_eq!(failures.count(), 1, "one failure: {driver_first}");
    }
}

#[test]
fn failures_of_one_process_within_seconds_are_one_incident_and_its_end_is_no_second_one() {
    let mut scene = Scene::new();
    scene.hold(1, 78.5).hold(2, 57.0).pass(5000).fail(1).pass(1000).fail(1).fail(2).pass(1000).end(1).pass(12_000);
    assert_eq!(scene.kinds(), [Kind::OutOfMemory; 2], "one for each process, and none for the end");
    let events = scene.ledger.histories.events.latest(0, Micros::MAX, 1000, scene.now(), |_| true);
    let events = events.iter();
    assert_eq!(events.filter(|event| matches!(event.what, EventKind::OutOfMemory(_))).count(), 3);
    scene.hold(1, 78.5).pass(15_000).fail(1).pass(300);
    assert_eq!(scene.kinds().len(), 2, "much later it is a repeat");
    assert_eq!(scene.ledger.incidents.all().map(|incident| incident.count).collect::<Vec<_>>(), [2, 1]);
    // If the process has reported no failure, its end at the peak is still an incident.
    scene.pass(15_000).hold(2, 60.0).pass(300).end(2).pass(300);
    assert!(scene.kinds().ends_with(&[Kind::EndedAtPeak]), "{:?}", scene.kinds());
}

#[test]
fn a_report_waits_until_the_process_is_listed_and_one_that_never_is_leaves_nothing() {
    let mut scene = Scene::new();
    scene.hold(1, 5.0).pass(1000).fail(7).pass(500);
    assert!(scene.kinds().is_empty());
    scene.hold(7, 10.0).pass(500);
    assert_eq!(scene.kinds(), [Kind::OutOfMemory]);
    scene.fail(9).pass(4000).hold(9, 5.0).pass(500);
    assert_eq!(scene.kinds().len(), 1, "it came too late");
    let other = ProcessId { pid: 1, start_ticks: Some(5) };
    scene.ledger.fail(FailedAllocation { process: other, ..failed_by(&scene, 1) });
    scene.ledger.fail(FailedAllocation { device: "GPU-1".into(), ..failed_by(&scene, 1) });
    scene.pass(4000);
    assert_eq!(scene.kinds().len(), 1, "another start time, and another GPU");
}

#[test]
fn many_processes_that_report_do_not_push_out_other_incidents() {
    let mut scene = Scene::new();
    scene.hold(1, 138.5).pass(500);
    for pid in 10..60 {
        scene.hold(pid, 0.01).pass(2000).fail(pid).pass(300);
    }
    let reported = scene.kinds().iter().filter(|kind| **kind == Kind::OutOfMemory).count();
    assert_eq!(reported, 8);
    assert!(scene.kinds().contains(&Kind::NearLimit), "{:?}", scene.kinds());
    for pid in 10..40 {
        scene.fail(pid);
    }
    scene.round();
    let in_progress = scene.ledger.incidents.all().filter(|incident| !incident.complete).count();
    assert!(in_progress <= 8, "{in_progress}");
}

/// The incident of an earlier run on another GPU.
fn lost(of: &Incident) -> Incident {
    let gpu = IncidentGpu { uuid: "GPU-9".into(), ..of.gpu.clone() };
    Incident { id: "lost".into(), kind: Kind::GpuLost, gpu, tenant: None, ..of.clone() }
}

#[test]
fn a_process_that_swings_has_one_incident_an_hour_and_every_swing_is_counted() {
    let mut scene = Scene::new();
    scene.hold(1, 20.0).pass(1000).hold(1, 139.0).pass(11_000);
    let other = lost(&scene.incident(Kind::NearLimit));
    scene.ledger.incidents.restore(other, 0);
    for _ in 1..400 {
        scene.hold(1, 120.0).pass(1000).hold(1, 139.0).pass(10_000);
    }
    let swings: Vec<_> =
        scene.ledger.incidents.all().filter(|incident| incident.kind == Kind::NearLimit).cloned().collect();
    assert_eq!(swings.len(), 2, "73 minutes");
    assert_eq!(swings.iter().map(|incident| incident.count).sum::<u64>(), 400);
    assert_eq!(scene.ledger.incidents.counts().map(|counted| counted.count).sum::<u64>(), 400);
    assert_eq!((swings[0].workload.as_deref(), swings[0].tenant.as_deref()), (Some("slurm:1"), Some("user:ada")));
    assert!(swings[0].last_at.unwrap() - swings[0].at > 3500.0 && swings[0].last_at < Some(swings[1].at));
    assert!(swings[0].memory.points.iter().all(|point| point.0 < swings[0].at + 11.0), "the first moment is kept");
    assert!(scene.ledger.incidents.all().any(|incident| incident.id == "lost"));
    let text = super::super::text(&swings[0]);
    assert!(text.contains("such moments, the last at "), "{text}");
}

#[test]
fn an_error_that_repeats_without_a_pause_is_counted_every_ten_seconds() {
    let mut scene = Scene::new();
    scene.hold(1, 20.0);
    for _ in 0..100 {
        let now = scene.now();
        let device = scene.gpu().key();
        let xid =
            Trigger { kind: Kind::MemoryXid, at: now.micros, device, process: None, xid: Some(31), failure: None };
        scene.ledger.incidents.record(xid, &scene.ledger.histories, now, false);
        scene.pass(1000);
    }
    assert_eq!(scene.kinds(), [Kind::MemoryXid]);
    assert_eq!(scene.incident(Kind::MemoryXid).count, 10);
}

#[test]
fn the_end_of_the_exporter_completes_what_was_being_recorded() {
    let mut scene = Scene::new();
    scene.hold(1, 139.0).pass(2000);
    let now = scene.now();
    let begun = (*scene.incident(Kind::NearLimit)).clone();
    let written = scene.ledger.incidents.finish(&scene.ledger.histories, now, false);
    let mut later = Incidents::new(None, 16 << 20);
    let restored = later.restore(begun, 0).unwrap();
    for incident in [&written[0], &restored] {
        assert!(incident.complete && incident.interrupted, "{incident:?}");
        assert!(incident.summary.ends_with("so the recording ends there."), "{}", incident.summary);
    }
    assert_eq!(later.restore((*restored).clone(), 0), None, "it is completed once");
}

#[test]
fn restored_incidents_count_and_stay_within_their_share_of_the_memory() {
    let mut scene = Scene::new();
    scene.hold(1, 139.0).pass(12_000);
    let one = lost(&scene.incident(Kind::NearLimit));
    for n in 0..40 {
        let gpu = IncidentGpu { uuid: format!("GPU-{n}"), ..one.gpu.clone() };
        scene.ledger.incidents.restore(Incident { id: n.to_string(), gpu, ..one.clone() }, 1 << 20);
    }
    assert!((3 << 20..=4 << 20).contains(&scene.ledger.incidents.bytes()), "{}", scene.ledger.incidents.bytes());
}

fn failed_by(scene: &Scene, pid: u32) -> FailedAllocation {
    FailedAllocation {
        process: ProcessId { pid, start_ticks: Some(u64::from(pid)) },
        at: scene.at(scene.millis),
        device: "GPU-2".into(),
        framework: Some("jax".into()),
        requested: GIB,
        free: None,
        total: None,
        allocated: None,
        reserved: None,
        largest_free_block: None,
        snapshot_path: None,
        asked_by: None,
        frames: Vec::new(),
        sites: None,
    }
}

/// A GPU that is divided into GPU instances of 10 GiB, with a process on each: pid n on the instance n.
struct Divided {
    scene: Scene,
    /// GiB that each process holds; `None` if it is not there.
    held: Vec<Option<u64>>,
}

const INSTANCE: u64 = 10 * GIB;

impl Divided {
    fn new(instances: u32) -> Self {
        let mut scene = Scene::new();
        scene.gpu = Arc::new(Gpu {
            mig_mode: Some(true),
            mig: (0..instances).map(|n| mig(n, n, 0)).collect(),
            ..(*scene.gpu).clone()
        });
        Self { scene, held: vec![None; instances as usize] }
    }

    fn hold(&mut self, n: usize, gib: impl Into<Option<u64>>) -> &mut Self {
        self.held[n] = gib.into();
        self.read()
    }

    fn processes(&self) -> Vec<Process> {
        let held = self.held.iter().enumerate().filter_map(|(n, held)| Some((n, (*held)? * GIB)));
        let on = |(n, used): (usize, u64)| {
            let process = process(n as u32 + 1);
            Process { mig: Some(self.scene.gpu.mig[n].clone()), used: Some(used), peak: Some(used), ..process }
        };
        held.map(on).collect()
    }

    /// The lanes read everything.
    fn read(&mut self) -> &mut Self {
        let (at, gpu) = (self.scene.at(self.scene.millis), self.scene.gpu.clone());
        let sample = |mig, used, allocatable| MemorySample { gpu: gpu.clone(), mig, at, used: Some(used), allocatable };
        let all: u64 = self.held.iter().flatten().map(|gib| gib * GIB).sum();
        self.scene.ledger.sample(&sample(None, all, self.held.len() as u64 * INSTANCE));
        for (device, held) in std::iter::zip(&gpu.mig, &self.held) {
            self.scene.ledger.sample(&sample(Some(device.clone()), held.unwrap_or(0) * GIB, INSTANCE));
        }
        self.scene.millis += 3;
        let (at, processes) = (Some(self.scene.at(self.scene.millis)), self.processes());
        let list = GpuProcesses { gpu, at, processes, ..GpuProcesses::default() };
        let now = self.scene.now();
        self.scene.ledger.list(&list, now);
        self
    }

    fn pass(&mut self, millis: u64) -> &mut Self {
        for _ in 0..millis / 250 {
            self.scene.millis += 247;
            self.read();
            self.scene.round();
        }
        self
    }
}

fn mig(index: u32, gpu_instance: u32, compute_instance: u32) -> Arc<MigDevice> {
    let uuid = format!("MIG-{gpu_instance}-{compute_instance}");
    Arc::new(MigDevice { index, uuid, gpu_instance, compute_instance, profile: Some("1g.10gb".into()) })
}

#[test]
fn each_full_mig_device_has_its_own_incidents_and_the_gpu_has_none() {
    let mut divided = Divided::new(7);
    for n in 0..7 {
        divided.hold(n, 9).pass(500).hold(n, 10);
    }
    divided.pass(1_000);
    for n in 0..7 {
        divided.hold(n, None).pass(500);
    }
    divided.pass(12_000);
    let of = |kind: Kind| -> Vec<_> {
        let incidents = divided.scene.ledger.incidents.all().filter(|incident| incident.kind == kind);
        incidents.map(|incident| incident.gpu.mig_uuid().unwrap_or("none").to_owned()).collect()
    };
    let all: Vec<_> = (0..7).map(|n| format!("MIG-{n}-0")).collect();
    assert_eq!((of(Kind::NearLimit), of(Kind::EndedAtPeak)), (all.clone(), all));
    let counts: Vec<_> = divided.scene.ledger.incidents.counts().collect();
    assert!(counts.len() == 14 && counts.iter().all(|counted| counted.mig.is_some() && counted.count == 1));
}

#[test]
fn an_incident_of_a_mig_device_has_the_figures_of_that_device_alone() {
    let mut divided = Divided::new(2);
    divided.hold(0, 10).pass(20_000).hold(1, 5).pass(2_000).hold(1, 10).pass(1_000).hold(1, None).pass(12_000);
    let incident = divided.scene.incident(Kind::EndedAtPeak);
    let begins = "job2.py (pid 2, slurm:2) ended within 0.1 s of its highest memory use, 10.00 GiB, after \
                  growing by 10.00 GiB in 10 s; MIG device 1g.10gb \
                  (GPU instance 1) of GPU 2 had 10.00 GiB of 10.00 GiB in use, with 0 B left.";
    assert!(incident.summary.starts_with(begins), "{}", incident.summary);
    assert!(!incident.summary.contains("job1.py"), "{}", incident.summary);
    let pids: Vec<_> = incident.processes.iter().map(|holder| holder.who.pid).collect();
    assert_eq!((pids, incident.gpu.allocatable_bytes), (vec![2], Some(INSTANCE)));
    let peak = incident.peak.as_ref().unwrap();
    assert_eq!((peak.used_bytes, peak.listed_bytes), (INSTANCE, Some(INSTANCE)));
    assert!(peak.listed_at.is_some());
    let json = serde_json::to_value(&*incident).unwrap();
    let gpu = serde_json::json!({ "index": 2, "uuid": "GPU-2", "mig_uuid": "MIG-1-0", "gpu_instance": 1,
        "compute_instance": 0, "profile": "1g.10gb", "allocatable_bytes": INSTANCE });
    assert_eq!(json["gpu"], gpu);
    assert_eq!(serde_json::from_value::<Incident>(json.clone()).unwrap(), *incident);
    let neighbour = |event: &serde_json::Value| event["mig_uuid"] == "MIG-0-0";
    assert!(!json["events"].as_array().unwrap().iter().any(neighbour), "{json}");
    assert!(super::super::text(&incident).contains("MIG-1-0"));
}

#[test]
fn compute_instances_of_one_gpu_instance_are_one_device() {
    let mut divided = Divided::new(2);
    divided.scene.gpu = Arc::new(Gpu { mig: vec![mig(0, 0, 0), mig(1, 0, 1)], ..(*divided.scene.gpu).clone() });
    divided.hold(0, 4).hold(1, 6).pass(1_000);
    let uuids: Vec<_> =
        divided.scene.ledger.histories.devices.iter().map(|device| (device.uuid(), device.living.len())).collect();
    assert_eq!(uuids, [("GPU-2", 0), ("MIG-0-0", 2)]);
}

#[test]
fn mig_devices_that_are_gone_are_forgotten_after_the_time_that_is_remembered() {
    let mut divided = Divided::new(2);
    divided.hold(0, 10).pass(1_000).hold(0, None).pass(12_000);
    divided.scene.gpu = Arc::new(Gpu { mig: vec![mig(0, 5, 0), mig(1, 6, 0)], ..(*divided.scene.gpu).clone() });
    divided.pass(1_000);
    let uuids = |divided: &Divided| -> Vec<String> {
        divided.scene.ledger.histories.devices.iter().map(|device| device.uuid().to_owned()).collect()
    };
    assert_eq!(uuids(&divided), ["GPU-2", "MIG-0-0", "MIG-1-0", "MIG-5-0", "MIG-6-0"]);
    let gone = divided.scene.ledger.histories.devices[1].memory.last();
    assert_eq!(gone, None, "nothing is known about it any longer");
    divided.scene.millis += 7_300_000;
    divided.read().pass(1_000);
    assert_eq!(uuids(&divided), ["GPU-2", "MIG-5-0", "MIG-6-0"]);
    assert!(!divided.scene.ledger.histories.knows_mig("MIG-0-0"));
}
