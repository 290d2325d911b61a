//! When the memory lane switches to its idle rate.

use std::time::{Duration, Instant};

use crate::snapshot::MemoryFigures;

/// How long memory must have been unchanged before the lane switches to its idle rate. Processes may be hidden from the
/// exporter; in that case, changes in memory are the only sign of them.
const STILL_FOR: Duration = Duration::from_secs(10);

/// Bytes in use above which a GPU counts as busy, even if no process is visible. A CUDA context alone takes 528 MiB on
/// an H200.
const BUSY: u64 = 256 << 20;

/// The rate of the memory lane: the idle rate once memory has not changed for a while, no GPU is busy and no process is
/// visible.
#[derive(Debug)]
pub(crate) struct IdlePolicy {
    period: Duration,
    idle_period: Duration,
    still_since: Instant,
    is_busy: bool,
}

impl IdlePolicy {
    /// Starts at the full rate, which applies until the figures are known.
    pub(crate) fn new(period: Duration, idle_period: Duration, now: Instant) -> Self {
        Self { period, idle_period, still_since: now, is_busy: true }
    }

    /// Records that the memory of a GPU changed.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.still_since = now;
    }

    /// Updates the policy with the figures of all GPUs. If `used` includes reserved memory, it does not show whether a
    /// GPU is busy.
    pub(crate) fn see(&mut self, mut gpus: impl Iterator<Item = Option<MemoryFigures>>) {
        self.is_busy = gpus.any(|gpu| gpu.is_some_and(|figures| figures.reserved.is_some() && figures.used >= BUSY));
    }

    /// Whether the lane is idle while this many processes are visible on all GPUs together.
    pub(crate) fn is_idle(&self, processes: usize, now: Instant) -> bool {
        processes == 0 && !self.is_busy && now.saturating_duration_since(self.still_since) > STILL_FOR
    }

    /// The time between two ticks.
    pub(crate) fn period(&self, idle: bool) -> Duration {
        if idle { self.idle_period } else { self.period }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(10);
    const HOUR: Duration = Duration::from_secs(3600);

    fn figures(used: u64, reserved: Option<u64>) -> Option<MemoryFigures> {
        Some(MemoryFigures { used, reserved, ..MemoryFigures::default() })
    }

    #[test]
    fn a_process_a_busy_gpu_and_moving_memory_each_keep_the_full_rate() {
        let start = Instant::now();
        let later = start + STILL_FOR + PERIOD;
        let mut policy = IdlePolicy::new(PERIOD, HOUR, start);
        assert!(!policy.is_idle(0, later), "nothing is known yet");
        policy.see([figures(BUSY - 1, Some(0)), figures(BUSY, None), None].into_iter());
        assert!(policy.is_idle(0, later));
        assert!(!policy.is_idle(1, later) && !policy.is_idle(0, start + STILL_FOR));
        policy.moved(later);
        assert!(!policy.is_idle(0, later + PERIOD));
        policy.see([None, figures(BUSY, Some(0))].into_iter());
        assert!(!policy.is_idle(0, later + HOUR));
        assert_eq!([policy.period(false), policy.period(true)], [PERIOD, HOUR]);
    }
}
