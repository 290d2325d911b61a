//! What the exporter's lanes read while the command runs: they read the memory and list the processes of each GPU, and every
//! reading is recorded as it is taken, because a snapshot shows only the latest one.
//!
//! Invariant: nothing here makes a driver call. A GPU that does not answer delays no reading of another one.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpu_calls::{CallWatch, Mode};
use gpu_readings::attribution::{self, Attribution};
use gpu_readings::faults::{self, Faults, Reason, Source, chain};
use gpu_readings::lanes::{Lanes, MemorySettings, ProcessSettings, Settings};
use gpu_readings::nvml::{Library, Severity};
use gpu_readings::snapshot::{
    CallFeed, Driver, Gpu, GpuMemory, GpuProcesses, GpuState, ListRead, MemoryFigures, NEARLY_FULL, Observer,
    PRESSURE_RATIOS, ReadProcess, Snapshot,
};
use parking_lot::Mutex;
use tokio::time::sleep;
use vram_exporter::config::{Config, Probes};

use super::names::Names;
use super::places::Machine;
use super::record::{Entry, Membership, Record};
use super::tree::Found;

/// The longest time between two lists of the processes of a GPU that answers.
pub(super) const LIST_INTERVAL: Duration = Duration::from_millis(100);
/// If two samples are further apart, the time between them does not count as time at the level of the first one.
const LONGEST_STEP: Duration = Duration::from_secs(2);
/// How many folders in `/proc` of processes that the command did not start are held open, to recognise them again.
const HELD: usize = 64;
/// The maximum number of processes on a GPU, of those that have ended lately, and of their workloads.
const MOST_LISTED: usize = 1 << 16;
/// How often the last readings are looked for.
const LOOK: Duration = Duration::from_millis(1);
/// Within which time calls that have returned are known as peaks.
const CALLS: Duration = Duration::from_millis(400);
/// How much later than its limit a call that does not return is known to be one, on a busy machine.
const LATE: Duration = Duration::from_secs(1);

/// The state at the end.
#[derive(Debug, Default, Clone)]
pub(super) struct State {
    /// `None` until the driver is open.
    pub(super) machine: Option<Machine>,
    /// When the driver was first open, from the start of the command.
    pub(super) opened: Option<Duration>,
    pub(super) record: Record,
    /// Why the driver could not be opened.
    pub(super) problem: Option<String>,
    pub(super) lost: Option<Lost>,
    /// Why the driver's memory calls were not seen although the configuration asks for it.
    pub(super) calls_unseen: Option<String>,
    /// How many of these calls were lost.
    pub(super) calls_lost: u64,
    /// By the index of the GPU.
    pub(super) calls: BTreeMap<u32, Calls>,
}

/// When and why the driver was first lost. Times are counted from the start of the command.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    pub(super) at: Duration,
    pub(super) problem: String,
    /// When a GPU answered again.
    pub(super) back: Option<Duration>,
}

/// What is known about the driver calls for a GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    state: GpuState,
    /// When its memory was last read, its processes were last listed, and a call was last refused.
    sampled: Option<Instant>,
    listed: Option<Instant>,
    refused: Option<Instant>,
    /// How many living processes of the command were in the last list.
    living: usize,
    /// When a call began that has not returned, from the start of the command.
    pub(super) hangs_since: Option<Duration>,
    /// The number of refused calls, and the first error.
    pub(super) failures: u64,
    pub(super) first_failure: Option<String>,
}

impl Calls {
    /// Whether nothing more is to be expected of the GPU: it answered after `since`, and was listed after `listed_since`, or is
    /// out of reach.
    fn is_done(&self, since: Instant, listed_since: Option<Instant>) -> bool {
        let answers = self.sampled.max(self.refused) >= Some(since);
        matches!(self.state, GpuState::Stalled | GpuState::Unreadable)
            || (answers && (self.listed.is_some_and(|at| Some(at) >= listed_since) || self.refused.is_some()))
    }
}

/// The running lanes.
#[derive(Debug)]
pub(super) struct Readings {
    lanes: Lanes,
    snapshot: Arc<Snapshot>,
    taken: Arc<Taken>,
    /// The probes end with it. `None` if there are none.
    probes: Option<CallWatch>,
}

