//! The driver's process lists.

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::device::Device;
use super::error::Error;
use super::raw::{self, ListKind, ListVersion, NO_INSTANCE};

/// `NVML_VALUE_NOT_AVAILABLE` for memory: all bits are 1.
const MEMORY_UNKNOWN: u64 = u64::MAX;

/// One entry of a process list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedProcess {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// Bytes; `None` if the driver does not report them.
    pub used: Option<u64>,
    /// The ids of the GPU instance and the compute instance; `None` when MIG is off, and in lists that do not tell.
    pub instance: Option<(u32, u32)>,
}

/// A buffer for a process list. If it is reused, reading a list takes one call and no allocation.
#[derive(Debug, Default)]
pub struct ProcessBuffer {
    entries: Vec<nvmlProcessInfo_t>,
    tells_instances: bool,
}

impl ProcessBuffer {
    /// Whether the entries of the list that was read last name their MIG devices. Those of the oldest drivers do not.
    pub fn tells_instances(&self) -> bool {
        self.tells_instances
    }
}

impl Device<'_> {
    /// Reads one of the lists, with the newest version of the call that the driver has.
    ///
    /// # Errors
    /// `INSUFFICIENT_SIZE` only if new processes outgrew the enlarged buffer five times in a row.
    pub fn processes<'b>(
        &self,
        kind: ListKind,
        buffer: &'b mut ProcessBuffer,
    ) -> Result<impl Iterator<Item = ListedProcess> + use<'b>, Error> {
        let mut version = self.newest_lists;
        while let Err(error) = raw::processes(self.nvml, self.handle, kind, version, &mut buffer.entries) {
            version = version.older().filter(|_| error.is_missing_call()).ok_or(error)?;
        }
        buffer.tells_instances = version != ListVersion::First;
        Ok(buffer.entries.iter().map(|entry| ListedProcess {
            pid: entry.pid,
            used: Some(entry.usedGpuMemory).filter(|&bytes| bytes != MEMORY_UNKNOWN),
            instance: Some((entry.gpuInstanceId, entry.computeInstanceId)).filter(|ids| ids.0 != NO_INSTANCE),
        }))
    }
}
