use std::time::{Instant, SystemTime};

use super::kept::MAX_KEPT;
use super::*;
use crate::recorder::history::failures::Novelty;
use crate::recorder::history::{Failure, FailureSites, ProcessRef, SiteUse};
use crate::snapshot::{
    AllocatorFigures, AllocatorPart, AllocatorReport, CgroupLocation, EnergyShare, Gpu, LastMessage, MigDevice, Other,
    Owner, PodContainer, ReportingProcess, WorkloadKind, WorkloadUse,
};

const GIB: u64 = 1 << 30;
const ALLOCATABLE: u64 = 100 * GIB;

/// GPUs, and jobs that receive lists and samples as the recorder passes them on.
struct Scene {
    start: Instant,
    clock: Clock,
    jobs: Jobs,
    gpus: Vec<Arc<Gpu>>,
    /// For each GPU: pid, workload, GiB, and whether it is in the next list.
    processes: Vec<Vec<Process>>,
    millis: u64,
}

impl Scene {
    fn new(gpus: u32) -> Self {
        let start = Instant::now();
        let gpu = |index| Arc::new(Gpu { index, uuid: format!("GPU-{index}"), ..Gpu::default() });
        let mut scene = Self {
            start,
            clock: Clock::starting(start),
            jobs: Jobs { node: Some("node-1".into()), ..Jobs::for_tests() },
            gpus: (0..gpus).map(gpu).collect(),
            processes: vec![Vec::new(); gpus as usize],
            millis: 0,
        };
        scene.lists();
        scene
    }

    fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.millis)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(self.millis);
        self.clock.both(self.at(), wall)
    }

    fn hold(&mut self, gpu: usize, pid: u32, workload: &Arc<Workload>, gib: u64) -> &mut Self {
        let found = self.processes[gpu].iter().position(|process| process.pid == pid);
        let position = found.unwrap_or_else(|| {
            self.processes[gpu].push(process(pid, workload));
            self.processes[gpu].len() - 1
        });
        let process = &mut self.processes[gpu][position];
        process.used = Some(gib * GIB);
        process.peak = process.peak.max(process.used);
        self.sample(gpu);
        self.list(gpu)
    }

    fn end(&mut self, gpu: usize, pid: u32) -> &mut Self {
        self.processes[gpu].retain(|process| process.pid != pid);
        self.sample(gpu);
        self.list(gpu)
    }

    fn sample(&mut self, gpu: usize) {
        let used = self.processes[gpu].iter().filter_map(|process| process.used).sum();
        let (gpu_of, at) = (self.gpus[gpu].clone(), self.at());
        let sample = MemorySample { gpu: gpu_of, mig: None, at, used: Some(used), allocatable: ALLOCATABLE };
        self.jobs.sample(&sample, self.clock.micros(at));
    }

    /// The list that the process lane would pass on for a GPU.
    fn listed(&self, gpu: usize) -> GpuProcesses {
        let mut workloads: Vec<WorkloadUse> = Vec::new();
        for process in &self.processes[gpu] {
            let workload = process.owner.workload.clone().unwrap();
            let known = workloads.iter().position(|listed| listed.workload == workload);
            let index = known.unwrap_or_else(|| {
                workloads.push(WorkloadUse { processes: 0, ..usage(&workload, None, 0) });
                workloads.len() - 1
            });
            let listed = &mut workloads[index];
            listed.processes += 1;
            listed.used = listed.used.zip(process.used).map(|(sum, used)| sum + used);
            listed.peak = listed.used;
        }
        let processes = self.processes[gpu].clone();
        GpuProcesses {
            gpu: self.gpus[gpu].clone(),
            at: Some(self.at()),
            processes,
            workloads,
            ..GpuProcesses::default()
        }
    }

    fn list(&mut self, gpu: usize) -> &mut Self {
        let list = self.listed(gpu);
        self.list_of(&list)
    }

    fn list_of(&mut self, list: &GpuProcesses) -> &mut Self {
        let (at, clock, now) = (self.clock.micros(self.at()), self.clock, self.now());
        self.jobs.list(list, at, clock, now);
        self
    }

    fn lists(&mut self) -> &mut Self {
        for gpu in 0..self.gpus.len() {
            self.list(gpu);
        }
        self
    }

    /// Lets time pass, with a list of each GPU every second.
    fn pass(&mut self, millis: u64) -> &mut Self {
        let until = self.millis + millis;
        while self.millis < until {
            self.millis = until.min(self.millis + 1000);
            self.lists();
            let now = self.now();
            self.jobs.close(now);
        }
        self
    }

    fn all(&self) -> Vec<Arc<JobReport>> {
        self.jobs.latest(None, None, usize::MAX, self.now())
    }

    /// The only report.
    fn only(&self) -> Arc<JobReport> {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }
}

