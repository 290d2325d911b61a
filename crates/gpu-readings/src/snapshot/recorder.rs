//! What the recorder reports about itself.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Gpu, MigDevice, Workload};

/// What the recorder has recorded since the exporter started.
#[derive(Debug, Clone, Default)]
pub struct RecorderPart {
    /// Whether there is a recorder.
    pub on: bool,
    /// When the recorder started, and had counted nothing yet.
    pub counted_since: Option<SystemTime>,
    /// Bytes: the memory that the recorder uses.
    pub bytes: u64,
    /// The number of entries dropped to stay within the limit, or because they arrived faster than they were processed.
    pub dropped: u64,
    /// The incidents, one entry for each GPU and kind.
    pub incidents: Vec<IncidentCount>,
    /// The workloads that were short of memory, one entry for each device.
    pub shortages: Vec<WorkloadShortage>,
}

/// A workload of which a process ended at the memory limit, or reported a failed allocation.
#[derive(Debug, Clone)]
pub struct WorkloadShortage {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The MIG device; `None` without MIG.
    pub mig: Option<Arc<MigDevice>>,
    /// The workload.
    pub workload: Arc<Workload>,
    /// Unix time of the last one, in seconds.
    pub last: f64,
}

/// The incidents of one kind on one GPU.
#[derive(Debug, Clone)]
pub struct IncidentCount {
    /// NVML's index of the GPU at the time of the last incident.
    pub gpu: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// The MIG device; `None` if the incidents are about the GPU.
    pub mig: Option<MigDevice>,
    /// The value of the label `kind`.
    pub kind: &'static str,
    /// The number of incidents and of their repeats.
    pub count: u64,
    /// Unix time of the last one, in seconds.
    pub last: f64,
    /// The id of the incident that was it or that it repeats; `None` if that is no longer kept.
    pub last_id: Option<String>,
}
