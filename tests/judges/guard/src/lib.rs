//! A simulated machine and the parts of the exporter that read it, driven step by step. The program `work` is used to
//! count the instructions of the steps, and `tests/allocations.rs` counts their allocations.
//!
//! Invariant: no step depends on a timer. The lane treats its ticks as ten milliseconds apart, however long they
//! take.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_metrics::{Format, Metrics};
use gpu_readings::attribution::{self, Attribution};
use gpu_readings::faults::Faults;
use gpu_readings::lanes::ManualLanes;
use gpu_readings::snapshot::{CallFeed, Feed, GpuProcesses, GpuTelemetry, Lane, Snapshot};
use tempfile::TempDir;
use vram_exporter::config::Config;
use vram_exporter::demo::SimulatedMachine;
use vram_exporter::internals::{lanes_settings, metrics_settings};

/// How long any wait may take. The limit is generous because under valgrind everything takes fifty times as long.
const PATIENCE: Duration = Duration::from_secs(120);
/// An interval for actions that must not happen while something is being counted.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// The number of GPUs in the machines for the memory lane.
const GPUS: usize = 8;
/// The scenario for whose scrape the instructions are counted; the scrape is in `tests/golden`.
const GOLDEN: &str = "busy-h200";

/// Memory that grows by a few mebibytes a microsecond and drops at intervals.
const MOVING: &str = r#"[{ kind = "sawtooth", low = "1GiB", high = "120GiB", every = "20ms" }]"#;
/// The capacity of the feed: twice the number of changes on eight GPUs between two rounds of the recorder.
const FEED: usize = 400;

/// A machine and the exporter on it.
pub struct Workplace {
    snapshot: Arc<Snapshot>,
    lanes: ManualLanes,
    metrics: Metrics,
    next: Instant,
    _machine: SimulatedMachine,
}

impl Workplace {
    /// Eight GPUs whose memory stays the same.
    pub fn still() -> Self {
        Self::eight(r#""40GiB""#, Snapshot::new())
    }

    /// Eight GPUs whose memory changes on every tick: it grows by a few mebibytes a microsecond and drops at intervals.
    pub fn moving() -> Self {
        Self::eight(MOVING, Snapshot::new())
    }

    /// The same as `moving`, with a feed for a recorder. Nothing reads what is passed on, so the feed is soon full.
    pub fn recorded() -> Self {
        Self::eight(MOVING, Snapshot::recorded(Feed::with_room(FEED), CallFeed::default()))
    }

    fn eight(memory: &str, snapshot: Arc<Snapshot>) -> Self {
        let folder = TempDir::new().unwrap();
        let mut scenario = format!("seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = {GPUS}\n");
        for gpu in 0..GPUS {
            write!(scenario, "[[process]]\ngpu = {gpu}\ncommand = [\"train\"]\nmemory = {memory}\n").unwrap();
        }
        let path = folder.path().join("scenario.toml");
        std::fs::write(&path, scenario).unwrap();
        Self::ticking(path.to_str().unwrap(), snapshot)
    }

    /// GPUs with MIG devices.
    pub fn sliced() -> Self {
        let place = Self::ticking("mig-a100", Snapshot::new());
        assert!(place.snapshot.memory.load().gpus.iter().any(|gpu| !gpu.mig.is_empty()), "no MIG device");
        place
    }

    fn ticking(scenario: &str, snapshot: Arc<Snapshot>) -> Self {
        let mut place = Self::with(snapshot, scenario, |_| {});
        // Two copies of a part are published in turn, and each is created when it is first needed.
        (0..20).for_each(|_| place.tick());
        place
    }

    /// The scenario of the golden scrape, with every part of the snapshot read.
    pub fn golden() -> Self {
        let mut place = Self::on(GOLDEN, |config| {
            config.telemetry.interval = Duration::from_millis(200);
            config.memory.stale_after = NEVER;
        });
        place.tick();
        let begin = Instant::now();
        let is_full = |snapshot: &Snapshot| {
            let (processes, telemetry) = (snapshot.processes.load(), snapshot.telemetry.load());
            let has_work = |gpu: &GpuProcesses| gpu.processes.iter().all(|process| process.sm_utilization.is_some());
            let is_listed =
                |gpu: &GpuProcesses| !gpu.processes.is_empty() && !gpu.workloads.is_empty() && has_work(gpu);
            let is_read = |gpu: &GpuTelemetry| gpu.fast_at.is_some() && gpu.slow_at.is_some();
            let (listed, read) = (processes.gpus.iter().all(|gpu| is_listed(gpu)), telemetry.gpus.iter().all(is_read));
            !processes.gpus.is_empty() && !telemetry.gpus.is_empty() && listed && read
        };
        place.lanes.follow(|snapshot| is_full(snapshot) || begin.elapsed() > PATIENCE);
        assert!(is_full(&place.snapshot), "not within {PATIENCE:?}: all readings of {GOLDEN}");
        place
    }

    /// The same machine, for the process lane, which lists processes as often as it can and reads telemetry once.
    pub fn unchanging() -> Self {
        let mut place = Self::on(GOLDEN, |config| {
            config.process.interval = Duration::from_millis(1);
            config.telemetry.interval = NEVER;
            config.telemetry.slow_interval = NEVER;
        });
        place.tick();
        place.pass(20);
        place
    }

    /// Eight GPUs with profiling counters, which are sampled as often as possible; everything else is read once. There is
    /// no process, because the number of allocations for a process is not the same in each session.
    pub fn profiled() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("scenario.toml");
        std::fs::write(&path, format!("seed = 1\n[[gpu]]\nmodel = \"H200\"\ncount = {GPUS}\n")).unwrap();
        let mut place = Self::on(path.to_str().unwrap(), |config| {
            config.process.interval = NEVER;
            config.telemetry.interval = NEVER;
            config.telemetry.slow_interval = NEVER;
            config.profiling.interval = Duration::from_millis(500);
        });
        place.tick();
        place
    }

