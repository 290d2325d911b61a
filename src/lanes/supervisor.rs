//! The supervisor: opens the driver, starts the lanes' threads, takes the place of one that hangs or dies, and opens
//! the driver again when it went away. It makes no driver call itself, so it can always answer.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use super::memory::{Link, MemoryLane};
use super::opening::{Closing, Found, Opening, Progress, SLOW};
use super::orders::{Grip, Orders};
use super::process::ProcessLane;
use super::session::Session;
use super::settings::Settings;
use super::worker::{Duty, Seen, Worker, thread_name};
use super::xids::XidWatch;
use crate::attribution::Attribution;
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{self, OpenError};
use crate::snapshot::{self, Gpu, Lane, Snapshot};

/// How often the supervisor looks after its threads.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts to open the driver: doubled from the first to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Between two openings of the driver for the sake of a GPU that is lost: half as long again from the first to the last.
/// Each costs the other GPUs a gap of milliseconds in their samples; the GPU comes back so much later at most.
const LOST_BACK_OFF: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(60));
/// Between the end of a thread by a panic and its next start: doubled from the first to the last.
const REVIVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The farthest time that is named.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How old a session is when it has asked every GPU.
const SETTLED: Duration = Duration::from_secs(5);
/// How often the supervisor looks while threads are about to end.
const SHORT: Duration = Duration::from_millis(10);
/// How long the end waits for threads; one that hangs in the driver is left behind. With the second that the web server
/// gives its clients, the whole end takes less than two.
const FAREWELL: Duration = Duration::from_millis(800);

/// The running lanes.
#[derive(Debug)]
pub struct Lanes {
    orders: Arc<Orders>,
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
        let orders = Arc::new(Orders::default());
        let link = Arc::new(Link::default());
        let memory = MemoryLane::new(settings.memory.clone(), snapshot.clone(), faults.clone(), link.clone());
        let process =
            ProcessLane::new(settings.process.clone(), attribution, snapshot.clone(), faults.clone(), link.clone());
        let telemetry = &settings.process.telemetry;
        let xids = XidWatch::new(telemetry, snapshot.clone(), faults.clone(), link.clone());
        let duties: Duties =
            [(Lane::Memory, Arc::new(memory)), (Lane::Process, Arc::new(process)), (Lane::Telemetry, Arc::new(xids))];
        let supervisor = Supervisor::new(settings, duties, link, snapshot, faults, orders.clone());
        let supervisor = thread::Builder::new().name("supervisor".into()).spawn(move || supervisor.run())?;
        orders.listen(supervisor.thread().clone());
        Ok(Self { orders, supervisor })
    }

    /// The hold of the driver.
    pub fn grip(&self) -> Grip {
        Grip::new(self.orders.clone())
    }

    /// Ends the lanes and closes the driver. Threads that hang in a driver call are left behind.
    pub fn stop(self) {
        self.orders.stop();
        if self.supervisor.join().is_err() {
            tracing::error!("the supervisor ended by a panic");
        }
    }
}

/// The threads of a session, each under the lane that its faults are counted for, and what it does. The readings of the
/// telemetry are on the process lane's thread; telemetry's own is the watch for Xid events.
type Duties = [(Lane, Arc<dyn Duty>); 3];