fn workload(name: &str, kind: WorkloadKind) -> Arc<Workload> {
    Arc::new(Workload { name: name.into(), kind, pod: None })
}

/// What a list shows about a workload with one process.
fn usage(workload: &Arc<Workload>, mig: Option<Arc<MigDevice>>, gib: u64) -> WorkloadUse {
    let (workload, used) = (workload.clone(), Some(gib * GIB));
    WorkloadUse {
        workload,
        mig,
        processes: 1,
        used,
        at_least: None,
        window_peak: None,
        is_peak_of_calls: None,
        peak: None,
        limits: Vec::new(),
        energy: None,
    }
}

fn job(id: u32) -> Arc<Workload> {
    workload(&format!("slurm:{id}"), WorkloadKind::Slurm)
}

fn process(pid: u32, workload: &Arc<Workload>) -> Process {
    let owner = Owner {
        user: Some("ada".into()),
        uid: Some(1000),
        start: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(pid.into())),
        start_ticks: Some(pid.into()),
        workload: Some(workload.clone()),
        ..Owner::default()
    };
    Process::for_tests(pid, owner)
}

#[test]
fn a_job_on_two_gpus_has_the_numbers_of_each() {
    let mut scene = Scene::new(2);
    let job = job(77);
    scene.pass(2000).hold(0, 5, &job, 10).hold(1, 5, &job, 40);
    scene.pass(6500).hold(0, 5, &job, 30);
    scene.pass(3500).hold(0, 5, &job, 20);
    scene.pass(10_000).end(0, 5).pass(5000);
    let running = scene.only();
    assert_eq!((running.state, running.end, running.seconds), (State::Running, None, 25.0));
    scene.end(1, 5).pass(1000);
    let report = scene.only();
    assert_eq!((report.state, report.start, report.end), (State::Left, 1_000_002.0, Some(1_000_027.0)));
    assert_eq!((report.seconds, report.processes, report.seen_from_start), (25.0, 1, true));
    assert_eq!((report.job.as_deref(), report.user.as_deref()), (Some("77"), Some("ada")));
    assert_eq!(report.kind, WorkloadKind::Slurm);
    assert_eq!(report.node.as_deref(), Some("node-1"));
    let [first, second] = &report.gpus[..] else { panic!("{report:?}") };
    assert_eq!((first.peak_bytes, first.peak_at), (Some(30 * GIB), Some(1_000_008.5)));
    assert_eq!(first.mean_bytes, Some((10 * 65 + 30 * 35 + 20 * 100) * GIB / 200));
    assert_eq!((first.last_bytes, first.seconds, first.gpu), (Some(20 * GIB), 20.0, 0));
    assert_eq!(first.advice_bytes, Some((30 * GIB * 115).div_ceil(100)));
    assert_eq!(first.allocatable_bytes, Some(ALLOCATABLE));
    assert_eq!((second.peak_bytes, second.mean_bytes, second.seconds), (Some(40 * GIB), Some(40 * GIB), 25.0));
    scene.pass(361_000);
    assert_eq!(*scene.only(), JobReport { state: State::Ended, ..(*report).clone() });
    assert_eq!(scene.jobs.take_complete().len(), 1);
    assert!(scene.jobs.take_complete().is_empty(), "each report goes to the file once");
}

