//! The supervisor with lanes that panic or hang, on the simulated driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::phase::{AfterEnding, Phase};
use super::*;
use crate::attribution::{self, Attribution};
use crate::faults::{Reason, Source};
use crate::lanes::bell::Bell;
use crate::lanes::memory::MemoryLane;
use crate::lanes::process::ProcessLane;
use crate::lanes::session::Session;
use crate::lanes::watch::{Role, Superseded, Watch};
use crate::lanes::worker::{Slow, Worker, WorkerStatus};
use crate::lanes::xids::XidWatch;
use crate::lanes::{DriverLease, MemorySettings, ProcessSettings, TelemetrySettings};
use crate::nvml::Library;
use crate::snapshot::MAX_STUCK_THREADS;

/// How long anything may take before the test fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A real memory lane whose first threads send a heartbeat and then panic in a driver call.
struct Panicking {
    lane: Arc<dyn LaneTask>,
    panics: AtomicU32,
    snapshot: Arc<Snapshot>,
}

impl LaneTask for Panicking {
    fn resume(&self, session: &Session) {
        self.lane.resume(session);
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let panics = self.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if panics {
            self.snapshot.vitals.beat(Lane::Memory, Instant::now());
            // Without the panic hook: while it prints a backtrace, the call would become a slow one.
            watch.call::<()>(0, || std::panic::resume_unwind(Box::new("on behalf of the test")))?;
        }
        self.lane.run(session, watch)
    }
}

struct Stage {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    control: Arc<Control>,
    link: Arc<Link>,
}

