//! The driver's own memory limits in a scenario or control file.

use super::{Refusal, SINCE_CUDA, refuse};
use crate::machine::Machine;
use crate::scenario::grammar;
use crate::scenario::units::Size;

/// Adds the limits. Those of a control file replace the ones that the scenario sets for the same GPU and cgroup.
pub(super) fn add(machine: &mut Machine, entries: &[grammar::MemoryLimit]) -> Result<(), Refusal> {
    for (index, entry) in entries.iter().enumerate() {
        let key = |leaf: &str| format!("memory_limit[{index}].{leaf}");
        if machine.cuda < SINCE_CUDA {
            return refuse(
                key("gpu"),
                format!("the driver has no such limits: driver.cuda must be {SINCE_CUDA} or more"),
            );
        }
        let gpu = machine.gpu_at(entry.gpu).map_err(|what| (key("gpu"), what))?;
        for (leaf, size) in [("hard", entry.hard), ("soft", entry.soft)] {
            if size.is_some_and(|Size(bytes)| bytes > gpu.model.total) {
                return refuse(key(leaf), format!("is more than the {} bytes of the GPU", gpu.model.total));
            }
        }
        if entry.soft.zip(entry.hard).is_some_and(|(Size(soft), Size(hard))| soft > hard) {
            return refuse(key("soft"), "is above the hard limit");
        }
        let cgroup = &entry.cgroup.0;
        if !cgroup.starts_with(b"/") || cgroup.contains(&0) {
            return refuse(key("cgroup"), "must be a path that begins with `/`");
        }
        if entries[..index].iter().any(|other| other.gpu == entry.gpu && other.cgroup == entry.cgroup) {
            return refuse(key("cgroup"), "is given twice");
        }
        machine.memory_limits.retain(|other| (other.gpu, &other.cgroup) != (entry.gpu, &entry.cgroup));
        machine.memory_limits.push(entry.clone());
    }
    Ok(())
}
