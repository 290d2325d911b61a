//! The lane itself: its ticks, what it keeps from tick to tick, and how it publishes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::accumulator::{GpuAccumulator, Sampled};
use super::link::Link;
use super::meminfo::Meminfo;
use super::sampler::Sampler;
use crate::faults::Faults;
use crate::lanes::guarded::Caller;
use crate::lanes::publish::Publisher;
use crate::lanes::schedule::{HEARTBEAT, IdlePolicy, REFRESH, Ticker};
use crate::lanes::session::Session;
use crate::lanes::wake::WakeBits;
use crate::lanes::watch::{Role, Superseded, Watch};
use crate::lanes::worker::LaneTask;
use crate::snapshot::{
    Gpu, GpuMemory, Lane, MemoryFigures, MemoryPart, MemorySample, MigDevice, Snapshot, allocatable,
};

/// The settings of the lane.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The time between two samples.
    pub period: Duration,
    /// The time between two samples while no process uses any GPU.
    pub idle_period: Duration,
    /// The length of the peak window.
    pub peak_window: Duration,
    /// A GPU without a good sample for this long is stale.
    pub stale_after: Duration,
    /// How long the memory of the processes on a GPU counts as known after a list of them.
    pub list_stale_after: Duration,
    /// Where procfs is mounted, whose `meminfo` is read if a GPU shares the machine's memory.
    pub procfs: PathBuf,
}

/// The lane. It outlives its threads and its sessions.
#[derive(Debug)]
pub(crate) struct MemoryLane {
    settings: Settings,
    snapshot: Arc<Snapshot>,
    link: Arc<Link>,
    sampler: Sampler,
    /// Keyed by [`Gpu::key`].
    accumulators: Mutex<HashMap<String, SharedAccumulator>>,
    publisher: Mutex<Publisher<MemoryPart>>,
    /// The ticks of the session. A thread that takes over continues with those of the thread before it, so that what was
    /// missed in between is counted. The shared thread, which keeps its own at every tick, begins before all others.
    tickers: Mutex<Vec<(Role, Ticker)>>,
}

type SharedAccumulator = Arc<Mutex<GpuAccumulator>>;

/// What one thread of the lane keeps from tick to tick.
#[derive(Debug)]
pub(crate) struct LaneState {
    accumulators: Vec<SharedAccumulator>,
    idle: IdlePolicy,
    published: Option<Instant>,
}

impl MemoryLane {
    pub(crate) fn new(settings: Settings, snapshot: Arc<Snapshot>, faults: Arc<Faults>, link: Arc<Link>) -> Self {
        let Settings { stale_after, list_stale_after, .. } = settings;
        let meminfo = Meminfo::below(&settings.procfs);
        let sampler = Sampler { faults, snapshot: snapshot.clone(), stale_after, list_stale_after, meminfo };
        let (accumulators, publisher, tickers) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { settings, snapshot, link, sampler, accumulators, publisher, tickers }
    }

    /// Starts a thread's work on a session.
    pub(crate) fn begin(&self, session: &Session) -> LaneState {
        let Settings { period, idle_period, .. } = self.settings;
        LaneState {
            accumulators: session.driver.gpus().map(|gpu| self.accumulator(gpu)).collect(),
            idle: IdlePolicy::new(period, idle_period, Instant::now()),
            published: None,
        }
    }

    /// Runs one tick, which began at `began`: reads every GPU that the thread serves, reports the GPUs whose memory changed,
    /// and publishes new values.
    pub(crate) fn tick(&self, caller: Caller<'_>, state: &mut LaneState, began: Instant) -> Result<(), Superseded> {
        let (mut moved, mut stirred, mut changed) = (0, 0, false);
        for (position, accumulator) in state.accumulators.iter().enumerate() {
            // If a call just was slow, another thread already serves the rest.
            if !caller.serves(position) {
                continue;
            }
            let sampled = self.sampler.sample(caller, position, accumulator, began)?;
            let sampled = self.see_calls(accumulator, began).unwrap_or(sampled);
            if let Some(observer) = &self.snapshot.observer {
                let mut accumulator = accumulator.lock();
                accumulator.flush_run();
                observer.sampled(&accumulator.shown);
            }
            match sampled {
                Sampled::Same => continue,
                Sampled::Changed => changed = true,
                Sampled::Stirred => stirred |= WakeBits::bit(position),
                Sampled::Moved => moved |= WakeBits::bit(position),
            }
            self.pass_on(&accumulator.lock().shown, began);
        }
        if moved != 0 {
            state.idle.moved(began);
        }
        if moved | stirred != 0 {
            self.link.moved.notify(moved | stirred);
        }
        if changed || moved != 0 || state.published.is_none_or(|at| began.duration_since(at) >= REFRESH) {
            state.published = Some(began);
            self.publish(&state.accumulators);
            caller.session.set_lost(state.accumulators.iter().any(|accumulator| accumulator.lock().lost));
            state.idle.see(state.accumulators.iter().map(|accumulator| accumulator.lock().shown.figures));
        }
        if caller.role() == Role::Shared {
            self.snapshot.vitals.observe(Lane::Memory, began.elapsed());
        }
        Ok(())
    }

    /// Takes in what calls tell that a GPU held at least; `None` if there is nothing new. The processes have news too, so they
    /// are listed at once, as when memory has moved.
    fn see_calls(&self, accumulator: &Mutex<GpuAccumulator>, now: Instant) -> Option<Sampled> {
        let calls = &self.snapshot.call_feed;
        if !calls.is_on() {
            return None;
        }
        let mut accumulator = accumulator.lock();
        let bytes = calls.take_gpu(&accumulator.shown.gpu)?;
        accumulator.see_call(bytes, now);
        Some(Sampled::Moved)
    }

