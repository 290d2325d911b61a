//! The limits on what a client may use.

use std::time::{Duration, Instant};

/// The maximum number of connections: in total, of one user, and of one process.
pub(super) const CONNECTIONS: usize = 1024;
pub(super) const CONNECTIONS_OF_USER: usize = 512;
pub(super) const CONNECTIONS_OF_PROCESS: usize = 4;
/// The maximum numbers of device–framework pairs, frameworks, and names of regions on one connection.
pub(super) const PAIRS: usize = 64;
pub(super) const FRAMEWORKS: usize = 4;
pub(super) const NAMES: usize = 32;
/// The maximum number of pairs and regions together: on one connection, of one user, and in total.
pub(super) const KEYS: usize = 576;
pub(super) const KEYS_OF_USER: usize = 4096;
pub(super) const KEYS_IN_ALL: usize = 8192;
/// The maximum number of call sites that a pair names over time. Further ones count as other.
pub(super) const SITES: usize = 256;
/// What the roles, call sites, growth and modules of a pair count in these: they use up to 15 KB.
pub(super) const KEYS_OF_LOOK: usize = 24;
/// The maximum number of processes that are identified at the same time, each on a thread of its own: in total. One user
/// has one at most, so that no user can make the others wait.
pub(super) const IDENTIFIED_AT_ONCE: usize = 4;
/// How long a connection may take until its process is identified and its first message has arrived.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// The maximum number of questions that are open: in total, and of the user who asks. A process answers one at a time.
pub(super) const QUESTIONS: usize = 8;
pub(super) const QUESTIONS_OF_USER: usize = 2;
/// The maximum number of parts of an answer, each about one device.
pub(super) const PARTS: usize = 32;
/// How long an answer may take in addition to the time for which the process is to look.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long the exporter stops reading a connection that has sent too much.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The messages of one connection: those beyond the limit are dropped.
pub(super) const MESSAGES: Rate = (200.0, 1000.0);

/// The messages of all connections of one user: those beyond the limit wait, so that one user cannot occupy the
/// exporter.
pub(super) const MESSAGES_OF_USER: Rate = (5000.0, 10_000.0);

/// The connections that one user opens: those beyond the limit are refused.
pub(super) const OPENED_BY_USER: Rate = (100.0, 1000.0);

/// The failed allocations of one user: those beyond the limit are dropped, so that one user cannot fill the list of
/// events.
pub(super) const FAILURES_OF_USER: Rate = (1.0, 20.0);

/// Tokens a second, and the most at once.
pub(super) type Rate = (f64, f64);

/// Tokens that refill at a constant rate.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    rate: f64,
    room: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    pub(super) fn new((rate, room): Rate, at: Instant) -> Self {
        Self { rate, room, left: room, at }
    }

    /// Whether the bucket is full.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.level(now) >= self.room
    }

    fn level(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + since * self.rate).min(self.room)
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.left = self.level(now);
        self.at = self.at.max(now);
        let granted = self.left >= 1.0;
        self.left -= f64::from(granted);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_may_send_200_messages_a_second_on_average_over_5_seconds() {
        let start = Instant::now();
        let mut bucket = Bucket::new(MESSAGES, start);
        let granted = |bucket: &mut Bucket, after| (0..5000).filter(|_| bucket.take(start + after)).count();
        assert_eq!(granted(&mut bucket, Duration::ZERO), 1000);
        assert_eq!(granted(&mut bucket, Duration::from_secs(1)), 200);
        assert_eq!(granted(&mut bucket, Duration::from_secs(600)), 1000);
        assert_eq!(granted(&mut bucket, Duration::from_secs(5)), 0, "time does not go back");
    }
}
