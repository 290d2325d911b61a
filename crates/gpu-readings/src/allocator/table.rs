//! What the connected processes reported, and how much of each limit every user has used.
//!
//! Invariant: a message that is refused changes nothing; what a connection reported is removed with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::limits::{self, Bucket};
use super::message::{Measurement, OutOfMemory, Report, Sites};
use super::outcome::Outcome;
use super::values::Values;
use crate::faults::Reason;
use crate::snapshot::{AllocatorPart, AllocatorReport, FailedAllocation, LastMessage, ProcessId, ReportingProcess};

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

#[derive(Debug)]
struct User {
    connections: usize,
    keys: usize,
    /// Grants one identification at a time.
    identifying: Arc<Semaphore>,
    opened: Bucket,
    messages: Bucket,
    failures: Bucket,
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

    /// Changes the values of one device and framework.
    ///
    /// # Errors
    /// When the values contradict each other, or there are too many devices and frameworks.
    pub(super) fn report(&mut self, id: u64, report: &Report<'_>, now: Instant) -> Result<(), Reason> {
        let (window, connection) = (self.window, self.connection(id)?);
        match connection.position(&report.device, &report.framework) {
            Some(position) => connection.values[position].apply(report, now),
            None => {
                let mut values = Values::new(&report.device, &report.framework, window);
                values.apply(report, now)?;
                self.add(id, values)
            }
        }
    }

    /// Records the result of a measured region.
    ///
    /// # Errors
    /// When there would be too many names, or too many keys (names and device–framework pairs) in total.
    pub(super) fn measure(&mut self, id: u64, measured: &Measurement<'_>) -> Result<(), Reason> {
        let (window, connection) = (self.window, self.connection(id)?);
        let position = connection.position(&measured.device, &measured.framework);
        if let Some(values) = position.map(|position| &mut connection.values[position])
            && values.raise_region(&measured.name, measured.peak_bytes)
        {
            return Ok(());
        }
        if connection.names.len() >= limits::NAMES && !connection.names.contains(&*measured.name) {
            return Err(Reason::TooManyKeys);
        }
        // Room for both keys is checked before anything is changed.
        self.may_add(id, 1 + usize::from(position.is_none()))?;
        if position.is_none() {
            self.add(id, Values::new(&measured.device, &measured.framework, window))?;
        }
        let connection = self.connection(id)?;
        let known = connection.names.get(&*measured.name).cloned();
        let name = known.unwrap_or_else(|| Arc::from(&*measured.name));
        connection.names.insert(name.clone());
        let position = position.unwrap_or(connection.values.len() - 1);
        connection.values[position].add_region(name, measured.peak_bytes);
        self.count_keys(id, 1);
        Ok(())
    }

    /// Records what the memory is.
    ///
    /// # Errors
    /// When it is more than the allocator may have, the pair has not been reported, or there are too many keys.
    pub(super) fn look(&mut self, id: u64, looked: &Sites<'_>, now: Instant) -> Result<(), Reason> {
        let connection = self.connection(id)?;
        let position = connection.position(&looked.device, &looked.framework).ok_or(Reason::Inconsistent)?;
        let keys = if connection.values[position].has_looked() { 0 } else { limits::KEYS_OF_LOOK };
        self.may_add(id, keys)?;
        self.connection(id)?.values[position].look(looked, now)?;
        self.count_keys(id, keys);
        Ok(())
    }

    /// A failed allocation for the recorder.
    ///
    /// # Errors
    /// When the user's processes report too many.
    pub(super) fn failure(
        &mut self,
        id: u64,
        failed: &OutOfMemory<'_>,
        now: Instant,
    ) -> Result<FailedAllocation, Reason> {
        let Self { connections, users, .. } = self;
        let connection = connections.get(&id).ok_or(Reason::UnknownProcess)?;
        let process = connection.process.ok_or(Reason::UnknownProcess)?;
        let granted = users.get_mut(&connection.uid).is_some_and(|user| user.failures.take(now));
        if !granted {
            return Err(Reason::TooManyMessages);
        }
        Ok(FailedAllocation {
            process,
            at: now,
            device: Arc::from(&*failed.device),
            framework: Some(Arc::from(&*failed.framework)),
            requested: failed.requested_bytes,
            free: failed.free_bytes,
            total: failed.total_bytes,
            allocated: failed.allocated_bytes,
            reserved: failed.reserved_bytes,
            snapshot_path: failed.snapshot_path.as_deref().map(Arc::from),
            sites: connection
                .position(&failed.device, &failed.framework)
                .and_then(|position| connection.values[position].sites(now)),
        })
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

    fn add(&mut self, id: u64, values: Values) -> Result<(), Reason> {
        self.may_add(id, 1)?;
        let connection = self.connection(id)?;
        let frameworks: HashSet<_> = connection.values.iter().map(|known| &*known.framework).collect();
        let new_framework = !frameworks.contains(&*values.framework);
        if connection.values.len() >= limits::PAIRS || (new_framework && frameworks.len() >= limits::FRAMEWORKS) {
            return Err(Reason::TooManyKeys);
        }
        connection.values.push(values);
        self.count_keys(id, 1);
        Ok(())
    }

    fn may_add(&self, id: u64, keys: usize) -> Result<(), Reason> {
        let connection = self.connections.get(&id).ok_or(Reason::UnknownProcess)?;
        let of_user = self.users.get(&connection.uid).map_or(0, |user| user.keys);
        let fits = connection.keys + keys <= limits::KEYS
            && of_user + keys <= limits::KEYS_OF_USER
            && self.keys + keys <= limits::KEYS_IN_ALL;
        fits.then_some(()).ok_or(Reason::TooManyKeys)
    }

    fn count_keys(&mut self, id: u64, keys: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.keys += keys;
        self.keys += keys;
        if let Some(user) = self.users.get_mut(&connection.uid) {
            user.keys += keys;
        }
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

impl User {
    fn new(now: Instant) -> Self {
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
    fn is_rested(&self, now: Instant) -> bool {
        self.identifying.available_permits() == 1
            && [&self.opened, &self.messages, &self.failures].iter().all(|bucket| bucket.is_full(now))
    }
}

#[cfg(test)]
mod tests;
