//! The lane itself: it takes the readings one step at a time and publishes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::energy::Energies;
use super::gpu::{GpuReadings, Told};
use super::moment::Moment;
use super::profiling::{Profiler, Totals};
use super::queue::{ProfilingRounds, Queue, Step};
use crate::faults::{Faults, Source};
use crate::lanes::guarded::Caller;
use crate::lanes::schedule::Ticker;
use crate::lanes::session::Session;
use crate::lanes::watch::{Role, Superseded};
use crate::snapshot::{Gpu, GpuTelemetry, Lane, Snapshot, TelemetryPart};

/// The settings of the readings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The time between two fast readings.
    pub interval: Duration,
    /// The time between two slow readings.
    pub slow_interval: Duration,
    /// The time between two samples of the profiling counters; `None`: they are not read.
    pub profiling_interval: Option<Duration>,
    /// Families that nobody sees, and those that are made only on request and were not requested. A driver call that only
    /// they need is not made.
    pub unseen: Vec<&'static str>,
    /// Whether the energy is apportioned to workloads.
    pub workload_energy: bool,
}

/// The readings of one session, driven by one thread.
#[derive(Debug)]
pub(crate) struct Telemetry<'s> {
    snapshot: &'s Snapshot,
    faults: &'s Faults,
    interval: Duration,
    energies: &'s Mutex<Energies>,
    /// Whether the process lane apportions the energy.
    apportions: bool,
    gpus: Vec<GpuReadings>,
    /// `None` if the profiling counters are not read.
    profiler: Option<Profiler<'s>>,
    queue: Queue,
    /// The time that the steps of the current round have taken so far.
    spent: Duration,
}

impl<'s> Telemetry<'s> {
    /// Creates the readings; nothing has been read yet.
    pub(crate) fn new(
        settings: &Settings,
        snapshot: &'s Snapshot,
        faults: &'s Faults,
        totals: &'s Mutex<Totals>,
        energies: &'s Mutex<Energies>,
        session: &'s Session,
    ) -> Self {
        let now = Instant::now();
        let Settings { interval, slow_interval, profiling_interval, ref unseen, workload_energy } = *settings;
        let ticker = |period| Ticker::starting(period, now);
        let rounds = profiling_interval.map(|interval| ProfilingRounds::starting(interval, now));
        let profiler = profiling_interval.map(|interval| Profiler::new(interval, snapshot, faults, totals, session));
        let readings = |(position, gpu): (usize, &Arc<Gpu>)| {
            GpuReadings::new(gpu.clone(), unseen, session.driver.lacks_uuid(position))
        };
        Self {
            snapshot,
            faults,
            interval,
            energies,
            apportions: workload_energy,
            gpus: session.driver.gpus().enumerate().map(readings).collect(),
            profiler,
            queue: Queue::new(ticker(interval), ticker(slow_interval), rounds),
            spent: Duration::ZERO,
        }
    }

