//! The time between two samples, and whether its means may be added.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The shortest interval between two samples. Measured on an H200 (driver 580.159.04): intervals under 0.5 s read low
/// after a change of load. The configured interval is at least 0.5 s; this limit applies if the earlier sample
/// was taken late.
const SHORTEST: Duration = Duration::from_millis(400);
/// The longest time between two samples that counts as measured, in configured intervals.
const LONGEST_INTERVALS: u32 = 5;
/// The boot clock may advance by this much more than the monotonic clock, which stops while the system is suspended.
const SUSPENDED: Duration = Duration::from_millis(100);

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) monotonic: Instant,
    /// The time since boot, including the time in which the system was suspended.
    boot: Duration,
}

impl Moment {
    pub(super) fn now() -> Self {
        // Every kernel since 2.6.39 has this clock. If it could not be read, no suspend would be detected.
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        Self { monotonic: Instant::now(), boot }
    }

    /// The midpoint between this moment and a later one. Between the moments before and after the sampling calls, it is
    /// the best estimate of the time of the sample.
    pub(super) fn until(self, later: Self) -> Self {
        let half = later.monotonic.saturating_duration_since(self.monotonic) / 2;
        Self { monotonic: self.monotonic + half, boot: self.boot + half }
    }

    /// Whether a sample taken at this moment would follow the earlier one too soon.
    pub(super) fn is_too_early_after(self, earlier: Self) -> bool {
        self.monotonic.saturating_duration_since(earlier.monotonic) < SHORTEST
    }

    /// The seconds between two samples that are due once per `interval`. `None` if the samples are too far apart, or if
    /// the system was suspended in the meantime.
    pub(super) fn seconds_since(self, earlier: Self, interval: Duration) -> Option<f64> {
        let time = self.monotonic.saturating_duration_since(earlier.monotonic);
        let suspended = self.boot.saturating_sub(earlier.boot).saturating_sub(time);
        let is_measured = time <= interval.saturating_mul(LONGEST_INTERVALS) && suspended <= SUSPENDED;
        is_measured.then_some(time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn after(start: Moment, monotonic: f64, boot: f64) -> Moment {
        let (monotonic, boot) = (Duration::from_secs_f64(monotonic), Duration::from_secs_f64(boot));
        Moment { monotonic: start.monotonic + monotonic, boot: start.boot + boot }
    }

    #[test]
    fn an_interval_has_its_real_length() {
        let start = Moment::now();
        assert_eq!(after(start, 1.25, 1.25).seconds_since(start, INTERVAL), Some(1.25));
        assert!(after(start, 0.3, 0.3).is_too_early_after(start));
        assert!(!after(start, 0.5, 0.5).is_too_early_after(start));
    }

    #[test]
    fn a_gap_and_a_suspension_are_no_interval() {
        let start = Moment::now();
        assert_eq!(after(start, 5.1, 5.1).seconds_since(start, INTERVAL), None);
        assert_eq!(after(start, 1.0, 30.0).seconds_since(start, INTERVAL), None);
        assert!(after(start, 1.0, 1.001).seconds_since(start, INTERVAL).is_some());
    }

    #[test]
    fn both_clocks_advance() {
        let (start, now) = (Moment::now(), Moment::now());
        assert!(now.monotonic >= start.monotonic && now.boot >= start.boot && start.boot > Duration::ZERO);
        assert_eq!(start.until(after(start, 2.0, 2.0)).monotonic, after(start, 1.0, 1.0).monotonic);
    }
}
