//! What is cached about one process on a GPU.
//!
//! Invariant: names are filled in when they become known, and the owner is replaced by a new object only if one of its
//! values changed.

use std::path::Path;
use std::sync::Arc;

use super::directory::Directory;
use super::record::Stat;
use super::workload;
use crate::snapshot::{CgroupLocation, Owner, Snapshot};

/// Where a process runs.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) location: CgroupLocation,
    /// [`Owner::cgroup`].
    pub(super) cgroup: Option<Arc<Path>>,
}

/// One process, resolved as far as its files could be read.
#[derive(Debug)]
pub(super) struct CachedProcess {
    pub(super) directory: Directory,
    pub(super) start: u64,
    pub(super) owner: Arc<Owner>,
    /// The name of the user that the workload is of, if it is known.
    belongs_to: Option<String>,
    /// Whether all its files were read. The cgroup may still be unresolved.
    pub(super) read: bool,
    /// Whether its cgroup is resolved; until then every pass reads it again.
    cgroup_resolved: bool,
    /// Whether the process existed at the last check.
    pub(super) seen: bool,
    /// Whether it has been identified since the last sweep.
    pub(super) used_since_sweep: bool,
}

impl CachedProcess {
    /// A process that exists and has not been read completely yet. `place` is `None` while the cgroup is unresolved.
    pub(super) fn new(directory: Directory, stat: &Stat, owner: Owner, place: Option<Place>) -> Self {
        let cgroup_resolved = place.is_some();
        let Place { location, cgroup } = place.unwrap_or_default();
        let owner = Arc::new(Owner { location, cgroup, ..owner });
        Self {
            directory,
            start: stat.start,
            owner,
            belongs_to: None,
            read: false,
            cgroup_resolved,
            seen: true,
            used_since_sweep: true,
        }
    }

    /// Whether nothing is left to be read. While readers are `exhausted`, arguments are not read.
    pub(super) fn is_complete(&self, exhausted: bool) -> bool {
        self.cgroup_resolved && (self.read || exhausted)
    }

    pub(super) fn resolve_cgroup(&mut self, place: Place) {
        self.cgroup_resolved = true;
        let owner = Arc::make_mut(&mut self.owner);
        (owner.location, owner.cgroup) = (place.location, place.cgroup);
    }

    /// Records the name of the user that the workload is of. Returns whether it is another one than before.
    pub(super) fn rename(&mut self, belongs_to: Option<&str>) -> bool {
        let is_other = self.belongs_to.as_deref() != belongs_to;
        if is_other {
            self.belongs_to = belongs_to.map(str::to_owned);
        }
        is_other
    }

    /// Fills in the name of the process's own user and the pod's name, if they are known by now. `is_renamed`: whether the user
    /// that the workload is of has another name than before ([`CachedProcess::rename`]).
    pub(super) fn fill_names(&mut self, user: Option<&str>, is_renamed: bool, snapshot: &Snapshot) {
        let owner = &self.owner;
        // A container id is never used twice, so a pod's name is kept once it is known.
        let named = owner.workload.as_ref().and_then(|workload| workload.pod.clone());
        let pod = named.clone().or_else(|| {
            let container = workload::cluster_container(&owner.location)?;
            snapshot.pods.load().containers.get(container).cloned()
        });
        let has_workload = owner.workload.is_some() || !self.cgroup_resolved;
        if has_workload && !is_renamed && owner.user.as_deref() == user && pod == named {
            return;
        }
        let uid = workload::user_id(&owner.location, owner.uid);
        let workload = workload::workload(&owner.location, uid, self.belongs_to.as_deref(), pod.as_ref());
        let workload = workload.filter(|_| self.cgroup_resolved);
        // An unchanged workload stays the same object, so that comparing pointers is enough to detect a change.
        let workload = match &owner.workload {
            Some(before) if workload.as_ref() == Some(before) => Some(before.clone()),
            _ => workload.map(Arc::new),
        };
        self.owner = Arc::new(Owner { user: user.map(str::to_owned), workload, ..(**owner).clone() });
    }
}
