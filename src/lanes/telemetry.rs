//! The telemetry readings: a queue of single driver calls that the process lane's thread works through between two
//! process lists, so that a dear call never delays a list by more than itself.

mod reading;
mod work_until;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::schedule::Ticker;
use super::session::Session;
use super::watch::{Superseded, Watch};
use crate::faults::{Faults, Source};
use crate::nvml::{Error, Severity, UtilizationSample};
use crate::snapshot::{Gpu, GpuTelemetry, Lane, Snapshot, TelemetryPart};
use reading::Reading;
use work_until::WorkUntil;

/// While a GPU does nothing, its processes' work is asked for at every so many quick readings only: the call holds the
/// driver's lock for 1 to 2 ms, and the driver remembers the samples meanwhile.
const IDLE_STRIDE: u32 = 5;

/// What a GPU does not give is asked for again at every so many slow rounds: a permission may be given, and a driver may
/// have refused in a bad moment.
pub(super) const RECONSIDER: u32 = 20;

/// What the readings are told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    pub(super) slow_interval: Duration,
    pub(super) energy: bool,
}

/// What the processes of a GPU did.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) gpu: Arc<Gpu>,
    /// `None` where the driver cannot tell.
    pub(super) samples: Option<Vec<UtilizationSample>>,
    pub(super) asked_at: (Instant, SystemTime),
}

/// The readings of one session, driven by one thread.
pub(super) struct Telemetry<'s> {
    settings: Settings,
    snapshot: &'s Snapshot,
    faults: &'s Faults,
    gpus: Vec<GpuReadings>,
    queue: VecDeque<Step>,
    fast: Ticker,
    slow: Ticker,
    round: u32,
    slow_round: u32,
    spent: Duration,
}

struct GpuReadings {
    shown: GpuTelemetry,
    /// Readings that this GPU does not give: not asked for again before [`RECONSIDER`].
    absent: Vec<Reading>,
    /// Up to when the work of processes is known.
    work_until: WorkUntil,
    /// Whether a reading of the present round was good.
    good: bool,
    /// Whether the GPU did not give its UUID yet.
    lacks_uuid: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read(usize, Reading),
    Work(usize),
    /// Nothing ran on the GPU, so the driver is not asked what its processes did.
    Rest(usize),
    FastDone(usize),
    SlowDone(usize),
    Topology,
    Uuid(usize),
    MigLayout(usize),
}

impl<'s> Telemetry<'s> {
    /// Nothing is read yet.
    pub(super) fn new(settings: &Settings, snapshot: &'s Snapshot, faults: &'s Faults, session: &Session) -> Self {
        let now = Instant::now();
        let readings =
            |(position, gpu): (usize, &Arc<Gpu>)| GpuReadings::new(gpu.clone(), session.driver.lacks_uuid(position));
        Self {
            settings: settings.clone(),
            snapshot,
            faults,
            gpus: session.driver.gpus().enumerate().map(readings).collect(),
            queue: VecDeque::new(),
            fast: Ticker::starting(settings.interval, now),
            slow: Ticker::starting(settings.slow_interval, now),
            round: 0,
            slow_round: 0,
            spent: Duration::ZERO,
        }
    }

    /// When there is something to do: now, while the queue is not empty.
    pub(super) fn next(&self) -> Instant {
        if self.queue.is_empty() { self.fast.next().min(self.slow.next()) } else { Instant::now() }
    }

    /// Takes one reading, if one is due, and publishes after the last of a round. Gives back what processes did, when
    /// that was the reading.
    pub(super) fn step(&mut self, session: &Session, watch: &Watch) -> Result<Option<Work>, Superseded> {
        let began = Instant::now();
        self.fill(session, began);
        let Some(step) = self.queue.pop_front() else { return Ok(None) };
        let work = self.perform(step, session, watch)?;
        self.spent += began.elapsed();
        if self.queue.is_empty() || matches!(step, Step::FastDone(_) | Step::SlowDone(_)) {
            let gpus = self.gpus.iter().map(|gpu| gpu.shown.clone()).collect();
            self.snapshot.telemetry.store(Arc::new(TelemetryPart { gpus }));
        }
        if self.queue.is_empty() {
            self.snapshot.vitals.observe(Lane::Telemetry, std::mem::take(&mut self.spent));
        }
        Ok(work)
    }

