//! Device handles: opaque words that identify a GPU or one of its MIG devices. They are stable while the library is
//! loaded.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::output::put;
use super::{Sim, absent, pass, system_calls};
use crate::clock::Nanos;
use crate::code::{Answer, Code};
use crate::fault::Target;
use crate::machine::{Gpu, Instance, Machine};

/// The prefix of every handle; the GPU's index and the MIG device's number follow it.
const MARK: usize = 0x6E76_0000;

/// The handle of a GPU or of one of its MIG devices.
pub(super) fn handle(gpu: u32, instance: Option<u32>) -> nvmlDevice_t {
    let slot = instance.map_or(0, |index| index as usize + 1);
    std::ptr::without_provenance_mut(MARK | (gpu as usize) << 8 | slot << 4)
}

/// Resolves a handle.
///
/// # Errors
/// `INVALID_ARGUMENT` for anything that is not a handle of this library.
pub(super) fn find(
    machine: &'static Machine,
    handle: nvmlDevice_t,
) -> Answer<(&'static Gpu, Option<&'static Instance>)> {
    let word = handle.addr();
    if word & !0xFFF0 != MARK {
        return Err(Code::INVALID_ARGUMENT);
    }
    let gpu = machine.gpus.get(word >> 8 & 0xFF).ok_or(Code::INVALID_ARGUMENT)?;
    let instance = match word >> 4 & 0xF {
        0 => None,
        slot => Some(gpu.mig.as_ref().and_then(|mig| mig.get(slot - 1)?.as_ref()).ok_or(Code::INVALID_ARGUMENT)?),
    };
    Ok((gpu, instance))
}

/// The GPUs that are present now, in NVML's order.
pub(super) fn present(machine: &'static Machine, now: Nanos) -> impl Iterator<Item = &'static Gpu> {
    machine.gpus.iter().filter(move |gpu| machine.faults.is_empty() || !absent(machine, gpu.index, None, now))
}

unsafe fn text<'t>(of: *const c_char) -> Answer<&'t [u8]> {
    if of.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL; the caller of the C function passes a C string.
    Ok(unsafe { CStr::from_ptr(of) }.to_bytes())
}

/// Returns a GPU's handle to the caller; a fault that affects the GPU affects this function too.
unsafe fn hand_out(sim: &Sim, gpu: &Gpu, instance: Option<u32>, to: *mut nvmlDevice_t) -> Answer {
    pass(sim.machine, sim.call, Target::gpu(gpu.index), sim.now)?;
    // SAFETY: the caller guarantees that its pointer is valid.
    unsafe { put(to, handle(gpu.index, instance)) }
}

fn by_index(sim: &Sim, index: c_uint) -> Answer<&'static Gpu> {
    present(sim.machine, sim.now).nth(index as usize).ok_or(Code::INVALID_ARGUMENT)
}

/// `00000000:0A:00.0`, as NVML writes it; the domain may have four digits instead of eight, and case does not matter.
fn by_bus_id(sim: &Sim, id: &[u8]) -> Answer<&'static Gpu> {
    let id = id.to_ascii_uppercase();
    let written = |gpu: &Gpu| {
        let full = bus_id(gpu);
        full.as_bytes() == id || full.as_bytes()[4..] == id
    };
    present(sim.machine, sim.now).find(|gpu| written(gpu)).ok_or(Code::NOT_FOUND)
}

/// The PCI bus id as NVML writes it.
pub(super) fn bus_id(gpu: &Gpu) -> String {
    format!("00000000:{:02X}:00.0", gpu.bus)
}

fn by_uuid(sim: &Sim, uuid: &[u8]) -> Answer<(&'static Gpu, Option<u32>)> {
    let found = present(sim.machine, sim.now).find_map(|gpu| {
        let mut instances = gpu.mig.iter().flatten().flatten();
        if gpu.uuid.as_bytes() == uuid {
            Some((gpu, None))
        } else {
            instances.find(|i| i.uuid.as_bytes() == uuid).map(|i| (gpu, Some(i.index)))
        }
    });
    found.ok_or(Code::NOT_FOUND)
}

system_calls! {
    fn nvmlDeviceGetCount(count: *mut c_uint) = nvmlDeviceGetCount_v2 |sim| {
        put(count, present(sim.machine, sim.now).count() as c_uint)
    }
    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t) = nvmlDeviceGetHandleByIndex_v2 |sim| {
        hand_out(sim, by_index(sim, index)?, None, device)
    }
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) |sim| {
        let (gpu, instance) = by_uuid(sim, text(uuid)?)?;
        hand_out(sim, gpu, instance, device)
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut nvmlDevice_t) |sim| {
        hand_out(sim, by_bus_id(sim, text(id)?)?, None, device)
    }
}
