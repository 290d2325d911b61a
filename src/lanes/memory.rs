//! The memory lane: reads the memory of every GPU at its rate, folds it, publishes it, and wakes the process lane
//! when memory moved.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::accumulator::{GpuAccumulator, Sampled};
use super::publish::Publisher;
use super::schedule::{HEARTBEAT, Ticker};
use super::session::Session;
use super::wake::WakeBits;
use super::watch::{Superseded, Watch};
use super::worker::LaneTask;
use crate::faults::{Faults, Reason, Source};
use crate::nvml::{self, Severity};
use crate::snapshot::{Gpu, GpuMemory, GpuState, Lane, MemoryPart, Snapshot};

/// How long memory must have stood still, with no process in sight, before the lane falls to its idle rate. Processes
/// may be hidden from the exporter: then moving memory is the only sign of them.
const CALM: Duration = Duration::from_secs(10);

/// Bytes: with more than this in use on a GPU somebody is there, whether he is in sight or not. A CUDA context alone
/// takes 528 MiB on an H200.
const NOBODY: u64 = 256 << 20;

/// How often a GPU or a MIG device that does not answer is asked again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// While nothing changes, a publication says nothing but that the samples are fresh. Ten a second say that too, and a
/// tick costs a third less: on the H200 most of a tick's time is what it touches with cold caches.
const REFRESH: Duration = Duration::from_millis(100);

/// What the lane is told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) period: Duration,
    pub(super) idle_period: Duration,
    pub(super) peak_window: Duration,
    pub(super) stale_after: Duration,
}

/// What the memory lane and the process lane tell each other.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Rung by the memory lane: memory of these GPUs moved.
    pub(super) moved: WakeBits,
    /// Rung by the process lane: there are processes again.
    pub(super) awake: WakeBits,
    /// Rung at the end of a session, for the watch for Xid events.
    pub(super) ended: WakeBits,
    /// Processes in sight on all GPUs.
    pub(super) processes: AtomicUsize,
}

impl Link {
    /// Wakes every thread, so that it sees at once that its session ends.
    pub(super) fn rouse(&self) {
        self.moved.notify(u64::MAX);
        self.awake.notify(u64::MAX);
        self.ended.notify(u64::MAX);
    }
}

/// The lane. It outlives its threads and its sessions.
#[derive(Debug)]
pub(super) struct MemoryLane {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    link: Arc<Link>,
    accumulators: Mutex<HashMap<String, Arc<Mutex<GpuAccumulator>>>>,
    publisher: Mutex<Publisher<MemoryPart>>,
}

type SharedAccumulator = Arc<Mutex<GpuAccumulator>>;

/// What one thread of the lane keeps from tick to tick.
#[derive(Debug)]
pub(super) struct LaneState {
    accumulators: Vec<SharedAccumulator>,
    /// When memory moved last.
    calm_since: Instant,
    published: Option<Instant>,
    /// Whether nobody can be on any GPU.
    empty: bool,
}

impl LaneState {
    /// Whether memory has stood still for long and nobody can be on any GPU.
    fn is_calm(&self) -> bool {
        self.empty && self.calm_since.elapsed() > CALM
    }
}

impl MemoryLane {
    pub(super) fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>, link: Arc<Link>) -> Self {
        Self { settings, snapshot, faults, link, accumulators: Mutex::default(), publisher: Mutex::default() }
    }
}

impl LaneTask for MemoryLane {
    /// Takes up what is known of the GPUs.
    fn resume(&self, session: &Session) {
        for (position, gpu) in session.driver.gpus().enumerate() {
            lock(&self.accumulator(gpu)).resume(gpu, session.driver.knows_mig_layout(position));
        }
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let mut state = self.begin(session);
        let mut ticker = Ticker::starting(self.settings.period, state.calm_since);
        while !session.ending() {
            let Some(began) = self.wait(session, &mut ticker, state.is_calm()) else { break };
            self.tick(session, watch, &mut state, began)?;
        }
        Ok(())
    }
}

impl MemoryLane {
    /// A thread begins its work on a session.
    pub(super) fn begin(&self, session: &Session) -> LaneState {
        let accumulators = session.driver.gpus().map(|gpu| self.accumulator(gpu)).collect();
        LaneState { accumulators, calm_since: Instant::now(), published: None, empty: false }
    }

