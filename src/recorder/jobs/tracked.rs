//! A process of a workload on a device.

use std::sync::Arc;
use std::time::SystemTime;

use super::need::ProcessNeed;
use crate::snapshot::{Owner, ProcessId};

/// A process that is followed until it leaves the device.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) pid: u32,
    pub(super) owner: Arc<Owner>,
    /// When a list first contained it.
    pub(super) first_seen: SystemTime,
    /// Whether the last list contained it.
    pub(super) is_listed: bool,
    /// Its memory in the last list that contained it.
    pub(super) used: Option<u64>,
    /// Its highest memory.
    pub(super) peak: Option<u64>,
    pub(super) need: ProcessNeed,
}

impl Tracked {
    pub(super) fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.owner.start_ticks }
    }

    /// Whether the process with this pid and owner is this one, which every list has contained.
    pub(super) fn is(&self, pid: u32, owner: &Owner) -> bool {
        let other = ProcessId { pid, start_ticks: owner.start_ticks };
        self.pid == pid && !self.id().is_former_of(other, owner.start, self.first_seen)
    }
}
