//! The vGPUs in a scenario or control file.

use super::{Refusal, refuse};
use crate::machine::Machine;
use crate::scenario::grammar;

/// The longest id of a virtual machine: NVML allows 80 bytes with the terminating NUL.
const LONGEST_VM: usize = 79;
/// The maximum number of vGPUs on a machine, which is more than any has.
const MOST: usize = 4096;

/// Adds the vGPUs.
pub(super) fn add(machine: &mut Machine, entries: &[grammar::Vgpu]) -> Result<(), Refusal> {
    for (index, entry) in entries.iter().enumerate() {
        let key = |leaf: &str| format!("vgpu[{index}].{leaf}");
        let gpu = machine.gpu_at(entry.gpu).map_err(|what| (key("gpu"), what))?;
        if !gpu.written.vgpu_host {
            return refuse(key("gpu"), "the GPU hosts no vGPUs: set its key vgpu_host");
        }
        if entry.memory.0 > gpu.model.total {
            return refuse(key("memory"), format!("is more than the {} bytes of the GPU", gpu.model.total));
        }
        if entry.vm.is_empty() || entry.vm.len() > LONGEST_VM || entry.vm.contains('\0') {
            return refuse(key("vm"), format!("must have 1 to {LONGEST_VM} bytes, none of them zero"));
        }
        if machine.vgpus.len() == MOST {
            return refuse(key("gpu"), format!("more than {MOST} vGPUs"));
        }
        machine.vgpus.push(entry.clone());
    }
    Ok(())
}
