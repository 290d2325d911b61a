//! Which readings are due, and in which order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::gpu::GpuReadings;
use super::profiling::Profiler;
use super::reading::{FAST, FAST_ON_REQUEST, Reading, SLOW, SLOW_ON_REQUEST, WORK};
use crate::lanes::guarded::Caller;
use crate::lanes::schedule::{IDLE_STRIDE, RECONSIDER, Ticker};

/// One step of a round; the number is a GPU's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read(usize, &'static Reading),
    /// Reads what the GPU's processes did.
    Work(usize),
    /// Nothing ran on the GPU, so its processes did no work and the driver is not queried.
    Idle(usize),
    FastDone(usize),
    SlowDone(usize),
    /// Takes a profiling sample of the GPU (slot 0) or of one of its GPU instances.
    Profile(usize, usize),
    ProfileDone,
    GpuCount,
    Uuid(usize),
    MigLayout(usize),
}

impl Step {
    /// The slot of the step's driver call; `None` if the step makes none.
    pub(super) fn slot(self, driver_slot: usize) -> Option<usize> {
        match self {
            Self::Read(position, _)
            | Self::Work(position)
            | Self::Idle(position)
            | Self::FastDone(position)
            | Self::SlowDone(position)
            | Self::Profile(position, _)
            | Self::Uuid(position)
            | Self::MigLayout(position) => Some(position),
            Self::GpuCount => Some(driver_slot),
            Self::ProfileDone => None,
        }
    }
}

/// The longest time between the first two rounds of profiling samples of a GPU: a figure needs two samples, and a thread that
/// takes over begins with the first.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);

/// When the profiling samples are due.
#[derive(Debug)]
pub(super) struct ProfilingRounds {
    ticker: Ticker,
    interval: Duration,
    has_begun: bool,
}

impl ProfilingRounds {
    /// Rounds of which the first is due at once.
    pub(super) fn starting(interval: Duration, now: Instant) -> Self {
        Self { ticker: Ticker::starting(interval, now), interval, has_begun: false }
    }

    /// Ends a round: the next one is due an interval after the last sample, but soon after the first.
    pub(super) fn done(&mut self, now: Instant) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        self.ticker.set_period(if is_first { self.interval.min(FIRST_INTERVAL) } else { self.interval }, now);
    }
}

/// The steps of the current round, and when the next round is due.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) steps: VecDeque<Step>,
    fast: Ticker,
    slow: Ticker,
    /// `None` if the profiling counters are not read.
    pub(super) profiling: Option<ProfilingRounds>,
    fast_round: u32,
    slow_round: u32,
}

impl Queue {
    pub(super) fn new(fast: Ticker, slow: Ticker, profiling: Option<ProfilingRounds>) -> Self {
        Self { steps: VecDeque::new(), fast, slow, profiling, fast_round: 0, slow_round: 0 }
    }

    /// When the next step is due: `now`, if any steps are queued. (The caller's own `now`: a moment later, it would sleep
    /// until then, once for each step.)
    pub(super) fn next(&self, now: Instant) -> Instant {
        if !self.steps.is_empty() {
            return now;
        }
        let next = self.fast.next().min(self.slow.next());
        self.profiling.as_ref().map_or(next, |profiling| next.min(profiling.ticker.next()))
    }

    /// Queues the rounds that are due, and returns how many fast rounds were missed. If a round is not done when the
    /// next one is due, the next one is not queued and counts as missed.
    pub(super) fn fill(
        &mut self,
        gpus: &mut [GpuReadings],
        mut profiler: Option<&mut Profiler<'_>>,
        caller: Caller<'_>,
        now: Instant,
    ) -> u64 {
        let busy = !self.steps.is_empty();
        let missed = self.fast.take(now).map(|missed| {
            if !busy {
                self.queue_fast(gpus, caller);
            }
            missed + u64::from(busy)
        });
        if !busy && self.slow.take(now).is_some() {
            self.queue_slow(gpus, profiler.as_deref_mut(), caller);
        }
        let is_due = !busy && self.profiling.as_mut().is_some_and(|rounds| rounds.ticker.take(now).is_some());
        if let Some(profiler) = profiler.filter(|_| is_due) {
            self.queue_profiling(profiler, caller);
        }
        missed.unwrap_or(0)
    }

