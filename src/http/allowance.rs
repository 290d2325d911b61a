//! What a handler may do for a request, and what it may hold beyond [`RESPONSE`](super::pool::RESPONSE).

use std::sync::Arc;

use super::origin::Origin;
use super::pool::ConnectionPool;
use super::shares::{Load, Share};

/// How a request was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The guard requires neither a password nor a certificate.
    Open,
    /// The client presented the password or the certificate that the guard requires.
    Authenticated,
}

/// Asks for shares on behalf of one request. The handlers find it in the request's extensions.
#[derive(Debug, Clone)]
pub(super) struct Allowance {
    pool: Arc<ConnectionPool>,
    origin: Origin,
    pub(super) admission: Admission,
}

impl Allowance {
    pub(super) fn new(pool: Arc<ConnectionPool>, origin: Origin, admission: Admission) -> Self {
        Self { pool, origin, admission }
    }

    /// A writer for a long response whose source keeps `bytes` bytes in use; `None` if there is none in time.
    pub(super) async fn writer(&self, bytes: usize) -> Option<Share> {
        self.pool.acquire(self.origin, Load { responses: 0, bytes, writers: 1 }).await
    }

    /// Memory for `bytes` bytes; `None` if there is none in time.
    pub(super) async fn memory(&self, bytes: usize) -> Option<Share> {
        self.pool.acquire(self.origin, Load { bytes, ..Load::default() }).await
    }
}