impl Readings {
    /// Starts the lanes, which open the driver and read each `period`.
    ///
    /// # Errors
    /// When the system has no thread or no file descriptor left.
    pub(super) fn start(library: Library, config: &Config, period: Duration, names: Names) -> io::Result<Self> {
        let call_timeout = config.nvml.call_timeout;
        let taken = Arc::new(Taken { state: Mutex::default(), names, start: OnceLock::new(), call_timeout });
        let settings = Settings {
            library,
            call_timeout,
            memory: MemorySettings {
                period,
                idle_period: period,
                // Peaks within a window are not shown.
                peak_window: LONGEST_STEP,
                stale_after: LONGEST_STEP,
                list_stale_after: LONGEST_STEP,
                procfs: config.path.procfs.clone(),
            },
            process: ProcessSettings {
                interval: LIST_INTERVAL,
                peak_window: LONGEST_STEP,
                linger: Duration::ZERO,
                series_limit: MOST_LISTED,
                telemetry: None,
            },
        };
        let feed = if config.memory.probes == Probes::All { CallFeed::with_room() } else { CallFeed::default() };
        let (snapshot, faults) = (Snapshot::observed(taken.clone(), feed), Arc::new(Faults::heard_by(taken.clone())));
        let places = attribution::Settings {
            procfs: config.path.procfs.clone(),
            passwd: config.path.passwd.clone(),
            command_line: false,
            hold: HELD,
        };
        let attribution = Attribution::new(places, snapshot.clone(), faults.clone());
        let watched = gpu_calls::Settings { mode: Mode::All, procfs: config.path.procfs.clone(), linger: LONGEST_STEP };
        let probes = (config.memory.probes == Probes::All)
            .then(|| CallWatch::start(watched, snapshot.clone(), faults.clone()))
            .transpose()?;
        Ok(Self { lanes: Lanes::start(settings, attribution, snapshot.clone(), faults)?, snapshot, taken, probes })
    }

    /// Counts times from `start`. What was read before it was so at that moment.
    pub(super) fn begin(&self, start: Instant) {
        let _ = self.taken.start.set(start);
    }

    /// Whether the driver is open.
    pub(super) fn is_open(&self) -> bool {
        self.snapshot.driver.load().up
    }

    /// The number of living processes of the command in the lists of the GPUs that answer; `None` if they have not all
    /// been read since `since`.
    pub(super) fn living_since(&self, since: Instant) -> Option<usize> {
        let state = self.taken.state.lock();
        let mut living = None;
        for calls in state.calls.values().filter(|calls| calls.state == GpuState::Up && calls.listed.is_some()) {
            if calls.listed < Some(since) {
                return None;
            }
            living = Some(living.unwrap_or(0) + calls.living);
        }
        living
    }

    /// Waits for the last reading of each GPU, and for the first ones if the command was short, but for no call that takes
    /// longer than a call may. Returns what was read.
    pub(super) async fn finish(&self) -> State {
        // The last calls are read, then the processes are listed once more.
        let calls = if self.probes.is_some() { CALLS } else { Duration::ZERO };
        let (since, limit) = (Instant::now() + calls, self.taken.call_timeout + calls);
        while !self.is_complete(since) && since.elapsed() < if self.is_open() { limit + LATE } else { limit } {
            sleep(LOOK).await;
        }
        let mut state = self.taken.state.lock().clone();
        state.problem = self.snapshot.driver.load().problem.clone();
        state.calls_lost = self.snapshot.calls.load().lost.iter().sum();
        state.record.end();
        for calls in state.calls.values_mut().filter(|_| self.is_open()) {
            if !calls.is_done(since, None) {
                let last = calls.sampled.map(|at| self.taken.at(at));
                calls.hangs_since = calls.hangs_since.or(last).or(state.opened);
            }
        }
        state
    }

    fn is_complete(&self, since: Instant) -> bool {
        let driver = self.snapshot.driver.load();
        let state = self.taken.state.lock();
        let listed_since = self.probes.as_ref().map(|_| since);
        let is_done = |index| state.calls.get(&index).is_some_and(|calls: &Calls| calls.is_done(since, listed_since));
        driver.problem.is_some() || (driver.up && driver.gpus.iter().all(|gpu| is_done(gpu.index)))
    }

    /// Closes the driver.
    pub(super) fn stop(self) {
        self.lanes.stop();
    }
}

/// Takes in what the lanes read and what goes wrong.
#[derive(Debug)]
struct Taken {
    state: Mutex<State>,
    names: Names,
    start: OnceLock<Instant>,
    call_timeout: Duration,
}

impl Taken {
    /// A moment, from the start of the command.
    fn at(&self, at: Instant) -> Duration {
        self.start.get().map_or(Duration::ZERO, |start| at.saturating_duration_since(*start))
    }
}

impl Observer for Taken {
    fn opened(&self, driver: &Driver) {
        let now = self.at(Instant::now());
        let State { machine, opened, record, .. } = &mut *self.state.lock();
        opened.get_or_insert(now);
        machine.get_or_insert_default().open(driver);
        record.has_places(machine.iter().map(|machine| machine.places.len()).sum());
    }

