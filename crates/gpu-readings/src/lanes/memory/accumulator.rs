//! The values accumulated over all samples of a GPU's memory: peaks, time under pressure, increases and decreases.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::lanes::peaks::Peaks;
use crate::nvml::MemoryReading;
use crate::snapshot::{
    Gpu, GpuMemory, GpuState, MemoryFigures, MigDevice, MigMemory, PRESSURE_RATIOS, SharedMemory, allocatable,
};

/// The accumulator of one GPU. It belongs to the lane: a new session or a new thread continues with it.
#[derive(Debug)]
pub(super) struct GpuAccumulator {
    peaks: Peaks,
    mig: Vec<MigAccumulator>,
    run: Option<Run>,
    window: Duration,
    /// The values to be published, kept up to date.
    pub(super) shown: GpuMemory,
    /// When to query the GPU again, if it is not responding.
    pub(super) retry_at: Option<Instant>,
    /// Whether the GPU can come back only after the driver is reopened.
    pub(super) lost: bool,
    /// MIG devices that are not responding, by position, and when to query each again.
    silent: Vec<(usize, Instant)>,
    /// Bytes of [`SharedMemory::available`] when it was last passed on as changed.
    noticed: Option<u64>,
    /// When the list was read whose processes' memory was sampled last.
    listed: Option<Instant>,
}

/// Bytes by which the memory that the machine can still give changes before the processes on the GPU are listed for it. The
/// programs on the CPU take and return less than this all the time.
const STIRRED: u64 = 16 << 20;

/// What is accumulated for one MIG device.
#[derive(Debug)]
struct MigAccumulator {
    /// The device as it was last sampled.
    shown: MigMemory,
    peaks: Peaks,
    /// When the last sample was taken, and `used` as a share of the memory that can be allocated. `None` while the device
    /// does not respond.
    last: Option<(Instant, f64)>,
}

/// Seconds at or above each of [`PRESSURE_RATIOS`].
type Pressure = [f64; PRESSURE_RATIOS.len()];

/// The result of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sampled {
    /// Nothing new.
    Same,
    /// The state of the GPU or of a MIG device changed.
    Changed,
    /// The machine's memory changed, which the GPU shares: the processes on the GPU may hold more or less than they did.
    Stirred,
    /// `used` changed.
    Moved,
}

/// The latest run of equal samples.
#[derive(Debug, Clone, Copy)]
struct Run {
    reading: MemoryReading,
    /// `used` as a share of the memory that can be allocated.
    ratio: f64,
    /// The time up to which the run has been flushed; `None` before the first flush.
    flushed: Option<Instant>,
    /// When its latest sample was taken.
    latest: Instant,
}

impl GpuAccumulator {
    pub(super) fn new(gpu: Arc<Gpu>, window: Duration) -> Self {
        Self {
            peaks: Peaks::with_room(window),
            mig: Vec::new(),
            run: None,
            window,
            shown: GpuMemory { counted_since: Some(SystemTime::now()), ..GpuMemory::unsampled(gpu) },
            retry_at: None,
            lost: false,
            silent: Vec::new(),
            noticed: None,
            listed: None,
        }
    }

    /// Prepares for a new session: the identity and the MIG layout may have changed. What a GPU that responded showed stays,
    /// with its time, until it is read again, which takes long if its calls are slow, unless it is stale. The peaks of
    /// removed MIG devices are forgotten if the layout could be read (`layout_known`).
    pub(super) fn resume(&mut self, gpu: &Arc<Gpu>, layout_known: bool, stale_after: Duration) {
        self.flush_run();
        let before = std::mem::replace(&mut self.shown, GpuMemory::unsampled(gpu.clone()));
        self.shown.counted_since = before.counted_since;
        self.shown.pressure_seconds = before.pressure_seconds;
        self.shown.increase = before.increase;
        self.shown.decrease = before.decrease;
        if before.state == GpuState::Up && before.at.is_some_and(|at| at.elapsed() <= stale_after) {
            (self.shown.state, self.shown.at, self.shown.figures) = (before.state, before.at, before.figures);
            (self.shown.shared, self.shown.available_then) = (before.shared, before.available_then);
            for mig in &mut self.shown.mig {
                // A device whose GPU does not tell its layout will not be read.
                let known = before.mig.iter().find(|known| layout_known && known.device.uuid == mig.device.uuid);
                if let Some(known) = known {
                    *mig = MigMemory { device: mig.device.clone(), ..*known };
                }
            }
        }
        self.mig.retain(|mig| !layout_known || gpu.mig.iter().any(|device| device.uuid == mig.shown.device.uuid));
        self.mig.iter_mut().for_each(|mig| mig.last = None);
        self.run = None;
        self.retry_at = None;
        self.lost = false;
        self.silent.clear();
    }

