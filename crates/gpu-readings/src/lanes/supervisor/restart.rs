//! The pauses before the driver is opened again, and before a lane whose thread panicked is restarted.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// The first pause; each subsequent pause is twice as long as the one before.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. A session or thread that lasted longer than this was healthy, so the first pause applies again
/// after it.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When a lane may be restarted.
#[derive(Clone, Copy)]
pub(super) struct RestartPolicy {
    not_before: Instant,
    pub(super) backoff: Backoff,
}

impl RestartPolicy {
    pub(super) fn new() -> Self {
        Self { not_before: Instant::now(), backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.not_before
    }

    /// Postpones the next restart, because the lane's thread panicked.
    pub(super) fn postpone(&mut self) {
        if self.not_before.elapsed() > LONGEST_PAUSE {
            self.backoff.reset();
        }
        self.not_before = Instant::now() + self.backoff.next_pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_ran_for_long_is_restarted_soon() {
        let mut policy = RestartPolicy::new();
        (0..10).for_each(|_| policy.postpone());
        assert_eq!(policy.backoff.failures(), 10);
        assert!(policy.not_before > Instant::now() + LONGEST_PAUSE / 2);
        policy.not_before = Instant::now().checked_sub(LONGEST_PAUSE * 2).unwrap();
        policy.postpone();
        assert_eq!(policy.backoff.failures(), 1);
        assert!(policy.not_before <= Instant::now() + FIRST_PAUSE);
    }
}