#[test]
fn the_time_near_the_end_of_the_gpu_includes_the_neighbours() {
    let mut scene = Scene::new(1);
    let (own, neighbour) = (job(1), workload("unit:serve.service", WorkloadKind::Systemd));
    scene.pass(1000).hold(0, 9, &neighbour, 92).pass(4000).hold(0, 5, &own, 1).pass(2000);
    scene.hold(0, 9, &neighbour, 97).pass(3000).hold(0, 9, &neighbour, 10).pass(4000).end(0, 5);
    scene.hold(0, 9, &neighbour, 99).pass(5000);
    let report = scene.jobs.latest(Some("1"), None, 9, scene.now()).remove(0);
    let gpu = &report.gpus[0];
    let near = [gpu.seconds_at_90_percent, gpu.seconds_at_95_percent, gpu.seconds_at_98_percent];
    assert_eq!((near, gpu.seconds), ([Some(5.0), Some(3.0), Some(3.0)], 9.0));
}

#[test]
fn a_restarted_process_continues_the_report_and_a_late_one_begins_another() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8).pass(10_000).end(0, 5).pass(350_000);
    scene.hold(0, 6, &job, 4).pass(20_000).end(0, 6).pass(1000);
    let report = scene.only();
    assert_eq!((report.processes, report.seconds, report.gpus[0].seconds), (2, 380.0, 30.0));
    let mean = (8 * 10 + 4 * 20) * GIB / 30;
    assert_eq!((report.gpus[0].mean_bytes, report.gpus[0].last_bytes), (Some(mean), Some(4 * GIB)));
    scene.pass(400_000).hold(0, 7, &job, 2);
    let states: Vec<_> = scene.all().iter().map(|report| (report.state, report.gpus[0].peak_bytes)).collect();
    assert_eq!(states, [(State::Running, Some(2 * GIB)), (State::Ended, Some(8 * GIB))]);
}

#[test]
fn the_energy_of_a_report_is_what_was_apportioned_since_its_beginning() {
    let mut scene = Scene::new(1);
    let job = job(3);
    // What the process lane has counted for the workload.
    let counted = |list: GpuProcesses, joules: f64| {
        let share = EnergyShare { counted_since: SystemTime::UNIX_EPOCH, joules };
        let workloads = list.workloads.into_iter().map(|listed| WorkloadUse { energy: Some(share), ..listed });
        GpuProcesses { workloads: workloads.collect(), ..list }
    };
    let list = |scene: &mut Scene, joules: f64| {
        let list = counted(scene.listed(0), joules);
        scene.list_of(&list);
    };
    scene.pass(1000).hold(0, 5, &job, 8);
    assert_eq!(scene.only().gpus[0].energy_joules, None);
    [500.0, 500.0, 620.0].into_iter().for_each(|joules| list(&mut scene, joules));
    assert_eq!(scene.only().gpus[0].energy_joules, Some(120.0));
    // The process lane had forgotten it.
    list(&mut scene, 30.0);
    assert_eq!(scene.only().gpus[0].energy_joules, Some(150.0));
    assert!(text(&scene.only()).contains("    energy 150 J (0.0000 kWh), by its share of SM time: an estimate\n"));
    // After its end, the energy of its last second.
    let ended = counted(scene.listed(0), 45.0);
    scene.end(0, 5);
    let workloads = ended.workloads.into_iter().map(|listed| WorkloadUse { processes: 0, used: None, ..listed });
    let ended = GpuProcesses { processes: Vec::new(), workloads: workloads.collect(), ..ended };
    scene.list_of(&ended).pass(1000);
    assert_eq!(scene.only().gpus[0].energy_joules, Some(165.0));
}

#[test]
fn the_peak_of_an_earlier_report_is_not_that_of_the_next() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8);
    // The process lane remembers the workload for longer than the report does.
    let remembered = |list: GpuProcesses, peak: u64| {
        let workloads = list.workloads.into_iter().map(|listed| WorkloadUse { peak: Some(peak * GIB), ..listed });
        GpuProcesses { workloads: workloads.collect(), ..list }
    };
    let mut list = remembered(scene.listed(0), 50);
    scene.list_of(&list);
    list.workloads[0].peak = Some(60 * GIB);
    scene.list_of(&list);
    assert_eq!(scene.only().gpus[0].peak_bytes, Some(60 * GIB), "what is read between two lists counts");
    scene.end(0, 5).pass(400_000);
    scene.processes[0].push(Process { used: Some(GIB), ..process(6, &job) });
    let list = remembered(scene.listed(0), 60);
    scene.list_of(&list).pass(1000);
    assert_eq!(scene.all()[0].gpus[0].peak_bytes, Some(GIB));
    let list = remembered(scene.listed(0), 61);
    scene.list_of(&list);
    assert_eq!(scene.all()[0].gpus[0].peak_bytes, Some(61 * GIB));
}

