//! Absolute deadlines: a lane that wakes late neither drifts nor catches up in a burst.

use std::time::{Duration, Instant};

/// Periodic ticks.
#[derive(Debug, Clone)]
pub(crate) struct Ticker {
    period: Duration,
    next: Instant,
}

impl Ticker {
    /// Creates a ticker whose first tick is due at once.
    pub(crate) fn starting(period: Duration, now: Instant) -> Self {
        Self { period, next: now }
    }

    /// When the next tick is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Takes the tick that is due, if any, and returns how many were missed before it.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        let late = now.checked_duration_since(self.next)?;
        let missed = late.as_nanos() / self.period.as_nanos().max(1);
        let step = self.period.as_nanos().saturating_mul(missed + 1);
        self.next += Duration::from_nanos(step.try_into().unwrap_or(u64::MAX));
        Some(missed.try_into().unwrap_or(u64::MAX))
    }

    /// Changes the period and starts it now; does nothing if the period is the same.
    pub(crate) fn set_period(&mut self, period: Duration, now: Instant) {
        if period != self.period {
            *self = Self { period, next: now + period };
        }
    }

    /// Brings the next tick forward to now.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(10);

    #[test]
    fn a_late_tick_does_not_shift_the_next() {
        let start = Instant::now();
        let mut ticker = Ticker::starting(PERIOD, start);
        assert_eq!(ticker.take(start), Some(0));
        assert_eq!(ticker.take(start + PERIOD / 2), None);
        assert_eq!(ticker.take(start + PERIOD + PERIOD / 2), Some(0));
        assert_eq!(ticker.next(), start + 2 * PERIOD);
    }

    #[test]
    fn missed_ticks_are_counted_once_and_not_made_up_for() {
        let start = Instant::now();
        let mut ticker = Ticker::starting(PERIOD, start);
        assert_eq!(ticker.take(start), Some(0));
        // Due at 10 ms, taken at 45 ms: the ticks at 20, 30 and 40 ms are lost.
        assert_eq!(ticker.take(start + Duration::from_millis(45)), Some(3));
        assert_eq!(ticker.next(), start + Duration::from_millis(50));
    }

    #[test]
    fn a_new_period_starts_now_and_the_same_one_changes_nothing() {
        let start = Instant::now();
        let mut ticker = Ticker::starting(PERIOD, start);
        ticker.take(start);
        ticker.set_period(PERIOD, start + Duration::from_millis(7));
        assert_eq!(ticker.next(), start + PERIOD);
        ticker.set_period(Duration::from_secs(1), start + Duration::from_millis(7));
        assert_eq!(ticker.next(), start + Duration::from_millis(1007));
        ticker.hurry(start + Duration::from_millis(8));
        assert_eq!(ticker.take(start + Duration::from_millis(8)), Some(0));
    }
}
