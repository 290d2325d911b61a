//! How much of each limit one user has used.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

use crate::allocator::limits::{self, Bucket};

/// What all connections of one user have used of each limit.
#[derive(Debug)]
pub(super) struct User {
    pub(super) connections: usize,
    pub(super) keys: usize,
    /// Grants one identification at a time.
    pub(super) identifying: Arc<Semaphore>,
    pub(super) opened: Bucket,
    pub(super) messages: Bucket,
    pub(super) failures: Bucket,
}

impl User {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            connections: 0,
            keys: 0,
            identifying: Arc::new(Semaphore::new(1)),
            opened: Bucket::new(limits::OPENED_BY_USER, now),
            messages: Bucket::new(limits::MESSAGES_OF_USER, now),
            failures: Bucket::new(limits::FAILURES_OF_USER, now),
        }
    }

    /// Whether no limit affects the user any longer. A read that hangs keeps the user's permit after its connection has ended:
    /// a user that was forgotten would get another one.
    pub(super) fn is_rested(&self, now: Instant) -> bool {
        self.identifying.available_permits() == 1
            && [&self.opened, &self.messages, &self.failures].iter().all(|bucket| bucket.is_full(now))
    }
}
