//! The driver's own memory limits for cgroups.

/// NVML's `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
pub(crate) const NONE: u64 = u64::MAX;

/// The call that reads them.
pub(crate) const CALL: &str = "nvmlDeviceGetMemoryLimits_v1";

/// The first version of CUDA, as NVML reports it, whose driver has the call.
pub(crate) const SINCE_CUDA: u32 = 13_050;

/// What the processes in a cgroup may hold together on one GPU. The simulator reports it and does not enforce it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) gpu: u32,
    /// The path in the hierarchy: `/system.slice/train.service`.
    pub(crate) cgroup: Vec<u8>,
    /// Bytes; `None` if it is not limited.
    pub(crate) hard: Option<u64>,
    /// Bytes; `None` if nothing is guaranteed.
    pub(crate) soft: Option<u64>,
}
