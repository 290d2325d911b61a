//! The memory limits that the driver keeps for cgroups, which NVML declares since 13.5. nvml-wrapper does not know the
//! call, so it is looked up by its name.

use std::ffi::{CStr, c_char, c_ulonglong};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use super::{Handle, call};
use crate::nvml::error::Error;

pub(in crate::nvml) const MEMORY_LIMITS_CALL: &str = "nvmlDeviceGetMemoryLimits_v1";

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct MemoryLimits {
    /// In: the full path of the cgroup.
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: there is no hard limit.
const NONE: c_ulonglong = c_ulonglong::MAX;

/// The hard limit of a cgroup on a GPU in bytes; `None` if it has none there. `path`: the full path of the cgroup.
///
/// # Errors
/// `FUNCTION_NOT_FOUND` if the library lacks the call; `NOT_SUPPORTED` if the GPU has no such limits;
/// `OPERATING_SYSTEM` if the path cannot be opened.
pub(in crate::nvml) fn hard_memory_limit(nvml: &Nvml, handle: Handle, path: &CStr) -> Result<Option<u64>, Error> {
    type Call = unsafe extern "C" fn(nvmlDevice_t, *mut MemoryLimits) -> nvmlReturn_t;
    let mut limits = MemoryLimits { name_space: path.as_ptr(), soft: 0, hard: NONE, used: 0 };
    let answer = call(MEMORY_LIMITS_CALL, || {
        // SAFETY: `Call` is the type that nvml.h declares for this version of the call.
        let sym = unsafe { nvml.lib().__library.get::<Call>(MEMORY_LIMITS_CALL.as_bytes()) };
        let sym = sym.map_err(|_| NvmlError::FunctionNotFound)?;
        // SAFETY: the handle is valid, `limits` is the struct that the call fills, and the string in it outlives the call.
        match nvml_try(unsafe { sym(handle.0, &mut limits) }) {
            Err(NvmlError::NotFound) => Ok(false),
            answer => answer.map(|()| true),
        }
    });
    Ok(answer?.then_some(limits.hard).filter(|&hard| hard != NONE))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_struct_is_laid_out_as_in_nvml_h() {
        assert_eq!(size_of::<MemoryLimits>(), 32);
        let offsets = [
            offset_of!(MemoryLimits, name_space),
            offset_of!(MemoryLimits, soft),
            offset_of!(MemoryLimits, hard),
            offset_of!(MemoryLimits, used),
        ];
        assert_eq!(offsets, [0, 8, 16, 24]);
    }
}