    /// Queues the readings whose time has come. A round that is not done when the next is due is not doubled: the next
    /// one is missed.
    fn fill(&mut self, session: &Session, now: Instant) {
        let busy = !self.queue.is_empty();
        if let Some(missed) = self.fast.take(now) {
            self.snapshot.vitals.add_missed(Lane::Telemetry, missed + u64::from(busy));
            if !busy {
                self.round = self.round.wrapping_add(1);
                self.queue_fast(session);
            }
        }
        if !busy && self.slow.take(now).is_some() {
            self.queue_slow();
        }
    }

    fn queue_fast(&mut self, session: &Session) {
        for (position, gpu) in self.gpus.iter().enumerate() {
            self.queue.extend(gpu.lacks_uuid.then_some(Step::Uuid(position)));
            let wanted = Reading::FAST.iter().filter(|reading| !gpu.absent.contains(reading));
            self.queue.extend(wanted.map(|&reading| Step::Read(position, reading)));
            let idle = gpu.shown.fast.utilization == Some(0.0) && self.round % IDLE_STRIDE != 1;
            if !gpu.absent.contains(&Reading::Work) {
                self.queue.push_back(if idle { Step::Rest(position) } else { Step::Work(position) });
            }
            self.queue.push_back(Step::FastDone(position));
        }
        // A layout that could not be read at the opening is asked for soon, and ever more seldom where it stays refused.
        if self.round.is_power_of_two() {
            let unknown = (0..self.gpus.len()).filter(|&position| !session.driver.knows_mig_layout(position));
            self.queue.extend(unknown.map(Step::MigLayout));
        }
    }

    fn queue_slow(&mut self) {
        self.slow_round = self.slow_round.wrapping_add(1);
        if self.slow_round.is_multiple_of(RECONSIDER) {
            self.gpus.iter_mut().for_each(|gpu| gpu.absent.clear());
        }
        self.queue.push_back(Step::Topology);
        for (position, gpu) in self.gpus.iter().enumerate() {
            self.queue.push_back(Step::MigLayout(position));
            let wanted = Reading::SLOW.iter().filter(|reading| !gpu.absent.contains(reading));
            let wanted = wanted.filter(|&&reading| reading != Reading::Energy || self.settings.energy);
            self.queue.extend(wanted.map(|&reading| Step::Read(position, reading)));
            self.queue.push_back(Step::SlowDone(position));
        }
    }

    fn perform(&mut self, step: Step, session: &Session, watch: &Watch) -> Result<Option<Work>, Superseded> {
        match step {
            Step::Read(position, reading) => self.read(position, reading, session, watch)?,
            Step::Work(position) => return self.work(position, session, watch),
            Step::Rest(position) => return Ok(Some(self.gpus[position].work(Some(Vec::new())))),
            Step::FastDone(position) => {
                let gpu = &mut self.gpus[position];
                gpu.shown.fast_at = gpu.done().or(gpu.shown.fast_at);
            }
            Step::SlowDone(position) => {
                let gpu = &mut self.gpus[position];
                gpu.shown.slow_at = gpu.done().or(gpu.shown.slow_at);
            }
            Step::Topology => self.topology(session, watch)?,
            Step::Uuid(position) => self.uuid(position, session, watch)?,
            Step::MigLayout(position) if session.stalled(position) => {}
            Step::MigLayout(position) => match watch.call(position, || session.driver.same_mig_layout(position))? {
                Ok(true) => {}
                Ok(false) if session.driver.knows_mig_layout(position) => {
                    session.request_reopen("the MIG layout changed")
                }
                Ok(false) => session.request_reopen("the MIG layout can be read again"),
                Err(error) => {
                    let gpu = self.gpus[position].shown.gpu.index;
                    self.faults.report(Source::Topology, error.reason(), Some(gpu), &error);
                }
            },
        }
        Ok(None)
    }