/// A supervisor that runs on the built-in scenario and whose memory lane panics this many times.
fn supervisor(panics: u32) -> (Supervisor, Stage) {
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libnvml_sim.so");
    assert!(library.is_file(), "{} is missing: build with the feature `demo`", library.display());
    let peak_window = Duration::from_secs(60);
    let settings = Settings {
        library: Library::At(library),
        call_timeout: Duration::from_secs(2),
        memory: MemorySettings {
            period: Duration::from_millis(10),
            idle_period: Duration::from_secs(1),
            peak_window,
            stale_after: Duration::from_secs(5),
            list_stale_after: Duration::from_secs(5),
            procfs: PathBuf::from("/nonexistent"),
        },
        process: ProcessSettings {
            interval: Duration::from_secs(1),
            peak_window,
            linger: Duration::from_secs(300),
            series_limit: 256,
            telemetry: Some(TelemetrySettings {
                unseen: Vec::new(),
                workload_energy: false,
                profiling_interval: Some(Duration::from_secs(1)),
                interval: Duration::from_secs(1),
                slow_interval: Duration::from_secs(15),
            }),
        },
    };
    let (snapshot, faults, link) = (Snapshot::new(), Arc::new(Faults::default()), Arc::new(Link::default()));
    let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
    let memory = Panicking { lane: Arc::new(memory), panics: AtomicU32::new(panics), snapshot: snapshot.clone() };
    let places =
        attribution::Settings { procfs: PathBuf::from("/nonexistent"), passwd: None, command_line: false, hold: 1 };
    let attribution = Attribution::new(places, snapshot.clone(), faults.clone());
    let process =
        ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
    let telemetry = settings.process.telemetry.as_ref().unwrap();
    let xids = XidWatch::new(telemetry, snapshot.clone(), faults.clone(), link.clone());
    let tasks: LaneTasks =
        vec![(Lane::Memory, Arc::new(memory)), (Lane::Process, Arc::new(process)), (Lane::Telemetry, Arc::new(xids))];
    let control = Arc::new(Control::new(Bell::new().unwrap()));
    let stage = Stage { snapshot: snapshot.clone(), faults: faults.clone(), control, link: link.clone() };
    (Supervisor::new(settings, tasks, link, snapshot, faults, stage.control.clone()), stage)
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_sampled(snapshot: &Snapshot) -> bool {
    let memory = snapshot.memory.load();
    !memory.gpus.is_empty() && memory.gpus.iter().all(|gpu| gpu.figures.is_some())
}

#[test]
fn a_lane_that_panics_is_counted_and_restarted_beside_the_others() {
    let (supervisor, stage) = supervisor(3);
    let handle = thread::spawn(move || supervisor.run());
    let panics = || stage.faults.count(Source::Memory, Reason::Panicked);
    wait_until("the first panic", || panics() >= 1);
    let lists = || stage.snapshot.vitals.durations(Lane::Process).buckets.iter().sum::<u64>();
    let before = lists();
    wait_until("lists while the other lane is down", || lists() > before);
    assert!(!is_sampled(&stage.snapshot), "no lane sampled");
    wait_until("samples", || is_sampled(&stage.snapshot));
    assert_eq!(panics(), 3);
    assert_eq!(stage.faults.count(Source::Process, Reason::Panicked), 0);
    stage.control.stop();
    handle.join().unwrap();
}

#[test]
fn a_lane_that_always_panics_becomes_silent_for_health() {
    let (supervisor, stage) = supervisor(u32::MAX);
    let handle = thread::spawn(move || supervisor.run());
    wait_until("two panics", || stage.faults.count(Source::Memory, Reason::Panicked) >= 2);
    // Neither the supervisor nor the other lane sends heartbeats for a lane that is down.
    let silence = || stage.snapshot.vitals.since_beat(Lane::Memory);
    wait_until("silence", || silence() > Some(Duration::from_secs(2)));
    assert!(stage.snapshot.vitals.since_beat(Lane::Process) < silence());
    stage.control.stop();
    handle.join().unwrap();
}

#[test]
fn the_memory_lane_knows_the_number_of_living_processes() {
    let (supervisor, stage) = supervisor(0);
    let handle = thread::spawn(move || supervisor.run());
    let living = || {
        let part = stage.snapshot.processes.load();
        part.gpus.iter().flat_map(|gpu| &gpu.processes).filter(|process| process.alive).count()
    };
    wait_until("processes", || living() > 0 && stage.link.processes.load(Ordering::Relaxed) == living());
    stage.control.stop();
    handle.join().unwrap();
}

/// Opens the driver.
fn open(supervisor: &mut Supervisor) -> (Arc<Session>, Vec<Worker>) {
    let mut phase = Phase::Closed(Instant::now());
    let begin = Instant::now();
    loop {
        phase = match supervisor.step(phase) {
            Phase::Open { session, workers, .. } => return (session, workers),
            other => other,
        };
        assert!(begin.elapsed() < TIMEOUT, "the driver was not opened");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn repeated_panics_restart_a_lane_ever_later_in_any_session() {
    let (mut supervisor, stage) = supervisor(u32::MAX);
    let (session, workers) = open(&mut supervisor);
    let since = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let mut phase = Phase::Open { session, since, workers };
    let begin = Instant::now();
    while stage.faults.count(Source::Memory, Reason::Panicked) < 3 {
        phase = supervisor.step(phase);
        assert!(begin.elapsed() < TIMEOUT, "the lane does not panic");
        thread::sleep(Duration::from_millis(5));
    }
    let restarts = |lane, role| supervisor.restarts.get(&(lane, role)).map(|policy| policy.backoff.failures());
    assert_eq!(restarts(Lane::Memory, Role::Shared), Some(3));
    let others = [(Lane::Process, Role::Shared), (Lane::Memory, Role::Own(0))];
    assert_eq!(others.map(|(lane, role)| restarts(lane, role)), [None, None], "each thread has its own policy");
    let Phase::Open { session, workers, .. } = phase else { panic!("the session ended") };
    assert_eq!(stage.faults.count(Source::Memory, Reason::Stalled), 0);
    // While the session ends, the supervisor does not send heartbeats for lanes that are still working.
    let ending = Phase::Ending { session: session.clone(), workers, then: AfterEnding::RetryAt(Instant::now()) };
    assert_eq!(Lane::ALL.map(|lane| ending.is_idle(lane)), [true, false, false]);
    session.end("the test ends");
}

#[test]
fn a_thread_that_panics_in_a_driver_call_is_not_one_that_hangs() {
    let (mut supervisor, _stage) = supervisor(u32::MAX);
    let (session, _) = open(&mut supervisor);
    let worker = supervisor.start((Lane::Memory, Role::Shared), &supervisor.tasks[0].1, &session).unwrap();
    wait_until("the panic", || worker.is_finished());
    assert!(matches!(worker.check(&session, Duration::ZERO, Slow::Kept), WorkerStatus::Panicked));
    session.end("the test ends");
}

#[test]
fn a_call_that_holds_a_released_driver_is_reported_until_it_returns() {
    let (mut supervisor, stage) = supervisor(0);
    DriverLease(stage.control.clone()).release(Duration::from_secs(3600));
    let (release, wait) = std::sync::mpsc::channel::<()>();
    supervisor.detached.add_stuck(thread::spawn(move || wait.recv().unwrap()), None);
    let held = || stage.snapshot.driver.load().problem.clone().unwrap().contains("still holds it");
    let phase = supervisor.step(Phase::Closed(Instant::now()));
    assert!(held());
    release.send(()).unwrap();
    wait_until("the thread ends", || {
        supervisor.detached.reap();
        supervisor.detached.stuck() == 0
    });
    assert!(matches!(supervisor.step(phase), Phase::Released { holders: 0 }));
    assert!(!held());
}

#[test]
fn an_opening_that_holds_a_released_driver_is_reported() {
    let (mut supervisor, stage) = supervisor(0);
    DriverLease(stage.control.clone()).release(Duration::from_secs(3600));
    supervisor.reopening.opening = Some(supervisor.begin_opening(None).unwrap());
    let held = || stage.snapshot.driver.load().problem.clone().unwrap().contains("still holds it");
    let phase = supervisor.step(Phase::Closed(Instant::now()));
    assert!(held());
    wait_until("the attempt ends and its driver is closed", || {
        supervisor.reap(&phase);
        supervisor.holders() == 0
    });
    assert!(matches!(supervisor.step(phase), Phase::Released { holders: 0 }));
    assert!(!held());
}

#[test]
fn lanes_without_a_supervisor_end_and_become_silent() {
    let (mut supervisor, stage) = supervisor(0);
    let (session, workers) = open(&mut supervisor);
    drop(session);
    assert_eq!(workers.len(), 3);
    wait_until("samples", || is_sampled(&stage.snapshot));
    assert!(!workers.iter().any(Worker::is_finished));
    // Unwinding does the same if the supervisor panics.
    drop(supervisor);
    wait_until("the lanes end", || workers.iter().all(Worker::is_finished));
    let silence = || stage.snapshot.vitals.since_beat(Lane::Memory);
    wait_until("silence", || silence() > Some(Duration::from_millis(500)));
}

#[test]
fn no_more_threads_are_abandoned_than_may_hang() {
    let (mut supervisor, stage) = supervisor(0);
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let hang = || {
        let wait = wait.clone();
        thread::spawn(move || drop(wait.lock().map(|wait| wait.recv())))
    };
    let (session, workers) = open(&mut supervisor);
    session.end("the test opens it again");
    wait_until("the lanes end", || workers.iter().all(Worker::is_finished));
    supervisor.settings.call_timeout = Duration::from_millis(1);
    (1..MAX_STUCK_THREADS).for_each(|_| supervisor.detached.add_stuck(hang(), None));
    let mut watch_one = || {
        let entered = Arc::new(AtomicBool::new(false));
        let hanging = Arc::new(Hanging(wait.clone(), entered.clone()));
        let lane = (Lane::Memory, Role::Shared);
        let worker =
            Worker::start(lane, hanging, session.clone(), Duration::from_secs(60), &stage.control.bell).unwrap();
        wait_until("the call", || entered.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(5));
        let working = supervisor.check_workers(&session, vec![worker]).len();
        (working, supervisor.detached.stuck(), stage.faults.count(Source::Memory, Reason::Stalled))
    };
    assert_eq!(watch_one(), (0, MAX_STUCK_THREADS, 1), "the last thread that is abandoned");
    assert_eq!(watch_one(), (1, MAX_STUCK_THREADS, 1), "this one remains, so that no other thread is started");
    // At the limit, the driver is not opened either.
    let phase = supervisor.step(Phase::Closed(Instant::now()));
    assert!(matches!(phase, Phase::Closed(_)));
    supervisor.reap(&phase);
    assert_eq!(stage.snapshot.vitals.stuck(), MAX_STUCK_THREADS);
    drop(release);
    wait_until("a call comes back", || {
        supervisor.reap(&phase);
        stage.snapshot.vitals.stuck() == 0
    });
    assert!(matches!(supervisor.step(Phase::Closed(Instant::now())), Phase::Opening(_)));
}

/// A lane whose driver call returns only when the test ends.
struct Hanging(Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>, Arc<AtomicBool>);

impl LaneTask for Hanging {
    fn resume(&self, _session: &Session) {}

    fn run(&self, _session: &Session, watch: &Watch) -> Result<(), Superseded> {
        watch.call(0, || {
            self.1.store(true, Ordering::Relaxed);
            drop(self.0.lock().map(|wait| wait.recv()));
        })
    }
}
