//! The reason to record an incident.

use crate::recorder::history::device_list::DeviceKey;
use crate::recorder::history::event::Failure;
use crate::recorder::history::incident::Kind;
use crate::recorder::history::process_history::Holding;
use crate::recorder::history::series::Micros;

/// A moment at which an incident is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::recorder) struct Trigger {
    pub(in crate::recorder) kind: Kind,
    pub(in crate::recorder) at: Micros,
    pub(in crate::recorder) device: DeviceKey,
    /// The process that ended or that reported a failure.
    pub(in crate::recorder) process: Option<Holding>,
    /// The Xid.
    pub(in crate::recorder) xid: Option<u64>,
    /// What the process reported.
    pub(in crate::recorder) failure: Option<Box<Failure>>,
}

impl Trigger {
    /// A moment of a device that concerns no single process and no Xid.
    pub(in crate::recorder) fn of_device(kind: Kind, at: Micros, device: DeviceKey) -> Self {
        Self { kind, at, device, process: None, xid: None, failure: None }
    }
}
