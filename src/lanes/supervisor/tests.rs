//! The supervisor with lanes that die, on the simulated driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::attribution;
use crate::config::{self, Command};
use crate::lanes::watch::{Superseded, Watch};
use crate::nvml::Library;

/// How long anything may take before it is called missing.
const PATIENCE: Duration = Duration::from_secs(30);

/// A real lane whose first threads end by a panic.
struct Frail {
    lane: Arc<dyn Duty>,
    deaths: AtomicU32,
}

impl Duty for Frail {
    fn resume(&self, session: &Session) {
        self.lane.resume(session);
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let dies = self.deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        assert!(!dies, "as a test wants it");
        self.lane.run(session, watch)
    }
}

struct Stage {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    orders: Arc<Orders>,
}

/// A supervisor on the built-in scenario, whose memory lane dies so many times.
fn supervisor(deaths: u32) -> (Supervisor, Stage) {
    let beside = std::env::current_exe().unwrap().parent().unwrap().join("libnvml_sim.so");
    assert!(beside.is_file(), "{} is missing: build with the feature `demo`", beside.display());
    let Ok(Command::Run(config)) = config::load(["vram-exporter".into()], []) else { panic!("no configuration") };
    let settings = Settings::new(&config, Library::At(beside));
    let (snapshot, faults, link) = (Snapshot::new(), Arc::new(Faults::default()), Arc::new(Link::default()));
    let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
    let memory = Frail { lane: Arc::new(memory), deaths: AtomicU32::new(deaths) };
    let places = attribution::Settings { procfs: PathBuf::from("/nonexistent"), passwd: None, command_line: false };
    let attribution = Attribution::new(places, snapshot.clone(), faults.clone());
    let process =
        ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
    let duties: Duties = [(Lane::Memory, Arc::new(memory)), (Lane::Process, Arc::new(process))];
    let stage = Stage { snapshot: snapshot.clone(), faults: faults.clone(), orders: Arc::default() };
    (Supervisor::new(settings, duties, link, snapshot, faults, stage.orders.clone()), stage)
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_sampled(snapshot: &Snapshot) -> bool {
    let memory = snapshot.memory.load();
    !memory.gpus.is_empty() && memory.gpus.iter().all(|gpu| gpu.figures.is_some())
}

#[test]
fn a_lane_that_dies_is_counted_and_started_again_and_the_other_goes_on() {
    let (supervisor, stage) = supervisor(2);
    let handle = thread::spawn(move || supervisor.run());
    stage.orders.listen(handle.thread().clone());
    let deaths = || stage.faults.count(Source::Memory, Reason::Died);
    wait_until("the first death", || deaths() == 1);
    let lists = || stage.snapshot.vitals.durations(Lane::Process).buckets.iter().sum::<u64>();
    let before = lists();
    wait_until("lists while the other lane is dead", || lists() > before);
    assert!(!is_sampled(&stage.snapshot), "nobody sampled");
    wait_until("samples", || is_sampled(&stage.snapshot));
    assert_eq!(deaths(), 2);
    assert_eq!(stage.faults.count(Source::Process, Reason::Died), 0);
    stage.orders.stop();
    handle.join().unwrap();
}

#[test]
fn a_lane_that_cannot_live_falls_silent_which_is_what_health_looks_at() {
    let (supervisor, stage) = supervisor(u32::MAX);
    let handle = thread::spawn(move || supervisor.run());
    stage.orders.listen(handle.thread().clone());
    wait_until("two deaths", || stage.faults.count(Source::Memory, Reason::Died) >= 2);
    // Nobody beats for the dead, neither the supervisor nor the other lane.
    let silence = || stage.snapshot.vitals.since_beat(Lane::Memory);
    wait_until("silence", || silence() > Some(Duration::from_secs(2)));
    assert!(stage.snapshot.vitals.since_beat(Lane::Process) < silence());
    stage.orders.stop();
    handle.join().unwrap();
}

#[test]
fn lanes_that_nobody_looks_after_end_and_fall_silent() {
    let (mut supervisor, stage) = supervisor(0);
    let mut phase = Phase::Closed(Instant::now());
    let begin = Instant::now();
    let workers = loop {
        phase = match supervisor.turn(phase) {
            Phase::Open { workers, .. } => break workers,
            other => other,
        };
        assert!(begin.elapsed() < PATIENCE, "the driver was not opened");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(workers.len(), 2);
    wait_until("samples", || is_sampled(&stage.snapshot));
    assert!(!workers.iter().any(Worker::is_finished));
    // What unwinding does when the supervisor ends by a panic.
    drop(supervisor);
    wait_until("the lanes end", || workers.iter().all(Worker::is_finished));
    let silence = || stage.snapshot.vitals.since_beat(Lane::Memory);
    wait_until("silence", || silence() > Some(Duration::from_millis(500)));
}