    /// Queues a round of profiling samples.
    pub(super) fn queue_profiling(&mut self, profiler: &mut Profiler<'_>, caller: Caller<'_>) {
        if profiler.serves_more_than_before(caller) {
            // The next round is the first one, because some GPU has no earlier sample.
            self.profiling.iter_mut().for_each(|rounds| rounds.has_begun = false);
        }
        self.steps.extend(profiler.due(caller).map(|(position, slot)| Step::Profile(position, slot)));
        self.steps.push_back(Step::ProfileDone);
    }

    fn queue_fast(&mut self, gpus: &[GpuReadings], caller: Caller<'_>) {
        self.fast_round = self.fast_round.wrapping_add(1);
        for (position, gpu) in gpus.iter().enumerate().filter(|&(position, _)| caller.serves(position)) {
            self.steps.extend(gpu.lacks_uuid.then_some(Step::Uuid(position)));
            self.read(position, gpu, FAST);
            self.read(position, gpu, FAST_ON_REQUEST);
            // Nothing ran on the GPU, according to the last reading.
            let idle = gpu.shown.fast.utilization == Some(0.0) && self.fast_round % IDLE_STRIDE != 1;
            if gpu.gives(&WORK) {
                self.steps.push_back(if idle { Step::Idle(position) } else { Step::Work(position) });
            }
            self.steps.push_back(Step::FastDone(position));
        }
        // A layout that could not be read when the driver was opened is read again soon, and then less and less often
        // as long as the driver refuses the call.
        if self.fast_round.is_power_of_two() {
            let driver = &caller.session.driver;
            let unknown = |&position: &usize| caller.serves(position) && !driver.knows_mig_layout(position);
            self.steps.extend((0..gpus.len()).filter(unknown).map(Step::MigLayout));
        }
    }

    fn queue_slow(&mut self, gpus: &mut [GpuReadings], profiler: Option<&mut Profiler<'_>>, caller: Caller<'_>) {
        self.slow_round = self.slow_round.wrapping_add(1);
        if self.slow_round.is_multiple_of(RECONSIDER) {
            gpus.iter_mut().for_each(GpuReadings::reconsider);
            profiler.into_iter().for_each(Profiler::reconsider);
        }
        if caller.serves(caller.session.driver_slot()) {
            self.steps.push_back(Step::GpuCount);
        }
        for (position, gpu) in gpus.iter().enumerate().filter(|&(position, _)| caller.serves(position)) {
            self.steps.push_back(Step::MigLayout(position));
            self.read(position, gpu, SLOW);
            self.read(position, gpu, SLOW_ON_REQUEST);
            self.steps.push_back(Step::SlowDone(position));
        }
    }

    fn read(&mut self, position: usize, gpu: &GpuReadings, readings: impl IntoIterator<Item = &'static Reading>) {
        let given = readings.into_iter().filter(|reading| gpu.gives(reading));
        self.steps.extend(given.map(|reading| Step::Read(position, reading)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_profiling_sample_is_taken_soon_and_the_others_in_each_interval() {
        let start = Instant::now();
        // Each round ends a fifth of a second after it is due.
        let due = |interval: f64, begin_again_at: usize| -> Vec<f64> {
            let mut rounds = ProfilingRounds::starting(Duration::from_secs_f64(interval), start);
            let begun = (0..6).map(|round| {
                let due = rounds.ticker.next();
                assert_eq!(rounds.ticker.take(due), Some(0));
                if round == begin_again_at {
                    rounds.has_begun = false;
                }
                rounds.done(due + Duration::from_millis(200));
                (due - start).as_secs_f64()
            });
            begun.collect()
        };
        assert_eq!(due(10.0, 0)[..4], [0.0, 1.2, 11.4, 21.4]);
        assert_eq!(due(10.0, 3), [0.0, 1.2, 11.4, 21.4, 22.6, 32.8], "a GPU has come back");
        assert_eq!(due(0.5, 0)[..4], [0.0, 0.5, 1.0, 1.5]);
    }

    #[test]
    fn queued_steps_are_due_now_and_not_a_moment_later() {
        let now = Instant::now();
        let ticker = || Ticker::starting(Duration::from_secs(1), now);
        let mut queue = Queue::new(ticker(), ticker(), None);
        queue.steps.push_back(Step::GpuCount);
        assert_eq!(queue.next(now), now);
    }
}
