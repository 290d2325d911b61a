//! The PCIe link.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::output::put;
use super::{On, device_calls};
use crate::code::{Answer, Code};

/// The generation and width that the GPU allows.
pub(super) fn of_gpu(on: &On) -> Answer<(u32, u32)> {
    on.whole()?;
    on.gpu.model.pcie.ok_or(Code::NOT_SUPPORTED)
}

/// The generation and width that the GPU and the machine allow.
pub(super) fn most(on: &On) -> Answer<(u32, u32)> {
    let (generation, width) = of_gpu(on)?;
    let link = on.gpu.written.link;
    Ok((link.max_generation.unwrap_or(generation), link.max_width.unwrap_or(width)))
}

/// Generation and width now. A board that lowers its performance state when it is idle lowers the generation, too.
pub(super) fn link(on: &On) -> Answer<(u32, u32)> {
    let (generation, width) = most(on)?;
    let idle = on.machine.activity(on.gpu, None, on.now).processes == 0;
    let link = on.gpu.written.link;
    let generation = if idle && on.gpu.model.drops_state { 1 } else { link.generation.unwrap_or(generation) };
    Ok((generation, link.width.unwrap_or(width)))
}

device_calls! {
    /// KiB a second: proportional to the GPU's utilization, up to a tenth of what the link can carry.
    fn nvmlDeviceGetPcieThroughput(counter: sys::nvmlPcieUtilCounter_t, kib: *mut c_uint) |on| {
        let (generation, _) = link(on)?;
        if counter >= sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT {
            return Err(Code::INVALID_ARGUMENT);
        }
        // 16 lanes of PCIe 5.0 carry 63 GB/s; those of each earlier generation carry half as much as the next one's.
        let full = 61_500_000.0 / f64::from(32_u32 >> generation.min(5));
        let busy = on.machine.activity(on.gpu, None, on.now).busy;
        put(kib, 600 + (full * 0.1 * busy / f64::from(1 + counter)) as c_uint)
    }
}
