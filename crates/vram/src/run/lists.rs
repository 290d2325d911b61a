//! The process lists of one device, merged.

use std::collections::BTreeMap;

use gpu_readings::nvml::{Device, Error, ListKind, ProcessBuffer};

/// Reads the lists of one device and remembers which of them need not be read each time.
#[derive(Debug, Default)]
pub(super) struct Lists {
    buffer: ProcessBuffer,
    /// For each [`ListKind`], in order: whether the device lacks that list.
    absent: [bool; ListKind::ALL.len()],
    /// For each [`ListKind`], in order: whether the list contained a process when it was last read.
    in_use: [bool; ListKind::ALL.len()],
}

impl Lists {
    /// The pids on the device, each with its bytes; `None` if the driver does not report them. A process in several
    /// lists counts once, because each list shows its whole memory. A process that holds no memory is left out, because
    /// an MPS list also contains the clients of other GPUs. Unless `all` lists are wanted, an empty list other than the
    /// compute list is not read again, because reading it takes as long as reading the compute list.
    ///
    /// # Errors
    /// When a list cannot be read although the device has it.
    pub(super) fn read(&mut self, device: &Device<'_>, all: bool) -> Result<BTreeMap<u32, Option<u64>>, Error> {
        let mut merged = BTreeMap::<u32, Option<u64>>::new();
        for kind in ListKind::ALL {
            let index = kind as usize;
            let wanted = kind == ListKind::Compute || all || self.in_use[index];
            if self.absent[index] || !wanted {
                continue;
            }
            match device.processes(kind, &mut self.buffer) {
                Ok(listed) => {
                    self.in_use[index] = false;
                    for process in listed {
                        self.in_use[index] = true;
                        let used = merged.entry(process.pid).or_default();
                        *used = (*used).max(process.used);
                    }
                }
                // A GPU without graphics or MPS support has no such processes.
                Err(error) if kind != ListKind::Compute && error.is_unavailable() => self.absent[index] = true,
                Err(error) => return Err(error),
            }
        }
        merged.retain(|_, used| *used != Some(0));
        Ok(merged)
    }
}
