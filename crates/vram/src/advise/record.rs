//! What is printed, as plain values: the JSON form is these structs. `docs/sizing.md` describes every field.
//!
//! Invariant: a value that is not known is absent. All memory is in bytes, all times are seconds.

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

/// The version of the JSON form. It is incremented when the meaning of a field changes or a field is removed.
pub(super) const VERSION: u8 = 1;

/// The whole advice.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    pub(super) version: u8,
    pub(super) prometheus: String,
    pub(super) by: &'static str,
    pub(super) time: u64,
    pub(super) range_seconds: u64,
    pub(super) interval_seconds: u64,
    pub(super) source: &'static str,
    pub(super) min_samples: u64,
    pub(super) min_span_seconds: u64,
    pub(super) queries: u64,
    pub(super) warnings: Vec<String>,
    pub(super) left_out: u64,
    pub(super) workloads: Vec<Workload>,
    pub(super) fleet: Fleet,
}

/// What is advised for a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    Lower,
    Raise,
    Keep,
    None,
}

/// Why there is this advice, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    #[serde(rename = "peak_plus_15_percent")]
    Peak,
    /// An allocation failed: the peak may be less than what is needed.
    FailedAllocations,
    /// A process ended at the memory limit, or reported a failed allocation that no counter shows: the same.
    Shortage,
    /// The use has been rising: the peak is less than what will be needed.
    Rising,
    /// The peak and a margin are more than the device has.
    ExceedsDevice,
    TooFewSamples,
    TooShort,
    Preallocated,
}

/// What the peak is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Basis {
    Driver,
    Allocator,
}

/// One group of runs.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Workload {
    pub(super) cluster: Option<String>,
    pub(super) workload: String,
    pub(super) kind: String,
    pub(super) runs: u64,
    pub(super) devices: u64,
    pub(super) devices_now: u64,
    pub(super) samples: u64,
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) span_seconds: u64,
    pub(super) driver_peak_bytes: u64,
    pub(super) peak_from: Option<u64>,
    pub(super) peak_until: Option<u64>,
    pub(super) intervals: u64,
    pub(super) intervals_near_peak: u64,
    pub(super) basis: Basis,
    pub(super) peak_bytes: u64,
    pub(super) allocated_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) frameworks: Vec<String>,
    pub(super) out_of_memory: Option<u64>,
    /// When it was last short of memory, in Unix seconds.
    pub(super) last_shortage: Option<u64>,
    pub(super) preallocates: Option<&'static str>,
    pub(super) current_bytes: Option<u64>,
    pub(super) current_source: Option<String>,
    /// `None` without advice; always present.
    #[serialize_always]
    pub(super) advice_bytes: Option<u64>,
    pub(super) reason: Reason,
    pub(super) rising_bytes_per_hour: Option<u64>,
    /// If it may not fit on one device of its board.
    pub(super) beyond: Option<Beyond>,
    pub(super) action: Action,
    pub(super) freed_bytes: u64,
    pub(super) units: Option<Units>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) simulated: bool,
}

/// The device that a workload may not fit on.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Beyond {
    /// The name of the board, or of the MIG profile; absent if it is unknown.
    pub(super) name: Option<String>,
    pub(super) allocatable_bytes: u64,
    /// The smallest board of the fleet that has more, and enough as far as is known.
    pub(super) larger_board: Option<Size>,
}

/// A board or a MIG profile.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Size {
    pub(super) name: String,
    pub(super) allocatable_bytes: u64,
    /// Of a MIG profile: whether the size is that of a MIG device of the fleet.
    pub(super) seen: Option<bool>,
}

/// The advice in the units of other programs.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Units {
    pub(super) device_total_bytes: u64,
    pub(super) device_allocatable_bytes: u64,
    pub(super) board: Option<Size>,
    pub(super) mig_profile: Option<Size>,
    pub(super) kai_gpu_fraction: Option<f64>,
    pub(super) kai_gpu_memory_mib: u64,
    pub(super) hami_gpumem_mib: u64,
    pub(super) torch_memory_fraction: Option<f64>,
    pub(super) xla_client_mem_fraction: Option<f64>,
    pub(super) vllm_gpu_memory_utilization: Option<f64>,
    pub(super) processes: u64,
    pub(super) outside_bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) outside_assumed: bool,
}

/// What the workloads of the fleet would need together.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Fleet {
    pub(super) freed_bytes: u64,
    pub(super) gpus_now: u64,
    pub(super) gpus_first_fit: u64,
    pub(super) gpus_lower_bound: u64,
    pub(super) boards: Vec<Board>,
}

/// The GPUs of one name in one cluster.
#[skip_serializing_none]
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Board {
    pub(super) cluster: Option<String>,
    pub(super) board: String,
    pub(super) allocatable_bytes: u64,
    pub(super) gpus_now: u64,
    pub(super) runs_now: u64,
    pub(super) runs_without_advice: u64,
    pub(super) gpus_lower_bound: u64,
    pub(super) gpus_first_fit: u64,
}
