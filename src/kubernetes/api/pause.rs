//! How long to wait before the server is asked again: never at once and never all exporters at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without trouble the next one is another trouble.
const CALM: Duration = Duration::from_secs(180);
/// A watch that ends sooner ended for a reason that the next one may meet too.
const SHORT: Duration = Duration::from_secs(5);

/// The pause after a failure: 1 s, doubled each time up to 60 s, of which a random part of up to a half is left out.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pause: Duration,
    until: Option<Instant>,
}

impl Backoff {
    /// The pause after a failure that comes `now`.
    pub(super) fn next(&mut self, now: Instant) -> Duration {
        let calm = self.until.is_none_or(|until| now.saturating_duration_since(until) >= CALM);
        self.pause = if calm { FIRST } else { (self.pause * 2).min(LONGEST) };
        self.until = Some(now + self.pause);
        jitter(self.pause)
    }
}

/// The pause before a watch that follows one without a failure: none as a rule, growing where watches end soon after
/// they began, as behind a proxy that cuts what lasts.
#[derive(Debug, Default)]
pub(super) struct Pace {
    began: Option<Instant>,
    short: u32,
}

impl Pace {
    /// Takes note that a watch began.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// The pause before the next one.
    pub(super) fn next(&mut self, now: Instant) -> Duration {
        let Some(began) = self.began.take() else { return Duration::ZERO };
        if now.saturating_duration_since(began) >= SHORT {
            self.short = 0;
            return Duration::ZERO;
        }
        let pause = FIRST * 2u32.pow(self.short.min(6));
        self.short = self.short.saturating_add(1);
        jitter(pause.min(LONGEST))
    }
}

/// Between a half of the pause and all of it.
fn jitter(pause: Duration) -> Duration {
    // The standard library's hasher is keyed at random.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    pause.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_to_a_minute_and_begins_anew_after_a_calm() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pause = backoff.next(now);
            let expected = Duration::from_secs(expected);
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} for {expected:?}");
            now += pause + Duration::from_secs(30);
        }
        assert!(backoff.next(now + CALM + LONGEST) <= FIRST);
    }

    #[test]
    fn watches_that_end_at_once_are_slowed_down_and_those_that_last_are_not() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.next(now), Duration::ZERO);
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            pace.begin(now);
            last = pace.next(now + Duration::from_millis(1));
            assert!(last >= FIRST / 2 && last <= LONGEST);
            now += last;
        }
        assert!(last >= LONGEST / 2);
        pace.begin(now);
        assert_eq!(pace.next(now + SHORT), Duration::ZERO);
        pace.begin(now);
        assert!(pace.next(now) <= FIRST);
    }

    #[test]
    fn two_exporters_do_not_wait_alike() {
        let waits: std::collections::HashSet<_> = (0..16).map(|_| jitter(LONGEST)).collect();
        assert!(waits.len() > 8);
    }
}
