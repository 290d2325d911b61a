//! The driver's own memory limits for cgroups. NVML declares them since 13.5. Not recorded: simulated after `nvml.h`.

use std::ffi::{CStr, c_char, c_ulonglong};

use super::output::{get, put};
use super::{On, device_calls};
use crate::code::{Answer, Code};

/// NVML's `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
const NONE: u64 = u64::MAX;
/// Where systems mount the hierarchy of cgroups.
const MOUNT: &[u8] = b"/sys/fs/cgroup";

/// `nvmlGetMemoryLimits_v1_t`. The bindings are older than the struct.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GetMemoryLimits {
    /// In: the path of the cgroup below `/sys/fs/cgroup`.
    pub name_space: *const c_char,
    /// Out: bytes, like the others.
    pub soft_limit: c_ulonglong,
    /// Out.
    pub hard_limit: c_ulonglong,
    /// Out.
    pub current_used: c_ulonglong,
}

/// The limits of a cgroup.
///
/// # Errors
/// `OPERATING_SYSTEM` if no live process is in the cgroup or below it, as if it did not exist; `NOT_FOUND` if it has no
/// limits on this GPU.
fn limits(on: &On, path: &[u8]) -> Answer<(u64, u64, u64)> {
    let (machine, now) = (on.machine, on.now);
    let cgroup = path.strip_prefix(MOUNT).ok_or(Code::OPERATING_SYSTEM)?;
    if !machine.processes.iter().any(|process| process.is_in(cgroup) && process.life(now).is_some()) {
        return Err(Code::OPERATING_SYSTEM);
    }
    let set = machine.memory_limits.iter().find(|limit| limit.gpu == on.gpu.index && limit.cgroup.0 == cgroup);
    let set = set.ok_or(Code::NOT_FOUND)?;
    let mut used = 0;
    on.gpu.load.each(&machine.processes, now, |process, _, held| used += if process.is_in(cgroup) { held } else { 0 });
    Ok((set.soft.map_or(0, |size| size.0), set.hard.map_or(NONE, |size| size.0), used))
}

device_calls! {
    fn nvmlDeviceGetMemoryLimits_v1(limits: *mut GetMemoryLimits) |on| {
        on.whole()?;
        let asked = get(limits)?;
        if asked.name_space.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let (soft_limit, hard_limit, current_used) = self::limits(on, CStr::from_ptr(asked.name_space).to_bytes())?;
        put(limits, GetMemoryLimits { soft_limit, hard_limit, current_used, ..asked })
    }
}
