//! A process as events, incidents and the history name it.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::HeapUse;
use crate::snapshot::{MigDevice, Owner};

/// What identifies a process.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// The pid in the pid namespace of the process itself, such as that of its container; absent if that is the exporter's, and
    /// if it is unknown.
    pub namespace_pid: Option<u32>,
    /// The process's name; absent if `/proc` does not show it.
    pub name: Option<String>,
    /// The user's name, or the uid; absent if unknown.
    pub user: Option<String>,
    /// The workload; absent if unknown.
    pub workload: Option<String>,
    /// The UUID of the MIG device; absent on a GPU without MIG.
    pub mig_uuid: Option<String>,
}

impl ProcessRef {
    pub(crate) fn of(pid: u32, owner: &Owner, mig: Option<&MigDevice>) -> Self {
        Self {
            pid,
            namespace_pid: owner.namespace_pid,
            name: owner.name.clone(),
            user: owner.user_or_uid(),
            workload: owner.workload.as_ref().map(|workload| workload.name.clone()),
            mig_uuid: mig.map(|device| device.uuid.clone()),
        }
    }
}

impl HeapUse for ProcessRef {
    fn heap_use(&self) -> usize {
        let Self { pid: _, namespace_pid: _, name, user, workload, mig_uuid } = self;
        [name, user, workload, mig_uuid].into_iter().map(HeapUse::heap_use).sum()
    }
}