    /// Records a good sample. `gap` is the longest time between two samples for which pressure is counted.
    ///
    /// Most samples equal the previous one. In that case, only the time is stored, and [`GpuAccumulator::flush_run`]
    /// adds the whole run later.
    pub(super) fn sample(&mut self, reading: MemoryReading, at: Instant, gap: Duration) -> Sampled {
        let since = self.run.map(|run| at.saturating_duration_since(run.latest));
        let unbroken = since.is_some_and(|since| since <= gap);
        let back = self.shown.state != GpuState::Up;
        if let Some(run) = self.run.as_mut().filter(|run| unbroken && !back && run.reading == reading) {
            run.latest = at;
            return Sampled::Same;
        }
        self.flush_run();
        let ratio = ratio(reading);
        let before = self.run.replace(Run { reading, ratio, flushed: None, latest: at });
        if let Some(before) = before {
            self.shown.increase += reading.used.saturating_sub(before.reading.used);
            self.shown.decrease += before.reading.used.saturating_sub(reading.used);
            if unbroken {
                add_pressure(
                    &mut self.shown.pressure_seconds,
                    before.ratio,
                    at.saturating_duration_since(before.latest),
                );
            }
        }
        self.answered(at);
        self.flush_run();
        if before.is_none_or(|before| before.reading.used != reading.used) {
            Sampled::Moved
        } else if back {
            Sampled::Changed
        } else {
            Sampled::Same
        }
    }

    /// Adds the current run of equal samples, up to the latest sample. Must be called before anything is published.
    pub(super) fn flush_run(&mut self) {
        let Some(run) = self.run.as_mut().filter(|run| run.flushed != Some(run.latest)) else { return };
        let Run { reading, ratio, flushed, latest } = *run;
        run.flushed = Some(latest);
        self.shown.figures = Some(figures(reading, &mut self.peaks, latest));
        self.shown.at = Some(latest);
        if let Some(flushed) = flushed {
            add_pressure(&mut self.shown.pressure_seconds, ratio, latest.saturating_duration_since(flushed));
        }
    }

    /// Records what calls tell that the GPU held at least.
    pub(super) fn see_call(&mut self, bytes: u64, now: Instant) {
        self.peaks.see_call(bytes, now);
        self.flush_run();
        if let Some(run) = &self.run
            && self.shown.figures.is_some()
        {
            self.shown.figures = Some(figures(run.reading, &mut self.peaks, now));
        }
    }

    fn answered(&mut self, at: Instant) {
        self.shown.state = GpuState::Up;
        self.shown.at = Some(at);
        self.retry_at = None;
        self.lost = false;
    }

    /// Records what the machine reports about the memory that it shares with the GPU, and the bytes that the processes on the GPU
    /// hold together, with the time of the list; `None` if the memory of any of them is unknown.
    /// `gap` is the longest time between two samples for which pressure is counted.
    pub(super) fn sample_shared(
        &mut self,
        shared: SharedMemory,
        held: Option<(u64, Instant)>,
        at: Instant,
        gap: Duration,
    ) -> Sampled {
        let before = self.shown.allocatable();
        let sampled = match held {
            Some((used, listed)) => {
                if self.listed.replace(listed) != Some(listed) {
                    self.shown.available_then = shared.available;
                }
                let reading = MemoryReading { total: shared.total, reserved: None, used, free: None };
                self.sample(reading, at, gap)
            }
            None if self.answered_without_figures(at) => Sampled::Changed,
            None => Sampled::Same,
        };
        self.shown.shared = Some(shared);
        let changed = if self.shown.allocatable() == before { Sampled::Same } else { Sampled::Changed };
        let sampled = sampled.max(changed);
        if self.noticed.is_some_and(|noticed| noticed.abs_diff(shared.available) < STIRRED) {
            return sampled;
        }
        self.noticed = Some(shared.available);
        sampled.max(Sampled::Stirred)
    }

