//! The calls that report the health of a GPU.

use std::ffi::c_int;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlDeviceAddressingMode_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN, nvmlRowRemapperHistogramValues_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG as UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use super::{Handle, call};
use crate::faults::Reason;
use crate::nvml::error::Error;

pub(in crate::nvml) const FIELD_CALL: &str = "nvmlDeviceGetFieldValues";

/// One unsigned field of `nvmlDeviceGetFieldValues`, read without an allocation.
///
/// # Errors
/// `NOT_SUPPORTED` if the driver does not have the field; [`crate::faults::Reason::Implausible`] if its value is of
/// another type or all ones.
pub(in crate::nvml) fn field(nvml: &Nvml, handle: Handle, id: u32) -> Result<u64, Error> {
    let [field] = fields(nvml, handle, [(id, 0)])?;
    field
}

/// Several unsigned fields, each with its scope, such as the number of a link, read by one call of
/// `nvmlDeviceGetFieldValues`: each has an answer of its own, with the errors of [`field`].
///
/// # Errors
/// Those of the whole call.
pub(in crate::nvml) fn fields<const N: usize>(
    nvml: &Nvml,
    handle: Handle,
    ids: [(u32, u32); N],
) -> Result<[Result<u64, Error>; N], Error> {
    let mut read = ids.map(|(id, scope)| nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: UNSIGNED_INT,
        // 0 would be a successful result with the value 0 if the driver left the field as it is.
        nvmlReturn: nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        value: nvmlValue_t { ullVal: 0 },
    });
    call(FIELD_CALL, || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetFieldValues.as_ref())?;
        // SAFETY: the handle is valid and `read` has as many structs of the type that the call fills.
        nvml_try(unsafe { sym(handle.0, N as c_int, read.as_mut_ptr()) })
    })?;
    Ok(read.map(|field| unsigned(&field)))
}

/// The value of a field that the driver has filled.
fn unsigned(field: &nvmlFieldValue_t) -> Result<u64, Error> {
    call(FIELD_CALL, || match nvml_try(field.nvmlReturn) {
        // What a driver returns for the number of a field that it does not have (recorded).
        Err(NvmlError::InvalidArg) => Err(NvmlError::NotSupported),
        answer => answer,
    })?;
    // SAFETY: `valueType` names the member that the driver wrote; all members are integers that may have any bits.
    let value = unsafe {
        match field.valueType {
            UNSIGNED_INT => Ok(field.value.uiVal.into()),
            UNSIGNED_LONG => Ok(field.value.ulVal),
            UNSIGNED_LONG_LONG => Ok(field.value.ullVal),
            other => Err(Error::implausible(FIELD_CALL, format!("field {} has the type {other}", field.fieldId))),
        }
    }?;
    if value == u64::MAX {
        return Err(Error::implausible(FIELD_CALL, format!("field {} is all ones", field.fieldId)));
    }
    Ok(value)
}

/// `nvmlDeviceGetRowRemapperHistogram`: the number of memory banks for each amount of spare rows left, from all to none.
pub(in crate::nvml) fn row_remapper_histogram(nvml: &Nvml, handle: Handle) -> Result<[u32; 5], Error> {
    let mut read = nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    call("nvmlDeviceGetRowRemapperHistogram", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetRowRemapperHistogram.as_ref())?;
        // SAFETY: the handle is valid and `read` is the struct that the call fills.
        nvml_try(unsafe { sym(handle.0, &mut read) })
    })?;
    Ok([read.max, read.high, read.partial, read.low, read.none])
}

/// `nvmlDeviceGetAddressingMode`: NVML's code of the mode.
pub(in crate::nvml) fn addressing_mode(nvml: &Nvml, handle: Handle) -> Result<u32, Error> {
    // `NVML_STRUCT_VERSION` of the struct's first version: its size, and the version in the highest byte.
    const VERSION: u32 = size_of::<nvmlDeviceAddressingMode_t>() as u32 | 1 << 24;
    let mut read = nvmlDeviceAddressingMode_t { version: VERSION, value: 0 };
    call("nvmlDeviceGetAddressingMode", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetAddressingMode.as_ref())?;
        // SAFETY: the handle is valid and `read` is the struct that the call fills, with its version.
        nvml_try(unsafe { sym(handle.0, &mut read) })
    })?;
    Ok(read.value)
}

/// `nvmlDeviceGetModuleId`: 0 for a GPU that is not on a baseboard.
pub(in crate::nvml) fn module_id(nvml: &Nvml, handle: Handle) -> Result<u32, Error> {
    let mut id = 0;
    call("nvmlDeviceGetModuleId", || {
        let sym = nvml_sym(nvml.lib().nvmlDeviceGetModuleId.as_ref())?;
        // SAFETY: the handle is valid and the pointer points to an integer of the right type.
        nvml_try(unsafe { sym(handle.0, &mut id) })
    })?;
    Ok(id)
}

/// `nvmlDeviceGetGpuFabricInfoV`, with the newest version of its struct that the driver knows.
pub(in crate::nvml) fn fabric(nvml: &Nvml, handle: Handle) -> Result<RawFabric, Error> {
    const NAME: &str = "nvmlDeviceGetGpuFabricInfoV";
    let sym = || nvml_sym(nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref());
    let mut read = nvmlGpuFabricInfo_v3_t {
        version: size_of::<nvmlGpuFabricInfo_v3_t>() as u32 | 3 << 24,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the handle is valid and `read` is the struct of the version that it names.
    match call(NAME, || nvml_try(unsafe { sym()?(handle.0, &mut read) })) {
        Err(error) if error.reason() == Reason::ArgumentVersionMismatch => {
            read.version = size_of::<nvmlGpuFabricInfo_v2_t>() as u32 | 2 << 24;
            // SAFETY: as above; the second version is the beginning of the third one (nvml.h), which has more room.
            call(NAME, || nvml_try(unsafe { sym()?(handle.0, &mut read) }))?;
        }
        answer => answer?,
    }
    Ok(RawFabric {
        cluster: read.clusterUuid,
        clique: read.cliqueId,
        state: read.state,
        status: read.status,
        health: read.healthMask,
        summary: read.healthSummary,
    })
}

/// What the driver writes about the fabric.
#[derive(Debug, Clone, Copy)]
pub(in crate::nvml) struct RawFabric {
    pub(in crate::nvml) cluster: [u8; 16],
    pub(in crate::nvml) clique: u32,
    /// `NVML_GPU_FABRIC_STATE_*`.
    pub(in crate::nvml) state: u8,
    /// The `nvmlReturn_t` of a registration that is completed.
    pub(in crate::nvml) status: u32,
    /// The bits of `NVML_GPU_FABRIC_HEALTH_MASK_*`.
    pub(in crate::nvml) health: u32,
    /// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`; 0, not supported, before the third version.
    pub(in crate::nvml) summary: u8,
}
