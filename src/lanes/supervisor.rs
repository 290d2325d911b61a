//! The supervisor: opens the driver, starts the lanes' threads, takes the place of one that hangs or dies, and opens
//! the driver again when it went away. It makes no driver call itself, so it can always answer.

mod beside;
mod ending;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::memory::Link;
use super::opening::{Closing, Found, Opening, Progress, SLOW};
use super::orders::Orders;
use super::session::Session;
use super::settings::Settings;
use super::stuck::{Aside, Stalls};
use super::worker::{Duty, Seen, Worker, thread_name};
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{self, OpenError};
use crate::snapshot::{self, Gpu, Lane, Snapshot};

/// How often the supervisor looks after its threads.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts to open the driver: doubled from the first to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Between the end of a thread by a panic and its next start: doubled from the first to the last.
const REVIVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The farthest time that is named.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often the supervisor looks while threads are about to end.
const SHORT: Duration = Duration::from_millis(10);
/// The threads of a session, each under the lane that its faults are counted for, and what it does. The readings of the
/// telemetry are on the process lane's thread; telemetry's own is the watch for Xid events.
pub(super) type Duties = [(Lane, Arc<dyn Duty>); 3];

pub(super) struct Supervisor {
    settings: Settings,
    duties: Duties,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    orders: Arc<Orders>,
    link: Arc<Link>,
    /// The GPUs of all openings.
    known: Vec<Arc<Gpu>>,
    back_off: Duration,
    lost_back_off: Duration,
    /// Since when a GPU is lost.
    lost_since: Option<Instant>,
    /// By lane.
    revivals: [Revival; Lane::ALL.len()],
    /// Another opening beside the session that is open.
    beside: Option<Opening>,
    /// When the next opening beside a session may begin.
    beside_at: Instant,
    stalls: Stalls,
    /// The GPUs at which an opening hangs, and what lives as long as its thread.
    hung: Vec<(u32, Weak<nvml::Asking>)>,
    aside: Aside,
    /// What every session holds on to: sessions that nobody looks after end.
    keeper: Arc<()>,
}

/// When a lane that died is started again, and how long after its next death.
#[derive(Clone, Copy)]
struct Revival {
    at: Instant,
    pause: Duration,
}

/// Where the supervisor stands.
enum Phase {
    /// No driver; it is tried again at this time.
    Closed(Instant),
    /// No driver, because it was let go of; so many threads still held it when that was said.
    Away { holders: usize },
    /// The driver is being opened.
    Opening(Opening),
    /// The lanes run.
    Open { session: Arc<Session>, since: Instant, workers: Vec<Worker> },
    /// The lanes were asked to let go.
    Ending { session: Arc<Session>, workers: Vec<Worker>, then: Then },
    /// The driver is being closed.
    Closing { closing: Closing, retry_at: Instant },
}

/// What follows on a session that ends.
enum Then {
    /// The driver is closed, and tried again at this time.
    Retry(Instant),
    /// The session that was opened beside it takes its place.
    Begin(Box<Found>),
}

impl Revival {
    /// The lane died. One that lived for long since its last start begins anew.
    fn postpone(&mut self) {
        if self.at.elapsed() > REVIVAL.1 {
            self.pause = REVIVAL.0;
        }
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(REVIVAL.1);
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
            Self::Closed(_) | Self::Away { .. } | Self::Opening(_) | Self::Closing { .. } => true,
        }
    }
}

impl Supervisor {
    pub(super) fn new(
        settings: Settings,
        duties: Duties,
        link: Arc<Link>,
        snapshot: Arc<Snapshot>,
        faults: Arc<Faults>,
        orders: Arc<Orders>,
    ) -> Self {
        Self {
            settings,
            duties,
            snapshot,
            faults,
            orders,
            link,
            known: Vec::new(),
            back_off: BACK_OFF.0,
            lost_back_off: beside::LOST_BACK_OFF.0,
            lost_since: None,
            revivals: [Revival { at: Instant::now(), pause: REVIVAL.0 }; Lane::ALL.len()],
            beside: None,
            beside_at: Instant::now(),
            stalls: Stalls::default(),
            hung: Vec::new(),
            aside: Aside::default(),
            keeper: Arc::new(()),
        }
    }

