//! All open connections: how many there may be, which one is closed to make room for a new one, and what the responses
//! in progress may hold together.
//!
//! Invariant: nothing waits for a client. When there is no room, the connection that has kept the exporter waiting
//! longest is closed (idle ones first). A new connection is refused only while every open connection is being served.
//! No origin can keep another one from getting a response: while one waits, a response that takes long is closed if its
//! origin has more of them in progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::{Connection, Stage};
use super::origin::Origin;
use super::shares::{Load, Share, Shares};
use crate::config::Limits;

/// The bytes of memory that all responses in progress may use together, unless a test sets another limit.
pub(super) const MAX_BYTES: usize = 32 << 20;
/// The number of threads that write long responses.
const WRITERS: usize = 16;
/// How long a request waits for its share before it is refused.
const SHARE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a request waits before it looks again for a response that can be closed for it.
const SEARCH_PAUSE: Duration = Duration::from_millis(50);
/// A client that reads nothing for this long loses its response to a waiting request. A well-behaved client needs
/// only milliseconds.
const STALL_LIMIT: Duration = Duration::from_secs(1);
/// A response that takes longer is closed for a waiting request, if its origin has more responses in progress than the
/// waiting one would have.
const GRACE: Duration = Duration::from_millis(250);
/// A response that takes longer is closed for a waiting request, if its origin has as many responses in progress as the
/// waiting one would have.
const SLOW_LIMIT: Duration = Duration::from_secs(5);

/// What every response holds: its buffers, the queue of a long one, and the state of the compression.
pub(super) const RESPONSE: Load = Load { responses: 1, bytes: 768 << 10, writers: 0 };

/// The open connections of all listeners together.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    limits: Limits,
    connections: Mutex<Connections>,
    shares: Arc<Shares>,
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
    pub(super) connection: Arc<Connection>,
    pool: Arc<ConnectionPool>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.pool.connections.lock().open.remove(&self.id);
    }
}

impl ConnectionPool {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let shares = Shares::new(Load { responses: limits.max_requests, bytes: MAX_BYTES, writers: WRITERS });
        Arc::new(Self { limits, connections: Mutex::default(), shares })
    }

    /// Admits a connection. If the pool is full, another connection is closed for it; `None` if all of them are being
    /// served.
    pub(super) fn admit(self: &Arc<Self>, origin: Origin) -> Option<ConnectionGuard> {
        let connection = Connection::new(origin);
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

    /// A share for an origin; `None` if it does not become free in time.
    pub(super) async fn acquire(&self, origin: Origin, load: Load) -> Option<Share> {
        if let Some(share) = self.shares.try_take(origin, load) {
            return Some(share);
        }
        let wanted = load.responses;
        let mut place = self.shares.wait(origin, load)?;
        let searching = async {
            loop {
                self.make_room(origin, wanted, Instant::now());
                tokio::time::sleep(SEARCH_PAUSE).await;
            }
        };
        tokio::select! {
            biased;
            share = place.turn() => share,
            () = searching => None,
            () = tokio::time::sleep(SHARE_TIMEOUT) => None,
        }
    }

    /// Closes every response whose client reads nothing, so that the next waiting request also finds a share. If there is
    /// none, closes the response that has taken longest of the origin that has the most in progress.
    fn make_room(&self, origin: Origin, wanted: usize, now: Instant) {
        let connections = self.connections.lock();
        let holding = || connections.open.values().filter(|connection| connection.holds_a_share());
        let stalled =
            |connection: &Arc<Connection>| connection.stalled_for(now).is_some_and(|lasts| lasts >= STALL_LIMIT);
        let mut closed = 0;
        for connection in holding().filter(|connection| stalled(connection)) {
            connection.close();
            closed += 1;
        }
        if closed > 0 {
            return;
        }
        let own = self.shares.responses_of(origin) + wanted;
        let others = holding().filter(|connection| connection.origin != origin && !connection.is_closing());
        let candidates = others.filter_map(|connection| {
            let (lasts, has) = (connection.stage(now).1, self.shares.responses_of(connection.origin));
            let can_go = (lasts >= SLOW_LIMIT && has >= own) || (lasts >= GRACE && has > own);
            can_go.then_some((has, lasts, connection))
        });
        if let Some((.., connection)) = candidates.max_by_key(|(has, lasts, _)| (*has, *lasts)) {
            connection.close();
        }
    }

    /// Whether other requests are being answered besides the caller's.
    pub(super) fn is_busy(&self) -> bool {
        self.responses() > 1
    }

    /// How many responses are in progress.
    pub(super) fn responses(&self) -> usize {
        self.shares.responses()
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
        let Limits { read_timeout, write_timeout, idle_timeout, .. } = self.limits;
        now + read_timeout.min(write_timeout).min(idle_timeout)
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
        let admitted = pool.admit(Origin::default()).unwrap();
        let due = pool.close_overdue(start, || panic!("no connection is overdue")).unwrap();
        assert_eq!(due, start + LIMITS.read_timeout);
        // A response may take longer, but the next request has its own, shorter time limit.
        admitted.connection.begin_response();
        let end = admitted.connection.deadline(&LIMITS);
        let later = end - Duration::from_secs(1);
        let due = pool.close_overdue(later, || panic!("no connection is overdue")).unwrap();
        assert_eq!(due, end);
        let reported = std::cell::Cell::new(0);
        assert_eq!(pool.close_overdue(due, || reported.set(reported.get() + 1)), None);
        assert!(admitted.connection.is_closing() && reported.get() == 1);
    }
}
