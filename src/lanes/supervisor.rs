//! The supervisor: opens the driver, starts the lanes' threads, takes the place of one that hangs or dies, and opens
//! the driver again when it went away. It makes no driver call itself, so it can always answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::memory::{self, Link, MemoryLane};
use super::process::{self, ProcessLane};
use super::session::Session;
use super::telemetry;
use super::watch::{Superseded, Watch};
use crate::attribution::Attribution;
use crate::config::Config;
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{Driver, Library, OpenError};
use crate::snapshot::{self, Gpu, Lane, Snapshot};

/// How often the supervisor looks after its threads.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts to open the driver: doubled from the first to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Between two openings of the driver for the sake of a GPU that is lost: doubled from the first to the last.
const LOST_BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// How long opening or closing the driver may take before it is told; it is waited for all the same, since nothing else
/// can be done with the driver meanwhile.
const SLOW: Duration = Duration::from_secs(30);
/// Between the end of a thread by a panic and its next start: doubled from the first to the last.
const REVIVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How old a session is when it has asked every GPU.
const SETTLED: Duration = Duration::from_secs(5);
/// How often the supervisor looks while threads are about to end.
const SHORT: Duration = Duration::from_millis(10);
/// How long the end waits for threads; one that hangs in the driver is left behind.
const FAREWELL: Duration = Duration::from_millis(1500);

/// What the lanes are told, worked out once from the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    library: Library,
    call_timeout: Duration,
    memory: memory::Settings,
    process: process::Settings,
}

impl Settings {
    /// The part of the configuration that concerns the lanes, and which library to open.
    pub fn new(config: &Config, library: Library) -> Self {
        Self {
            library,
            call_timeout: config.nvml.call_timeout,
            memory: memory::Settings {
                period: Duration::from_secs_f64(1.0 / config.memory.rate),
                idle_period: Duration::from_secs_f64(1.0 / config.memory.idle_rate),
                peak_window: config.memory.peak_window,
                stale_after: config.memory.stale_after,
            },
            process: process::Settings {
                interval: config.process.interval,
                peak_window: config.memory.peak_window,
                linger: config.process.linger,
                series_limit: config.process.series_limit,
                telemetry: telemetry::Settings {
                    interval: config.telemetry.interval,
                    slow_interval: config.telemetry.slow_interval,
                    energy: config.telemetry.energy,
                },
            },
        }
    }
}

/// The running lanes.
#[derive(Debug)]
pub struct Lanes {
    stop: Arc<AtomicBool>,
    supervisor: JoinHandle<()>,
}

impl Lanes {
    /// Starts the supervisor, which starts everything else; returns at once, with or without a driver.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let supervisor = Supervisor::new(settings, attribution, snapshot, faults, stop.clone());
        let supervisor = thread::Builder::new().name("supervisor".into()).spawn(move || supervisor.run())?;
        Ok(Self { stop, supervisor })
    }

    /// Ends the lanes and closes the driver. Threads that hang in a driver call are left behind.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.supervisor.thread().unpark();
        if self.supervisor.join().is_err() {
            tracing::error!("the supervisor ended by a panic");
        }
    }
}

struct Supervisor {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    stop: Arc<AtomicBool>,
    link: Arc<Link>,
    memory: Arc<MemoryLane>,
    process: Arc<ProcessLane>,
    known: Vec<Arc<Gpu>>,
    back_off: Duration,
    lost_back_off: Duration,
    /// Since when a GPU is lost.
    lost_since: Option<Instant>,
    /// When a lane that died is started again, and how long after the next time.
    revive_at: Instant,
    revival: Duration,
    /// Threads that were superseded and have not come back.
    stuck: Vec<JoinHandle<()>>,
}