    fn sampled(&self, memory: &GpuMemory) {
        let State { machine, record, lost, calls, .. } = &mut *self.state.lock();
        let Some(machine) = machine else { return };
        let calls = calls.entry(memory.gpu.index).or_default();
        (calls.state, calls.sampled) = (memory.state, memory.at);
        let Some(at) = memory.at.filter(|_| memory.state == GpuState::Up) else { return };
        calls.hangs_since = None;
        if let Some(lost) = lost.as_mut().filter(|lost| self.at(at) > lost.at) {
            lost.back.get_or_insert(self.at(at));
        }
        let full = PRESSURE_RATIOS.iter().position(|ratio| *ratio == NEARLY_FULL[0]).unwrap_or(0);
        let available = memory.shared.map(|shared| shared.available);
        let mut sample = |uuid: &str, at, figures: Option<MemoryFigures>, seconds: &[f64]| {
            let place = machine.place(&memory.gpu, uuid);
            record.has_places(machine.places.len());
            if let Some(place) = place {
                let bound = figures.filter(|figures| figures.is_peak_of_calls == Some(true));
                bound.iter().for_each(|bound| record.see_call(place, self.at(at), None, bound.window_peak));
                record.sample(place, self.at(at), figures, available, Duration::from_secs_f64(seconds[full]));
            }
        };
        if memory.gpu.mig.is_empty() {
            sample(&memory.gpu.uuid, at, memory.figures, &memory.pressure_seconds);
        }
        let known = memory.mig.iter().filter_map(|mig| Some((mig.at.filter(|_| mig.figures.is_some())?, mig)));
        known.for_each(|(at, mig)| sample(&mig.device.uuid, at, mig.figures, &mig.pressure_seconds));
    }

    fn listed(&self, gpu: &Arc<Gpu>, at: Instant, reads: &[ListRead]) {
        for read in reads {
            // An MPS list also contains the clients of other GPUs, which hold no memory on this one.
            let holders = read.entries.iter().filter(|process| process.used != Some(0));
            let found: Vec<_> = holders.map(|process| (process, self.names.find(process.pid, at))).collect();
            self.state.lock().list(gpu, (at, self.at(at)), read, &found);
        }
    }

    fn attributed(&self, list: &GpuProcesses) {
        self.names.learn(list);
        let State { machine: Some(machine), record, .. } = &mut *self.state.lock() else { return };
        let Some(at) = list.at.map(|at| self.at(at)) else { return };
        for process in list.processes.iter().filter(|process| process.is_peak_of_calls == Some(true)) {
            let uuid = list.gpu.device_uuid(process.mig.as_deref());
            let found = machine.place(&list.gpu, uuid).zip(process.window_peak);
            record.has_places(machine.places.len());
            found.iter().for_each(|(place, bytes)| record.see_call(*place, at, Some(process.id()), *bytes));
        }
    }
}

impl State {
    /// Takes in a list, with what `/proc` shows about each process. `at`: when it was read, also from the start of the
    /// command.
    fn list(
        &mut self,
        gpu: &Arc<Gpu>,
        (at, since): (Instant, Duration),
        read: &ListRead,
        found: &[(&ReadProcess, Found)],
    ) {
        let Self { machine: Some(machine), record, calls, .. } = self else { return };
        let calls = calls.entry(gpu.index).or_default();
        let is_living = |found: &Found| found.membership == Membership::Tree && found.alive;
        (calls.listed, calls.living) = (Some(at), found.iter().filter(|(_, found)| is_living(found)).count());
        let mut enter = |uuid: &str, instance: Option<(u32, u32)>, around| {
            let here = found.iter().filter(|(process, _)| instance.is_none() || process.instance == instance);
            let entry = |(process, found): &(&ReadProcess, Found)| {
                let Found { key, membership, .. } = *found;
                Entry { key, membership, used: process.used }
            };
            let entries: Vec<_> = here.map(entry).collect();
            if let Some(place) = machine.place(gpu, uuid) {
                record.has_places(machine.places.len());
                record.list(place, since, &entries, around);
            }
        };
        if gpu.mig.is_empty() {
            enter(&gpu.uuid, None, read.around);
        }
        for (device, around) in gpu.mig.iter().zip(&read.mig_around) {
            enter(&device.uuid, Some((device.gpu_instance, device.compute_instance)), *around);
        }
    }
}

impl faults::Listener for Taken {
    fn raised(&self, source: Source, reason: Reason, gpu: Option<u32>, error: &dyn Error) {
        if source == Source::Probes {
            self.state.lock().calls_unseen.get_or_insert_with(|| chain(error));
        }
        let Some(gpu) = gpu.filter(|_| matches!(source, Source::Memory | Source::Process)) else { return };
        let now = Instant::now();
        let State { lost, calls, .. } = &mut *self.state.lock();
        let calls = calls.entry(gpu).or_default();
        match (reason, Severity::of(reason)) {
            (Reason::Stalled, _) => calls.hangs_since = Some(self.at(now).saturating_sub(self.call_timeout)),
            // Other GPUs do not wait for it.
            (Reason::Slow | Reason::Panicked, _) => {}
            (_, Severity::Driver) => {
                lost.get_or_insert_with(|| Lost { at: self.at(now), problem: chain(error), back: None });
            }
            // The report shows that the GPU does not report its memory.
            (_, Severity::Absent) if source == Source::Memory => {}
            (_, Severity::Absent | Severity::Passing | Severity::Gpu) => {
                calls.refused = Some(now);
                calls.failures += 1;
                calls.first_failure.get_or_insert_with(|| chain(error));
            }
        }
    }
}
