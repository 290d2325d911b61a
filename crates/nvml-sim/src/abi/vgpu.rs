//! The vGPUs that a GPU hosts. Not recorded: simulated after `nvml.h`.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::{get, put, put_text};
use super::{Sim, device_calls, pass, system_calls};
use crate::code::{Answer, Code};
use crate::fault::Target;
use crate::scenario::grammar::Vgpu;

/// The id of the first vGPU. Real ids are as large.
const FIRST: u32 = 3_251_634_176;
/// The length of a UUID.
const UUID: usize = 36;

/// The id of the vGPU at an index.
fn id(index: usize) -> u32 {
    FIRST.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX))
}

/// The vGPU with an id, if the faults of its GPU let the call pass.
///
/// # Errors
/// `INVALID_ARGUMENT` for 0; `NOT_FOUND` for an id of no vGPU.
fn vgpu(sim: &Sim, wanted: sys::nvmlVgpuInstance_t) -> Answer<&'static Vgpu> {
    if wanted == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut all = sim.machine.vgpus.iter().enumerate();
    let (_, vgpu) = all.find(|(index, _)| id(*index) == wanted).ok_or(Code::NOT_FOUND)?;
    pass(sim.machine, sim.call, Target::gpu(vgpu.gpu), sim.now)?;
    Ok(vgpu)
}

device_calls! {
    fn nvmlDeviceGetActiveVgpus(count: *mut c_uint, instances: *mut sys::nvmlVgpuInstance_t) |on| {
        on.whole()?;
        if !on.gpu.written.vgpu_host {
            return Err(Code::NOT_SUPPORTED);
        }
        let room = get(count)?;
        if room > 0 && instances.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let all = on.machine.vgpus.iter().enumerate().filter(|(_, vgpu)| vgpu.gpu == on.gpu.index);
        let ids: Vec<_> = all.map(|(index, _)| id(index)).collect();
        put(count, ids.len() as c_uint)?;
        if ids.len() > room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        ids.iter().enumerate().for_each(|(at, id)| instances.add(at).write(*id));
        Ok(())
    }
}

system_calls! {
    fn nvmlVgpuInstanceGetVmID(
        instance: sys::nvmlVgpuInstance_t,
        name: *mut c_char,
        size: c_uint,
        kind: *mut sys::nvmlVgpuVmIdType_t,
    ) |sim| {
        let vgpu = vgpu(sim, instance)?;
        let is_uuid = vgpu.vm.len() == UUID && vgpu.vm.contains('-');
        put(kind, if is_uuid { sys::nvmlVgpuVmIdType_NVML_VGPU_VM_ID_UUID } else { sys::nvmlVgpuVmIdType_NVML_VGPU_VM_ID_DOMAIN_ID })?;
        put_text(name, size, vgpu.vm.as_bytes())
    }
    fn nvmlVgpuInstanceGetFbUsage(instance: sys::nvmlVgpuInstance_t, bytes: *mut c_ulonglong) |sim| {
        put(bytes, vgpu(sim, instance)?.memory.0)
    }
}