/// Where the supervisor stands.
enum Phase {
    /// No driver; it is tried again at this time.
    Closed(Instant),
    /// A thread of its own opens the driver, since that can hang too.
    Opening { answer: Receiver<Opened>, since: Instant, told: bool },
    /// The lanes run.
    Open { session: Arc<Session>, since: Instant, workers: Vec<Worker> },
    /// The lanes were asked to let go.
    Ending { session: Arc<Session>, workers: Vec<Worker>, retry_at: Instant },
    /// A thread of its own closes the driver, since that can hang as well as opening it.
    Closing { closer: JoinHandle<()>, since: Instant, retry_at: Instant },
}

/// The opened driver and what to publish of it.
type Opened = Result<(Driver, snapshot::Driver), OpenError>;

/// A thread of a lane.
struct Worker {
    lane: Lane,
    watch: Arc<Watch>,
    thread: JoinHandle<()>,
}

impl Supervisor {
    fn new(
        settings: Settings,
        attribution: Attribution,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let link = Arc::new(Link::default());
        let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
        let process =
            ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
        Self {
            settings,
            snapshot,
            faults,
            stop,
            link,
            memory: Arc::new(memory),
            process: Arc::new(process),
            known: Vec::new(),
            back_off: BACK_OFF.0,
            lost_back_off: LOST_BACK_OFF.0,
            lost_since: None,
            revive_at: Instant::now(),
            revival: REVIVAL.0,
            stuck: Vec::new(),
        }
    }

    fn run(mut self) {
        let mut phase = Phase::Closed(Instant::now());
        while !self.stop.load(Ordering::Relaxed) {
            let before = std::mem::discriminant(&phase);
            phase = self.turn(phase);
            self.stuck.retain(|thread| !thread.is_finished());
            if !matches!(phase, Phase::Open { .. }) {
                let now = Instant::now();
                Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
            }
            if std::mem::discriminant(&phase) == before {
                thread::park_timeout(match phase {
                    Phase::Closed(at) => at.saturating_duration_since(Instant::now()).min(ROUND),
                    Phase::Open { .. } | Phase::Opening { .. } => ROUND,
                    Phase::Ending { .. } | Phase::Closing { .. } => SHORT,
                });
            }
        }
        self.farewell(phase);
    }