#[test]
fn a_name_that_becomes_known_late_continues_the_report() {
    let mut scene = Scene::new(2);
    let pod = PodContainer { namespace: "ml".into(), pod: "train-0".into(), container: "main".into() };
    let early = workload("container:0123456789ab", WorkloadKind::Container);
    let name = "ml/train-0/main".to_owned();
    let late = Arc::new(Workload { name, kind: WorkloadKind::Kubernetes, pod: Some(Arc::new(pod)) });
    scene.pass(1000).hold(0, 5, &early, 8).hold(1, 5, &early, 3).pass(10_000);
    scene.processes.iter_mut().flatten().for_each(|known| {
        known.owner = Arc::new(Owner { workload: Some(late.clone()), ..(*known.owner).clone() });
    });
    scene.pass(5000);
    let report = scene.only();
    assert_eq!((&*report.workload, report.kind, report.processes), ("ml/train-0/main", WorkloadKind::Kubernetes, 1));
    assert_eq!(report.pod.as_deref().zip(report.container.as_deref()), Some(("train-0", "main")));
    assert_eq!((report.start, report.seconds), (1_000_001.0, 15.0));
    let gpus: Vec<_> = report.gpus.iter().map(|gpu| (gpu.mean_bytes, gpu.seconds, gpu.gpu)).collect();
    assert_eq!(gpus, [(Some(8 * GIB), 15.0, 0), (Some(3 * GIB), 15.0, 1)]);
    // A process that moves to another job does not take its former report along.
    scene.processes.iter_mut().flatten().for_each(|known| {
        let location = CgroupLocation { slurm_job: Some("9".into()), ..CgroupLocation::default() };
        known.owner = Arc::new(Owner { workload: Some(job(9)), location, ..(*known.owner).clone() });
    });
    scene.pass(5000);
    assert_eq!(scene.all().len(), 2);
}

#[test]
fn units_and_users_that_come_and_go_do_not_flood() {
    let mut scene = Scene::new(1);
    let (user, unit) = (workload("user:ada", WorkloadKind::User), workload("unit:run.scope", WorkloadKind::Systemd));
    scene.pass(1000).hold(0, 4, &unit, 1).pass(30_000).end(0, 4);
    for pid in 10..20 {
        scene.hold(0, pid, &user, 1).pass(10_000).end(0, pid).pass(600_000);
    }
    scene.pass(1_900_000);
    let report = scene.only();
    assert_eq!((&*report.workload, report.processes, report.gpus[0].seconds), ("user:ada", 10, 100.0));
    assert_eq!(scene.jobs.take_complete().len(), 1);
}

#[test]
fn a_gap_counts_for_nothing_and_a_job_without_lists_ends_where_it_was_seen() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8).pass(10_000);
    scene.millis += 60_000;
    scene.hold(0, 5, &job, 16).pass(10_000);
    let report = scene.only();
    assert_eq!((report.seconds, report.gpus[0].seconds), (80.0, 20.0));
    assert_eq!(report.gpus[0].mean_bytes, Some(12 * GIB));
    scene.millis += 400_000;
    let now = scene.now();
    scene.jobs.close(now);
    assert_eq!((scene.only().state, scene.only().end), (State::Ended, Some(1_000_081.0)));
}

#[test]
fn unknown_memory_is_absent_and_leads_to_no_advice() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).processes[0].push(process(5, &job));
    scene.pass(10_000);
    let gpu = scene.only().gpus[0].clone();
    let memory = [gpu.peak_bytes, gpu.mean_bytes, gpu.last_bytes, gpu.advice_bytes, gpu.allocatable_bytes];
    assert_eq!((memory, gpu.samples, gpu.seconds), ([None; 5], 0, 9.0));
    assert_eq!((gpu.idle_ratio, gpu.seconds_at_90_percent, gpu.advice_margin), (None, None, None));
    assert!(gpu.no_advice.is_some_and(|why| why.contains("does not report")));
    assert!(text(&scene.only()).contains("peak unknown"));
}

