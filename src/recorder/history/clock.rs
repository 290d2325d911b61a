//! Everything is recorded in monotonic time and shown in wall-clock time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment: microseconds since the recorder started.
pub(crate) type Micros = u64;

pub(crate) const SECOND: Micros = 1_000_000;

/// The recorder's own clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

/// One moment on both clocks. All times in one response are converted with the same pair, so that they all shift
/// together if the wall clock is set in the meantime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) micros: Micros,
    wall: Duration,
}

impl Clock {
    /// A clock that starts at the given moment.
    pub(crate) fn starting(start: Instant) -> Self {
        Self { start }
    }

    /// The moment on the recorder's clock; 0 for a moment before it started.
    pub(crate) fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.start).as_micros().try_into().unwrap_or(Micros::MAX)
    }

    /// A moment paired with the wall-clock time at that moment.
    pub(crate) fn both(&self, at: Instant, wall: SystemTime) -> Now {
        // A clock that shows a time before 1970 is wrong. In that case, times are counted from the recorder's start.
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { micros: self.micros(at), wall }
    }
}

impl Now {
    /// The Unix time of a moment, in seconds.
    pub(crate) fn unix(&self, at: Micros) -> f64 {
        (self.wall.as_micros() as f64 - self.micros as f64 + at as f64) / 1e6
    }

    /// The wall-clock time of a moment.
    pub(crate) fn wall(&self, at: Micros) -> SystemTime {
        UNIX_EPOCH + Duration::try_from_secs_f64(self.unix(at)).unwrap_or_default()
    }

    /// The moment at a Unix time; 0 for a time before the recorder started.
    pub(crate) fn moment(&self, unix: f64) -> Micros {
        let since = unix * 1e6 - self.wall.as_micros() as f64 + self.micros as f64;
        // The conversion saturates, and NaN becomes 0.
        since as Micros
    }
}

/// Unix time in seconds; `None` before 1970.
pub(crate) fn unix(time: SystemTime) -> Option<f64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

/// A Unix time in UTC, such as `2026-01-31T09:30:00.125Z`.
pub(crate) fn time(unix: f64) -> String {
    let since = Duration::try_from_secs_f64(unix).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).map_or_else(String::new, |at| humantime::format_rfc3339_millis(at).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_unix_times_convert_both_ways() {
        let start = Instant::now();
        let clock = Clock::starting(start);
        let wall = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let now = clock.both(start + Duration::from_secs(100), wall);
        assert_eq!(now.unix(100_000_000), 1_700_000_000.5);
        assert_eq!(now.unix(40_000_000), 1_699_999_940.5);
        assert_eq!(now.moment(1_699_999_940.5), 40_000_000);
        assert_eq!(now.moment(0.0), 0, "before the recorder started");
        assert_eq!(now.moment(f64::NAN), 0);
        assert_eq!(now.moment(f64::INFINITY), Micros::MAX);
        assert_eq!(clock.micros(start - Duration::from_secs(1)), 0);
    }

    #[test]
    fn a_clock_before_1970_shows_times_since_the_start() {
        let start = Instant::now();
        let now = Clock::starting(start).both(start, UNIX_EPOCH - Duration::from_secs(5));
        assert_eq!(now.unix(3_000_000), 3.0);
    }
}
