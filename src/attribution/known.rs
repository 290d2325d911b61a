//! What is known of one process on a GPU.
//!
//! Invariant: names are filled in as they come, and the owner is another object only when something of it changed.

use std::sync::Arc;

use super::directory::Directory;
use super::reader::Straggler;
use super::record::Stat;
use super::workload;
use crate::snapshot::{CgroupLocation, Owner, Snapshot};

/// One process, resolved.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) directory: Directory,
    pub(super) start: u64,
    pub(super) owner: Arc<Owner>,
    /// Whether all its files were read, of which one may still not tell where the process lives.
    pub(super) read: bool,
    /// Whether it is known where the process lives; until then it is asked at each look.
    placed: bool,
    /// The reader that hangs on it; until it comes back, what could be read before stands.
    pub(super) straggler: Option<Straggler>,
    /// Whether it had ended already when it was resolved.
    pub(super) ended: bool,
    /// Whether it was there at the last look.
    pub(super) sighted: bool,
    /// Identified since the last sweep.
    pub(super) wanted: bool,
}

impl Known {
    /// A process that is there and was not read whole yet.
    pub(super) fn new(directory: Directory, stat: &Stat, owner: Owner, placed: bool) -> Self {
        let (start, ended) = (stat.start, stat.ended);
        Self {
            directory,
            start,
            owner: Arc::new(owner),
            read: false,
            placed,
            straggler: None,
            ended,
            sighted: true,
            wanted: true,
        }
    }

    /// Whether there is nothing to be read, or nothing that can be read now. `exhausted`: arguments are not read.
    pub(super) fn is_complete(&self, exhausted: bool) -> bool {
        match &self.straggler {
            Some(_) => self.hangs(),
            None => self.placed && (self.read || exhausted),
        }
    }

    /// Whether a read of it hangs, or did until a short while ago.
    pub(super) fn hangs(&self) -> bool {
        self.straggler.as_ref().is_some_and(|reader| !reader.is_back())
    }

    /// The same, in its place where that is known by now.
    pub(super) fn placed_at(mut self, location: Option<CgroupLocation>) -> Self {
        self.straggler = None;
        if let Some(location) = location {
            self.placed = true;
            self.owner = Arc::new(Owner { location, ..(*self.owner).clone() });
        }
        self
    }

    /// Fills in what others know of the process by now: its user's name and its pod's.
    pub(super) fn name(&mut self, user: Option<&str>, snapshot: &Snapshot) {
        let owner = &self.owner;
        // A container id is never given twice, so a pod that was once named stays.
        let named = owner.workload.as_ref().and_then(|workload| workload.pod.clone());
        let pod = named.clone().or_else(|| {
            let container = workload::cluster_container(&owner.location)?;
            snapshot.pods.load().containers.get(container).cloned()
        });
        let known = owner.workload.is_some() || !self.placed;
        if known && owner.user.as_deref() == user && pod == named {
            return;
        }
        let workload = workload::workload(&owner.location, owner.uid, user, pod.as_ref()).filter(|_| self.placed);
        // The same workload stays the same object, so that it can be told apart at a glance.
        let workload = match &owner.workload {
            Some(before) if workload.as_ref() == Some(before) => Some(before.clone()),
            _ => workload.map(Arc::new),
        };
        self.owner = Arc::new(Owner { user: user.map(str::to_owned), workload, ..(**owner).clone() });
    }
}