    /// Records that the GPU answered, but has no memory of its own or does not report its figures. Returns whether that
    /// is new.
    pub(super) fn answered_without_figures(&mut self, at: Instant) -> bool {
        let new = self.shown.at.is_none() || self.shown.figures.is_some() || self.shown.state != GpuState::Up;
        self.shown.shared = None;
        self.flush_run();
        self.run = None;
        self.shown.figures = None;
        self.answered(at);
        new
    }

    /// Whether to query a MIG device now.
    pub(super) fn is_mig_due(&self, position: usize, now: Instant) -> bool {
        self.silent.iter().all(|&(silent, retry_at)| silent != position || now >= retry_at)
    }

    /// When a MIG device last answered.
    pub(super) fn mig_answered_at(&self, position: usize) -> Option<Instant> {
        self.shown.mig.get(position)?.at
    }

    /// Records that a MIG device is out of reach. Returns whether that is new.
    pub(super) fn lose_mig(&mut self, position: usize, retry_at: Instant) -> bool {
        if let Some(device) = self.shown.mig.get_mut(position) {
            device.figures = None;
            let lost = self.mig.iter_mut().filter(|mig| mig.shown.device.uuid == device.device.uuid);
            lost.for_each(|mig| mig.last = None);
        }
        if let Some(known) = self.silent.iter_mut().find(|(silent, _)| *silent == position) {
            known.1 = retry_at;
            return false;
        }
        self.silent.push((position, retry_at));
        true
    }

    /// Records a good sample of a MIG device. `gap` is the longest time between two samples for which pressure is counted.
    pub(super) fn sample_mig(
        &mut self,
        position: usize,
        reading: MemoryReading,
        at: Instant,
        gap: Duration,
    ) -> Sampled {
        let Some(shown) = self.shown.mig.get_mut(position) else { return Sampled::Same };
        let known = self.mig.iter().position(|mig| mig.shown.device.uuid == shown.device.uuid);
        let index = known.unwrap_or_else(|| {
            self.mig.push(MigAccumulator::new(shown.device.clone(), self.window));
            self.mig.len() - 1
        });
        let mig = &mut self.mig[index];
        // After a gap, in which it was unknown, it has moved as well.
        let moved = mig.last.is_none() || shown.figures.is_none_or(|before| before.used != reading.used);
        mig.pass(ratio(reading), at, gap);
        self.silent.retain(|&(silent, _)| silent != position);
        (mig.shown.at, mig.shown.figures) = (Some(at), Some(figures(reading, &mut mig.peaks, at)));
        *shown = MigMemory { device: shown.device.clone(), ..mig.shown };
        if moved { Sampled::Moved } else { Sampled::Same }
    }

    /// Records that the GPU is out of reach: its last figures are no longer valid.
    pub(super) fn lose(&mut self, state: GpuState) -> Sampled {
        self.flush_run();
        let sampled = if self.shown.state == state { Sampled::Same } else { Sampled::Changed };
        self.shown.state = state;
        (self.shown.figures, self.shown.shared) = (None, None);
        self.shown.mig.iter_mut().for_each(|device| device.figures = None);
        self.mig.iter_mut().for_each(|mig| mig.last = None);
        self.run = None;
        sampled
    }
}

impl MigAccumulator {
    fn new(device: Arc<MigDevice>, window: Duration) -> Self {
        let shown = MigMemory { counted_since: Some(SystemTime::now()), ..MigMemory::unsampled(device) };
        Self { shown, peaks: Peaks::with_room(window), last: None }
    }

    /// Adds the time since the last sample, and goes on at this ratio.
    fn pass(&mut self, ratio: f64, at: Instant, gap: Duration) {
        if let Some((last, before)) = self.last.replace((at, ratio)) {
            let passed = at.saturating_duration_since(last);
            if passed <= gap {
                add_pressure(&mut self.shown.pressure_seconds, before, passed);
            }
        }
    }
}