#[test]
fn a_workload_that_a_list_leaves_out_has_not_ended() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8).pass(4000);
    let other = Some(Other { entries: 1, processes: 1, used: None });
    let cut = GpuProcesses { processes: vec![], workloads: vec![], other, other_workloads: other, ..scene.listed(0) };
    scene.millis += 1000;
    scene.list_of(&cut);
    scene.pass(5000);
    let report = scene.only();
    assert_eq!((report.state, report.processes, report.gpus[0].seconds), (State::Running, 1, 10.0));
    assert_eq!(report.gpus[0].mean_bytes, Some(8 * GIB));
    let ended = Some(Other { entries: 1, processes: 0, used: None });
    let cut = GpuProcesses { processes: vec![], workloads: vec![], other_workloads: ended, ..scene.listed(0) };
    scene.list_of(&cut);
    assert_eq!(scene.only().state, State::Left);
}

#[test]
fn idle_time_and_exits_are_added_up() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8).hold(0, 6, &job, 8);
    for second in 0..40 {
        let active = scene.at();
        scene.processes[0][0].last_active = if second < 20 { Some(active) } else { scene.processes[0][0].last_active };
        scene.processes[0][1].last_active.get_or_insert(active);
        scene.pass(1000);
    }
    let idle = scene.only().gpus[0].idle_ratio.unwrap();
    assert!((idle - 21.0 / 39.0).abs() < 0.001, "{idle}");
    scene.millis += 100;
    scene.end(0, 5);
    scene.millis += 100;
    scene.end(0, 6);
    let exit = |process: ProcessId| (process.pid == 5).then_some(Exit { status: Some(7), signal: None });
    scene.jobs.add_exits(0, &exit);
    scene.jobs.add_exits(0, &exit);
    let report = scene.only();
    let ended = ExitCount { exit: Exit { status: Some(7), signal: None }, processes: 1 };
    assert_eq!((report.processes, &report.exits[..]), (2, &[ended][..]));
    assert!(text(&report).contains("2 processes: 1 with exit status 7"), "{}", text(&report));
}

/// What a process reports about GPU 0.
fn reporting(pid: u32, figures: AllocatorFigures) -> ReportingProcess {
    let report = AllocatorReport {
        device: "GPU-0".into(),
        framework: "pytorch".into(),
        heard: LastMessage::new(Instant::now()),
        figures,
        regions: Vec::new(),
        sites: None,
    };
    ReportingProcess { id: ProcessId { pid, start_ticks: Some(pid.into()) }, reports: vec![report] }
}

