//! All open connections: how many there may be, which one is closed to make room for a new one, and how many requests
//! are answered at once.
//!
//! Invariant: nothing waits for a client. When there is no room, the connection that has kept the exporter waiting
//! longest is closed (idle ones first). A new connection is refused only while every open connection is being served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::{Connection, Stage};
use super::limits::Limits;

/// How long a request waits for a permit before it is refused.
const PERMIT_TIMEOUT: Duration = Duration::from_millis(500);
/// A client that reads nothing for this long loses its permit to a waiting request. A well-behaved client needs
/// only milliseconds.
const STALL_LIMIT: Duration = Duration::from_secs(1);

/// The open connections of all listeners together.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    limits: Limits,
    connections: Mutex<Connections>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Connections {
    next_id: u64,
    /// In the order in which they were admitted.
    open: BTreeMap<u64, Arc<Connection>>,
}

/// A connection that was admitted. Dropping the guard removes it from the pool.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    id: u64,
    connection: Arc<Connection>,
    pool: Arc<ConnectionPool>,
}

impl ConnectionGuard {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.pool.connections.lock().open.remove(&self.id);
    }
}

impl ConnectionPool {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits.max_requests));
        Arc::new(Self { limits, connections: Mutex::default(), permits })
    }

    /// Admits a connection. If the pool is full, another connection is closed for it; `None` if all of them are being
    /// served.
    pub(super) fn admit(self: &Arc<Self>) -> Option<ConnectionGuard> {
        let connection = Connection::new();
        let mut connections = self.connections.lock();
        if connections.open.len() >= self.limits.max_connections {
            let id = dispensable(&connections.open, Instant::now())?;
            if let Some(dispensable) = connections.open.remove(&id) {
                dispensable.close();
            }
        }
        let id = connections.next_id;
        connections.next_id += 1;
        connections.open.insert(id, connection.clone());
        Some(ConnectionGuard { id, connection, pool: self.clone() })
    }

    /// A permit to answer a request; `None` if none becomes free in time.
    pub(super) async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.close_stalled(Instant::now());
        tokio::time::timeout(PERMIT_TIMEOUT, self.permits.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Closes every stalled connection that holds a permit, so that the next waiting request also finds a permit.
    fn close_stalled(&self, now: Instant) {
        let connections = self.connections.lock();
        let holding = connections.open.values().filter(|connection| connection.has_permit());
        let stalled =
            holding.filter(|connection| connection.stalled_for(now).is_some_and(|lasts| lasts >= STALL_LIMIT));
        stalled.for_each(|connection| connection.close());
    }

    /// Whether other requests are being answered besides the caller's.
    pub(super) fn is_busy(&self) -> bool {
        self.permits.available_permits() + 1 < self.limits.max_requests
    }

    /// Closes every connection whose stage has taken longer than allowed. For each one that was not idle, `report` is
    /// called before the connection can notice. Returns when the next connection can become overdue; `None` if there is
    /// no connection.
    pub(super) fn close_overdue(&self, now: Instant, report: impl Fn()) -> Option<Instant> {
        let connections = self.connections.lock();
        let mut next = None;
        for connection in connections.open.values().filter(|connection| !connection.is_closing()) {
            let deadline = connection.deadline(&self.limits);
            if deadline <= now {
                if connection.stage(now).0 != Stage::Idle {
                    report();
                }
                connection.close();
            } else {
                next = next.into_iter().chain([deadline]).min();
            }
        }
        // A stage that begins after this moment can have an earlier deadline than the current one.
        next.map(|next| next.min(self.earliest_deadline(now)))
    }

    /// The earliest time at which a stage that begins now can become overdue.
    pub(super) fn earliest_deadline(&self, now: Instant) -> Instant {
        now + self.limits.shortest_timeout()
    }
}

/// The connection to close to make room for a new one: the one that has been idle longest, otherwise the one that has
/// waited longest for its request, otherwise the one whose client has gone longest without reading its response.
fn dispensable(open: &BTreeMap<u64, Arc<Connection>>, now: Instant) -> Option<u64> {
    let candidates = open.iter().filter_map(|(id, connection)| {
        let rank = match connection.stage(now) {
            (Stage::Idle, lasts) => (2, lasts),
            (Stage::ReadingRequest, lasts) => (1, lasts),
            (Stage::Responding, _) => (0, connection.stalled_for(now).filter(|lasts| *lasts >= STALL_LIMIT)?),
        };
        Some((rank, *id))
    });
    candidates.max().map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_requests: 1,
        max_connections: 2,
        read_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(300),
    };

    #[test]
    fn the_next_search_is_due_when_a_connection_can_be_overdue_and_never_without_one() {
        let pool = ConnectionPool::new(LIMITS);
        let start = Instant::now();
        assert_eq!(pool.close_overdue(start, || panic!("no connection is overdue")), None);
        let admitted = pool.admit().unwrap();
        let due = pool.close_overdue(start, || panic!("no connection is overdue")).unwrap();
        assert_eq!(due, start + LIMITS.read_timeout);
        // A response may take longer, but the next request has its own, shorter time limit.
        admitted.connection().begin_response();
        let end = admitted.connection().deadline(&LIMITS);
        let later = end - Duration::from_secs(1);
        let due = pool.close_overdue(later, || panic!("no connection is overdue")).unwrap();
        assert_eq!(due, end);
        let reported = std::cell::Cell::new(0);
        assert_eq!(pool.close_overdue(due, || reported.set(reported.get() + 1)), None);
        assert!(admitted.connection().is_closing() && reported.get() == 1);
    }
}
