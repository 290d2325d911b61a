//! All open connections: how many there may be, who goes when there is no room, and how many answers are under way.
//!
//! Invariant: nobody waits for a client. Where there is no room, whoever lets others wait longest goes first, and the
//! newcomer is refused only where everybody is being served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Limits;
use super::connection::{Connection, Stage};

/// How long a request waits for a place before it is refused.
const PERMIT_TIMEOUT: Duration = Duration::from_millis(500);
/// A client that takes nothing for so long loses its place to one that waits. A honest one needs milliseconds.
const STALL_LIMIT: Duration = Duration::from_secs(1);

/// The open connections of all listeners together.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    limits: Limits,
    open: Mutex<OpenConnections>,
    /// Places for answers.
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    /// In the order in which they came.
    open: BTreeMap<u64, Arc<Connection>>,
}

/// A connection that was let in; it leaves the pool when this goes.
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
        self.pool.open().open.remove(&self.id);
    }
}

impl ConnectionPool {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits.max_requests));
        Arc::new(Self { limits, open: Mutex::default(), permits })
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in. Where the pool is full, another one goes for it; `None` where each is being answered.
    pub(super) fn admit(self: &Arc<Self>) -> Option<ConnectionGuard> {
        let connection = Connection::new();
        let mut open = self.open();
        if open.open.len() >= self.limits.max_connections {
            let id = dispensable(&open.open, Instant::now())?;
            if let Some(goes) = open.open.remove(&id) {
                goes.close();
            }
        }
        let id = open.next;
        open.next += 1;
        open.open.insert(id, connection.clone());
        Some(ConnectionGuard { id, connection, pool: self.clone() })
    }

    /// A place for an answer; `None` where there is none for a while.
    pub(super) async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.close_stalled(Instant::now());
        tokio::time::timeout(PERMIT_TIMEOUT, self.permits.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Cuts all that let their places lie: whoever waits next shall find one too.
    fn close_stalled(&self, now: Instant) {
        let open = self.open();
        let stalled = |connection: &Connection| connection.stalled_for(now).is_some_and(|lasts| lasts >= STALL_LIMIT);
        let lies = open.open.values().filter(|connection| connection.has_permit() && stalled(connection));
        lies.for_each(|connection| connection.close());
    }

    /// Whether others are being answered beside the one who asks.
    pub(super) fn is_busy(&self) -> bool {
        self.permits.available_permits() + 1 < self.limits.max_requests
    }

    /// Cuts all that take longer than they may. `tell` is called for each that owed something, before it can notice.
    pub(super) fn close_overdue(&self, now: Instant, tell: impl Fn()) {
        let open = self.open();
        let overdue = |connection: &Connection| connection.is_overdue(now, &self.limits) && !connection.is_closing();
        for connection in open.open.values().filter(|connection| overdue(connection)) {
            if connection.stage(now).0 != Stage::Idle {
                tell();
            }
            connection.close();
        }
    }
}

/// Who goes for a newcomer: the one that has rested longest, else the one that has owed its request longest, else one
/// that takes nothing of its answer, whichever that is.
fn dispensable(open: &BTreeMap<u64, Arc<Connection>>, now: Instant) -> Option<u64> {
    let longest = |wanted: Stage| {
        let staged = open.iter().map(|(id, connection)| (*id, connection.stage(now)));
        staged.filter(|(_, (stage, _))| *stage == wanted).max_by_key(|(_, (_, lasts))| *lasts).map(|(id, _)| id)
    };
    let stalled = || {
        let stalled = open.iter().filter_map(|(id, connection)| Some((*id, connection.stalled_for(now)?)));
        stalled.filter(|(_, lasts)| *lasts >= STALL_LIMIT).max_by_key(|(_, lasts)| *lasts).map(|(id, _)| id)
    };
    longest(Stage::Idle).or_else(|| longest(Stage::ReadingRequest)).or_else(stalled)
}
