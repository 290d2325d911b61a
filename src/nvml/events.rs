//! Xid events: the driver's own reports of critical errors.
//!
//! Each GPU has an event set of its own, which the open driver keeps: a call for one GPU that hangs or fails costs no event
//! of another GPU, and a thread that hangs takes no set with it.

use std::mem::ManuallyDrop;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use super::raw::EventSet;
use super::{Driver, Error, Severity};

/// What NVML gives for an Xid that it does not know.
const UNKNOWN_XID: u64 = 999;

impl Driver {
    /// Whether the GPU's critical errors were registered for.
    pub fn reports_xids(&self, position: usize) -> bool {
        self.event_set(position).is_some()
    }

    /// Registers for the critical errors of a GPU, unless that was done. `false`: the GPU does not report them.
    ///
    /// # Errors
    /// Whatever NVML answers; the registration can be tried again.
    pub fn register_xids(&self, position: usize) -> Result<bool, Error> {
        let Some(device) = self.reporting(position) else { return Ok(false) };
        if self.reports_xids(position) {
            return Ok(true);
        }
        let types = match device.supported_event_types() {
            Ok(types) => types,
            Err(error) => return not_given(Error::new("nvmlDeviceGetSupportedEventTypes", error)),
        };
        if !types.contains(EventTypes::CRITICAL_XID_ERROR) {
            return Ok(false);
        }
        let set = self.nvml().create_event_set().map_err(|error| Error::new("nvmlEventSetCreate", error))?;
        // nvml-wrapper frees the set when a registration fails.
        match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(set) => {
                self.keep_event_set(position, EventSet::keep(set));
                Ok(true)
            }
            Err(refusal) => not_given(Error::new("nvmlDeviceRegisterEvents", refusal.error)),
        }
    }

    /// The next Xid of a GPU, if one has come; never waits. NVML tells the most recent one where several came between two
    /// questions. Not to be asked by two threads at once for the same GPU.
    ///
    /// # Errors
    /// Whatever NVML answers except that nothing has come.
    pub fn next_xid(&self, position: usize) -> Result<Option<u64>, Error> {
        let Some(set) = self.event_set(position) else { return Ok(None) };
        // Not freed here: the driver keeps the set.
        let set = ManuallyDrop::new(set.of(self.nvml()));
        match set.wait(0) {
            Ok(event) => Ok(event.event_data.map(|xid| match xid {
                XidError::Value(xid) => xid,
                XidError::Unknown => UNKNOWN_XID,
            })),
            Err(NvmlError::Timeout) => Ok(None),
            Err(error) => Err(Error::new("nvmlEventSetWait_v2", error)),
        }
    }
}

/// A GPU that does not give its events at all does not report them, and nothing is wrong.
fn not_given(error: Error) -> Result<bool, Error> {
    if error.severity() == Severity::Absent { Ok(false) } else { Err(error) }
}