#[test]
fn failures_raise_the_margin_and_allocators_cannot_claim_more_than_the_driver_reports() {
    let mut scene = Scene::new(1);
    let job = job(3);
    scene.pass(1000).hold(0, 5, &job, 8).hold(0, 6, &job, 8).pass(1000);
    let reporting = |pid: u32, allocated: u64, peak: u64| {
        let (allocated, peak) = (Some(allocated * GIB), Some(peak * GIB));
        reporting(pid, AllocatorFigures { allocated, peak, ..AllocatorFigures::default() })
    };
    let snapshot = Snapshot::default();
    let look = |scene: &mut Scene, processes| {
        snapshot.allocator.store(Arc::new(AllocatorPart { processes }));
        scene.jobs.compare_snapshot(&snapshot, scene.clock.micros(scene.at()));
        scene.only().gpus[0].allocated_peak_bytes
    };
    assert_eq!(look(&mut scene, vec![reporting(5, 900, 900)]), None);
    assert_eq!(look(&mut scene, vec![reporting(5, 2, 6), reporting(6, 3, 4)]), Some(6 * GIB), "of one process");
    assert_eq!(look(&mut scene, vec![reporting(5, 5, 6), reporting(6, 4, 4)]), Some(9 * GIB), "together");
    let failure = |workload: &str, mig: Option<&str>| Failure {
        who: ProcessRef {
            pid: 5,
            workload: Some(workload.into()),
            mig_uuid: mig.map(str::to_owned),
            ..ProcessRef::default()
        },
        framework: Some("pytorch".into()),
        requested_bytes: GIB,
        ..Failure::default()
    };
    scene.jobs.fail(&scene.gpus[0], &failure("slurm:4", None), 1, Novelty::New);
    scene.jobs.fail(&scene.gpus[0], &failure("slurm:3", Some("MIG-1")), 1, Novelty::New);
    assert_eq!(scene.only().gpus[0].out_of_memory, 0);
    scene.jobs.fail(&scene.gpus[0], &failure("slurm:3", None), 1, Novelty::New);
    let gpu = scene.only().gpus[0].clone();
    assert_eq!((gpu.out_of_memory, gpu.advice_bytes, gpu.advice_margin), (1, None, None));
    assert_eq!(gpu.needs_more_than_bytes, gpu.peak_bytes);
    let [short] = &scene.jobs.shortages(scene.now())[..] else { panic!("one workload on one GPU") };
    assert_eq!((&*short.workload.name, short.gpu.index, short.mig.is_some()), ("slurm:3", 0, false));
    assert!((short.last - scene.now().unix(1)).abs() < 1e-6, "{short:?}");
    // The framework's account of the same failure tells more, the driver's tells nothing new.
    let site = |line: u64| SiteUse { site: format!("\u{1b}a.py:{line} f"), role: "other".into(), bytes: line << 30 };
    let memory = FailureSites { sites: (1..=5).rev().map(site).collect(), ..FailureSites::default() };
    let (asked_by, memory) = (Some("a.py:9 step".to_owned()), Some(Box::new(memory)));
    let told = Failure { asked_by, memory, requested_bytes: 2 * GIB, ..failure("slurm:3", None) };
    let refused = Failure { framework: None, requested_bytes: 7, ..failure("slurm:3", None) };
    for account in [&told, &refused] {
        scene.jobs.fail(&scene.gpus[0], account, 2, Novelty::Account);
    }
    let gpu = scene.only().gpus[0].clone();
    let last = gpu.last_failure.clone().unwrap();
    assert_eq!((gpu.out_of_memory, last.requested_bytes, last.asked_by.as_deref()), (1, 2 * GIB, Some("a.py:9 step")));
    assert_eq!(last.memory.unwrap().sites, [5, 4, 3].map(site), "the three largest");
    let text = super::text(&scene.only());
    let lines = [
        "    the last one requested 2.00 GiB",
        "      asked by a.py:9 step",
        "      live before: 5.00 GiB other of \\u{1b}a.py:5 f",
    ];
    assert!(lines.iter().all(|line| text.lines().any(|shown| shown == *line)), "{text}");
    // An earlier version wrote no last failure.
    let mut written = serde_json::to_value(&*scene.only()).unwrap();
    assert!(written["gpus"][0].as_object_mut().unwrap().remove("last_failure").is_some());
    assert_eq!(serde_json::from_value::<JobReport>(written).unwrap().gpus[0].last_failure, None);
}

