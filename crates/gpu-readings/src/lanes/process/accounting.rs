//! The driver's own maximum for each process, if an administrator has enabled accounting mode.

use super::raised::RaisedReason;
use crate::faults::{Faults, Source};
use crate::lanes::guarded::GuardedDevice;
use crate::lanes::watch::Superseded;
use crate::nvml::Severity;

/// What is known about a GPU's accounting mode.
#[derive(Debug, Default)]
pub(super) struct Accounting {
    on: Option<bool>,
    raised: RaisedReason,
}

impl Accounting {
    /// Whether accounting is on. The driver is queried until this is known.
    pub(super) fn is_on(&mut self, device: &GuardedDevice<'_>, faults: &Faults) -> Result<bool, Superseded> {
        if self.on.is_none() {
            match device.call(|gpu| gpu.accounting())? {
                Ok(mode) => self.on = Some(mode),
                Err(error) if error.severity() == Severity::Absent => self.on = Some(false),
                Err(error) => device.raise(faults, Source::Process, &error),
            }
        }
        Ok(self.on == Some(true))
    }

    /// The driver's own maximum for each process, in bytes, if the driver has one. Stops at the first refused call.
    pub(super) fn peaks(
        &mut self,
        pids: &[u32],
        device: &GuardedDevice<'_>,
        faults: &Faults,
    ) -> Result<Vec<(u32, u64)>, Superseded> {
        let mut peaks = Vec::new();
        for &pid in pids {
            match device.call(|gpu| gpu.accounted_peak(pid))? {
                Ok(peak) => {
                    self.raised.forget();
                    peaks.extend(peak.map(|peak| (pid, peak)));
                }
                Err(error) => {
                    if self.raised.is_new(error.reason()) || error.severity() != Severity::Absent {
                        device.raise(faults, Source::Process, &error);
                    }
                    break;
                }
            }
        }
        Ok(peaks)
    }
}
