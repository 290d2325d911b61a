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
const PATIENCE: Duration = Duration::from_millis(500);
/// A client that takes nothing for so long loses its place to one that waits. A honest one needs milliseconds.
const STALLED: Duration = Duration::from_secs(1);

/// The open connections of all listeners together.
#[derive(Debug)]
pub(super) struct Crowd {
    limits: Limits,
    members: Mutex<Members>,
    /// Places for answers.
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Members {
    next: u64,
    /// In the order in which they came.
    open: BTreeMap<u64, Arc<Connection>>,
}

/// A connection that was let in; it leaves the crowd when this goes.
#[derive(Debug)]
pub(super) struct Member {
    id: u64,
    connection: Arc<Connection>,
    crowd: Arc<Crowd>,
}

impl Member {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.crowd.members().open.remove(&self.id);
    }
}

impl Crowd {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits.max_requests));
        Arc::new(Self { limits, members: Mutex::default(), places })
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in. Where the crowd is full, another one goes for it; `None` where each is being answered.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Member> {
        let connection = Connection::new();
        let mut members = self.members();
        if members.open.len() >= self.limits.max_connections {
            let id = dispensable(&members.open, Instant::now())?;
            if let Some(goes) = members.open.remove(&id) {
                goes.cut();
            }
        }
        let id = members.next;
        members.next += 1;
        members.open.insert(id, connection.clone());
        Some(Member { id, connection, crowd: self.clone() })
    }

    /// A place for an answer; `None` where there is none for a while.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        self.cut_stalled(Instant::now());
        tokio::time::timeout(PATIENCE, self.places.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Cuts all that let their places lie: whoever waits next shall find one too.
    fn cut_stalled(&self, now: Instant) {
        let members = self.members();
        let stalled = |connection: &Connection| connection.stalls(now).is_some_and(|lasts| lasts >= STALLED);
        let lies = members.open.values().filter(|connection| connection.has_place() && stalled(connection));
        lies.for_each(|connection| connection.cut());
    }

    /// Whether others are being answered beside the one who asks.
    pub(super) fn is_busy(&self) -> bool {
        self.places.available_permits() + 1 < self.limits.max_requests
    }

    /// Cuts all that take longer than they may. `tell` is called for each that owed something, before it can notice.
    pub(super) fn cut_overdue(&self, now: Instant, tell: impl Fn()) {
        let members = self.members();
        let overdue = |connection: &Connection| connection.is_overdue(now, &self.limits) && !connection.is_going();
        for connection in members.open.values().filter(|connection| overdue(connection)) {
            if connection.stage(now).0 != Stage::Resting {
                tell();
            }
            connection.cut();
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
        let stalled = open.iter().filter_map(|(id, connection)| Some((*id, connection.stalls(now)?)));
        stalled.filter(|(_, lasts)| *lasts >= STALLED).max_by_key(|(_, lasts)| *lasts).map(|(id, _)| id)
    };
    longest(Stage::Resting).or_else(|| longest(Stage::Asking)).or_else(stalled)
}
