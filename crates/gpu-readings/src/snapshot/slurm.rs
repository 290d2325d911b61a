//! What Slurm reports about this node: the GPUs allocated to each job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::DeviceName;

/// How often the jobs' allocations are read.
pub const JOBS_EVERY: Duration = Duration::from_secs(10);

/// The devices that Slurm has allocated to jobs on this node. Written by the follower of the folder into which Slurm's
/// prolog writes them.
#[derive(Debug, Clone, Default)]
pub struct JobAllocations {
    /// When the folder was last read completely; `None` before that, and if the exporter reads none.
    pub at: Option<Instant>,
    /// Sorted, each once.
    pub allocated: Arc<Vec<JobAllocation>>,
}

/// A device that is allocated to a job, used or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobAllocation {
    /// The job's number, or its SLUID, as in the name of its cgroup.
    pub job: String,
    /// The GPU or the MIG device.
    pub device: DeviceName,
}
