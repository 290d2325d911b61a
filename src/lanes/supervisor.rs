//! The supervisor: opens the driver, starts the lanes' threads, takes the place of one that hangs or dies, and opens
//! the driver again when it went away. It makes no driver call itself, so it can always answer.

mod reopen;
mod shutdown;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::control::Control;
use super::memory::Link;
use super::opening::{Closing, OpenedDriver, Opening, Progress, SLOW};
use super::session::Session;
use super::settings::Settings;
use super::stalls::{DetachedThreads, Stalls};
use super::worker::{LaneTask, Worker, WorkerStatus, thread_name};
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{self, OpenError};
use crate::snapshot::{self, Gpu, Lane, Snapshot};

/// How often the supervisor looks after its threads.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts to open the driver: doubled from the first to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Between the end of a thread by a panic and its next start: doubled from the first to the last.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The farthest time that is named.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often the supervisor looks while threads are about to end.
const SHORT: Duration = Duration::from_millis(10);
/// The threads of a session, each under the lane that its faults are counted for, and what it does. The readings of the
/// telemetry are on the process lane's thread; telemetry's own is the watch for Xid events.
pub(super) type LaneTasks = [(Lane, Arc<dyn LaneTask>); 3];

pub(super) struct Supervisor {
    settings: Settings,
    tasks: LaneTasks,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    control: Arc<Control>,
    link: Arc<Link>,
    /// The GPUs of all openings.
    known: Vec<Arc<Gpu>>,
    back_off: Duration,
    lost_back_off: Duration,
    /// Since when a GPU is lost.
    lost_since: Option<Instant>,
    /// By lane.
    restarts: [RestartPolicy; Lane::ALL.len()],
    /// Another opening beside the session that is open.
    reopening: Option<Opening>,
    /// When the next opening beside a session may begin.
    reopen_after: Instant,
    stalls: Stalls,
    /// The GPUs at which an opening hangs, and what lives as long as its thread.
    hung: Vec<(u32, Weak<nvml::Discovery>)>,
    detached: DetachedThreads,
    /// What every session holds on to: sessions that nobody looks after end.
    alive: Arc<()>,
}

/// When a lane that died is started again, and how long after its next death.
#[derive(Clone, Copy)]
struct RestartPolicy {
    at: Instant,
    pause: Duration,
}

/// Where the supervisor stands.
enum Phase {
    /// No driver; it is tried again at this time.
    Closed(Instant),
    /// No driver, because it was let go of; so many threads still held it when that was said.
    Released { holders: usize },
    /// The driver is being opened.
    Opening(Opening),
    /// The lanes run.
    Open { session: Arc<Session>, since: Instant, workers: Vec<Worker> },
    /// The lanes were asked to let go.
    Ending { session: Arc<Session>, workers: Vec<Worker>, then: AfterEnding },
    /// The driver is being closed.
    Closing { closing: Closing, retry_at: Instant },
}

/// What follows on a session that ends.
enum AfterEnding {
    /// The driver is closed, and tried again at this time.
    RetryAt(Instant),
    /// The session that was opened beside it takes its place.
    StartSession(Box<OpenedDriver>),
}

impl RestartPolicy {
    /// The lane died. One that lived for long since its last start begins anew.
    fn postpone(&mut self) {
        if self.at.elapsed() > RESTART_PAUSE.1 {
            self.pause = RESTART_PAUSE.0;
        }
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RESTART_PAUSE.1);
    }
}

impl Phase {
    /// Whether the lane has nothing to do, so that its silence says nothing. The telemetry is read on the process lane's
    /// thread.
    fn is_idle(&self, lane: Lane) -> bool {
        let thread = if lane == Lane::Telemetry { Lane::Process } else { lane };
        match self {
            Self::Open { .. } => false,
            Self::Ending { workers, .. } => !workers.iter().any(|worker| worker.lane == thread),
            Self::Closed(_) | Self::Released { .. } | Self::Opening(_) | Self::Closing { .. } => true,
        }
    }
}

impl Supervisor {
    pub(super) fn new(
        settings: Settings,
        tasks: LaneTasks,
        link: Arc<Link>,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        control: Arc<Control>,
    ) -> Self {
        Self {
            settings,
            tasks,
            snapshot,
            faults,
            control,
            link,
            known: Vec::new(),
            back_off: BACK_OFF.0,
            lost_back_off: reopen::LOST_BACK_OFF.0,
            lost_since: None,
            restarts: [RestartPolicy { at: Instant::now(), pause: RESTART_PAUSE.0 }; Lane::ALL.len()],
            reopening: None,
            reopen_after: Instant::now(),
            stalls: Stalls::default(),
            hung: Vec::new(),
            detached: DetachedThreads::default(),
            alive: Arc::new(()),
        }
    }