    /// One tick, which began at a time: reads every GPU, wakes who waits for moves, and publishes what is new.
    pub(super) fn tick(
        &self,
        session: &Session,
        watch: &Watch,
        state: &mut LaneState,
        began: Instant,
    ) -> Result<(), Superseded> {
        let (mut moved, mut changed) = (0, false);
        for (position, accumulator) in state.accumulators.iter().enumerate() {
            match self.sample(session, watch, position, accumulator, began)? {
                Sampled::Same => {}
                Sampled::Changed => changed = true,
                Sampled::Moved => moved |= WakeBits::bit(position),
            }
        }
        if moved != 0 {
            state.calm_since = began;
            self.link.moved.notify(moved);
        }
        if changed || moved != 0 || state.published.is_none_or(|at| began.duration_since(at) >= REFRESH) {
            state.published = Some(began);
            self.publish(&state.accumulators);
            session.set_lost(state.accumulators.iter().any(|accumulator| lock(accumulator).lost));
            state.empty = state.accumulators.iter().all(is_empty);
        }
        self.snapshot.vitals.observe(Lane::Memory, began.elapsed());
        Ok(())
    }

    /// Waits for the next tick and says when it came; `None` at the end of the session.
    fn wait(&self, session: &Session, ticker: &mut Ticker, calm: bool) -> Option<Instant> {
        let mut now = Instant::now();
        let idle = calm && self.link.processes.load(Ordering::Relaxed) == 0;
        ticker.set_period(if idle { self.settings.idle_period } else { self.settings.period }, now);
        loop {
            // Only who was idle is late for a process that came.
            let notified = self.link.awake.wait_until(ticker.next().min(now + HEARTBEAT)) != 0;
            if notified && session.ending() {
                return None;
            }
            now = Instant::now();
            if notified && idle {
                ticker.hurry(now);
            }
            self.snapshot.vitals.beat(Lane::Memory, now);
            if let Some(missed) = ticker.take(now) {
                if missed > 0 {
                    self.snapshot.vitals.add_missed(Lane::Memory, missed);
                }
                return Some(now);
            }
        }
    }

    /// Reads one GPU and its MIG devices.
    fn sample(
        &self,
        session: &Session,
        watch: &Watch,
        position: usize,
        accumulator: &SharedAccumulator,
        now: Instant,
    ) -> Result<Sampled, Superseded> {
        if session.stalled(position) {
            return Ok(lock(accumulator).lose(GpuState::Stalled));
        }
        if lock(accumulator).retry_at.is_some_and(|at| now < at) {
            return Ok(Sampled::Same);
        }
        let Some(device) = session.driver.device(position) else {
            let mut accumulator = lock(accumulator);
            accumulator.retry_at = Some(now + RETRY);
            accumulator.lost = true;
            return Ok(accumulator.lose(GpuState::Unreadable));
        };
        let reading = watch.call(position, || device.memory())?;
        let mut sampled = match reading {
            Ok(reading) => lock(accumulator).sample(reading, Instant::now(), self.settings.stale_after),
            Err(error) => self.failed(session, accumulator, &error),
        };
        for (index, slice) in session.driver.mig_devices(position).enumerate() {
            if !lock(accumulator).is_mig_due(index, now) {
                continue;
            }
            let slice = match watch.call(position, || slice.memory())? {
                Ok(reading) => lock(accumulator).sample_mig(index, reading, Instant::now()),
                Err(error) => self.slice_failed(session, accumulator, index, &error),
            };
            sampled = sampled.max(slice);
        }
        Ok(sampled)
    }

    fn failed(&self, session: &Session, accumulator: &SharedAccumulator, error: &nvml::Error) -> Sampled {
        let mut accumulator = lock(accumulator);
        let gpu = Some(accumulator.shown.gpu.index);
        let sampled = match error.severity() {
            // A part that shares the system's memory answers, and has no figures; a GPU that is sliced may keep its own
            // from us and give those of its MIG devices. Said and counted once.
            Severity::Absent if error.reason() != Reason::NoPermission || !accumulator.shown.gpu.mig.is_empty() => {
                if !accumulator.answered_without_figures(Instant::now()) {
                    return Sampled::Same;
                }
                Sampled::Changed
            }
            // Nothing is known from this sample; the last good one stands until it is stale.
            Severity::Passing if accumulator.shown.at.is_some_and(|at| at.elapsed() <= self.settings.stale_after) => {
                Sampled::Same
            }
            Severity::Absent | Severity::Gpu | Severity::Passing => {
                accumulator.lost = error.severity() == Severity::Gpu;
                accumulator.retry_at = Some(Instant::now() + RETRY);
                accumulator.lose(GpuState::Unreadable)
            }
            Severity::Driver => {
                session.end(crate::faults::chain(error));
                Sampled::Same
            }
        };
        drop(accumulator);
        self.faults.report(Source::Memory, error.reason(), gpu, error);
        sampled
    }

