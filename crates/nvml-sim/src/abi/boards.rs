//! The parts and the setup of a board, neither of which changes while the library is open.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use super::output::{check_version, put, put_text, struct_version};
use crate::code::Code;

const DISABLED: sys::nvmlEnableState_t = sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED;
const ENABLED: sys::nvmlEnableState_t = sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED;

device_calls! {
    fn nvmlDeviceGetNumGpuCores(cores: *mut c_uint) |on| {
        on.uncut()?;
        put(cores, on.gpu.model.cores)
    }
    fn nvmlDeviceGetMemoryBusWidth(width: *mut c_uint) |on| {
        on.whole()?;
        put(width, on.gpu.model.bus_width)
    }
    fn nvmlDeviceGetBusType(kind: *mut c_uint) |on| {
        put(kind, if on.gpu.model.pcie.is_some() { sys::NVML_BUS_TYPE_PCIE } else { sys::NVML_BUS_TYPE_UNKNOWN })
    }
    fn nvmlDeviceGetPersistenceMode(mode: *mut sys::nvmlEnableState_t) |on| {
        on.whole()?;
        put(mode, ENABLED)
    }
    fn nvmlDeviceGetComputeMode(mode: *mut sys::nvmlComputeMode_t) |on| {
        put(mode, sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT)
    }
    fn nvmlDeviceGetDisplayActive(state: *mut sys::nvmlEnableState_t) |on| {
        on.whole()?;
        put(state, DISABLED)
    }
    fn nvmlDeviceGetDisplayMode(state: *mut sys::nvmlEnableState_t) |on| {
        on.whole()?;
        put(state, ENABLED)
    }
    fn nvmlDeviceGetModuleId(id: *mut c_uint) |on| {
        on.whole()?;
        put(id, on.gpu.module_id)
    }
    /// Recorded on an H200: no addressing mode.
    fn nvmlDeviceGetAddressingMode(mode: *mut sys::nvmlDeviceAddressingMode_t) |on| {
        check_version(mode, 1)?;
        let version = struct_version::<sys::nvmlDeviceAddressingMode_t>(1);
        let value = on.implausible().map_or(on.gpu.addressing_mode as c_uint, |_| c_uint::MAX);
        put(mode, sys::nvmlDeviceAddressingMode_t { version, value })
    }
    fn nvmlDeviceGetNumaNodeId(node: *mut c_uint) |on| { Err(Code::NOT_SUPPORTED) }
    fn nvmlDeviceGetDriverModel(current: *mut c_uint, pending: *mut c_uint) |on| { Err(Code::NOT_SUPPORTED) }
    fn nvmlDeviceGetDriverModel_v2(current: *mut c_uint, pending: *mut c_uint) |on| { Err(Code::NOT_SUPPORTED) }
    fn nvmlDeviceGetGspFirmwareVersion(version: *mut c_char) |on| {
        on.whole()?;
        put_text(version, sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, on.machine.driver.as_bytes())
    }
    fn nvmlDeviceGetGspFirmwareMode(enabled: *mut c_uint, default: *mut c_uint) |on| {
        on.whole()?;
        put(enabled, 1)?;
        put(default, 1)
    }
}
