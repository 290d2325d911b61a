//! Xid events: the driver's own reports of critical errors.

use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use super::raw::Handle;
use super::{Driver, Error};

/// What NVML gives for an Xid that it does not know.
const UNKNOWN_XID: u64 = 999;

/// A set of events that is asked without waiting.
#[derive(Debug)]
pub struct XidEvents<'d> {
    set: EventSet<'d>,
}

/// One critical error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidEvent {
    /// Position in [`Driver::gpus`]; `None` for a device that is none of them.
    pub gpu: Option<usize>,
    /// The Xid. NVML tells the most recent one where several came between two questions.
    pub xid: u64,
}

impl<'d> XidEvents<'d> {
    /// Registers for the critical errors of every GPU that reports them and says, by position, which do.
    ///
    /// # Errors
    /// When no event set can be made. A GPU that refuses is `false` in the list.
    pub fn register(driver: &'d Driver) -> Result<(Self, Vec<bool>), Error> {
        let nvml = driver.nvml();
        let create = || nvml.create_event_set().map_err(|error| Error::new("nvmlEventSetCreate", error));
        let mut set = create()?;
        let mut reporting = Vec::new();
        for position in 0..driver.gpus().len() {
            let Some(device) = driver.wrapped(position) else {
                reporting.push(false);
                continue;
            };
            let supported = device.supported_event_types().is_ok_and(|t| t.contains(EventTypes::CRITICAL_XID_ERROR));
            if !supported {
                reporting.push(false);
                continue;
            }
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(same) => {
                    set = same;
                    reporting.push(true);
                }
                // nvml-wrapper frees the set when a registration fails; the GPUs before have to register again.
                Err(_) => {
                    set = create()?;
                    reporting.push(false);
                    for (earlier, reports) in reporting.iter_mut().enumerate().filter(|(_, reports)| **reports) {
                        let Some(device) = driver.wrapped(earlier) else { continue };
                        set = match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                            Ok(same) => same,
                            Err(_) => {
                                *reports = false;
                                create()?
                            }
                        };
                    }
                }
            }
        }
        Ok((Self { set }, reporting))
    }

    /// The next event, if one has come; never waits.
    ///
    /// # Errors
    /// Whatever NVML answers except that nothing has come.
    pub fn poll(&self, driver: &Driver) -> Result<Option<XidEvent>, Error> {
        let event = match self.set.wait(0) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => return Ok(None),
            Err(error) => return Err(Error::new("nvmlEventSetWait_v2", error)),
        };
        Ok(event.event_data.map(|xid| XidEvent {
            gpu: driver.position(Handle::of(&event.device)),
            xid: match xid {
                XidError::Value(xid) => xid,
                XidError::Unknown => UNKNOWN_XID,
            },
        }))
    }
}
