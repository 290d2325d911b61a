//! The reason to record an incident.

use crate::recorder::history::Micros;
use crate::recorder::history::device_list::DeviceKey;
use crate::recorder::history::event::Failure;
use crate::recorder::history::incident::Kind;
use crate::recorder::history::process_history::Holding;

/// A moment at which an incident is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trigger {
    pub(crate) kind: Kind,
    pub(crate) at: Micros,
    pub(crate) device: DeviceKey,
    /// The process that ended or that reported a failure.
    pub(crate) process: Option<Holding>,
    /// The Xid.
    pub(crate) xid: Option<u64>,
    /// What the process reported.
    pub(crate) failure: Option<Box<Failure>>,
}

impl Trigger {
    /// A moment of a device that concerns no single process and no Xid.
    pub(crate) fn of_device(kind: Kind, at: Micros, device: DeviceKey) -> Self {
        Self { kind, at, device, process: None, xid: None, failure: None }
    }
}
