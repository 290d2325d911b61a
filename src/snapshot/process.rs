//! What the process lane publishes: processes, and the workloads that they belong to.

use std::sync::Arc;
use std::time::Instant;

use super::{Gpu, MigDevice, Owner, Workload};

/// The processes of every GPU, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct ProcessPart {
    /// One entry for each GPU. What is published again because another GPU's processes changed is the same one.
    pub gpus: Vec<Arc<GpuProcesses>>,
}

/// The processes of one GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuProcesses {
    /// Which GPU.
    pub gpu: Arc<Gpu>,
    /// When the list was last read whole.
    pub at: Option<Instant>,
    /// Living processes and, for a while, those that ended; at most the configured number, the largest kept.
    /// No two entries share pid, name, kind and MIG device, except while the MIG devices are not known.
    pub processes: Vec<Process>,
    /// What the entries left out by the cap hold together; `None` where none was left out.
    pub other: Option<Other>,
    /// The workloads of all processes, those beyond the cap too; living ones and, for a while, those whose processes all
    /// ended; at most the configured number, the largest kept. No two entries share name, kind and MIG device, except
    /// while the MIG devices are not known.
    pub workloads: Vec<WorkloadUse>,
    /// What the workloads left out by the cap hold together; `None` where none was left out.
    pub other_workloads: Option<Other>,
    /// How many of the processes on the GPU `/proc` does not show, though they are there for longer than an end takes.
    pub invisible: u64,
    /// Bytes in use that no visible process holds. `None` while a process's memory is unknown, or while memory moved
    /// during every attempt to read both at one moment.
    pub unattributed: Option<u64>,
    /// The same for each GPU instance under MIG where it is known, at the instance's first device.
    pub mig_unattributed: Vec<(Arc<MigDevice>, u64)>,
}

/// The processes, or the workloads, beyond the cap, summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// How many entries were left out.
    pub entries: u64,
    /// How many processes of theirs live.
    pub processes: u64,
    /// Bytes they use now. `None` where none of them lives. Of processes also where the memory of one is unknown; workloads
    /// of unknown memory are left out.
    pub used: Option<u64>,
}

/// How a process uses the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProcessKind {
    /// A CUDA context.
    Compute,
    /// A graphics context, and no compute context.
    Graphics,
    /// A client of the Multi-Process Service.
    Mps,
}

impl ProcessKind {
    /// The value of the label `type`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Graphics => "graphics",
            Self::Mps => "mps",
        }
    }
}

/// One process on one GPU (or MIG device).
#[derive(Debug, Clone)]
pub struct Process {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// How it uses the GPU.
    pub kind: ProcessKind,
    /// The MIG device it runs on.
    pub mig: Option<Arc<MigDevice>>,
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// Whether it was in the last list.
    pub alive: bool,
    /// When it left the GPU; `None` while it is alive.
    pub ended: Option<Ended>,
    /// Bytes now. `None` where the driver does not tell, and after the end.
    pub used: Option<u64>,
    /// Bytes: the highest `used` within the peak window; 0 once the process ended longer ago than that.
    pub window_peak: Option<u64>,
    /// Bytes: the highest `used` ever seen, or the driver's own maximum where accounting is on.
    pub peak: Option<u64>,
    /// Share of the SMs' time, 0 to 1; `None` where the driver has no sample.
    pub sm_utilization: Option<f64>,
    /// When it last did work on the GPU, its first sight at the earliest. `None` where the driver cannot tell, and after the end.
    pub last_active: Option<Instant>,
}

/// When a process left the GPU, as exactly as the lists tell: between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The last list that held it.
    pub after: Instant,
    /// The first list that did not.
    pub by: Instant,
}

/// The processes of one workload on one GPU (or MIG device), summed.
#[derive(Debug, Clone)]
pub struct WorkloadUse {
    /// Which workload.
    pub workload: Arc<Workload>,
    /// The MIG device that its processes run on.
    pub mig: Option<Arc<MigDevice>>,
    /// How many of its processes were in the last list; 0 after the last one's end.
    pub processes: u64,
    /// Bytes now. `None` while the memory of one of its processes is unknown, and after the last one's end.
    pub used: Option<u64>,
    /// Bytes: the highest sum within the peak window; 0 once the last process ended longer ago than that.
    pub window_peak: Option<u64>,
    /// Bytes: the highest sum ever seen.
    pub peak: Option<u64>,
}
