//! The driver's process lists.

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::device::Device;
use super::error::Error;
use super::raw::{self, ListKind};

/// `NVML_VALUE_NOT_AVAILABLE` for memory: all bits are 1.
const MEMORY_UNKNOWN: u64 = u64::MAX;
/// The instance id that NVML returns when MIG is off.
const NO_INSTANCE: u32 = u32::MAX;

/// One entry of a process list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedProcess {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// Bytes; `None` if the driver does not report them.
    pub used: Option<u64>,
    /// The ids of the GPU instance and the compute instance; `None` when MIG is off.
    pub instance: Option<(u32, u32)>,
}

/// A buffer for a process list. If it is reused, reading a list takes one call and no allocation.
#[derive(Debug, Default)]
pub struct ProcessBuffer(Vec<nvmlProcessInfo_t>);

impl Device<'_> {
    /// Reads one of the lists.
    ///
    /// # Errors
    /// `INSUFFICIENT_SIZE` only if new processes outgrew the enlarged buffer five times in a row.
    pub fn processes<'b>(
        &self,
        kind: ListKind,
        buffer: &'b mut ProcessBuffer,
    ) -> Result<impl Iterator<Item = ListedProcess> + use<'b>, Error> {
        raw::processes(self.nvml, self.handle, kind, self.second_version_lists, &mut buffer.0).or_else(|error| {
            if error.is_missing_call() && !self.second_version_lists {
                raw::processes(self.nvml, self.handle, kind, true, &mut buffer.0)
            } else {
                Err(error)
            }
        })?;
        Ok(buffer.0.iter().map(|entry| ListedProcess {
            pid: entry.pid,
            used: Some(entry.usedGpuMemory).filter(|&bytes| bytes != MEMORY_UNKNOWN),
            instance: Some((entry.gpuInstanceId, entry.computeInstanceId)).filter(|ids| ids.0 != NO_INSTANCE),
        }))
    }
}
