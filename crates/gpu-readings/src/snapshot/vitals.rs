//! What each lane reports about itself: its heartbeat, the readings that it missed and the duration of its passes.
//!
//! These are atomics rather than a published part, because they change on every tick and need not be consistent with
//! one another. The missed readings have a lock, because they are written only when a reading is missed.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::closed_enum::closed_enum;

closed_enum! {
    /// The lanes, by the label `lane`.
    pub enum Lane {
        /// Samples memory.
        Memory => "memory",
        /// Lists processes.
        Process => "process",
        /// Reads everything else, on the process lane's thread.
        Telemetry => "telemetry",
    }
}

/// Upper bounds of the duration buckets, in seconds; one more bucket is unbounded.
pub const DURATION_BUCKETS: [f64; 14] =
    [5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 1e-1, 1.0];

/// The number of threads that may hang in driver calls at the same time: two for each GPU of a machine with sixteen
/// GPUs. Once this limit is reached, threads that hang are not replaced and the driver is not opened; only closing the
/// driver, if that has already begun, may still add another thread.
pub const MAX_STUCK_THREADS: usize = 32;

/// The vitals of all lanes.
#[derive(Debug, Default)]
pub struct Vitals {
    lanes: [LaneVitals; Lane::ALL.len()],
    stuck: AtomicUsize,
}

#[derive(Debug, Default)]
struct LaneVitals {
    beat: AtomicU64,
    /// By the index of the GPU.
    missed: Mutex<BTreeMap<u32, u64>>,
    buckets: [AtomicU64; DURATION_BUCKETS.len() + 1],
    nanos: AtomicU64,
}

/// How long a lane's passes took.
#[derive(Debug, Clone, PartialEq)]
pub struct Durations {
    /// The number of passes in each of [`DURATION_BUCKETS`] and, as the last entry, the number above
    /// all of them; not cumulative.
    pub buckets: [u64; DURATION_BUCKETS.len() + 1],
    /// Seconds: the sum over all passes.
    pub sum: f64,
}

impl Vitals {
    /// Records a heartbeat of the lane.
    pub fn beat(&self, lane: Lane, now: Instant) {
        self.lanes[lane as usize].beat.store(nanos_at(now), Ordering::Relaxed);
    }

    /// The time since the lane's last heartbeat; `None` if there has been none.
    pub fn since_beat(&self, lane: Lane) -> Option<Duration> {
        match self.lanes[lane as usize].beat.load(Ordering::Relaxed) {
            0 => None,
            beat => Some(Duration::from_nanos(nanos_at(Instant::now()).saturating_sub(beat))),
        }
    }

    /// Sets the number of threads that are hanging in driver calls.
    pub fn set_stuck(&self, threads: usize) {
        self.stuck.store(threads, Ordering::Relaxed);
    }

    /// The number of threads that are hanging in driver calls.
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Counts the missed readings of these GPUs, given by index, from now on, so that the first one shows as an increase.
    pub fn count_missed_of(&self, gpus: &[u32]) {
        for lane in &self.lanes {
            let mut missed = lane.missed.lock();
            gpus.iter().for_each(|&gpu| _ = missed.entry(gpu).or_default());
        }
    }

    /// Adds readings of a GPU that the lane skipped because it was late.
    pub fn add_missed(&self, lane: Lane, gpu: u32, readings: u64) {
        *self.lanes[lane as usize].missed.lock().entry(gpu).or_default() += readings;
    }

    /// The number of readings skipped so far, by the index of the GPU.
    pub fn missed(&self, lane: Lane) -> BTreeMap<u32, u64> {
        self.lanes[lane as usize].missed.lock().clone()
    }

    /// Records one pass of the lane.
    pub fn observe(&self, lane: Lane, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = DURATION_BUCKETS.iter().position(|&bound| seconds <= bound).unwrap_or(DURATION_BUCKETS.len());
        let vitals = &self.lanes[lane as usize];
        vitals.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        vitals.nanos.fetch_add(took.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The durations of the lane's passes.
    pub fn durations(&self, lane: Lane) -> Durations {
        let vitals = &self.lanes[lane as usize];
        Durations {
            buckets: std::array::from_fn(|i| vitals.buckets[i].load(Ordering::Relaxed)),
            sum: vitals.nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// Nanoseconds since the first call, never 0.
fn nanos_at(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(|| now);
    u64::try_from(now.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_never_beat_has_no_age() {
        let vitals = Vitals::default();
        assert_eq!(vitals.since_beat(Lane::Memory), None);
        vitals.beat(Lane::Memory, Instant::now());
        assert!(vitals.since_beat(Lane::Memory).is_some());
        assert_eq!(vitals.since_beat(Lane::Process), None);
    }

    #[test]
    fn durations_fall_into_their_bucket() {
        let vitals = Vitals::default();
        vitals.observe(Lane::Process, Duration::from_micros(7));
        vitals.observe(Lane::Process, Duration::from_secs(5));
        let durations = vitals.durations(Lane::Process);
        assert_eq!(durations.buckets[1], 1);
        assert_eq!(durations.buckets[DURATION_BUCKETS.len()], 1);
        assert!((durations.sum - 5.000_007).abs() < 1e-9);
    }
}