#[test]
fn a_workload_is_advised_by_what_it_needed_where_that_is_known() {
    let mut scene = Scene::new(1);
    let (idle, job) = (job(3), job(4));
    let mib = |mib: u64| Some(mib << 20);
    let snapshot = Snapshot::default();
    let report = |pid: u32, peak: u64, reserved: Option<u64>| {
        let (allocated, peak) = (mib(100), mib(peak));
        reporting(pid, AllocatorFigures { allocated, peak, reserved, ..AllocatorFigures::default() })
    };
    // The driver's figure is the newer one for a moment: 36 GiB that the allocator has not reported yet.
    scene.pass(1000).hold(0, 5, &idle, 1).hold(0, 6, &job, 40).pass(1000);
    let look = |scene: &mut Scene, reserved: u64| {
        let processes = vec![report(5, 1270, Some(reserved * GIB)), report(6, 500, None)];
        snapshot.allocator.store(Arc::new(AllocatorPart { processes }));
        scene.jobs.compare_snapshot(&snapshot, scene.clock.micros(scene.at()));
    };
    look(&mut scene, 0);
    scene.hold(0, 5, &idle, 37);
    look(&mut scene, 0);
    for _ in 0..20 {
        scene.pass(1000);
        look(&mut scene, 36);
    }
    let reports = scene.all();
    let of = |job: &str| reports.iter().find(|report| report.workload == job).unwrap().gpus[0].clone();
    let known = of("slurm:3");
    assert_eq!((known.peak_bytes, known.needed_bytes), (Some(37 * GIB), mib(1270 + 1024)));
    assert_eq!(known.advice_bytes, Some(crate::sizing::with_margin((1270 + 1024) << 20)));
    let partly = of("slurm:4");
    assert_eq!((partly.peak_bytes, partly.needed_bytes), (Some(40 * GIB), Some(40 * GIB)), "what it keeps is unknown");
    // A process without a report beside it may need all that it holds, and a later one does not add to an earlier one.
    scene.hold(0, 7, &idle, 2).pass(1000).end(0, 7).pass(1000).hold(0, 8, &idle, 3).pass(1000);
    let reports = scene.all();
    let idle = &reports.iter().find(|report| report.workload == "slurm:3").unwrap();
    assert_eq!(idle.gpus[0].needed_bytes, Some(mib(1270 + 1024).unwrap() + 3 * GIB));
    let lines = text(idle);
    assert!(lines.contains("its allocators had at most 1.24 GiB allocated; it needed at most 5.24 GiB"), "{lines}");
    assert!(lines.contains("6.03 GiB (what it needed + 15 %)"), "{lines}");
}

#[test]
fn the_lowest_limit_is_the_budget_and_time_at_it_is_added_up() {
    use crate::snapshot::{BudgetSource, WorkloadLimit};
    let limit = |source: BudgetSource, gib: u64| WorkloadLimit {
        source,
        bytes: (gib > 0).then_some(gib * GIB),
        over: None,
        since: SystemTime::UNIX_EPOCH,
    };
    let mut scene = Scene::new(1);
    scene.hold(0, 5, &job(3), 10);
    let mut lists = |limits: &[(BudgetSource, u64)], used: u64| {
        let mut list = scene.listed(0);
        list.workloads[0].limits = limits.iter().map(|&(source, gib)| limit(source, gib)).collect();
        list.workloads[0].used = Some(used * GIB);
        scene.list_of(&list);
        scene.millis += 1000;
        scene.only().gpus[0].clone()
    };
    let none = lists(&[(BudgetSource::TimeSlicing, 1)], 10);
    assert_eq!((none.budget_bytes, none.budget_source, none.seconds_at_budget), (None, None, None));
    let both = [(BudgetSource::Hami, 20), (BudgetSource::Kai, 15), (BudgetSource::TimeSlicing, 1)];
    for (used, seconds) in [(14, 0.0), (15, 0.0), (20, 1.0), (14, 2.0), (14, 2.0)] {
        let gpu = lists(&both, used);
        assert_eq!((gpu.budget_bytes, gpu.budget_source.as_deref()), (Some(15 * GIB), Some("kai")));
        assert_eq!(gpu.seconds_at_budget, Some(seconds), "{used}");
    }
    let last = lists(&[(BudgetSource::Kai, 0)], 99);
    assert_eq!((last.budget_bytes, last.seconds_at_budget), (Some(15 * GIB), Some(2.0)), "the last that was known");
}

#[test]
fn mig_devices_are_reported_apart() {
    let mut scene = Scene::new(1);
    let job = job(3);
    let device = |n: u32| Arc::new(MigDevice { uuid: format!("MIG-{n}"), gpu_instance: n, ..MigDevice::default() });
    let (at, micros) = (scene.at(), scene.clock.micros(scene.at()));
    for (n, used) in [(1, 19), (2, 1)] {
        let (gpu, mig) = (scene.gpus[0].clone(), Some(device(n)));
        let sample = MemorySample { gpu, mig, at, used: Some(used * GIB), allocatable: 20 * GIB };
        scene.jobs.sample(&sample, micros);
    }
    let on = |n: u32, gib: u64| usage(&job, Some(device(n)), gib);
    for _ in 0..4 {
        scene.millis += 1000;
        let processes = vec![
            Process { mig: Some(device(1)), ..process(5, &job) },
            Process { mig: Some(device(2)), ..process(6, &job) },
        ];
        let list = GpuProcesses { processes, workloads: vec![on(1, 19), on(2, 1)], ..scene.listed(0) };
        scene.list_of(&list);
    }
    let report = scene.only();
    let found: Vec<_> = report.gpus.iter().map(|gpu| (gpu.mig_uuid.as_deref(), gpu.seconds_at_95_percent)).collect();
    assert_eq!(found, [(Some("MIG-1"), Some(3.0)), (Some("MIG-2"), Some(0.0))]);
    assert_eq!((report.gpus[0].allocatable_bytes, report.processes), (Some(20 * GIB), 2));
}

