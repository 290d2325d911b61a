//! Pauses between attempts: each twice as long as the one before, up to a maximum.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random time between half of the pause and all of it, so that several exporters do not act at the same moment.
pub fn jitter(pause: Duration) -> Duration {
    // The standard library's hasher is randomly keyed.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    pause.mul_f64(0.5 + random / 2.0)
}

/// The pauses between the attempts of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts without failures: the next pause is `first`. No pause exceeds `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn next_pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Failures since the start or the last [`Backoff::reset`].
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Forgets the failures, because an attempt succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_doubled_up_to_the_longest_and_never_overflows() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let seconds: Vec<_> = (0..7).map(|_| backoff.next_pause().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
        for _ in 0..100 {
            assert_eq!(backoff.next_pause().as_secs(), 30);
        }
        assert_eq!(backoff.failures(), 107);
        backoff.reset();
        assert_eq!((backoff.next_pause().as_secs(), backoff.failures()), (1, 1));
    }
}
