//! The PCIe link, NVLinks, C2C links and the fabric.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::{check_version, put, struct_version};
use super::{On, device_calls};
use crate::clock::SECOND;
use crate::code::{Answer, Code};
use crate::scenario::grammar::{Fabric, Nvlink};
use crate::scenario::units::Size;

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

/// The first driver that has the third version of the struct about the fabric.
const THIRD_VERSION_SINCE: u32 = 570;

/// The NVLinks of a whole GPU that has any.
pub(super) fn nvlink(on: &On) -> Answer<&'static Nvlink> {
    on.whole()?;
    on.gpu.written.nvlink.as_ref().ok_or(Code::NOT_SUPPORTED)
}

/// How many there are.
pub(super) fn nvlinks(on: &On) -> Answer<u32> {
    let links = nvlink(on)?.links;
    Ok(on.implausible().map_or(links, |_| u32::MAX))
}

/// The errors of one kind that all links have together, or one link.
pub(super) fn nvlink_errors(on: &On, kind: usize, link: Option<u32>) -> Answer<u64> {
    let nvlink = nvlink(on)?;
    if nvlink.fifth || kind >= 4 {
        return Err(Code::NOT_SUPPORTED);
    }
    let of = nvlink.errors.iter().filter(|of| link.is_none_or(|link| of[0] == u64::from(link)));
    Ok(of.map(|of| of[kind + 1]).sum())
}

/// KiB since scenario time zero; 0 is sent, 1 received.
pub(super) fn nvlink_traffic(on: &On, direction: usize) -> Answer<u64> {
    let [sent, received] = nvlink(on)?.rate.unwrap_or([Size(0); 2]);
    let rate = [sent, received][direction].0;
    Ok((i128::from(rate) * i128::from(on.now.max(0)) / i128::from(SECOND) / 1024) as u64)
}

/// What the second and the third version of the struct have in common.
fn fabric(on: &On) -> Answer<Fabric> {
    on.whole()?;
    let fabric = on.gpu.written.fabric.ok_or(Code::NOT_SUPPORTED)?;
    Ok(Fabric { state: on.implausible().map_or(fabric.state, |_| u8::MAX), ..fabric })
}

device_calls! {
    fn nvmlDeviceGetNvLinkState(link: c_uint, state: *mut sys::nvmlEnableState_t) |on| {
        let nvlink = nvlink(on)?;
        if link >= nvlink.links {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(state, c_uint::from(!nvlink.down.contains(&link)))
    }
    fn nvmlDeviceGetNvLinkErrorCounter(link: c_uint, kind: sys::nvmlNvLinkErrorCounter_t, count: *mut c_ulonglong) |on| {
        if link >= nvlink(on)?.links {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(count, nvlink_errors(on, kind as usize, Some(link))?)
    }
    fn nvmlDeviceGetGpuFabricInfoV(info: *mut sys::nvmlGpuFabricInfoV_t) |on| {
        let third = on.machine.driver_major() >= THIRD_VERSION_SINCE && check_version(info, 3).is_ok();
        if !third {
            check_version(info.cast::<sys::nvmlGpuFabricInfo_v2_t>(), 2)?;
        }
        let Fabric { state, status, clique, health, summary } = fabric(on)?;
        let clusterUuid = std::array::from_fn(|at| at as u8 * 17);
        if third {
            let version = struct_version::<sys::nvmlGpuFabricInfo_v3_t>(3);
            return put(info, sys::nvmlGpuFabricInfo_v3_t {
                version, clusterUuid, status, cliqueId: clique, state, healthMask: health, healthSummary: summary,
            });
        }
        let version = struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2);
        put(info.cast(), sys::nvmlGpuFabricInfo_v2_t {
            version, clusterUuid, status, cliqueId: clique, state, healthMask: health,
        })
    }
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
