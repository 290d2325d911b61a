//! The calls that write one number about a device: one table, from which the judges' list of these calls
//! (`lab/gpu/numbers.json`) is written.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::output::put;
use super::{On, counters, device_calls, events, links, mig, telemetry};
use crate::code::{Answer, Code};
use crate::machine::Instance;

const DISABLED: sys::nvmlEnableState_t = sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED;
const ENABLED: sys::nvmlEnableState_t = sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED;
/// The length of the driver's buffer of processes, as recorded.
const ACCOUNTING_BUFFER: c_uint = 4000;
/// The clock event reasons that the driver supports (recorded).
const REASONS: c_ulonglong = 0x1FF;

/// Defines the calls. A row is the name, the type of the number, and the number for a device.
macro_rules! numbers {
    ($($name:ident: $type:ident = |$on:ident| $number:expr;)*) => {
        /// Each call with the type of its number.
        pub const NUMBERS: &[(&str, &str)] = &[$((stringify!($name), stringify!($type))),*];

        device_calls! {
            $(fn $name(number: *mut $type) |$on| { put(number, $number?) })*
        }
    };
}

numbers! {
    nvmlDeviceGetMinorNumber: c_uint = |on| Ok(on.gpu.index);
    nvmlDeviceGetArchitecture: c_uint = |on| Ok(on.gpu.model.architecture);
    nvmlDeviceGetBrand: c_uint = |on| Ok(on.gpu.model.brand);
    nvmlDeviceGetNumGpuCores: c_uint = |on| on.uncut().map(|()| on.gpu.model.cores);
    nvmlDeviceGetMemoryBusWidth: c_uint = |on| of_whole(on, on.gpu.model.bus_width);
    nvmlDeviceGetBusType: c_uint = |on| Ok(bus_type(on));
    nvmlDeviceGetPersistenceMode: c_uint = |on| of_whole(on, ENABLED);
    nvmlDeviceGetComputeMode: c_uint = |on| Ok(sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT);
    nvmlDeviceGetDisplayActive: c_uint = |on| of_whole(on, DISABLED);
    nvmlDeviceGetDisplayMode: c_uint = |on| of_whole(on, ENABLED);
    nvmlDeviceGetModuleId: c_uint = |on| of_whole(on, on.gpu.module_id);
    nvmlDeviceGetNumaNodeId: c_uint = |on| Err(Code::NOT_SUPPORTED);
    nvmlDeviceGetPowerUsage: c_uint = |on| of_whole(on, (on.machine.power(on.gpu, on.now) * 1e3) as c_uint);
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |on| telemetry::power_limit(on, 2);
    nvmlDeviceGetPowerManagementLimit: c_uint = |on| telemetry::power_limit(on, 2);
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint = |on| telemetry::power_limit(on, 2);
    nvmlDeviceGetPowerManagementMode: c_uint = |on| of_whole(on, ENABLED);
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |on| of_whole(on, on.machine.sums(on.gpu, on.now).energy as c_ulonglong);
    nvmlDeviceGetPerformanceState: c_uint = |on| telemetry::state(on);
    nvmlDeviceGetPowerState: c_uint = |on| telemetry::state(on);
    nvmlDeviceGetNumFans: c_uint = |on| of_whole(on, on.gpu.model.fans);
    nvmlDeviceGetFanSpeed: c_uint = |on| telemetry::fan(on, 0, Code::NOT_SUPPORTED);
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |on| telemetry::reasons(on);
    nvmlDeviceGetCurrentClocksEventReasons: c_ulonglong = |on| telemetry::reasons(on);
    nvmlDeviceGetSupportedClocksThrottleReasons: c_ulonglong = |on| of_whole(on, REASONS);
    nvmlDeviceGetSupportedClocksEventReasons: c_ulonglong = |on| of_whole(on, REASONS);
    nvmlDeviceGetSupportedEventTypes: c_ulonglong = |on| of_whole(on, events::SUPPORTED);
    nvmlDeviceGetAccountingMode: c_uint = |on| of_whole(on, on.gpu.accounting.into());
    nvmlDeviceGetAccountingBufferSize: c_uint = |on| of_whole(on, ACCOUNTING_BUFFER);
    nvmlDeviceGetPcieReplayCounter: c_uint = |on| links::link(on).map(|_| on.gpu.written.errors.pcie_replays);
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |on| links::link(on).map(|link| link.0);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |on| links::link(on).map(|link| link.1);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |on| links::most(on).map(|link| link.0);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |on| links::most(on).map(|link| link.1);
    nvmlDeviceGetGpuMaxPcieLinkGeneration: c_uint = |on| links::of_gpu(on).map(|link| link.0);
    nvmlDeviceGetRetiredPagesPendingStatus: c_uint = |on| counters::retired(on, 0).map(|_| DISABLED);
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |on| of_whole(on, mig::most_devices(on));
    nvmlDeviceIsMigDeviceHandle: c_uint = |on| Ok(on.instance.is_some().into());
    nvmlDeviceGetGpuInstanceId: c_uint = |on| of_instance(on).map(|instance| instance.gpu_instance);
    nvmlDeviceGetComputeInstanceId: c_uint = |on| of_instance(on).map(|instance| instance.compute_instance);
}

/// The number, if the handle is that of a whole GPU.
fn of_whole<T>(on: &On, number: T) -> Answer<T> {
    on.whole().map(|()| number)
}

fn of_instance(on: &On) -> Answer<&'static Instance> {
    on.instance.ok_or(Code::INVALID_ARGUMENT)
}

fn bus_type(on: &On) -> c_uint {
    if on.gpu.model.pcie.is_some() { sys::NVML_BUS_TYPE_PCIE } else { sys::NVML_BUS_TYPE_UNKNOWN }
}
