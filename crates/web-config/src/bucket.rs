//! How many requests are let in: one for each interval, and a burst of them at once.
//!
//! Invariant: a bucket never holds more tokens than the burst; it begins full.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What was asked for. The interval is longer than nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) interval: Duration,
    pub(super) burst: u32,
}

/// The tokens of a limit, shared by all requests.
#[derive(Debug)]
pub(super) struct Bucket {
    limit: Limit,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) fn new(limit: Limit, now: Instant) -> Self {
        Self { limit, state: Mutex::new(State { tokens: f64::from(limit.burst), filled: now }) }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// Takes a token, if there is a whole one.
    pub(super) fn take(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let gained = now.saturating_duration_since(state.filled).as_secs_f64() / self.limit.interval.as_secs_f64();
        state.tokens = (state.tokens + gained).min(f64::from(self.limit.burst));
        state.filled = state.filled.max(now);
        if state.tokens < 1.0 {
            return false;
        }
        state.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_in_and_then_one_for_each_interval() {
        let begin = Instant::now();
        let bucket = Bucket::new(Limit { interval: Duration::from_secs(1), burst: 3 }, begin);
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let let_in = |time| (0..10).filter(|_| bucket.take(time)).count();
        assert_eq!(let_in(at(0)), 3);
        assert_eq!(let_in(at(900)), 0);
        assert_eq!(let_in(at(1100)), 1);
        assert_eq!(let_in(at(900)), 0, "a clock read earlier gives nothing");
        assert_eq!(let_in(at(60_000)), 3, "no more than the burst");
    }

    #[test]
    fn a_burst_of_nothing_lets_nobody_in() {
        let begin = Instant::now();
        let bucket = Bucket::new(Limit { interval: Duration::from_secs(1), burst: 0 }, begin);
        assert!(!bucket.take(begin) && !bucket.take(begin + Duration::from_secs(9)));
    }
}
