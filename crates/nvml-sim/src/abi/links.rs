//! The PCIe link.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::output::put;
use super::{On, device_calls};
use crate::code::{Answer, Code};

/// Generation and width.
fn link(on: &On) -> Answer<(u32, u32)> {
    on.whole()?;
    on.gpu.model.pcie.ok_or(Code::NOT_SUPPORTED)
}

device_calls! {
    fn nvmlDeviceGetPcieReplayCounter(replays: *mut c_uint) |on| {
        link(on)?;
        put(replays, on.gpu.errors.pcie_replays)
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(generation: *mut c_uint) |on| { put(generation, link(on)?.0) }
    fn nvmlDeviceGetMaxPcieLinkGeneration(generation: *mut c_uint) |on| { put(generation, link(on)?.0) }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(generation: *mut c_uint) |on| { put(generation, link(on)?.0) }
    fn nvmlDeviceGetCurrPcieLinkWidth(width: *mut c_uint) |on| { put(width, link(on)?.1) }
    fn nvmlDeviceGetMaxPcieLinkWidth(width: *mut c_uint) |on| { put(width, link(on)?.1) }
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