/// The reading with its peaks, which it may raise.
fn figures(reading: MemoryReading, peaks: &mut Peaks, at: Instant) -> MemoryFigures {
    let MemoryReading { total, reserved, used, free } = reading;
    peaks.see(used, at);
    let window_peak = peaks.within_window(at).unwrap_or(used);
    let is_peak_of_calls = peaks.is_of_calls(at);
    let peak = peaks.highest();
    MemoryFigures { total, reserved, used, free, window_peak, is_peak_of_calls, peak }
}

/// `used` as a share of the memory that can be allocated.
fn ratio(reading: MemoryReading) -> f64 {
    reading.used as f64 / allocatable(reading.total, reading.reserved).max(1) as f64
}

/// Adds a period during which memory was at this ratio.
fn add_pressure(seconds: &mut Pressure, ratio: f64, time: Duration) {
    let reached = seconds.iter_mut().zip(PRESSURE_RATIOS).filter(|(_, threshold)| ratio >= *threshold);
    reached.for_each(|(seconds, _)| *seconds += time.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const GAP: Duration = Duration::from_secs(5);

    fn reading(used: u64) -> MemoryReading {
        let free = Some(100 * GIB - used);
        MemoryReading { total: 101 * GIB, reserved: Some(GIB), used, free }
    }

    fn accumulator() -> GpuAccumulator {
        GpuAccumulator::new(Arc::new(Gpu::default()), Duration::from_secs(60))
    }

    #[test]
    fn pressure_is_real_time_at_any_rate() {
        let start = Instant::now();
        for step in [1u64, 10, 250] {
            let mut accumulator = accumulator();
            for millis in (0..=4000).step_by(step as usize) {
                // Between 1 s and 3 s, 85 % of the memory that can be allocated is used.
                let used = if (1000..3000).contains(&millis) { 85 * GIB } else { 10 * GIB };
                accumulator.sample(reading(used), start + Duration::from_millis(millis), GAP);
            }
            let seconds = |ratio: f64| {
                accumulator.shown.pressure_seconds[PRESSURE_RATIOS.iter().position(|&r| r == ratio).unwrap()]
            };
            assert!((seconds(0.85) - 2.0).abs() < 1e-6, "{step} ms: {}", seconds(0.85));
            assert!((seconds(0.5) - 2.0).abs() < 1e-6);
            assert!(seconds(0.9).abs() < 1e-9);
        }
    }

    #[test]
    fn the_pressure_of_a_mig_device_is_that_of_its_own_memory_while_it_responds() {
        let start = Instant::now();
        let device = Arc::new(crate::snapshot::MigDevice { uuid: "a".into(), ..Default::default() });
        let gpu = Arc::new(Gpu { mig: vec![device], ..Gpu::default() });
        let mut accumulator = GpuAccumulator::new(gpu, Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        // The parent has room; the device is full for two seconds, is lost, and after a gap is full for another one.
        for seconds in 0..3 {
            accumulator.sample(reading(10 * GIB), at(seconds), GAP);
            accumulator.sample_mig(0, reading(99 * GIB), at(seconds), GAP);
        }
        accumulator.lose_mig(0, at(3));
        for seconds in [4, 5, 100] {
            accumulator.sample_mig(0, reading(99 * GIB), at(seconds), GAP);
        }
        let device = &accumulator.shown.mig[0];
        assert_eq!(device.pressure_seconds, [3.0; PRESSURE_RATIOS.len()]);
        assert!(device.counted_since.is_some() && accumulator.shown.pressure_seconds == [0.0; PRESSURE_RATIOS.len()]);
    }

    #[test]
    fn a_gap_counts_no_pressure() {
        let start = Instant::now();
        let mut accumulator = accumulator();
        accumulator.sample(reading(99 * GIB), start, GAP);
        accumulator.sample(reading(99 * GIB), start + Duration::from_secs(3600), GAP);
        accumulator.flush_run();
        assert!(accumulator.shown.pressure_seconds.iter().all(|&s| s == 0.0));
    }

    #[test]
    fn increases_and_decreases_are_added_separately() {
        let start = Instant::now();
        let mut accumulator = accumulator();
        for (tick, used) in [4, 9, 2, 2, 3].into_iter().enumerate() {
            let moved = accumulator.sample(reading(used * GIB), start + Duration::from_millis(10 * tick as u64), GAP);
            assert_eq!(moved == Sampled::Moved, tick != 3);
        }
        assert_eq!((accumulator.shown.increase, accumulator.shown.decrease), (6 * GIB, 7 * GIB));
        assert_eq!(accumulator.shown.figures.unwrap().peak, 9 * GIB);
    }

    #[test]
    fn peaks_of_mig_devices_go_when_the_devices_are_known_to_be_gone() {
        let start = Instant::now();
        let device = |uuid: &str| Arc::new(crate::snapshot::MigDevice { uuid: uuid.into(), ..Default::default() });
        let cut = |uuids: &[&str]| Arc::new(Gpu { mig: uuids.iter().copied().map(device).collect(), ..Gpu::default() });
        let mut accumulator = GpuAccumulator::new(cut(&["a", "b"]), Duration::from_secs(60));
        for slot in 0..2 {
            accumulator.sample_mig(slot, reading(32 * GIB), start, GAP);
        }
        let peak_of_a = |accumulator: &mut GpuAccumulator| {
            accumulator.sample_mig(0, reading(GIB), start, GAP);
            accumulator.shown.mig[0].figures.unwrap().peak
        };
        accumulator.resume(&cut(&[]), false, GAP);
        accumulator.resume(&cut(&["a"]), true, GAP);
        assert_eq!(peak_of_a(&mut accumulator), 32 * GIB);
        assert_eq!(accumulator.mig.len(), 1, "the other one is known to be gone");
        accumulator.resume(&cut(&[]), true, GAP);
        accumulator.resume(&cut(&["a"]), true, GAP);
        assert_eq!(peak_of_a(&mut accumulator), GIB);
    }

    #[test]
    fn what_was_read_stays_in_the_next_session_until_it_is_read_again_or_stale() {
        let device = Arc::new(crate::snapshot::MigDevice { uuid: "a".into(), ..Default::default() });
        let gpu = Arc::new(Gpu { mig: vec![device], ..Gpu::default() });
        let after = |layout_known: bool, stale_after: Duration| {
            let mut accumulator = GpuAccumulator::new(gpu.clone(), Duration::from_secs(60));
            let at = Instant::now();
            accumulator.sample(reading(4 * GIB), at, GAP);
            accumulator.sample_mig(0, reading(GIB), at, GAP);
            accumulator.resume(&gpu, layout_known, stale_after);
            accumulator
        };
        let used = |accumulator: &GpuAccumulator| {
            let mig = &accumulator.shown.mig[0];
            [accumulator.shown.figures, mig.figures].map(|figures| figures.map(|figures| figures.used))
        };
        let kept = after(true, Duration::from_secs(3600));
        assert_eq!((used(&kept), kept.shown.state), ([Some(4 * GIB), Some(GIB)], GpuState::Up));
        // No reading of a device whose layout is unknown will replace the kept one.
        assert_eq!(used(&after(false, Duration::from_secs(3600))), [Some(4 * GIB), None]);
        let stale = after(true, Duration::ZERO);
        assert_eq!((used(&stale), stale.shown.state), ([None, None], GpuState::Unsampled));
        // The first reading of a session is passed on, although nothing has changed.
        let mut kept = kept;
        let at = Instant::now();
        assert_eq!(kept.sample_mig(0, reading(GIB), at, GAP), Sampled::Moved);
        assert_eq!(kept.sample_mig(0, reading(GIB), at, GAP), Sampled::Same);
        assert_eq!(kept.sample(reading(9 * GIB), at, GAP), Sampled::Moved);
        assert_eq!(kept.shown.increase, 0, "what happened between the sessions is unknown");
    }

    #[test]
    fn a_lost_gpu_keeps_its_counters_and_shows_no_figure() {
        let start = Instant::now();
        let mut accumulator = accumulator();
        accumulator.sample(reading(4 * GIB), start, GAP);
        accumulator.sample(reading(8 * GIB), start + Duration::from_millis(10), GAP);
        accumulator.lose(GpuState::Unreadable);
        assert_eq!(accumulator.shown.figures, None);
        assert_eq!(accumulator.shown.increase, 4 * GIB);
        // The GPU is back: changes in the meantime are unknown, so no decrease is counted; the peak since startup is
        // kept.
        accumulator.sample(reading(2 * GIB), start + Duration::from_secs(9), GAP);
        assert_eq!(accumulator.shown.decrease, 0);
        assert_eq!(accumulator.shown.figures.unwrap().peak, 8 * GIB);
    }
}
