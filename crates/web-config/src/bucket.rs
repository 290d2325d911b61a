//! The rate limit: a token bucket that gains one token per interval and holds at most a burst of them.
//!
//! Invariant: a bucket never holds more tokens than the burst. It starts full.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A rate limit as configured. The interval is never zero.
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

    /// Takes a token if there is a whole one.
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
    fn a_burst_is_admitted_and_then_one_request_per_interval() {
        let begin = Instant::now();
        let bucket = Bucket::new(Limit { interval: Duration::from_secs(1), burst: 3 }, begin);
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let admitted = |time| (0..10).filter(|_| bucket.take(time)).count();
        assert_eq!(admitted(at(0)), 3);
        assert_eq!(admitted(at(900)), 0);
        assert_eq!(admitted(at(1100)), 1);
        assert_eq!(admitted(at(900)), 0, "an earlier time gives no token");
        assert_eq!(admitted(at(60_000)), 3, "no more than the burst");
    }

    #[test]
    fn a_burst_of_zero_admits_no_request() {
        let begin = Instant::now();
        let bucket = Bucket::new(Limit { interval: Duration::from_secs(1), burst: 0 }, begin);
        assert!(!bucket.take(begin) && !bucket.take(begin + Duration::from_secs(9)));
    }
}
