//! How long to wait before the server is asked again: never at once and never all exporters at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::error::Error;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A question that reaches no server costs no server anything. It is repeated soon, so that a new pod has its name right
/// after the server's return.
const LONGEST_UNREACHABLE: Duration = Duration::from_secs(2);
/// Once the pods were followed for this long, the next failure is the first of its row.
const CALM: Duration = Duration::from_secs(10);
/// A watch that ends sooner ended for a reason that the next one may meet too.
const SHORT: Duration = Duration::from_secs(5);

/// The pauses after failures: each 1 s at first and doubled each time, of which a random part of up to a half is left
/// out. Each kind of failure has its own row: the failures of an outage say nothing of the list that a 410 after it asks for.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    gone: Backoff,
    unreachable: Backoff,
    refused: Backoff,
}

impl Pauses {
    /// The pause after a failure. `followed` is how long the pods were followed before it.
    pub(super) fn next(&mut self, error: &Error, followed: Duration) -> Duration {
        if followed >= CALM {
            *self = Self::default();
        }
        match error {
            Error::Gone => self.gone.next(LONGEST),
            Error::Unreachable(_) => self.unreachable.next(LONGEST_UNREACHABLE),
            Error::Busy { after, .. } => self.refused.next(LONGEST).max(*after),
            Error::Brief { after, .. } => *after,
            _ => self.refused.next(LONGEST),
        }
    }

    /// How many watches in a row began with a 410.
    pub(super) fn gone_in_a_row(&self) -> u32 {
        self.gone.row
    }
}

#[derive(Debug, Default)]
struct Backoff {
    row: u32,
}

impl Backoff {
    fn next(&mut self, longest: Duration) -> Duration {
        let pause = FIRST * 2u32.pow(self.row.min(6));
        self.row = self.row.saturating_add(1);
        jitter(pause.min(longest))
    }
}

/// The pause before a watch that follows one without a failure: none as a rule, growing where watches end soon after
/// they began, as behind a proxy that cuts what lasts.
#[derive(Debug, Default)]
pub(super) struct WatchThrottle {
    began: Option<Instant>,
    short: Backoff,
}

impl WatchThrottle {
    /// Takes note that a watch began.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Whether the next one may begin, which the question after a refusal may: [`Error::Brief`] tells the pause before it.
    pub(super) fn next(&mut self, now: Instant) -> Result<(), Error> {
        let Some(began) = self.began.take() else { return Ok(()) };
        if now.saturating_duration_since(began) >= SHORT {
            self.short = Backoff::default();
            return Ok(());
        }
        let after = self.short.next(LONGEST);
        Err(Error::Brief { row: self.short.row, after })
    }
}

/// Between a half of the pause and all of it.
pub(super) fn jitter(pause: Duration) -> Duration {
    // The standard library's hasher is keyed at random.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    pause.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_pause(pause: Duration, seconds: u64) {
        let longest = Duration::from_secs(seconds);
        assert!(pause >= longest / 2 && pause <= longest, "{pause:?} for {longest:?}");
    }

    #[test]
    fn the_pause_doubles_to_a_minute_and_starts_again_after_a_calm() {
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
        assert_eq!(pauses.gone_in_a_row(), 8);
        assert_pause(pauses.next(&Error::Gone, CALM), 1);
        assert_eq!(pauses.gone_in_a_row(), 1);
    }

    #[test]
    fn a_server_that_is_not_there_is_asked_every_two_seconds() {
        let mut pauses = Pauses::default();
        for expected in [1, 2, 2, 2] {
            assert_pause(pauses.next(&Error::Unreachable(String::new()), Duration::ZERO), expected);
        }
        assert_pause(pauses.next(&Error::Malformed(String::new()), Duration::ZERO), 1);
    }

    #[test]
    fn a_server_that_says_how_long_is_left_alone_for_as_long() {
        let busy = Error::Busy { code: 429, after: LONGEST * 2 };
        assert_eq!(Pauses::default().next(&busy, Duration::ZERO), LONGEST * 2);
        assert_pause(Pauses::default().next(&Error::Busy { code: 429, after: Duration::ZERO }, Duration::ZERO), 1);
    }

    #[test]
    fn watches_that_end_at_once_are_slowed_down_and_those_that_last_are_not() {
        let (mut pace, mut now) = (WatchThrottle::default(), Instant::now());
        let pause = |next: Result<(), Error>| match next {
            Ok(()) => (0, Duration::ZERO),
            Err(Error::Brief { row, after }) => (row, after),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(pause(pace.next(now)).0, 0);
        let mut last = Duration::ZERO;
        for expected in 1..=10 {
            pace.begin(now);
            let (row, after) = pause(pace.next(now + Duration::from_millis(1)));
            assert!(row == expected && after >= FIRST / 2 && after <= LONGEST);
            assert_eq!(pause(pace.next(now)).0, 0, "it was waited for");
            last = after;
            now += last;
        }
        assert!(last >= LONGEST / 2);
        pace.begin(now);
        assert_eq!(pause(pace.next(now + SHORT)).0, 0);
        pace.begin(now);
        let (row, after) = pause(pace.next(now));
        assert!(row == 1 && after <= FIRST);
    }

    #[test]
    fn two_exporters_do_not_wait_alike() {
        let waits: std::collections::HashSet<_> = (0..16).map(|_| jitter(LONGEST)).collect();
        assert!(waits.len() > 8);
    }
}
