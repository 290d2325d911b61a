//! What the driver's memory calls tell, as the room `calls` publishes it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Gpu, MigDevice, Workload};
use crate::closed_enum::closed_enum;
use crate::faults::Reason;

/// Upper bounds of the buckets of [`GpuCalls::corrections`], in bytes; one more bucket is unbounded.
pub const CORRECTION_BUCKETS: [f64; 9] =
    [0.0, MIB, 2.0 * MIB, 8.0 * MIB, 32.0 * MIB, 128.0 * MIB, 512.0 * MIB, 2048.0 * MIB, 8192.0 * MIB];
const MIB: f64 = 1_048_576.0;

/// What the probes on the driver's memory calls have seen. Everything but the state is absent while they are not up.
#[derive(Debug, Clone, Default)]
pub struct CallPart {
    /// Whether the calls are seen.
    pub state: CallState,
    /// Whether every call is seen, not only those that are refused.
    pub sees_all: bool,
    /// When nothing had been counted yet; `None` if nothing ever is.
    pub counted_since: Option<SystemTime>,
    /// The calls that became no event, and the refusals that belong to no process of a list, by reason.
    pub lost: [u64; LostCalls::ALL.len()],
    /// One entry for each GPU that was listed.
    pub gpus: Vec<GpuCalls>,
    /// Requests of workloads, by the device of which they asked memory. No two entries have the same workload and device.
    pub requests: Vec<WorkloadRequests>,
    /// The calls of workloads on all devices. No two entries have the same workload. Empty unless every call is seen.
    pub workloads: Vec<WorkloadCalls>,
}

/// Whether the driver's memory calls are seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallState {
    /// The configuration does not ask for it.
    #[default]
    Off,
    /// They are.
    Up,
    /// They cannot be seen, for this reason.
    Down(Reason),
}

closed_enum! {
    /// Why a call became no event: the label `reason`.
    pub enum LostCalls {
        /// The ring of events was full.
        RingFull => "ring_full",
        /// The beginning of the call was not seen or not kept.
        NoEntry => "no_entry",
        /// The end of the call was not seen.
        NoReturn => "no_return",
        /// A request was refused to a process that no list of processes contained within some seconds.
        Unlisted => "unlisted",
    }
}

/// What is counted for a GPU.
#[derive(Debug, Clone)]
pub struct GpuCalls {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Requests for its memory, and that of its MIG devices, that the driver refused.
    pub refused: u64,
    /// How far what calls told about a process was from the next reading, in each of [`CORRECTION_BUCKETS`] and, as the
    /// last entry, above all of them; not cumulative.
    pub corrections: [u64; CORRECTION_BUCKETS.len() + 1],
    /// Bytes: the sum of all corrections.
    pub corrected: u64,
}

impl GpuCalls {
    /// A GPU for which nothing has been counted.
    pub(crate) fn new(gpu: Arc<Gpu>) -> Self {
        Self { gpu, refused: 0, corrections: [0; CORRECTION_BUCKETS.len() + 1], corrected: 0 }
    }
}

/// The requests of a workload for the memory of one device that the driver did not grant at once.
#[derive(Debug, Clone)]
pub struct WorkloadRequests {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The GPU; `None` if it is not known of which of the GPUs on which the process runs it asked memory.
    pub gpu: Option<Arc<Gpu>>,
    /// The MIG device on it.
    pub mig: Option<Arc<MigDevice>>,
    /// When the workload's first request was seen, after which both were counted.
    pub since: SystemTime,
    /// Requests that the driver refused. A request that the thread repeats at once is one request.
    pub refused: u64,
    /// Requests that the driver refused and then granted to the same thread in the same size.
    pub retried: u64,
}

/// The memory calls of a workload.
#[derive(Debug, Clone)]
pub struct WorkloadCalls {
    /// The workload.
    pub workload: Arc<Workload>,
    /// When its first call was seen.
    pub since: SystemTime,
    /// Calls that ask for memory or give it back.
    pub calls: u64,
    /// The time in these calls, of all threads together.
    pub time: Duration,
}
