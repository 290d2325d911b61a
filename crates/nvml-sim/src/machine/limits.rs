//! The driver's own memory limits for cgroups.

/// NVML's `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
pub(crate) const NONE: u64 = u64::MAX;

/// The call that reads them.
pub(crate) const CALL: &str = "nvmlDeviceGetMemoryLimits_v1";

/// The first version of CUDA, as NVML reports it, whose driver has the call.
pub(crate) const SINCE_CUDA: u32 = 13_050;
