//! When a reading was taken, and the time between two readings.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The shortest interval between two samples. Measured on an H200 (driver 580.159.04): intervals under 0.5 s read low
/// after a change of load. The configured interval is at least 0.5 s; this limit applies if the earlier sample
/// was taken late.
const SHORTEST: Duration = Duration::from_millis(400);
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

    /// A moment that comes later by these times on the two clocks.
    #[cfg(test)]
    pub(super) fn after(self, monotonic: Duration, boot: Duration) -> Self {
        Self { monotonic: self.monotonic + monotonic, boot: self.boot + boot }
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

    /// The seconds since an earlier reading. `None` if they are more than `longest`, or if the system was suspended in the
    /// meantime.
    pub(super) fn seconds_since(self, earlier: Self, longest: Duration) -> Option<f64> {
        let time = self.monotonic.saturating_duration_since(earlier.monotonic);
        let suspended = self.boot.saturating_sub(earlier.boot).saturating_sub(time);
        let is_measured = time <= longest && suspended <= SUSPENDED;
        is_measured.then_some(time.as_secs_f64())
    }

    /// All seconds since an earlier reading, with those in which the system was suspended.
    pub(super) fn all_seconds_since(self, earlier: Self) -> f64 {
        self.boot.saturating_sub(earlier.boot).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(5);

    fn after(start: Moment, monotonic: f64, boot: f64) -> Moment {
        start.after(Duration::from_secs_f64(monotonic), Duration::from_secs_f64(boot))
    }

    #[test]
    fn an_interval_has_its_real_length() {
        let start = Moment::now();
        assert_eq!(after(start, 1.25, 1.25).seconds_since(start, LONGEST), Some(1.25));
        assert!(after(start, 0.3, 0.3).is_too_early_after(start));
        assert!(!after(start, 0.5, 0.5).is_too_early_after(start));
    }

    #[test]
    fn a_gap_and_a_suspension_are_no_interval() {
        let start = Moment::now();
        assert_eq!(after(start, 5.1, 5.1).seconds_since(start, LONGEST), None);
        assert_eq!(after(start, 1.0, 30.0).seconds_since(start, LONGEST), None);
        assert!((after(start, 1.0, 30.0).all_seconds_since(start) - 30.0).abs() < 1e-6);
        assert!(after(start, 1.0, 1.001).seconds_since(start, LONGEST).is_some());
    }

    #[test]
    fn both_clocks_advance() {
        let (start, now) = (Moment::now(), Moment::now());
        assert!(now.monotonic >= start.monotonic && now.boot >= start.boot && start.boot > Duration::ZERO);
        assert_eq!(start.until(after(start, 2.0, 2.0)).monotonic, after(start, 1.0, 1.0).monotonic);
    }
}
