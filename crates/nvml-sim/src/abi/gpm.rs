//! GPM, the profiler's counters: every current driver has these calls, and no simulated GPU has the counters.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{device_calls, system_calls};
use crate::code::Code;

/// What a library returns for a call that its driver does not have.
const ABSENT: Code = Code::FUNCTION_NOT_FOUND;

system_calls! {
    fn nvmlGpmSampleAlloc(sample: *mut sys::nvmlGpmSample_t) |sim| { Err(ABSENT) }
    fn nvmlGpmSampleFree(sample: sys::nvmlGpmSample_t) |sim| { Err(ABSENT) }
    fn nvmlGpmMetricsGet(metrics: *mut sys::nvmlGpmMetricsGet_t) |sim| { Err(ABSENT) }
}

device_calls! {
    fn nvmlGpmQueryDeviceSupport(support: *mut sys::nvmlGpmSupport_t) |on| { Err(ABSENT) }
    fn nvmlGpmSampleGet(sample: sys::nvmlGpmSample_t) |on| { Err(ABSENT) }
    fn nvmlGpmMigSampleGet(instance: c_uint, sample: sys::nvmlGpmSample_t) |on| { Err(ABSENT) }
    fn nvmlGpmQueryIfStreamingEnabled(state: *mut c_uint) |on| { Err(ABSENT) }
    fn nvmlGpmSetStreamingEnabled(state: c_uint) |on| { Err(ABSENT) }
}