    /// A MIG device that cannot be read loses its figures; its GPU keeps its own.
    fn slice_failed(
        &self,
        session: &Session,
        accumulator: &SharedAccumulator,
        index: usize,
        error: &nvml::Error,
    ) -> Sampled {
        if error.severity() == Severity::Driver {
            session.end(crate::faults::chain(error));
        }
        let mut accumulator = lock(accumulator);
        let gpu = Some(accumulator.shown.gpu.index);
        // As with a GPU: the last good sample stands until it is stale, and meanwhile every tick asks.
        let passes = error.severity() == Severity::Passing
            && accumulator.mig_answered_at(index).is_some_and(|at| at.elapsed() <= self.settings.stale_after);
        let lost = !passes && accumulator.lose_mig(index, Instant::now() + RETRY);
        drop(accumulator);
        // What the device will never give is told when it is first refused.
        if error.severity() != Severity::Absent || lost {
            self.faults.report(Source::Memory, error.reason(), gpu, error);
        }
        if lost { Sampled::Changed } else { Sampled::Same }
    }

    fn publish(&self, accumulators: &[SharedAccumulator]) {
        let mut publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner);
        publisher.publish(&self.snapshot.memory, |part| {
            part.gpus.truncate(accumulators.len());
            for (position, accumulator) in accumulators.iter().enumerate() {
                let mut accumulator = lock(accumulator);
                accumulator.flush_run();
                match part.gpus.get_mut(position) {
                    Some(shown) => copy(&accumulator.shown, shown),
                    None => part.gpus.push(accumulator.shown.clone()),
                }
            }
        });
    }

    fn accumulator(&self, gpu: &Arc<Gpu>) -> SharedAccumulator {
        let mut accumulators = self.accumulators.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Mutex::new(GpuAccumulator::new(gpu.clone(), self.settings.peak_window)));
        accumulators.entry(gpu.key()).or_insert_with(new).clone()
    }
}

/// Whether nobody can be on the GPU. Where reserved memory is not told apart, `used` says nothing of that.
fn is_empty(accumulator: &SharedAccumulator) -> bool {
    lock(accumulator).shown.figures.is_none_or(|figures| figures.reserved.is_none() || figures.used < NOBODY)
}

/// Copies without allocating, where the MIG layout is the same.
fn copy(from: &GpuMemory, to: &mut GpuMemory) {
    let mut mig = std::mem::take(&mut to.mig);
    mig.clone_from(&from.mig);
    let GpuMemory { ref gpu, state, at, figures, pressure_seconds, increase, decrease, mig: _ } = *from;
    *to = GpuMemory { gpu: gpu.clone(), state, at, figures, pressure_seconds, increase, decrease, mig };
}

fn lock(accumulator: &SharedAccumulator) -> std::sync::MutexGuard<'_, GpuAccumulator> {
    accumulator.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_dies_with_a_lock_held_leaves_the_lane_usable() {
        let settings = Settings {
            period: Duration::from_millis(10),
            idle_period: Duration::from_secs(1),
            peak_window: Duration::from_secs(60),
            stale_after: Duration::from_secs(5),
        };
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let lane = MemoryLane::new(settings, snapshot.clone(), faults, Arc::default());
        let gpu = Arc::new(Gpu { index: 3, ..Gpu::default() });
        let accumulator = lane.accumulator(&gpu);
        let died = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _held = (lane.accumulators.lock(), lane.publisher.lock(), accumulator.lock());
                panic!("as a test wants it");
            });
            thread.join()
        });
        assert!(
            died.is_err()
                && lane.accumulators.is_poisoned()
                && accumulator.is_poisoned()
                && lane.publisher.is_poisoned()
        );
        lane.publish(&[lane.accumulator(&gpu)]);
        assert_eq!(snapshot.memory.load().gpus[0].gpu.index, 3);
    }
}