    /// When the next step is due: `now`, or later.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        self.queue.next(now)
    }

    /// Takes one step if one is due, and publishes after the last one in a round. Returns what the process lane needs, if
    /// the step read it.
    pub(crate) fn step(&mut self, caller: Caller<'s>) -> Result<Option<Told>, Superseded> {
        let began = Instant::now();
        let missed = self.queue.fill(&mut self.gpus, self.profiler.as_mut(), caller, began);
        caller.add_missed(&self.snapshot.vitals, Lane::Telemetry, missed);
        let Some(step) = self.queue.steps.pop_front() else { return Ok(None) };
        // Another thread may have taken over a GPU, or this one may have given all others up, since the step was queued.
        let is_ours = step.slot(caller.session.driver_slot()).is_none_or(|slot| caller.serves(slot));
        let told = if is_ours { self.perform(step, caller)? } else { None };
        self.spent += began.elapsed();
        if self.queue.steps.is_empty() {
            let spent = std::mem::take(&mut self.spent);
            if caller.role() == Role::Shared {
                self.snapshot.vitals.observe(Lane::Telemetry, spent);
            }
        }
        Ok(told)
    }

    /// Takes a last profiling sample, so that the time since the one before is not lost: a later thread has no earlier sample.
    pub(crate) fn finish(&mut self, caller: Caller<'s>) -> Result<(), Superseded> {
        self.queue.steps.clear();
        if let Some(profiler) = &mut self.profiler {
            self.queue.queue_profiling(profiler, caller);
        }
        while let Some(step) = self.queue.steps.pop_front() {
            self.perform(step, caller)?;
        }
        Ok(())
    }

    /// Publishes the readings of one GPU. Several threads may each publish their own GPUs.
    fn publish(&self, position: usize, copy: impl Fn(&GpuTelemetry, &mut GpuTelemetry)) {
        self.snapshot.telemetry.rcu(|part| {
            let is_known = |(gpu, shown): (&GpuReadings, &GpuTelemetry)| Arc::ptr_eq(&gpu.shown.gpu, &shown.gpu);
            let mut gpus = part.gpus.clone();
            if gpus.len() != self.gpus.len() || !self.gpus.iter().zip(&gpus).all(is_known) {
                gpus = self.gpus.iter().map(|gpu| GpuTelemetry::unread(gpu.shown.gpu.clone())).collect();
            }
            copy(&self.gpus[position].shown, &mut gpus[position]);
            TelemetryPart { gpus }
        });
    }

    fn perform(&mut self, step: Step, caller: Caller<'s>) -> Result<Option<Told>, Superseded> {
        match step {
            Step::Read(position, reading) => {
                self.gpus[position].read(reading, caller.device(position), self.faults)?;
            }
            Step::Work(position) if self.is_unused(position) => {
                return Ok(Some(Told::Work(self.gpus[position].no_work())));
            }
            Step::Work(position) => {
                let Ok(device) = caller.device(position) else { return Ok(None) };
                return self.gpus[position].read_work(device, self.faults).map(|work| Some(Told::Work(work)));
            }
            Step::Idle(position) => return Ok(Some(Told::Work(self.gpus[position].no_work()))),
            Step::FastDone(position) => {
                let gpu = &mut self.gpus[position];
                let (fast, now) = (&mut gpu.shown.fast, Moment::now());
                fast.energy = self.energies.lock().add(&gpu.key, now, fast.power, self.interval);
                gpu.shown.fast_at = gpu.end_round().or(gpu.shown.fast_at);
                self.publish(position, |from, to| (to.fast, to.fast_at) = (from.fast.clone(), from.fast_at));
                return Ok(self.apportions.then(|| Told::Spent(self.gpus[position].spent())));
            }
            Step::SlowDone(position) => {
                let gpu = &mut self.gpus[position];
                gpu.shown.slow_at = gpu.end_round().or(gpu.shown.slow_at);
                self.publish(position, |from, to| (to.slow, to.slow_at) = (from.slow.clone(), from.slow_at));
            }
            Step::Profile(position, slot) => {
                if let Some(profiler) = &mut self.profiler {
                    profiler.profile(position, slot, caller)?;
                }
            }
            Step::ProfileDone => {
                self.profiler.iter_mut().for_each(|profiler| profiler.publish(caller));
                self.queue.profiling.iter_mut().for_each(|rounds| rounds.done(Instant::now()));
            }
            Step::GpuCount => self.count_gpus(caller)?,
            Step::Uuid(position) => self.ask_uuid(position, caller)?,
            Step::MigLayout(position) => self.check_mig_layout(position, caller)?,
        }
        Ok(None)
    }

    /// Whether the last list of the GPU shows no process, running or ended, that could have worked.
    fn is_unused(&self, position: usize) -> bool {
        let processes = self.snapshot.processes.load();
        processes.gpus.get(position).is_some_and(|list| {
            let is_listed = list.at.is_some() && Arc::ptr_eq(&list.gpu, &self.gpus[position].shown.gpu);
            is_listed && list.processes.is_empty() && list.other.is_none()
        })
    }

    fn count_gpus(&self, caller: Caller<'_>) -> Result<(), Superseded> {
        let Some(guarded) = caller.driver() else { return Ok(()) };
        match guarded.call(|driver| driver.count())? {
            Ok(count) if count as usize != self.gpus.len() => {
                let known = self.gpus.len();
                caller.session.request_reopen(format!("the number of GPUs changed from {known} to {count}"));
            }
            Ok(_) => {}
            Err(error) => guarded.raise(self.faults, Source::Topology, &error),
        }
        Ok(())
    }

    /// Reads the UUID that a GPU did not return when the driver was opened.
    fn ask_uuid(&mut self, position: usize, caller: Caller<'_>) -> Result<(), Superseded> {
        let Ok(device) = caller.device(position) else { return Ok(()) };
        match device.call(|_| caller.session.driver.confirm_uuid(position))? {
            Ok(true) => self.gpus[position].lacks_uuid = false,
            Ok(false) => caller.session.request_reopen(format!("GPU {} returned its UUID late", device.gpu().index)),
            Err(error) => device.raise(self.faults, Source::Topology, &error),
        }
        Ok(())
    }

    fn check_mig_layout(&self, position: usize, caller: Caller<'_>) -> Result<(), Superseded> {
        let Ok(device) = caller.device(position) else { return Ok(()) };
        match device.same_mig_layout()? {
            Ok(true) => {}
            Ok(false) if device.knows_mig_layout() => caller.session.request_reopen("the MIG layout changed"),
            Ok(false) => caller.session.request_reopen("the MIG layout can be read again"),
            Err(error) => self.faults.raise(Source::Topology, error.reason(), Some(device.gpu().index), &error),
        }
        Ok(())
    }
}
