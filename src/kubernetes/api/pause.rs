//! Pauses before the next request: never zero, and different in each exporter.

use std::time::{Duration, Instant};

use super::error::Error;
use crate::backoff::Backoff;
pub(super) use crate::backoff::jitter;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A request that does not reach a server causes no load. It is repeated soon, so that a new pod gets its name as
/// soon as the server is back.
const LONGEST_UNREACHABLE: Duration = Duration::from_secs(2);
/// Once the pods have been followed for this long, the next failure counts as the first.
const CALM: Duration = Duration::from_secs(10);
/// A watch that ends sooner than this probably ends for a reason that will also end the next one.
const SHORT: Duration = Duration::from_secs(5);

/// The pauses after failures: 1 s at first, doubled each time, minus a random part of up to half. Each kind of failure
/// is counted separately, because the failures of an outage must not delay the list that a later 410 requires.
#[derive(Debug)]
pub(super) struct Pauses {
    /// After watches that began with a 410.
    pub(super) gone: Backoff,
    unreachable: Backoff,
    refused: Backoff,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            gone: Backoff::new(FIRST, LONGEST),
            unreachable: Backoff::new(FIRST, LONGEST_UNREACHABLE),
            refused: Backoff::new(FIRST, LONGEST),
        }
    }
}

impl Pauses {
    /// The pause after a failure. `followed` is how long the pods were followed before it.
    pub(super) fn next(&mut self, error: &Error, followed: Duration) -> Duration {
        if followed >= CALM {
            *self = Self::default();
        }
        match error {
            Error::Gone => jitter(self.gone.next_pause()),
            Error::Unreachable(_) => jitter(self.unreachable.next_pause()),
            Error::Busy { after, .. } => jitter(self.refused.next_pause()).max(*after),
            Error::Brief { after, .. } => *after,
            _ => jitter(self.refused.next_pause()),
        }
    }
}

/// The pause before a watch that follows another without a failure in between: usually none, but increasing if watches
/// end soon after they begin, for example behind a proxy that cuts off long requests.
#[derive(Debug)]
pub(super) struct WatchThrottle {
    /// When the last watch began; `None` if the next one need not wait for it.
    pub(super) began: Option<Instant>,
    short: Backoff,
}

impl Default for WatchThrottle {
    fn default() -> Self {
        Self { began: None, short: Backoff::new(FIRST, LONGEST) }
    }
}

impl WatchThrottle {
    /// Whether the next watch may begin now. If not, [`Error::Brief`] holds the pause after which it may begin.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Error> {
        let Some(began) = self.began.take() else { return Ok(()) };
        if now.saturating_duration_since(began) >= SHORT {
            self.short.reset();
            return Ok(());
        }
        let after = jitter(self.short.next_pause());
        Err(Error::Brief { row: self.short.failures(), after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_pause(pause: Duration, seconds: u64) {
        let longest = Duration::from_secs(seconds);
        assert!(pause >= longest / 2 && pause <= longest, "{pause:?} for {longest:?}");
    }

    #[test]
    fn the_pause_doubles_to_a_minute_and_is_reset_after_a_calm() {
        let (mut pauses, silent) = (Pauses::default(), Error::Timeout(FIRST));
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_pause(pauses.next(&silent, CALM - Duration::from_millis(1)), expected);
        }
        assert_pause(pauses.next(&silent, CALM), 1);
        assert_pause(pauses.next(&silent, Duration::ZERO), 2);
    }

    #[test]
    fn a_list_after_an_outage_does_not_wait_for_what_failed_in_it() {
        let mut pauses = Pauses::default();
        for _ in 0..8 {
            pauses.next(&Error::Timeout(FIRST), Duration::ZERO);
            pauses.next(&Error::Unreachable(String::new()), Duration::ZERO);
        }
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_pause(pauses.next(&Error::Gone, Duration::ZERO), expected);
        }
        assert_eq!(pauses.gone.failures(), 8);
        assert_pause(pauses.next(&Error::Gone, CALM), 1);
        assert_eq!(pauses.gone.failures(), 1);
    }

    #[test]
    fn an_unreachable_server_is_asked_every_two_seconds() {
        let mut pauses = Pauses::default();
        for expected in [1, 2, 2, 2] {
            assert_pause(pauses.next(&Error::Unreachable(String::new()), Duration::ZERO), expected);
        }
        assert_pause(pauses.next(&Error::Malformed(String::new()), Duration::ZERO), 1);
    }

    #[test]
    fn a_retry_after_of_the_server_is_kept() {
        let busy = Error::Busy { code: 429, after: LONGEST * 2 };
        assert_eq!(Pauses::default().next(&busy, Duration::ZERO), LONGEST * 2);
        assert_pause(Pauses::default().next(&Error::Busy { code: 429, after: Duration::ZERO }, Duration::ZERO), 1);
    }

    #[test]
    fn watches_that_end_at_once_are_slowed_down_and_those_that_last_are_not() {
        let (mut throttle, mut now) = (WatchThrottle::default(), Instant::now());
        let pause = |next: Result<(), Error>| match next {
            Ok(()) => (0, Duration::ZERO),
            Err(Error::Brief { row, after }) => (row, after),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(pause(throttle.check(now)).0, 0);
        let mut last = Duration::ZERO;
        for expected in 1..=10 {
            throttle.began = Some(now);
            let (row, after) = pause(throttle.check(now + Duration::from_millis(1)));
            assert!(row == expected && after >= FIRST / 2 && after <= LONGEST);
            assert_eq!(pause(throttle.check(now)).0, 0, "the pause has passed");
            last = after;
            now += last;
        }
        assert!(last >= LONGEST / 2);
        throttle.began = Some(now);
        assert_eq!(pause(throttle.check(now + SHORT)).0, 0);
        throttle.began = Some(now);
        let (row, after) = pause(throttle.check(now));
        assert!(row == 1 && after <= FIRST);
    }

    #[test]
    fn two_exporters_do_not_wait_alike() {
        let waits: std::collections::HashSet<_> = (0..16).map(|_| jitter(LONGEST)).collect();
        assert!(waits.len() > 8);
    }
}
