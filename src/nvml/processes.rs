//! The driver's lists of processes.

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::raw;
use super::{Device, Error};

/// `NVML_VALUE_NOT_AVAILABLE` for memory: all ones.
const MEMORY_UNKNOWN: u64 = u64::MAX;
/// Instance ids where MIG is off.
const NO_INSTANCE: u32 = u32::MAX;

/// The three lists that NVML keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Processes with a CUDA context.
    Compute,
    /// Processes with a graphics context.
    Graphics,
    /// Clients of the Multi-Process Service.
    Mps,
}

impl ListKind {
    /// Every list.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Graphics, Self::Mps];

    pub(super) fn call(self, second_version: bool) -> &'static str {
        match (self, second_version) {
            (Self::Compute, false) => "nvmlDeviceGetComputeRunningProcesses_v3",
            (Self::Graphics, false) => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            (Self::Mps, false) => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            (Self::Compute, true) => "nvmlDeviceGetComputeRunningProcesses_v2",
            (Self::Graphics, true) => "nvmlDeviceGetGraphicsRunningProcesses_v2",
            (Self::Mps, true) => "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        }
    }
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedProcess {
    /// In the exporter's pid namespace.
    pub pid: u32,
    /// Bytes; `None` where the driver does not tell.
    pub used: Option<u64>,
    /// GPU instance and compute instance, where MIG is on.
    pub instance: Option<(u32, u32)>,
}

/// Room for a list, kept between calls so that a list costs one call and no allocation.
#[derive(Debug, Default)]
pub struct ProcessBuffer(Vec<nvmlProcessInfo_t>);

impl Device<'_> {
    /// Reads one of the lists.
    ///
    /// # Errors
    /// `INSUFFICIENT_SIZE` only when processes were born faster than the buffer could be enlarged, five times in a row.
    pub fn processes<'b>(
        &self,
        kind: ListKind,
        buffer: &'b mut ProcessBuffer,
    ) -> Result<impl Iterator<Item = ListedProcess> + use<'b>, Error> {
        raw::processes(self.nvml(), self.handle(), kind, self.second_version_lists(), &mut buffer.0).or_else(
            |error| match error.is_missing_call() && !self.second_version_lists() {
                true => raw::processes(self.nvml(), self.handle(), kind, true, &mut buffer.0),
                false => Err(error),
            },
        )?;
        Ok(buffer.0.iter().map(|entry| ListedProcess {
            pid: entry.pid,
            used: Some(entry.usedGpuMemory).filter(|&bytes| bytes != MEMORY_UNKNOWN),
            instance: Some((entry.gpuInstanceId, entry.computeInstanceId)).filter(|ids| ids.0 != NO_INSTANCE),
        }))
    }
}