    pub(super) fn run(mut self) {
        let mut phase = Phase::Closed(Instant::now());
        while !self.orders.stopped() {
            let before = std::mem::discriminant(&phase);
            phase = self.turn(phase);
            self.tidy(&phase);
            let now = Instant::now();
            for &lane in Lane::ALL.iter().filter(|&&lane| phase.is_idle(lane)) {
                self.snapshot.vitals.beat(lane, now);
            }
            if std::mem::discriminant(&phase) == before {
                thread::park_timeout(match phase {
                    Phase::Closed(at) => at.saturating_duration_since(Instant::now()).min(ROUND),
                    Phase::Open { .. } | Phase::Opening(_) | Phase::Away { .. } => ROUND,
                    Phase::Ending { .. } | Phase::Closing { .. } => SHORT,
                });
            }
        }
        self.farewell(phase);
    }

    fn turn(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Closed(at) => match self.orders.away(Instant::now()) {
                Some(left) => self.leave_alone(left),
                None if Instant::now() < at => phase,
                None if self.is_full() => Phase::Closed(Instant::now() + ROUND),
                None => self.open(),
            },
            Phase::Away { holders } => match self.orders.away(Instant::now()) {
                Some(_) if holders == self.holders() => phase,
                // What still holds the driver is said as it is now.
                Some(left) => self.leave_alone(left),
                None => {
                    tracing::info!("the driver is taken up again");
                    self.back_off = BACK_OFF.0;
                    Phase::Closed(Instant::now())
                }
            },
            Phase::Opening(opening) => match opening.progress() {
                Progress::UnderWay(opening) => Phase::Opening(self.relieve(opening)),
                Progress::Slow(opening) => {
                    self.tell_slow("opening the driver", true);
                    Phase::Opening(opening)
                }
                Progress::Done(opened) => match *opened {
                    Ok(found) => self.begin(found),
                    Err(error) => self.refused(&error),
                },
                Progress::Died => {
                    let error = std::io::Error::other("the thread that opened the driver ended by a panic");
                    self.faults.report(Source::Library, Reason::Panicked, None, &error);
                    self.retry()
                }
            },
            Phase::Open { session, since, workers } => self.look_after(session, since, workers),
            Phase::Ending { session, workers, then } => {
                let workers = self.watch_over(&session, workers);
                if !workers.is_empty() {
                    return Phase::Ending { session, workers, then };
                }
                let closing = Closing::begin(session);
                match (closing, then) {
                    (closing, Then::Begin(found)) => {
                        self.aside.close(closing);
                        self.begin(*found)
                    }
                    (Some(closing), Then::Retry(retry_at)) => Phase::Closing { closing, retry_at },
                    (None, Then::Retry(retry_at)) => Phase::Closed(retry_at),
                }
            }
            Phase::Closing { closing, retry_at } if closing.is_done() => Phase::Closed(retry_at),
            Phase::Closing { closing, retry_at } if closing.is_slow() => {
                self.tell_slow("closing the driver", true);
                self.aside.leave(closing.into_thread());
                Phase::Closed(retry_at)
            }
            Phase::Closing { .. } => phase,
        }
    }

    /// Whether there are as many threads that hang, or may come to hang, as there may be.
    fn is_full(&self) -> bool {
        self.aside.is_full(usize::from(self.beside.is_some()))
    }

    /// How many threads hold the driver in a call that does not return, or in an opening that has not ended.
    fn holders(&self) -> usize {
        self.aside.stuck() + usize::from(self.beside.is_some())
    }

    /// The driver is closed and is not to be opened for so long.
    fn leave_alone(&mut self, left: Duration) -> Phase {
        let held = match self.holders() {
            0 => "",
            _ => "; a driver call that does not return still holds it",
        };
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + left.min(FAR));
        let problem = format!("the driver was let go of, as asked, until {until} at the latest{held}");
        tracing::info!(problem, "the driver is left alone");
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
        Phase::Away { holders: self.holders() }
    }

    /// `alone`: there is no session beside it.
    fn tell_slow(&self, what: &str, alone: bool) {
        let problem = format!("{what} has not ended within {SLOW:?}");
        self.faults.report(Source::Library, Reason::Stalled, None, &std::io::Error::other(problem.clone()));
        if !alone {
            return;
        }
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
    }

    fn open(&mut self) -> Phase {
        // One that was begun beside a session which has ended since is under way still: there is never a second one.
        match self.beside.take().map_or_else(|| self.begin_opening(), Ok) {
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
    fn tell_failures(&self, found: &Found) {
        for (index, error) in &found.failures {
            self.faults.report(Source::Topology, error.reason(), Some(*index), error);
        }
    }

    fn begin(&mut self, found: Found) -> Phase {
        self.tell_failures(&found);
        let Found { driver, description, .. } = found;
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
        let session = Arc::new(Session::new(driver, &self.keeper, &mut self.stalls));
        self.duties.iter().for_each(|(_, duty)| duty.resume(&session));
        // What was read of the same GPUs before stays in sight for the moment until the lanes have read them again.
        self.snapshot.driver.store(Arc::new(description));
        let now = Instant::now();
        Lane::ALL.iter().for_each(|&lane| self.snapshot.vitals.beat(lane, now));
        let workers = self.duties.iter().filter_map(|(lane, duty)| self.start(*lane, duty, &session)).collect();
        Phase::Open { session, since: Instant::now(), workers }
    }

    /// Starts a thread of a lane.
    fn start(&self, lane: Lane, duty: &Arc<dyn Duty>, session: &Arc<Session>) -> Option<Worker> {
        let worker = Worker::start(lane, duty.clone(), session.clone());
        worker.inspect_err(|error| self.faults.report(source(lane), Reason::Panicked, None, error)).ok()
    }

    fn look_after(&mut self, session: Arc<Session>, since: Instant, workers: Vec<Worker>) -> Phase {
        let mut workers = self.watch_over(&session, workers);
        for (lane, duty) in &self.duties {
            let missing = !workers.iter().any(|worker| worker.lane == *lane);
            if missing && !session.ending() && Instant::now() >= self.revivals[*lane as usize].at {
                workers.extend(self.start(*lane, duty, &session));
            }
        }
        if self.orders.away(Instant::now()).is_some() {
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
            return Phase::Ending { session, workers, then: Then::Retry(retry_at) };
        }
        if since.elapsed() > BACK_OFF.1 {
            self.back_off = BACK_OFF.0;
        }
        match self.look_beside(&session, since) {
            Some(found) => {
                session.end("another session takes its place");
                self.link.rouse();
                // What is known of the GPUs stays in sight: the lanes stand still for milliseconds.
                Phase::Ending { session, workers, then: Then::Begin(found) }
            }
            None => Phase::Open { session, since, workers },
        }
    }

    /// Gives up threads whose driver call does not return, and takes away those that ended.
    fn watch_over(&mut self, session: &Arc<Session>, workers: Vec<Worker>) -> Vec<Worker> {
        let limit = self.settings.call_timeout;
        let mut going_on = Vec::new();
        for worker in workers {
            let lane = worker.lane;
            // At the bound a thread that hangs is not replaced: its lane falls silent, which health tells.
            match worker.look(if self.is_full() { Duration::MAX } else { limit }) {
                Seen::Working(worker) => going_on.push(worker),
                Seen::Hangs(slot, thread) => {
                    session.stall(slot);
                    let gpu = session.gpu_of(slot).map(|gpu| gpu.index);
                    let error = std::io::Error::other(format!("a driver call has not returned within {limit:?}"));
                    self.faults.report(source(lane), Reason::Stalled, gpu, &error);
                    self.aside.leave(thread);
                }
                Seen::Ended => {}
                Seen::Died => {
                    let error = std::io::Error::other(format!("the thread {} ended by a panic", thread_name(lane)));
                    self.faults.report(source(lane), Reason::Panicked, None, &error);
                    self.revivals[lane as usize].postpone();
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