#[test]
fn a_workload_that_was_there_before_the_exporter_says_so() {
    let mut scene = Scene::new(1);
    scene.jobs = Jobs::for_tests();
    scene.hold(0, 5, &job(3), 8).pass(5000);
    assert!(!scene.only().seen_from_start);
    assert!(text(&scene.only()).contains("or earlier"));
    let now = scene.now();
    scene.jobs.stop(now);
    assert_eq!((scene.only().state, scene.only().end), (State::ExporterStopped, None));
    assert_eq!(scene.only().seconds, 5.0);
}

#[test]
fn ten_thousand_jobs_are_bounded_and_all_reach_the_file() {
    let mut scene = Scene::new(1);
    let mut written = 0;
    for id in 1..=10_000 {
        scene.millis += 5;
        scene.hold(0, id, &job(id), 1);
        scene.millis += 5;
        scene.end(0, id);
        written += scene.jobs.take_complete().len();
    }
    assert!(scene.jobs.open.len() <= MAX_OPEN);
    assert!(scene.all().len() <= MAX_OPEN + MAX_KEPT, "{}", scene.all().len());
    let bytes = scene.jobs.bytes();
    assert!(bytes < 4 << 20, "{bytes}");
    assert_eq!(scene.jobs.dropped(), (10_000 - MAX_OPEN - MAX_KEPT) as u64);
    let now = scene.now();
    scene.jobs.stop(now);
    written += scene.jobs.take_complete().len();
    assert_eq!(written, 10_000);
    let now = scene.now();
    scene.jobs.bound(now, 256 << 10);
    assert!(scene.jobs.bytes() <= 1 << 18 && !scene.all().is_empty());
    // More workloads than can be followed at once: the rest is counted, and those that are followed stay.
    let dropped = scene.jobs.dropped();
    for id in 0..MAX_OPEN as u32 + 10 {
        let pid = 20_000 + id;
        scene.processes[0].push(Process { used: Some(GIB), ..process(pid, &job(pid)) });
    }
    scene.pass(1000);
    assert_eq!((scene.jobs.open.len(), scene.jobs.dropped()), (MAX_OPEN, dropped + 10));
}

#[test]
fn reports_of_users_do_not_push_out_those_of_jobs() {
    let mut kept = Kept::default();
    let mut scene = Scene::new(1);
    scene.pass(1000).hold(0, 5, &job(3), 8).pass(1000);
    let report = scene.only();
    kept.push(report.clone());
    for _ in 0..2 * MAX_KEPT {
        kept.push(Arc::new(JobReport { kind: WorkloadKind::User, ..(*report).clone() }));
    }
    assert_eq!(kept.newest_first().count(), MAX_KEPT);
    assert_eq!(kept.newest_first().last().map(|report| report.kind), Some(WorkloadKind::Slurm));
}

#[test]
fn hostile_names_are_cut_and_cannot_control_a_terminal() {
    let mut scene = Scene::new(1);
    let name = format!("unit:\u{1b}[31m\n{}", "x".repeat(5000));
    scene.pass(1000).hold(0, 5, &workload(&name, WorkloadKind::Container), 8).pass(1000);
    let report = scene.only();
    assert_eq!(report.workload.chars().count(), 256);
    assert!(text(&report).chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!serde_json::to_string(&*report).unwrap().contains('\n'), "a report is one line");
    let read: JobReport = serde_json::from_str(&serde_json::to_string(&*report).unwrap()).unwrap();
    assert_eq!(read, *report);
}