struct Supervisor {
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
    /// Threads that were superseded and have not come back.
    stuck: Vec<JoinHandle<()>>,
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
    Away { stuck: usize },
    /// The driver is being opened.
    Opening(Opening),
    /// The lanes run.
    Open { session: Arc<Session>, since: Instant, workers: Vec<Worker> },
    /// The lanes were asked to let go.
    Ending { session: Arc<Session>, workers: Vec<Worker>, retry_at: Instant },
    /// The driver is being closed.
    Closing { closing: Closing, retry_at: Instant },
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
    fn new(
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
            lost_back_off: LOST_BACK_OFF.0,
            lost_since: None,
            revivals: [Revival { at: Instant::now(), pause: REVIVAL.0 }; Lane::ALL.len()],
            stuck: Vec::new(),
            keeper: Arc::new(()),
        }
    }

    fn run(mut self) {
        let mut phase = Phase::Closed(Instant::now());
        while !self.orders.stopped() {
            let before = std::mem::discriminant(&phase);
            phase = self.turn(phase);
            self.stuck.retain(|thread| !thread.is_finished());
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
                None => self.open(),
            },
            Phase::Away { stuck } => match self.orders.away(Instant::now()) {
                Some(_) if stuck == self.stuck.len() => phase,
                // What still holds the driver is said as it is now.
                Some(left) => self.leave_alone(left),
                None => {
                    tracing::info!("the driver is taken up again");
                    self.back_off = BACK_OFF.0;
                    Phase::Closed(Instant::now())
                }
            },
            Phase::Opening(opening) => match opening.progress() {
                Progress::UnderWay(opening) => Phase::Opening(opening),
                Progress::Slow(opening) => {
                    self.tell_slow("opening the driver");
                    Phase::Opening(opening)
                }
                Progress::Done(opened) => match *opened {
                    Ok(found) => self.begin(found),
                    Err(error) => self.refused(&error),
                },
                Progress::Died => {
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
                match Closing::begin(session) {
                    Some(closing) => Phase::Closing { closing, retry_at },
                    None => Phase::Closed(retry_at),
                }
            }
            Phase::Closing { closing, retry_at } if closing.is_done() => Phase::Closed(retry_at),
            Phase::Closing { closing, retry_at } if closing.is_slow() => {
                self.tell_slow("closing the driver");
                self.stuck.push(closing.into_thread());
                Phase::Closed(retry_at)
            }
            Phase::Closing { .. } => phase,
        }
    }

    /// The driver is closed and is not to be opened for so long.
    fn leave_alone(&mut self, left: Duration) -> Phase {
        let held = match self.stuck.len() {
            0 => "",
            _ => "; a driver call that does not return still holds it",
        };
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + left.min(FAR));
        let problem = format!("the driver was let go of, as asked, until {until} at the latest{held}");
        tracing::info!(problem, "the driver is left alone");
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
        Phase::Away { stuck: self.stuck.len() }
    }

    fn tell_slow(&self, what: &str) {
        let problem = format!("{what} has not ended within {SLOW:?}");
        self.faults.report(Source::Library, Reason::Stalled, None, &std::io::Error::other(problem.clone()));
        self.snapshot.clear(snapshot::Driver { problem: Some(problem), ..snapshot::Driver::default() });
    }

    fn open(&mut self) -> Phase {
        match Opening::begin(self.settings.library.clone(), self.known.clone()) {
            Ok(opening) => Phase::Opening(opening),
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

    fn begin(&mut self, found: Found) -> Phase {
        let Found { driver, description, failures } = found;
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
        for (index, error) in &failures {
            self.faults.report(Source::Topology, error.reason(), Some(*index), error);
        }
        nvml::remember(&mut self.known, &description.gpus);
        let session = Arc::new(Session::new(driver, &self.keeper));
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
        worker.inspect_err(|error| self.faults.report(source(lane), Reason::Died, None, error)).ok()
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
            return Phase::Ending { session, workers, retry_at };
        }
        if since.elapsed() > BACK_OFF.1 {
            self.back_off = BACK_OFF.0;
        }
        if self.wants_reopening(&session, since) {
            self.lost_since = Some(Instant::now());
            self.lost_back_off = (self.lost_back_off * 3 / 2).min(LOST_BACK_OFF.1);
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
        let limit = self.settings.call_timeout;
        let mut going_on = Vec::new();
        for worker in workers {
            let lane = worker.lane;
            match worker.look(limit) {
                Seen::Working(worker) => going_on.push(worker),
                Seen::Hangs(slot, thread) => {
                    session.stall(slot);
                    let gpu = session.gpu_of(slot).map(|gpu| gpu.index);
                    let error = std::io::Error::other(format!("a driver call has not returned within {limit:?}"));
                    self.faults.report(source(lane), Reason::Stalled, gpu, &error);
                    self.stuck.push(thread);
                }
                Seen::Ended => {}
                Seen::Died => {
                    let error = std::io::Error::other(format!("the thread {} ended by a panic", thread_name(lane)));
                    self.faults.report(source(lane), Reason::Died, None, &error);
                    self.revivals[lane as usize].postpone();
                }
            }
        }
        going_on
    }

    fn farewell(&mut self, phase: Phase) {
        let deadline = Instant::now() + FAREWELL;
        let in_time = |done: &dyn Fn() -> bool| {
            while !done() && Instant::now() < deadline {
                thread::park_timeout(SHORT);
            }
            done()
        };
        let closed = match phase {
            Phase::Open { session, workers, .. } | Phase::Ending { session, workers, .. } => {
                session.end("the exporter ends");
                self.link.rouse();
                in_time(&|| workers.iter().all(Worker::is_finished))
                    && Closing::begin(session).is_none_or(|closing| in_time(&|| closing.is_done()))
            }
            Phase::Closing { closing, .. } => in_time(&|| closing.is_done()),
            Phase::Closed(_) | Phase::Away { .. } | Phase::Opening(_) => true,
        };
        if !closed {
            tracing::warn!("a driver call does not return: its thread is left behind");
        }
    }
}

fn source(lane: Lane) -> Source {
    match lane {
        Lane::Memory => Source::Memory,
        Lane::Process => Source::Process,
        Lane::Telemetry => Source::Telemetry,
    }
}

#[cfg(test)]
mod tests;