    /// Runs until the counters have been sampled this many more times. Call it once each time the driver is opened.
    pub fn profile(&mut self, rounds_more: u64) {
        let rounds = |snapshot: &Snapshot| snapshot.vitals.durations(Lane::Telemetry).buckets.iter().sum::<u64>();
        let (begin, wanted) = (Instant::now(), rounds(&self.snapshot) + rounds_more);
        self.lanes.follow(|snapshot| rounds(snapshot) >= wanted || begin.elapsed() > PATIENCE);
        let part = self.snapshot.profiling.load();
        assert!(part.gpus.len() == GPUS && part.gpus.iter().all(|gpu| gpu.at.is_some()), "no interval was measured");
    }

    fn on(scenario: &str, adjust: impl FnOnce(&mut Config)) -> Self {
        Self::with(Snapshot::new(), scenario, adjust)
    }

    fn with(snapshot: Arc<Snapshot>, scenario: &str, adjust: impl FnOnce(&mut Config)) -> Self {
        let machine = SimulatedMachine::prepare(scenario).unwrap();
        let mut config = machine.adapt(Config::default());
        adjust(&mut config);
        let faults = Arc::new(Faults::default());
        let settings = attribution::Settings {
            procfs: config.path.procfs.clone(),
            passwd: config.path.passwd.clone(),
            command_line: config.process.command_line,
            hold: 512,
        };
        let attribution = Attribution::new(settings, snapshot.clone(), faults.clone());
        let settings = lanes_settings(&config, machine.library());
        let metrics = Metrics::new(snapshot.clone(), faults.clone(), metrics_settings(&config, Some(true))).unwrap();
        let lanes = ManualLanes::open(settings, attribution, snapshot.clone(), faults).unwrap();
        Self { snapshot, lanes, metrics, next: Instant::now(), _machine: machine }
    }

    /// The number of samples that were passed on to the recorder.
    pub fn passed_on(&self) -> u64 {
        let waiting = std::iter::from_fn(|| self.snapshot.feed.next_sample()).count() as u64;
        self.snapshot.feed.dropped() + waiting
    }

    /// One tick of the memory lane.
    pub fn tick(&mut self) {
        self.lanes.tick(self.next);
        self.next += Duration::from_millis(10);
    }

    /// One scrape, as the web server produces it before compression.
    pub fn scrape(&self) -> Vec<u8> {
        self.metrics.encode(Format::Text).unwrap()
    }

    /// The same scrape in OpenMetrics, without creation times, as with the default configuration.
    pub fn scrape_open_metrics(&self) -> Vec<u8> {
        self.metrics.encode(Format::OpenMetrics).unwrap()
    }

    /// Closes the driver and opens it again.
    pub fn reopened(self) -> Self {
        let mut place = Self { lanes: self.lanes.reopen().unwrap(), ..self };
        place.tick();
        place
    }

    /// Process passes so far.
    pub fn passes(&self) -> u64 {
        passes(&self.snapshot)
    }

    /// Lets the process lane make at least this many more passes. Call it once each time the driver is opened.
    pub fn pass(&mut self, passes_more: u64) {
        let (begin, wanted) = (Instant::now(), self.passes() + passes_more);
        self.lanes.follow(|snapshot| passes(snapshot) >= wanted || begin.elapsed() > PATIENCE);
        assert!(self.passes() >= wanted, "not within {PATIENCE:?}: {passes_more} process passes");
    }

    /// Bytes in use on each GPU, as published.
    pub fn used(&self) -> Vec<u64> {
        let memory = self.snapshot.memory.load();
        memory.gpus.iter().map(|gpu| gpu.figures.map_or(0, |figures| figures.used)).collect()
    }
}

fn passes(snapshot: &Snapshot) -> u64 {
    snapshot.vitals.durations(Lane::Process).buckets.iter().sum()
}
