//! The time up to which the work of a GPU's processes is known.
//!
//! The driver timestamps its samples with the wall clock, which can be set. Invariant: setting the clock back or
//! forward can hide earlier samples, but never later ones.

use std::time::{Duration, SystemTime};

use crate::nvml::UtilizationSample;

/// How far in the future the time of a sample may be before it is implausible.
const AHEAD: Duration = Duration::from_secs(5);

/// Microseconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkUntil(u64);

impl WorkUntil {
    /// Starts at this time: earlier samples are not requested.
    pub(super) fn now(now: SystemTime) -> Self {
        Self(micros(now))
    }

    /// The start time of the next query: never later than now, because otherwise a clock that was set back would hide
    /// new samples.
    pub(super) fn since(self, now: SystemTime) -> u64 {
        self.0.min(micros(now))
    }

    /// Removes samples with a time in the future, and continues from the latest of the others.
    pub(super) fn take(&mut self, samples: &mut Vec<UtilizationSample>, now: SystemTime) {
        let since = self.since(now);
        let latest = micros(now + AHEAD);
        samples.retain(|sample| sample.timestamp <= latest);
        self.0 = samples.iter().map(|sample| sample.timestamp).fold(since, u64::max);
    }
}

/// Unix time in microseconds.
fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn sample(time: SystemTime) -> UtilizationSample {
        UtilizationSample { pid: 1, timestamp: micros(time), sm: 0.5, active: true }
    }

    #[test]
    fn an_hour_back_hides_nothing_later_and_drops_the_lost_hour() {
        let mut until = WorkUntil::now(at(10_000));
        let mut samples = vec![sample(at(10_001))];
        until.take(&mut samples, at(10_001));
        assert_eq!((samples.len(), until.since(at(10_002))), (1, micros(at(10_001))));
        let back = at(10_002) - HOUR;
        assert_eq!(until.since(back), micros(back), "later samples are requested");
        // The driver still has the sample that it took before the clock was set back.
        let mut samples = vec![sample(at(10_001)), sample(back + Duration::from_secs(1))];
        until.take(&mut samples, back + Duration::from_secs(1));
        assert_eq!(samples, [sample(back + Duration::from_secs(1))]);
        assert_eq!(until.since(back + HOUR), micros(back + Duration::from_secs(1)));
    }

    #[test]
    fn an_hour_forward_goes_on_from_the_new_time() {
        let mut until = WorkUntil::now(at(10_000));
        let forward = at(10_000) + HOUR;
        let mut samples = vec![sample(at(10_001)), sample(forward)];
        until.take(&mut samples, forward);
        assert_eq!((samples.len(), until.since(forward)), (2, micros(forward)));
    }
}