    fn read(&mut self, position: usize, reading: Reading, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let shown = &mut self.gpus[position].shown;
        let device = session.driver.device(position).filter(|_| !session.stalled(position));
        let Some(device) = device else {
            reading.clear(shown);
            return Ok(());
        };
        match watch.call(position, || reading.take(device, shown))? {
            Ok(()) => self.gpus[position].good = true,
            Err(error) => {
                reading.clear(&mut self.gpus[position].shown);
                self.failed(position, reading, &error, session);
            }
        }
        Ok(())
    }

    fn work(&mut self, position: usize, session: &Session, watch: &Watch) -> Result<Option<Work>, Superseded> {
        let Some(device) = session.driver.device(position).filter(|_| !session.stalled(position)) else {
            return Ok(None);
        };
        let gpu = &mut self.gpus[position];
        let since = gpu.work_until.since(SystemTime::now());
        match watch.call(position, || device.process_utilization(since))? {
            Ok(mut samples) => {
                gpu.work_until.take(&mut samples, SystemTime::now());
                Ok(Some(gpu.work(Some(samples))))
            }
            Err(error) => {
                let work = gpu.work(None);
                self.failed(position, Reading::Work, &error, session);
                Ok(Some(work))
            }
        }
    }

    fn topology(&mut self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        if session.stalled(session.driver_slot()) {
            return Ok(());
        }
        match watch.call(session.driver_slot(), || session.driver.count())? {
            Ok(count) if count as usize != self.gpus.len() => {
                session.request_reopen(format!("the number of GPUs changed from {} to {count}", self.gpus.len()));
            }
            Ok(_) => {}
            Err(error) => {
                if error.severity() == Severity::Driver {
                    session.end(crate::faults::chain(&error));
                }
                self.faults.report(Source::Topology, error.reason(), None, &error);
            }
        }
        Ok(())
    }

    /// Asks a GPU for the UUID that it did not give at the opening.
    fn uuid(&mut self, position: usize, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        if session.stalled(position) {
            return Ok(());
        }
        let gpu = self.gpus[position].shown.gpu.index;
        match watch.call(position, || session.driver.confirm_uuid(position))? {
            Ok(true) => self.gpus[position].lacks_uuid = false,
            Ok(false) => session.request_reopen(format!("GPU {gpu} gave its UUID late")),
            Err(error) => {
                if error.severity() == Severity::Driver {
                    session.end(crate::faults::chain(&error));
                }
                self.faults.report(Source::Topology, error.reason(), Some(gpu), &error);
            }
        }
        Ok(())
    }

    fn failed(&mut self, position: usize, reading: Reading, error: &Error, session: &Session) {
        let gpu = &mut self.gpus[position];
        match error.severity() {
            // Nothing is wrong: this GPU does not give it. An invalid argument is how older drivers say so.
            Severity::Absent => {
                gpu.absent.push(reading);
                tracing::debug!(gpu = gpu.shown.gpu.index, call = error.call, "not given by this GPU");
                return;
            }
            Severity::Driver => session.end(crate::faults::chain(error)),
            Severity::Gpu | Severity::Passing => {}
        }
        self.faults.report(Source::Telemetry, error.reason(), Some(gpu.shown.gpu.index), error);
    }
}

impl GpuReadings {
    fn new(gpu: Arc<Gpu>, lacks_uuid: bool) -> Self {
        let work_until = WorkUntil::now(SystemTime::now());
        Self { shown: GpuTelemetry::unread(gpu), absent: Vec::new(), work_until, good: false, lacks_uuid }
    }

    fn work(&self, samples: Option<Vec<UtilizationSample>>) -> Work {
        Work { gpu: self.shown.gpu.clone(), samples, asked_at: (Instant::now(), SystemTime::now()) }
    }

    /// The end of a round: now, if anything was read in it.
    fn done(&mut self) -> Option<Instant> {
        std::mem::take(&mut self.good).then(Instant::now)
    }
}
