//! What the connected processes reported, and how much of each limit every user has used.
//!
//! Invariant: a message that is refused changes nothing; what a connection reported is removed with it.

mod reported;
mod user;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use self::user::User;
use super::limits::{self, Bucket};
use super::outcome::Outcome;
use super::values::Values;
use crate::faults::Reason;
use crate::snapshot::{AllocatorPart, AllocatorReport, LastMessage, ProcessId, ReportingProcess};

/// All connections. They are numbered in the order in which they were accepted.
#[derive(Debug)]
pub(super) struct Table {
    window: Duration,
    connections: BTreeMap<u64, Connection>,
    users: HashMap<u32, User>,
    next: u64,
    keys: usize,
}

/// One connection, with what it reported.
#[derive(Debug)]
pub(super) struct Connection {
    uid: u32,
    /// `None` until the process is identified.
    process: Option<ProcessId>,
    heard: Arc<LastMessage>,
    messages: Bucket,
    values: Vec<Values>,
    names: HashSet<Arc<str>>,
    keys: usize,
}

/// Whether a message may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Yes.
    Read,
    /// No: the connection has sent too much, and the message is dropped.
    Drop,
    /// Not yet: the user's connections have sent too much together.
    Wait,
}

impl Table {
    /// An empty table whose peaks have a window of this length.
    pub(super) fn new(window: Duration) -> Self {
        Self { window, connections: BTreeMap::new(), users: HashMap::new(), next: 0, keys: 0 }
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Admits a connection of a user and returns its number; `None` if there are too many.
    pub(super) fn admit(&mut self, uid: u32, now: Instant) -> Option<u64> {
        if self.connections.len() >= limits::CONNECTIONS {
            return None;
        }
        let user = self.users.entry(uid).or_insert_with(|| User::new(now));
        if user.connections >= limits::CONNECTIONS_OF_USER || !user.opened.take(now) {
            return None;
        }
        user.connections += 1;
        self.next += 1;
        let connection = Connection {
            uid,
            process: None,
            heard: LastMessage::new(now),
            messages: Bucket::new(limits::MESSAGES, now),
            values: Vec::new(),
            names: HashSet::new(),
            keys: 0,
        };
        self.connections.insert(self.next, connection);
        Some(self.next)
    }

    /// Grants the connections of the same user one identification at a time; `None` if the connection has been removed.
    pub(super) fn identifying(&self, id: u64) -> Option<Arc<Semaphore>> {
        let user = self.users.get(&self.connections.get(&id)?.uid)?;
        Some(user.identifying.clone())
    }

    /// Records which process a connection belongs to.
    ///
    /// # Errors
    /// When the process has too many connections.
    pub(super) fn identify(&mut self, id: u64, process: ProcessId) -> Result<(), Reason> {
        let same = self.connections.values().filter(|known| known.process == Some(process)).count();
        if same >= limits::CONNECTIONS_OF_PROCESS {
            return Err(Reason::TooManyConnections);
        }
        self.connection(id)?.process = Some(process);
        Ok(())
    }

    /// Removes a connection with all that it reported; `None` if it has been removed already.
    pub(super) fn close(&mut self, id: u64) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        self.keys -= connection.keys;
        if let Some(user) = self.users.get_mut(&connection.uid) {
            user.connections -= 1;
            user.keys -= connection.keys;
        }
        Some(connection)
    }

    /// The numbers of all connections.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    /// Forgets the users whose connections ended so long ago that no limit affects these users any longer.
    pub(super) fn forget_users(&mut self, now: Instant) {
        self.users.retain(|_, user| user.connections > 0 || !user.is_rested(now));
    }

    /// Counts a line that has arrived.
    pub(super) fn turn(&mut self, id: u64, now: Instant) -> Turn {
        let Self { connections, users, .. } = self;
        let Some(connection) = connections.get_mut(&id) else { return Turn::Drop };
        let Some(user) = users.get_mut(&connection.uid) else { return Turn::Drop };
        if !user.messages.take(now) {
            return Turn::Wait;
        }
        if !connection.messages.take(now) {
            return Turn::Drop;
        }
        Turn::Read
    }

    /// Records that something arrived. Returns whether the connection was stale before.
    pub(super) fn hear(&mut self, id: u64, now: Instant) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let was_stale = connection.heard.is_stale(now);
        connection.heard.beat(now);
        was_stale
    }

    /// All values that are not stale. If several connections of one process report about the same device and framework,
    /// the latest connection counts.
    pub(super) fn part(&mut self, now: Instant) -> AllocatorPart {
        let mut latest: BTreeMap<(ProcessId, Arc<str>, Arc<str>), AllocatorReport> = BTreeMap::new();
        for connection in self.connections.values_mut().filter(|known| !known.heard.is_stale(now)) {
            let Some(process) = connection.process else { continue };
            for values in &mut connection.values {
                if let Some(report) = values.shown(&connection.heard, now) {
                    latest.insert((process, report.device.clone(), report.framework.clone()), report);
                }
            }
        }
        let mut processes: Vec<ReportingProcess> = Vec::new();
        for ((id, _, _), report) in latest {
            match processes.last_mut() {
                Some(last) if last.id == id => last.reports.push(report),
                _ => processes.push(ReportingProcess { id, reports: vec![report] }),
            }
        }
        AllocatorPart { processes }
    }

    fn connection(&mut self, id: u64) -> Result<&mut Connection, Reason> {
        self.connections.get_mut(&id).ok_or(Reason::UnknownProcess)
    }
}

impl Connection {
    /// Its outcomes; empty if its process was not identified.
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let Some(process) = self.process else { return Vec::new() };
        self.values.iter().filter_map(|values| values.outcome(process)).collect()
    }

    fn position(&self, device: &str, framework: &str) -> Option<usize> {
        self.values.iter().position(|known| &*known.device == device && &*known.framework == framework)
    }
}

#[cfg(test)]
mod tests;
