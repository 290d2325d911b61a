//! Xid events: the driver's own reports of critical errors.
//!
//! Each GPU has its own event set, owned by the open driver. A call that hangs or fails for one GPU therefore loses no
//! event from another GPU, and a thread that hangs does not hold a set.

use std::mem::ManuallyDrop;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use super::driver::Driver;
use super::error::{Error, Severity};
use super::raw::EventSet;

/// The Xid that is counted when NVML reports an unknown one.
const UNKNOWN_XID: u64 = 999;

impl Driver {
    /// Whether the GPU's critical errors are registered.
    pub fn reports_xids(&self, position: usize) -> bool {
        self.event_set(position).is_some()
    }

    /// Registers for the critical errors of a GPU, once. `false`: the GPU does not report them.
    ///
    /// # Errors
    /// Any NVML error; the registration can be tried again.
    pub fn register_xids(&self, position: usize) -> Result<bool, Error> {
        let Some(device) = self.event_source(position) else { return Ok(false) };
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
        let set = self.nvml.create_event_set().map_err(|error| Error::new("nvmlEventSetCreate", error))?;
        // nvml-wrapper frees the set when a registration fails.
        match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(set) => {
                self.store_event_set(position, EventSet::keep(set));
                Ok(true)
            }
            Err(refusal) => not_given(Error::new("nvmlDeviceRegisterEvents", refusal.error)),
        }
    }

    /// The next Xid of a GPU, if there is one; never waits. If several occurred since the last call, NVML reports the
    /// most recent one. Two threads must not call it for the same GPU at once.
    ///
    /// # Errors
    /// Any NVML error except the one that means that there is no event.
    pub fn next_xid(&self, position: usize) -> Result<Option<u64>, Error> {
        let Some(set) = self.event_set(position) else { return Ok(None) };
        // The driver owns the set, so it must not be freed here.
        let set = ManuallyDrop::new(set.of(&self.nvml));
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

/// A GPU that does not support the call reports no events; that is not an error.
fn not_given(error: Error) -> Result<bool, Error> {
    if error.severity() == Severity::Absent { Ok(false) } else { Err(error) }
}
