//! The driver's own memory limits in a scenario or control file.

use super::{Refusal, refuse};
use crate::machine::Machine;
use crate::machine::limits::{MemoryLimit, SINCE_CUDA};
use crate::scenario::grammar;

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
        let (hard, soft) = (entry.hard.map(|size| size.0), entry.soft.map(|size| size.0));
        for (leaf, bytes) in [("hard", hard), ("soft", soft)] {
            if bytes.is_some_and(|bytes| bytes > gpu.model.total) {
                return refuse(key(leaf), format!("is more than the {} bytes of the GPU", gpu.model.total));
            }
        }
        if soft.zip(hard).is_some_and(|(soft, hard)| soft > hard) {
            return refuse(key("soft"), "is above the hard limit");
        }
        let cgroup = entry.cgroup.0.clone();
        if !cgroup.starts_with(b"/") || cgroup.contains(&0) {
            return refuse(key("cgroup"), "must be a path that begins with `/`");
        }
        if entries[..index].iter().any(|other| other.gpu == entry.gpu && other.cgroup == entry.cgroup) {
            return refuse(key("cgroup"), "is given twice");
        }
        let limit = MemoryLimit { gpu: entry.gpu, cgroup, hard, soft };
        machine.memory_limits.retain(|other| (other.gpu, &other.cgroup) != (limit.gpu, &limit.cgroup));
        machine.memory_limits.push(limit);
    }
    Ok(())
}
