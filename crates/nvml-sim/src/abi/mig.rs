//! MIG: whether it is on, its devices, and their profiles.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::handles::handle;
use super::output::{chars, check_version, put, struct_version};
use super::{On, absent, device_calls};
use crate::catalog::Model;
use crate::catalog::mig::Profile;
use crate::code::{Answer, Code};

/// The maximum number of MIG devices that NVML reports for every GPU that supports MIG.
const MOST_DEVICES: c_uint = 7;

/// The number of MIG devices that the GPU can have now.
pub(super) fn most_devices(on: &On) -> c_uint {
    if on.gpu.mig.is_some() { MOST_DEVICES } else { 0 }
}

fn profile(model: &Model, number: c_uint) -> Answer<&'static Profile> {
    // As recorded: the call succeeds with MIG off too.
    match model.mig {
        [] => Err(Code::NOT_SUPPORTED),
        profiles => profiles.iter().find(|profile| profile.number == number).ok_or(Code::NOT_SUPPORTED),
    }
}

fn info(of: &Profile) -> sys::nvmlGpuInstanceProfileInfo_t {
    sys::nvmlGpuInstanceProfileInfo_t {
        id: of.id,
        isP2pSupported: 0,
        sliceCount: of.compute,
        instanceCount: of.fits,
        multiprocessorCount: of.multiprocessors,
        copyEngineCount: of.memory_slices.min(of.compute),
        decoderCount: of.decoders,
        encoderCount: 0,
        jpegCount: of.decoders,
        ofaCount: c_uint::from(of.compute == 7),
        memorySizeMB: of.memory >> 20,
    }
}

device_calls! {
    fn nvmlDeviceGetMigMode(current: *mut c_uint, pending: *mut c_uint) |on| {
        on.whole()?;
        if on.gpu.model.mig.is_empty() {
            return Err(Code::NOT_SUPPORTED);
        }
        let mode = c_uint::from(on.gpu.mig.is_some());
        put(current, mode)?;
        put(pending, mode)
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(index: c_uint, device: *mut sys::nvmlDevice_t) |on| {
        on.whole()?;
        if on.gpu.mig.is_some() && index >= MOST_DEVICES {
            return Err(Code::INVALID_ARGUMENT);
        }
        let found = on.gpu.mig.as_ref().and_then(|mig| mig.get(index as usize)?.as_ref()).ok_or(Code::NOT_FOUND)?;
        if absent(on.machine, on.gpu.index, Some(found.index), on.now) {
            return Err(Code::NOT_FOUND);
        }
        put(device, handle(on.gpu.index, Some(found.index)))
    }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parent: *mut sys::nvmlDevice_t) |on| {
        on.instance.ok_or(Code::INVALID_ARGUMENT)?;
        put(parent, handle(on.gpu.index, None))
    }
    fn nvmlDeviceGetAttributes_v2(attributes: *mut sys::nvmlDeviceAttributes_t) |on| {
        let of = on.instance.ok_or(Code::NOT_SUPPORTED)?.profile;
        put(attributes, sys::nvmlDeviceAttributes_t {
            multiprocessorCount: of.multiprocessors,
            sharedCopyEngineCount: of.memory_slices.min(of.compute),
            sharedDecoderCount: of.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: of.decoders,
            sharedOfaCount: c_uint::from(of.compute == 7),
            gpuInstanceSliceCount: of.compute,
            computeInstanceSliceCount: of.compute,
            memorySizeMB: of.memory >> 20,
        })
    }
    fn nvmlDeviceGetGpuInstanceProfileInfo(number: c_uint, to: *mut sys::nvmlGpuInstanceProfileInfo_t) |on| {
        on.whole()?;
        put(to, info(profile(on.gpu.model, number)?))
    }
    fn nvmlDeviceGetGpuInstanceProfileInfoV(number: c_uint, to: *mut sys::nvmlGpuInstanceProfileInfo_v2_t) |on| {
        on.whole()?;
        check_version(to, 2)?;
        let of = profile(on.gpu.model, number)?;
        let plain = info(of);
        put(to, sys::nvmlGpuInstanceProfileInfo_v2_t {
            version: struct_version::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2),
            id: plain.id,
            isP2pSupported: plain.isP2pSupported,
            sliceCount: plain.sliceCount,
            instanceCount: plain.instanceCount,
            multiprocessorCount: plain.multiprocessorCount,
            copyEngineCount: plain.copyEngineCount,
            decoderCount: plain.decoderCount,
            encoderCount: plain.encoderCount,
            jpegCount: plain.jpegCount,
            ofaCount: plain.ofaCount,
            memorySizeMB: plain.memorySizeMB,
            name: chars(&format!("MIG {}", of.name)),
        })
    }
}
