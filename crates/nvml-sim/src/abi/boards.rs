//! The setup of a board, which does not change while the library is open.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as sys;

use super::device_calls;
use super::output::{check_version, put, put_text, struct_version};
use crate::code::Code;

device_calls! {
    /// Recorded on an H200: no addressing mode.
    fn nvmlDeviceGetAddressingMode(mode: *mut sys::nvmlDeviceAddressingMode_t) |on| {
        check_version(mode, 1)?;
        let version = struct_version::<sys::nvmlDeviceAddressingMode_t>(1);
        let plausible = on.gpu.written.addressing_mode.unwrap_or(on.gpu.model.addressing_mode);
        let value = on.implausible().map_or(plausible as c_uint, |_| c_uint::MAX);
        put(mode, sys::nvmlDeviceAddressingMode_t { version, value })
    }
    fn nvmlDeviceGetDriverModel(current: *mut c_uint, pending: *mut c_uint) = nvmlDeviceGetDriverModel_v2 |on| {
        Err(Code::NOT_SUPPORTED)
    }
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