    /// Waits for the next tick and returns its time; `None` at the end of the session.
    fn wait(&self, caller: Caller<'_>, ticker: &mut Ticker, policy: &IdlePolicy) -> Option<Instant> {
        let mut now = Instant::now();
        let idle = policy.is_idle(self.link.processes.load(Ordering::Relaxed), now);
        ticker.set_period(policy.period(idle), now);
        let (role, woken_by) = (caller.role(), caller.wake_bits());
        if idle {
            caller.watch.rest();
        }
        loop {
            let woken = self.link.awake.wait_until(woken_by, ticker.next().min(now + HEARTBEAT)) != 0;
            if woken && caller.session.ending() {
                return None;
            }
            now = Instant::now();
            // Only an idle lane has to catch up when a process appears.
            if woken && idle {
                ticker.hurry(now);
            }
            if role == Role::Shared {
                self.snapshot.vitals.beat(Lane::Memory, now);
            }
            if let Some(missed) = ticker.take(now) {
                caller.add_missed(&self.snapshot.vitals, Lane::Memory, missed);
                let mut tickers = self.tickers.lock();
                match tickers.iter_mut().find(|(known, _)| *known == role) {
                    Some((_, kept)) => kept.clone_from(ticker),
                    None => tickers.push((role, ticker.clone())),
                }
                drop(tickers);
                caller.watch.begin_round();
                return Some(now);
            }
        }
    }

    fn publish(&self, accumulators: &[SharedAccumulator]) {
        self.publisher.lock().publish(&self.snapshot.memory, |part| {
            part.gpus.truncate(accumulators.len());
            for (position, accumulator) in accumulators.iter().enumerate() {
                let mut accumulator = accumulator.lock();
                accumulator.flush_run();
                match part.gpus.get_mut(position) {
                    Some(shown) => copy(&accumulator.shown, shown),
                    None => part.gpus.push(accumulator.shown.clone()),
                }
            }
        });
    }

    /// Passes changed memory values of a GPU and of its MIG devices on to the recorder.
    fn pass_on(&self, shown: &GpuMemory, began: Instant) {
        let sample =
            |mig: Option<&Arc<MigDevice>>, at: Option<Instant>, figures: Option<MemoryFigures>, allocatable| {
                MemorySample {
                    gpu: shown.gpu.clone(),
                    mig: mig.cloned(),
                    // If the memory is unknown, it counts as unknown from the beginning of this tick.
                    at: at.filter(|_| figures.is_some()).unwrap_or(began),
                    used: figures.map(|figures| figures.used),
                    allocatable,
                }
            };
        let feed = &self.snapshot.feed;
        feed.add_sample(|| sample(None, shown.at, shown.figures, shown.allocatable()));
        for device in &shown.mig {
            let allocatable = device.figures.map_or(0, |figures| allocatable(figures.total, figures.reserved));
            feed.add_sample(|| sample(Some(&device.device), device.at, device.figures, allocatable));
        }
    }

    fn accumulator(&self, gpu: &Arc<Gpu>) -> SharedAccumulator {
        let new = || Arc::new(Mutex::new(GpuAccumulator::new(gpu.clone(), self.settings.peak_window)));
        self.accumulators.lock().entry(gpu.key()).or_insert_with(new).clone()
    }
}

impl LaneTask for MemoryLane {
    /// Continues with the accumulated values of the GPUs.
    fn resume(&self, session: &Session) {
        self.tickers.lock().clear();
        for (position, gpu) in session.driver.gpus().enumerate() {
            self.accumulator(gpu).lock().resume(
                gpu,
                session.driver.knows_mig_layout(position),
                self.settings.stale_after,
            );
        }
    }

    fn run(&self, session: &Session, watch: &Watch) -> Result<(), Superseded> {
        let caller = Caller::new(session, watch);
        let mut state = self.begin(session);
        let earlier = self.tickers.lock().iter().find(|(role, _)| *role == caller.role()).map(|(_, kept)| kept.clone());
        let mut ticker = earlier.unwrap_or_else(|| Ticker::starting(self.settings.period, Instant::now()));
        while !session.ending() {
            if caller.gives_back() {
                // From here on, the shared thread takes the GPU's readings: a later thread must not count them as missed.
                self.tickers.lock().retain(|(role, _)| *role != caller.role());
                break;
            }
            let Some(began) = self.wait(caller, &mut ticker, &state.idle) else { break };
            self.tick(caller, &mut state, began)?;
        }
        Ok(())
    }
}

/// Copies `from` to `to`, without allocating if the MIG layout is the same.
fn copy(from: &GpuMemory, to: &mut GpuMemory) {
    let mut mig = std::mem::take(&mut to.mig);
    mig.clone_from(&from.mig);
    *to = GpuMemory { gpu: from.gpu.clone(), mig, ..*from };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_with_a_lock_held_leaves_the_lane_usable() {
        let settings = Settings {
            period: Duration::from_millis(10),
            idle_period: Duration::from_secs(1),
            peak_window: Duration::from_secs(60),
            stale_after: Duration::from_secs(5),
            list_stale_after: Duration::from_secs(5),
            procfs: PathBuf::from("/nonexistent"),
        };
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let lane = MemoryLane::new(settings, snapshot.clone(), faults, Arc::default());
        let gpu = Arc::new(Gpu { index: 3, ..Gpu::default() });
        let accumulator = lane.accumulator(&gpu);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _held = (lane.accumulators.lock(), lane.publisher.lock(), accumulator.lock());
                panic!("intended by the test");
            });
            thread.join()
        });
        assert!(panicked.is_err());
        lane.publish(&[lane.accumulator(&gpu)]);
        assert_eq!(snapshot.memory.load().gpus[0].gpu.index, 3);
    }
}
