//! Takes in what a connection reports, within the limits on what it may keep.
//!
//! Invariant: a message that is refused changes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::Table;
use crate::allocator::limits;
use crate::allocator::message::{Look, Measurement, OutOfMemory, Report};
use crate::allocator::values::Values;
use crate::faults::Reason;
use crate::snapshot::FailedAllocation;

impl Table {
    /// Changes the values of one device and framework.
    ///
    /// # Errors
    /// When the values contradict each other, or there are too many devices and frameworks.
    pub(in crate::allocator) fn report(&mut self, id: u64, report: &Report<'_>, now: Instant) -> Result<(), Reason> {
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
    pub(in crate::allocator) fn measure(&mut self, id: u64, measured: &Measurement<'_>) -> Result<(), Reason> {
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
    pub(in crate::allocator) fn look(&mut self, id: u64, looked: &Look<'_>, now: Instant) -> Result<(), Reason> {
        let known = self.known(id, &looked.device, &looked.framework)?;
        let keys = if known.has_looked() { 0 } else { limits::KEYS_OF_LOOK };
        self.may_add(id, keys)?;
        self.known(id, &looked.device, &looked.framework)?.look(looked, now)?;
        self.count_keys(id, keys);
        Ok(())
    }

    /// Records what grew before the last look.
    ///
    /// # Errors
    /// When there was no look at the pair, or it is more than the allocator may have.
    pub(in crate::allocator) fn grow(&mut self, id: u64, growth: &Look<'_>) -> Result<(), Reason> {
        self.known(id, &growth.device, &growth.framework)?.grow(growth)
    }

    /// Records which modules the memory of the last look belongs to.
    ///
    /// # Errors
    /// When there was no look at the pair, or it is more than the allocator may have.
    pub(in crate::allocator) fn divide(&mut self, id: u64, divided: &Look<'_>) -> Result<(), Reason> {
        self.known(id, &divided.device, &divided.framework)?.divide(divided)
    }

    /// A failed allocation for the recorder. `with_sites`: whether it may tell which lines asked.
    ///
    /// # Errors
    /// When the user's processes report too many.
    pub(in crate::allocator) fn failure(
        &mut self,
        id: u64,
        failed: &OutOfMemory<'_>,
        with_sites: bool,
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
            largest_free_block: failed.largest_free_block_bytes,
            snapshot_path: failed.snapshot_path.as_deref().map(Arc::from),
            asked_by: failed.site.as_deref().filter(|_| with_sites).map(Arc::from),
            frames: failed.frames.iter().filter(|_| with_sites).map(|frame| Arc::from(&**frame)).collect(),
            sites: connection
                .position(&failed.device, &failed.framework)
                .and_then(|position| connection.values[position].sites(now)),
        })
    }

    /// The values of a pair that was reported.
    fn known(&mut self, id: u64, device: &str, framework: &str) -> Result<&mut Values, Reason> {
        let connection = self.connection(id)?;
        let position = connection.position(device, framework).ok_or(Reason::Inconsistent)?;
        Ok(&mut connection.values[position])
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