    pub(super) fn run(mut self) {
        let mut phase = Phase::Closed(Instant::now());
        while !self.control.stopped() {
            let before = std::mem::discriminant(&phase);
            phase = self.step(phase);
            self.tidy(&phase);
            let now = Instant::now();
            for &lane in Lane::ALL.iter().filter(|&&lane| phase.is_idle(lane)) {
                self.snapshot.vitals.beat(lane, now);
            }
            if std::mem::discriminant(&phase) == before {
                thread::park_timeout(match phase {
                    Phase::Closed(at) => at.saturating_duration_since(Instant::now()).min(ROUND),
                    Phase::Open { .. } | Phase::Opening(_) | Phase::Released { .. } => ROUND,
                    Phase::Ending { .. } | Phase::Closing { .. } => SHORT,
                });
            }
        }
        self.shutdown(phase);
    }

    fn step(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Closed(at) => match self.control.released_for(Instant::now()) {
                Some(left) => self.enter_released(left),
                None if Instant::now() < at => phase,
                None if self.is_full() => Phase::Closed(Instant::now() + ROUND),
                None => self.open(),
            },
            Phase::Released { holders } => match self.control.released_for(Instant::now()) {
                Some(_) if holders == self.holders() => phase,
                // What still holds the driver is said as it is now.
                Some(left) => self.enter_released(left),
                None => {
                    tracing::info!("the driver is taken up again");
                    self.back_off = BACK_OFF.0;
                    Phase::Closed(Instant::now())
                }
            },
            Phase::Opening(opening) => match opening.progress() {
                Progress::Pending(opening) => Phase::Opening(self.replace_hung_opening(opening)),
                Progress::Slow(opening) => {
                    self.report_slow("opening the driver", true);
                    Phase::Opening(opening)
                }
                Progress::Done(opened) => match *opened {
                    Ok(found) => self.begin(found),
                    Err(error) => self.refused(&error),
                },
                Progress::Panicked => {
                    let error = std::io::Error::other("the thread that opened the driver ended by a panic");
                    self.faults.report(Source::Library, Reason::Panicked, None, &error);
                    self.retry()
                }
            },
            Phase::Open { session, since, workers } => self.supervise(session, since, workers),
            Phase::Ending { session, workers, then } => {
                let workers = self.check_workers(&session, workers);
                if !workers.is_empty() {
                    return Phase::Ending { session, workers, then };
                }
                let closing = Closing::begin(session);
                match (closing, then) {
                    (closing, AfterEnding::StartSession(found)) => {
                        self.detached.close(closing);
                        self.begin(*found)
                    }
                    (Some(closing), AfterEnding::RetryAt(retry_at)) => Phase::Closing { closing, retry_at },
                    (None, AfterEnding::RetryAt(retry_at)) => Phase::Closed(retry_at),
                }
            }
            Phase::Closing { closing, retry_at } if closing.is_done() => Phase::Closed(retry_at),
            Phase::Closing { closing, retry_at } if closing.is_slow() => {
                self.report_slow("closing the driver", true);
                self.detached.leave(closing.into_thread());
                Phase::Closed(retry_at)
            }
            Phase::Closing { .. } => phase,
        }
    }

    /// Whether there are as many threads that hang, or may come to hang, as there may be.
    fn is_full(&self) -> bool {
        self.detached.is_full(usize::from(self.reopening.is_some()))
    }

    /// How many threads hold the driver in a call that does not return, or in an opening that has not ended.
    fn holders(&self) -> usize {
        self.detached.stuck() + usize::from(self.reopening.is_some())
    }

    /// The driver is closed and is not to be opened for so long.
    fn enter_released(&mut self, left: Duration) -> Phase {
        let held = match self.holders() {
            0 => "",
            _ => "; a driver call that does not return still holds it",
        };
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + left.min(FAR));
        let problem = format!("the driver was let go of, as asked, until {until} at the latest{held}");
        tracing::info!(problem, "the driver is left alone");
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
        Phase::Released { holders: self.holders() }
    }

    /// `alone`: there is no session beside it.
    fn report_slow(&self, what: &str, alone: bool) {
        let problem = format!("{what} has not ended within {SLOW:?}");
        self.faults.report(Source::Library, Reason::Stalled, None, &std::io::Error::other(problem.clone()));
        if !alone {
            return;
        }
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
    }

    fn open(&mut self) -> Phase {
        // One that was begun beside a session which has ended since is under way still: there is never a second one.
        match self.reopening.take().map_or_else(|| self.begin_opening(), Ok) {
            Ok(opening) => Phase::Opening(opening),
            Err(error) => {
                self.faults.report(Source::Library, Reason::Panicked, None, &error);
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

    /// Tells what GPUs failed to give at an opening.
    fn report_failures(&self, found: &OpenedDriver) {
        for (index, error) in &found.failures {
            self.faults.report(Source::Topology, error.reason(), Some(*index), error);
        }
    }

    fn begin(&mut self, found: OpenedDriver) -> Phase {
        self.report_failures(&found);
        let OpenedDriver { driver, description, .. } = found;
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
        nvml::remember(&mut self.known, &description.gpus);
        let session = Arc::new(Session::new(driver, &self.alive, &mut self.stalls));
        self.tasks.iter().for_each(|(_, task)| task.resume(&session));
        // What was read of the same GPUs before stays in sight for the moment until the lanes have read them again.
        self.snapshot.driver.store(Arc::new(description));
        let now = Instant::now();
        Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
        let workers = self.tasks.iter().filter_map(|(lane, task)| self.start(*lane, task, &session)).collect();
        Phase::Open { session, since: Instant::now(), workers }
    }

    /// Starts a thread of a lane.
    fn start(&self, lane: Lane, task: &Arc<dyn LaneTask>, session: &Arc<Session>) -> Option<Worker> {
        let worker = Worker::start(lane, task.clone(), session.clone());
        worker.inspect_err(|error| self.faults.report(source(lane), Reason::Panicked, None, error)).ok()
    }

    fn supervise(&mut self, session: Arc<Session>, since: Instant, workers: Vec<Worker>) -> Phase {
        let mut workers = self.check_workers(&session, workers);
        for (lane, task) in &self.tasks {
            let missing = !workers.iter().any(|worker| worker.lane == *lane);
            if missing && !session.ending() && Instant::now() >= self.restarts[*lane as usize].at {
                workers.extend(self.start(*lane, task, &session));
            }
        }
        if self.control.released_for(Instant::now()).is_some() {
            session.end("the driver is let go of, as asked");
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
            return Phase::Ending { session, workers, then: AfterEnding::RetryAt(retry_at) };
        }
        if since.elapsed() > BACK_OFF.1 {
            self.back_off = BACK_OFF.0;
        }
        match self.poll_reopening(&session, since) {
            Some(found) => {
                session.end("another session takes its place");
                self.link.rouse();
                // What is known of the GPUs stays in sight: the lanes stand still for milliseconds.
                Phase::Ending { session, workers, then: AfterEnding::StartSession(found) }
            }
            None => Phase::Open { session, since, workers },
        }
    }

    /// Gives up threads whose driver call does not return, and takes away those that ended.
    fn check_workers(&mut self, session: &Arc<Session>, workers: Vec<Worker>) -> Vec<Worker> {
        let limit = self.settings.call_timeout;
        let mut going_on = Vec::new();
        for worker in workers {
            let lane = worker.lane;
            // At the bound a thread that hangs is not replaced: its lane falls silent, which health tells.
            match worker.check(if self.is_full() { Duration::MAX } else { limit }) {
                WorkerStatus::Working(worker) => going_on.push(worker),
                WorkerStatus::Hung(slot, thread) => {
                    session.stall(slot);
                    let gpu = session.gpu_of_slot(slot).map(|gpu| gpu.index);
                    let error = std::io::Error::other(format!("a driver call has not returned within {limit:?}"));
                    self.faults.report(source(lane), Reason::Stalled, gpu, &error);
                    self.detached.leave(thread);
                }
                WorkerStatus::Finished => {}
                WorkerStatus::Panicked => {
                    let error = std::io::Error::other(format!("the thread {} ended by a panic", thread_name(lane)));
                    self.faults.report(source(lane), Reason::Panicked, None, &error);
                    self.restarts[lane as usize].postpone();
                }
            }
        }
        going_on
    }
}

fn source(lane: Lane) -> Source {
    match lane {
        Lane::Memory => Source::Memory,
        Lane::Process => Source::Process,
        Lane::Telemetry => Source::Telemetry,
    }
}
