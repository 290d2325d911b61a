//! The identity of a GPU or MIG device.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use super::handles::{bus_id, present};
use super::output::{chars, check_version, put, put_text, struct_version};
use crate::code::{Answer, Code};
use crate::machine::Gpu;

fn pci(gpu: &Gpu, with_subsystem: bool) -> sys::nvmlPciInfo_t {
    sys::nvmlPciInfo_t {
        busIdLegacy: chars(&bus_id(gpu)[4..]),
        domain: 0,
        bus: gpu.bus,
        device: 0,
        pciDeviceId: gpu.model.pci_device,
        pciSubSystemId: if with_subsystem { gpu.model.pci_subsystem } else { 0 },
        busId: chars(&bus_id(gpu)),
    }
}

/// Writes a string that not every model has.
unsafe fn put_known(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    if text.is_empty() {
        return Err(Code::NOT_SUPPORTED);
    }
    // SAFETY: the caller guarantees that its pointer is valid.
    unsafe { put_text(to, length, text.as_bytes()) }
}

device_calls! {
    fn nvmlDeviceGetIndex(index: *mut c_uint) |on| {
        let position = present(on.machine, on.now).position(|gpu| gpu.index == on.gpu.index);
        let position = position.ok_or(Code::GPU_IS_LOST)? as c_uint;
        put(index, on.instance.map_or(position, |instance| instance.index))
    }
    fn nvmlDeviceGetName(name: *mut c_char, length: c_uint) |on| {
        match on.instance {
            None => put_text(name, length, on.gpu.model.name.as_bytes()),
            Some(i) => put_text(name, length, format!("{} MIG {}", on.gpu.model.name, i.profile.name).as_bytes()),
        }
    }
    fn nvmlDeviceGetUUID(uuid: *mut c_char, length: c_uint) |on| {
        let Some(instance) = on.instance else { return put_text(uuid, length, on.gpu.uuid.as_bytes()) };
        let mut own = instance.uuid.clone().into_bytes();
        if on.is_recut() {
            own.iter_mut().rev().take(12).for_each(|digit| *digit = b'0' + *digit % 10);
        }
        put_text(uuid, length, &own)
    }
    fn nvmlDeviceGetSerial(serial: *mut c_char, length: c_uint) |on| {
        on.whole()?;
        put_known(serial, length, if on.gpu.model.part.is_empty() { "" } else { &on.gpu.serial })
    }
    fn nvmlDeviceGetBoardPartNumber(number: *mut c_char, length: c_uint) |on| {
        on.whole()?;
        put_known(number, length, on.gpu.model.part)
    }
    fn nvmlDeviceGetVbiosVersion(version: *mut c_char, length: c_uint) |on| {
        on.whole()?;
        put_known(version, length, on.gpu.model.vbios)
    }
    fn nvmlDeviceGetPciInfo(info: *mut sys::nvmlPciInfo_t) |on| { put(info, pci(on.gpu, false)) }
    fn nvmlDeviceGetPciInfo_v2(info: *mut sys::nvmlPciInfo_t) = nvmlDeviceGetPciInfo_v3 |on| {
        put(info, pci(on.gpu, true))
    }
    fn nvmlDeviceGetPciInfoExt(info: *mut sys::nvmlPciInfoExt_t) |on| {
        check_version(info, 1)?;
        put(info, sys::nvmlPciInfoExt_t {
            version: struct_version::<sys::nvmlPciInfoExt_t>(1),
            domain: 0,
            bus: on.gpu.bus,
            device: 0,
            pciDeviceId: on.gpu.model.pci_device,
            pciSubSystemId: on.gpu.model.pci_subsystem,
            // A 3D controller, in the display class.
            baseClass: 3,
            subClass: 2,
            busId: chars(&bus_id(on.gpu)),
        })
    }
    fn nvmlDeviceGetCudaComputeCapability(major: *mut c_int, minor: *mut c_int) |on| {
        put(major, on.gpu.model.capability.0)?;
        put(minor, on.gpu.model.capability.1)
    }
}
