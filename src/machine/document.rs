//! The documents: their fields, units, and when a value is absent.

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use crate::recorder::Visit;

/// The driver, and one of the following: its GPUs, their processes or their workloads.
#[derive(Debug, Serialize)]
pub struct Document<T> {
    /// The version of the format.
    pub version: u8,
    /// Unix time in seconds.
    pub at: f64,
    /// Whether the GPUs are simulated. If they are, no number is a measurement.
    pub simulated: bool,
    /// The driver.
    pub driver: Driver,
    /// The GPUs, processes or workloads.
    #[serde(flatten)]
    pub content: T,
}

/// The GPUs.
#[derive(Debug, Serialize)]
pub struct Gpus {
    /// In NVML's order.
    pub gpus: Vec<Gpu>,
}

/// The processes of all GPUs.
#[derive(Debug, Serialize)]
pub struct Processes {
    /// The live processes, the largest first, then those that have ended.
    pub processes: Vec<Placed<Process>>,
    /// The number of processes that the configuration leaves out.
    pub more_processes: u64,
}

/// The workloads of all GPUs.
#[derive(Debug, Serialize)]
pub struct Workloads {
    /// The largest first.
    pub workloads: Vec<Placed<Workload>>,
    /// The number of workloads that the configuration leaves out.
    pub more_workloads: u64,
}

/// A process or workload, with the GPU that it is on.
#[derive(Debug, Serialize)]
pub struct Placed<T> {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// The process or workload.
    #[serde(flatten)]
    pub what: T,
}

/// The driver, or why there is none.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Driver {
    /// Whether it is open.
    pub up: bool,
    /// Why it is not open; absent while it is being opened.
    pub problem: Option<String>,
    /// Its version.
    pub driver_version: Option<String>,
    /// The highest CUDA version that it supports.
    pub cuda_version: Option<String>,
}

/// One GPU.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// NVML's index.
    pub gpu: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product name.
    pub name: Option<String>,
    /// Whether it responds and its last sample is recent.
    pub up: bool,
    /// Its memory.
    #[serde(flatten)]
    pub memory: Option<Memory>,
    /// Used memory that no visible process holds.
    pub unattributed_bytes: Option<u64>,
    /// Used memory minus what allocators reserved but did not allocate; absent if no process reports that.
    pub needed_bytes: Option<u64>,
    /// The share of time during which a kernel ran, from 0 to 1.
    pub utilization_ratio: Option<f64>,
    /// Degrees Celsius.
    pub temperature_celsius: Option<f64>,
    /// Watts.
    pub power_watts: Option<f64>,
    /// Watts: the enforced limit.
    pub power_limit_watts: Option<f64>,
    /// The MIG devices.
    pub mig_devices: Vec<Mig>,
    /// The live processes, the largest first; absent if they were not requested or could not be listed.
    pub processes: Option<Vec<Process>>,
    /// The number of processes beyond `process.series-limit`.
    pub processes_left_out: Option<u64>,
    /// The number of processes that `/proc` does not show, if there are any.
    pub processes_invisible: Option<u64>,
}

/// The memory of a GPU or MIG device, in bytes.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
pub struct Memory {
    /// All memory.
    pub total_bytes: u64,
    /// Reserved by the driver and the firmware.
    pub reserved_bytes: Option<u64>,
    /// Total minus reserved. If the GPU shares the machine's memory: what its processes hold or can still allocate; absent
    /// while what they hold is unknown.
    pub allocatable_bytes: Option<u64>,
    /// Allocated. If the GPU shares the machine's memory: the sum over its processes; absent while it is unknown.
    pub used_bytes: Option<u64>,
    /// What the processes hold of which this is known, while it is unknown of another. Present only if the GPU shares the
    /// machine's memory.
    pub used_at_least_bytes: Option<u64>,
    /// Free to be allocated. Absent if the GPU shares the machine's memory.
    pub free_bytes: Option<u64>,
    /// What any process of the machine can still allocate. Present only if the GPU shares the machine's memory.
    pub available_bytes: Option<u64>,
    /// The highest use within the peak window.
    pub window_peak_bytes: Option<u64>,
    /// The highest use since the exporter started.
    pub peak_bytes: Option<u64>,
}

/// A MIG device.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Mig {
    /// Its index on its GPU.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The id of its GPU instance.
    pub gpu_instance: u32,
    /// The id of its compute instance.
    pub compute_instance: u32,
    /// The profile.
    pub profile: Option<String>,
    /// Its memory.
    #[serde(flatten)]
    pub memory: Option<Memory>,
    /// Used memory of the GPU instance that no visible process holds. Present only for the instance's first MIG device.
    pub unattributed_bytes: Option<u64>,
}

/// A process on a GPU, or on one of its MIG devices.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Process {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// The pid in the pid namespace of the process itself, such as that of its container; absent if that is the exporter's, and
    /// if it is unknown.
    pub namespace_pid: Option<u32>,
    /// `compute`, `graphics` or `mps`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The index of the MIG device.
    pub mig_index: Option<u32>,
    /// Its name.
    pub name: Option<String>,
    /// The user's name, or the uid.
    pub user: Option<String>,
    /// The workload.
    pub workload: Option<String>,
    /// The kind of the workload.
    pub workload_kind: Option<&'static str>,
    /// Memory in use, in bytes; absent if it is unknown or the process has ended.
    pub used_bytes: Option<u64>,
    /// The highest use within the peak window.
    pub window_peak_bytes: Option<u64>,
    /// The highest use.
    pub peak_bytes: Option<u64>,
    /// Bytes in live tensors or buffers of its frameworks; absent if the process does not report them.
    pub allocator_allocated_bytes: Option<u64>,
    /// Bytes that the allocators of its frameworks obtained from the driver and still hold; absent if the process does
    /// not report them.
    pub allocator_reserved_bytes: Option<u64>,
    /// Used memory outside its allocators; absent if that is unknown.
    pub outside_allocator_bytes: Option<u64>,
    /// Seconds since it last worked on the GPU.
    pub idle_seconds: Option<f64>,
    /// When it started: Unix time in seconds.
    pub started_at: Option<f64>,
    /// Whether it is on the GPU.
    pub alive: bool,
    /// The minimum number of seconds since it left the GPU; absent while it is on the GPU.
    pub ended_seconds: Option<f64>,
    /// When it was on the GPU; absent if nothing is recorded about it.
    #[serde(flatten)]
    pub visit: Option<Visit>,
}

/// A workload on a GPU, or on one of its MIG devices.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Workload {
    /// Its name.
    pub workload: String,
    /// Its kind.
    pub kind: &'static str,
    /// The index of the MIG device.
    pub mig_index: Option<u32>,
    /// The number of its processes; 0 after the last one has ended.
    pub processes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: Option<u64>,
    /// Memory in use by its processes of which this is known, while it is unknown of another.
    pub used_at_least_bytes: Option<u64>,
    /// The highest sum of its processes' memory within the peak window.
    pub window_peak_bytes: Option<u64>,
    /// The highest sum of its processes' memory.
    pub peak_bytes: Option<u64>,
}
