//! Memory errors: ECC, remapped rows, retired pages.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::{get, put};
use super::{On, device_calls};
use crate::catalog::Ecc;
use crate::code::{Answer, Code};

/// Errors of one kind; the simulator does not distinguish volatile from aggregate counts.
fn ecc_errors(on: &On, kind: sys::nvmlMemoryErrorType_t, counter: sys::nvmlEccCounterType_t) -> Answer<u64> {
    on.whole()?;
    if on.gpu.model.ecc != Ecc::On {
        return Err(Code::NOT_SUPPORTED);
    }
    if counter >= sys::nvmlEccCounterType_enum_NVML_ECC_COUNTER_TYPE_COUNT {
        return Err(Code::INVALID_ARGUMENT);
    }
    match kind {
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => Ok(on.gpu.written.errors.ecc_corrected),
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => Ok(on.gpu.written.errors.ecc_uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Whether ECC is on.
pub(super) fn ecc_mode(on: &On) -> Answer<sys::nvmlEnableState_t> {
    on.whole()?;
    match on.gpu.model.ecc {
        Ecc::On => Ok(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED),
        Ecc::Off => Ok(sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED),
        Ecc::Absent => Err(Code::NOT_SUPPORTED),
    }
}

/// Refuses a GPU that does not remap rows.
pub(super) fn remaps(on: &On) -> Answer {
    on.whole()?;
    let has_rows = on.gpu.model.remap_banks > 0 && on.gpu.written.errors.retired_pages.is_none();
    if has_rows { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// The number of pages retired for a given cause.
pub(super) fn retired(on: &On, cause: sys::nvmlPageRetirementCause_t) -> Answer<c_uint> {
    on.whole()?;
    let pages = on.gpu.written.errors.retired_pages.ok_or(Code::NOT_SUPPORTED)?;
    pages.get(cause as usize).copied().ok_or(Code::INVALID_ARGUMENT)
}

/// Writes the pages' addresses and, if requested, the times.
unsafe fn put_pages(
    on: &On,
    cause: sys::nvmlPageRetirementCause_t,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    times: Option<*mut c_ulonglong>,
) -> Answer {
    let pages = retired(on, cause)?;
    // SAFETY: the caller guarantees that its pointers are valid and have room for `count` entries.
    unsafe {
        let room = get(count)?;
        put(count, pages)?;
        if room < pages {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for page in 0..pages {
            put(addresses.wrapping_add(page as usize), c_ulonglong::from(page + 1) << 16)?;
            if let Some(times) = times {
                put(times.wrapping_add(page as usize), 1_600_000_000)?;
            }
        }
    }
    Ok(())
}

device_calls! {
    fn nvmlDeviceGetEccMode(current: *mut sys::nvmlEnableState_t, pending: *mut sys::nvmlEnableState_t) |on| {
        let mode = ecc_mode(on)?;
        put(current, mode)?;
        put(pending, mode)
    }
    fn nvmlDeviceGetTotalEccErrors(
        kind: sys::nvmlMemoryErrorType_t,
        counter: sys::nvmlEccCounterType_t,
        errors: *mut c_ulonglong,
    ) |on| {
        put(errors, ecc_errors(on, kind, counter)?)
    }
    fn nvmlDeviceGetDetailedEccErrors(
        kind: sys::nvmlMemoryErrorType_t,
        counter: sys::nvmlEccCounterType_t,
        errors: *mut sys::nvmlEccErrorCounts_t,
    ) |on| {
        let deviceMemory = ecc_errors(on, kind, counter)?;
        put(errors, sys::nvmlEccErrorCounts_t { l1Cache: 0, l2Cache: 0, deviceMemory, registerFile: 0 })
    }
    /// Only errors in device memory and SRAM are counted (recorded).
    fn nvmlDeviceGetMemoryErrorCounter(
        kind: sys::nvmlMemoryErrorType_t,
        counter: sys::nvmlEccCounterType_t,
        place: sys::nvmlMemoryLocation_t,
        errors: *mut c_ulonglong,
    ) |on| {
        let counted = ecc_errors(on, kind, counter)?;
        match place {
            sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM => put(errors, counted),
            sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM => put(errors, 0),
            place if place < sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }
    fn nvmlDeviceGetRemappedRows(
        correctable: *mut c_uint,
        uncorrectable: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint,
    ) |on| {
        remaps(on)?;
        let errors = &on.gpu.written.errors;
        put(correctable, errors.remapped_correctable)?;
        put(uncorrectable, errors.remapped_uncorrectable)?;
        put(pending, c_uint::from(errors.remap_pending))?;
        put(failed, c_uint::from(errors.remap_failed))
    }
    fn nvmlDeviceGetRowRemapperHistogram(values: *mut sys::nvmlRowRemapperHistogramValues_t) |on| {
        remaps(on)?;
        let banks = on.gpu.written.errors.remap_banks;
        let [max, high, partial, low, none] = banks.unwrap_or([on.gpu.model.remap_banks, 0, 0, 0, 0]);
        put(values, sys::nvmlRowRemapperHistogramValues_t { max, high, partial, low, none })
    }
    fn nvmlDeviceGetRetiredPages(
        cause: sys::nvmlPageRetirementCause_t,
        count: *mut c_uint,
        addresses: *mut c_ulonglong,
    ) |on| {
        put_pages(on, cause, count, addresses, None)
    }
    fn nvmlDeviceGetRetiredPages_v2(
        cause: sys::nvmlPageRetirementCause_t,
        count: *mut c_uint,
        addresses: *mut c_ulonglong,
        times: *mut c_ulonglong,
    ) |on| {
        put_pages(on, cause, count, addresses, Some(times))
    }
}