    fn turn(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Closed(at) if Instant::now() < at => phase,
            Phase::Closed(_) => self.open(),
            Phase::Opening { answer, since, told } => match answer.try_recv() {
                Ok(Ok((driver, description))) => self.begin(driver, description),
                Ok(Err(error)) => self.refused(&error),
                Err(TryRecvError::Empty) => {
                    let slow = since.elapsed() > SLOW;
                    if slow && !told {
                        self.tell_slow("opening the driver");
                    }
                    Phase::Opening { answer, since, told: slow }
                }
                Err(TryRecvError::Disconnected) => {
                    let error = std::io::Error::other("the thread that opened the driver ended by a panic");
                    self.faults.report(Source::Library, Reason::Died, None, &error);
                    self.retry()
                }
            },
            Phase::Open { session, since, workers } => self.look_after(session, since, workers),
            Phase::Ending { session, workers, retry_at } => {
                let workers = self.watch_over(&session, workers);
                if !workers.is_empty() {
                    return Phase::Ending { session, workers, retry_at };
                }
                match close(session) {
                    Some(closer) => Phase::Closing { closer, since: Instant::now(), retry_at },
                    None => Phase::Closed(retry_at),
                }
            }
            Phase::Closing { closer, retry_at, .. } if closer.is_finished() => Phase::Closed(retry_at),
            Phase::Closing { since, retry_at, .. } if since.elapsed() > SLOW => {
                self.tell_slow("closing the driver");
                Phase::Closed(retry_at)
            }
            Phase::Closing { .. } => phase,
        }
    }

    fn tell_slow(&self, what: &str) {
        let problem = format!("{what} has not ended within {SLOW:?}");
        self.faults.report(Source::Library, Reason::Stalled, None, &std::io::Error::other(problem.clone()));
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
    }

    fn open(&mut self) -> Phase {
        let (send, answer) = mpsc::channel();
        let (library, known, caller) = (self.settings.library.clone(), self.known.clone(), thread::current());
        let opener = thread::Builder::new().name("driver-open".into()).spawn(move || {
            let _wake = Wake(caller);
            let opened = library.open().and_then(|mut driver| match driver.discover(&known) {
                Ok(()) => {
                    let description = driver.describe();
                    Ok((driver, description))
                }
                Err(cause) => Err(OpenError::Init { library: format!("{library:?}"), cause }),
            });
            // The receiver is gone only when the exporter ends.
            let _ = send.send(opened);
        });
        match opener {
            Ok(_) => Phase::Opening { answer, since: Instant::now(), told: false },
            Err(error) => {
                self.faults.report(Source::Library, Reason::Died, None, &error);
                self.retry()
            }
        }
    }

    fn refused(&mut self, error: &OpenError) -> Phase {
        self.faults.report(Source::Library, error.reason(), None, error);
        let problem = Some(crate::faults::chain(error));
        self.snapshot.clear(snapshot::Driver { problem, ..snapshot::Driver::default() });
        self.retry()
    }

    fn retry(&mut self) -> Phase {
        let wait = self.back_off;
        self.back_off = (wait * 2).min(BACK_OFF.1);
        Phase::Closed(Instant::now() + wait)
    }

    fn begin(&mut self, driver: Driver, description: snapshot::Driver) -> Phase {
        tracing::info!(
            gpus = description.gpus.len(),
            driver = description.driver_version,
            nvml = description.nvml_version,
            simulated = description.simulated,
            "the driver is open"
        );
        if description.simulated {
            tracing::warn!("the GPUs are SIMULATED: no number is a measurement");
        }
        self.known = description.gpus.clone();
        let session = Arc::new(Session::new(driver));
        self.memory.resume(&session);
        self.process.resume(&session);
        // What was read of the same GPUs before stays in sight for the moment until the lanes have read them again.
        self.snapshot.driver.store(Arc::new(description));
        let now = Instant::now();
        Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
        let workers = [Lane::Memory, Lane::Process].into_iter().filter_map(|lane| self.start(lane, &session)).collect();
        Phase::Open { session, since: Instant::now(), workers }
    }

    /// Starts a thread of a lane.
    fn start(&self, lane: Lane, session: &Arc<Session>) -> Option<Worker> {
        let watch = Arc::new(Watch::new());
        let name = format!("{}-lane", lane.label());
        let (memory, process) = (self.memory.clone(), self.process.clone());
        let (session, watched, caller) = (session.clone(), watch.clone(), thread::current());
        let body = move || {
            let _wake = Wake(caller);
            let end = match lane {
                Lane::Memory => memory.run(&session, &watched),
                Lane::Process | Lane::Telemetry => process.run(&session, &watched),
            };
            if let Err(Superseded { slot }) = end {
                // The call has come back after all: whoever carried on meanwhile takes the GPU up again.
                session.recover(slot);
                tracing::info!(lane = lane.label(), slot, "a driver call that hung has come back");
            }
        };
        match thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => Some(Worker { lane, watch, thread }),
            Err(error) => {
                self.faults.report(source(lane), Reason::Died, None, &error);
                None
            }
        }
    }

    fn look_after(&mut self, session: Arc<Session>, since: Instant, workers: Vec<Worker>) -> Phase {
        let mut workers = self.watch_over(&session, workers);
        for lane in [Lane::Memory, Lane::Process] {
            let missing = !workers.iter().any(|worker| worker.lane == lane);
            if missing && !session.ending() && Instant::now() >= self.revive_at {
                workers.extend(self.start(lane, &session));
            }
        }
        if session.ending() {
            self.link.rouse();
            let why = session.why().unwrap_or_default();
            tracing::warn!(why, "the driver is closed and will be opened again");
            self.snapshot.clear(snapshot::Driver { problem: Some(why), ..snapshot::Driver::default() });
            let mut retry_at = Instant::now();
            if since.elapsed() < BACK_OFF.1 {
                retry_at += self.back_off;
                self.back_off = (self.back_off * 2).min(BACK_OFF.1);
            }
            return Phase::Ending { session, workers, retry_at };
        }
        if since.elapsed() > BACK_OFF.1 {
            (self.back_off, self.revival) = (BACK_OFF.0, REVIVAL.0);
        }
        if self.wants_reopening(&session, since) {
            self.lost_since = Some(Instant::now());
            self.lost_back_off = (self.lost_back_off * 2).min(LOST_BACK_OFF.1);
            tracing::info!("a GPU does not answer: the driver is opened again for its sake");
            session.end("a GPU does not answer");
            self.link.rouse();
            // What is known of the other GPUs stays in sight meanwhile: opening again takes milliseconds.
            return Phase::Ending { session, workers, retry_at: Instant::now() };
        }
        Phase::Open { session, since, workers }
    }

    /// Whether a GPU has been lost for so long that opening the driver again is worth the gap in the others' samples.
    /// While a thread hangs it is not: the thread would hold the old opening, and others might join it.
    fn wants_reopening(&mut self, session: &Session, opened: Instant) -> bool {
        if !session.lost() {
            // A session that just began has not looked yet.
            if opened.elapsed() < SETTLED {
                return false;
            }
            (self.lost_since, self.lost_back_off) = (None, LOST_BACK_OFF.0);
            return false;
        }
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        since.elapsed() > self.lost_back_off && self.stuck.is_empty()
    }

    /// Gives up threads whose driver call does not return, and takes away those that ended.
    fn watch_over(&mut self, session: &Arc<Session>, workers: Vec<Worker>) -> Vec<Worker> {
        let mut going_on = Vec::new();
        for worker in workers {
            if let Some(slot) = worker.watch.give_up_after(self.settings.call_timeout) {
                session.stall(slot);
                let gpu = session.driver.gpus().nth(slot).map(|gpu| gpu.index);
                let limit = self.settings.call_timeout;
                let error = std::io::Error::other(format!("a driver call has not returned within {limit:?}"));
                self.faults.report(source(worker.lane), Reason::Stalled, gpu, &error);
                self.stuck.push(worker.thread);
            } else if !worker.thread.is_finished() {
                going_on.push(worker);
            } else if worker.thread.join().is_err() {
                let error = std::io::Error::other(format!("the {} lane ended by a panic", worker.lane.label()));
                self.faults.report(source(worker.lane), Reason::Died, None, &error);
                self.revive_at = Instant::now() + self.revival;
                self.revival = (self.revival * 2).min(REVIVAL.1);
            }
        }
        going_on
    }

    fn farewell(&mut self, phase: Phase) {
        let (session, workers) = match phase {
            Phase::Open { session, workers, .. } | Phase::Ending { session, workers, .. } => (session, workers),
            Phase::Closed(_) | Phase::Opening { .. } | Phase::Closing { .. } => return,
        };
        session.end("the exporter ends");
        self.link.rouse();
        let deadline = Instant::now() + FAREWELL;
        let in_time = |done: &dyn Fn() -> bool| {
            while !done() && Instant::now() < deadline {
                thread::park_timeout(SHORT);
            }
            done()
        };
        let closed = in_time(&|| workers.iter().all(|worker| worker.thread.is_finished()))
            && close(session).is_none_or(|closer| in_time(&|| closer.is_finished()));
        if !closed {
            tracing::warn!("a driver call does not return: its thread is left behind");
        }
    }
}

/// Lets go of the session on a thread of its own: closing the driver is a call that can hang. `None` where the system
/// gives no thread; then the session was let go of here.
fn close(session: Arc<Session>) -> Option<JoinHandle<()>> {
    thread::Builder::new().name("driver-close".into()).spawn(move || drop(session)).ok()
}

/// Wakes the supervisor when a thread ends, by a panic too.
struct Wake(Thread);

impl Drop for Wake {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

fn source(lane: Lane) -> Source {
    match lane {
        Lane::Memory => Source::Memory,
        Lane::Process => Source::Process,
        Lane::Telemetry => Source::Telemetry,
    }
}
