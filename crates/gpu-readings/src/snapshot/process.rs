//! What the process lane publishes: processes and the workloads to which they belong.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{Gpu, MigDevice, Owner, ProcessId, Workload, WorkloadLimit};
use crate::closed_enum::closed_enum;

/// The longest time between two lists of processes in which the memory of a workload counts as known. `interval`: the
/// longest time between two lists if the driver answers.
pub fn longest_gap(interval: Duration) -> Duration {
    const LEAST: Duration = Duration::from_secs(5);
    interval.saturating_mul(3).max(LEAST)
}

/// The processes of every GPU, in the order of [`super::Driver::gpus`].
#[derive(Debug, Clone, Default)]
pub struct ProcessPart {
    /// One entry for each GPU. An entry is published again unchanged if only other GPUs' processes have changed.
    pub gpus: Vec<Arc<GpuProcesses>>,
}

/// The processes of one GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuProcesses {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// When the list was last read completely.
    pub at: Option<Instant>,
    /// When the reading of that list began.
    pub began: Option<Instant>,
    /// Running processes and, for a while, those that have ended; if there are more than the configured number, only
    /// the largest are kept. No two entries have the same pid, name, kind and MIG device, except while the MIG
    /// devices are unknown.
    pub processes: Vec<Process>,
    /// The sum of the entries that the limit leaves out; `None` if it leaves out none.
    pub other: Option<Other>,
    /// The workloads of all processes, including processes beyond the limit: running workloads and, for a while,
    /// those whose processes have all ended. If there are more than the configured number, only the largest are
    /// kept. No two entries have the same name, kind and MIG device, except while the MIG devices are unknown.
    pub workloads: Vec<WorkloadUse>,
    /// The sum of the workloads that the limit leaves out; `None` if it leaves out none.
    pub other_workloads: Option<Other>,
    /// The number of processes that `/proc` does not show although they have been on the GPU for longer than an
    /// exiting process would be.
    pub invisible: u64,
    /// Bytes in use that neither a visible process nor a vGPU holds. `None` while the memory of one is unknown, or if memory
    /// changed during every attempt to read the memory in use and the process lists at the same time.
    pub unattributed: Option<u64>,
    /// What the processes hold together, on a GPU that shares the machine's memory. `None` on any other, and while the memory
    /// of no process is known although there are processes.
    pub held: Option<Held>,
    /// The same as `unattributed` for each MIG GPU instance for which the value is known, identified by the instance's first device.
    pub mig_unattributed: Vec<(Arc<MigDevice>, u64)>,
    /// The energy of the GPU that belongs to no workload in `workloads`. `None` if the energy is not apportioned, or the driver
    /// does not report whose kernels run.
    pub energy: Option<RestOfEnergy>,
}

/// Joules of a GPU that belong to no workload that is shown. With [`WorkloadUse::energy`], every joule of
/// [`super::Energy::joules`] is counted in one place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestOfEnergy {
    /// When nothing had been counted yet: [`super::Energy::counted_since`].
    pub counted_since: SystemTime,
    /// Of the time in which no kernel ran.
    pub idle: f64,
    /// Of kernels of which the driver does not tell whose they are, or of workloads that the limit leaves out.
    pub other: f64,
}

/// What processes hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes: the sum over the processes whose memory is known.
    pub bytes: u64,
    /// Whether the memory of a process is unknown, so that the processes hold at least `bytes`.
    pub is_lower_bound: bool,
}

impl Held {
    /// Bytes that all processes hold together; `None` if only a lower bound is known.
    pub fn exactly(self) -> Option<u64> {
        (!self.is_lower_bound).then_some(self.bytes)
    }

    /// Bytes that the processes hold at least; `None` if it is known what they hold exactly.
    pub fn at_least(self) -> Option<u64> {
        self.is_lower_bound.then_some(self.bytes)
    }
}

/// The sum of the processes, or of the workloads, beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// The number of entries left out.
    pub entries: u64,
    /// The number of their running processes.
    pub processes: u64,
    /// Bytes that they use now. `None` if none of them is running, or if the memory of one that is running is unknown.
    pub used: Option<u64>,
}

closed_enum! {
    /// How a process uses the GPU: the label `type`.
    pub enum ProcessKind {
        /// A CUDA context.
        Compute => "compute",
        /// A graphics context, but no compute context.
        Graphics => "graphics",
        /// A client of the Multi-Process Service.
        Mps => "mps",
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
    /// Its owner.
    pub owner: Arc<Owner>,
    /// Whether the last list contained it.
    pub alive: bool,
    /// When it left the GPU; `None` while it is alive.
    pub ended: Option<Ended>,
    /// Bytes in use now. `None` if the driver does not report them, and after the process has ended.
    pub used: Option<u64>,
    /// Bytes: the highest `used` within the peak window; 0 if the process ended before the window began.
    pub window_peak: Option<u64>,
    /// Whether `window_peak` is a lower bound that calls tell, because no reading shows as much. `None` if calls have never told
    /// of a peak.
    pub is_peak_of_calls: Option<bool>,
    /// Bytes: the highest `used` ever read, or the driver's own maximum if accounting is on.
    pub peak: Option<u64>,
    /// Share of the SMs' time, 0 to 1; `None` if the driver has no sample.
    pub sm_utilization: Option<f64>,
    /// When it last worked on the GPU, or was first listed if that was later. `None` if the driver does not report it,
    /// and after the process has ended.
    pub last_active: Option<Instant>,
}

impl Process {
    /// What identifies the process.
    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.owner.start_ticks }
    }

    /// For tests: a compute process that is running, of whose memory and work nothing is known.
    #[doc(hidden)]
    pub fn for_tests(pid: u32, owner: Owner) -> Self {
        Self {
            pid,
            kind: ProcessKind::Compute,
            mig: None,
            owner: Arc::new(owner),
            alive: true,
            ended: None,
            used: None,
            window_peak: None,
            is_peak_of_calls: None,
            peak: None,
            sm_utilization: None,
            last_active: None,
        }
    }
}

/// When a process left the GPU: at some time between two readings of the process list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// When the last list that contained the process was read.
    pub after: Instant,
    /// When the first list without it was read.
    pub by: Instant,
}

/// The sum of one workload's processes on one GPU (or MIG device).
#[derive(Debug, Clone)]
pub struct WorkloadUse {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The MIG device that its processes run on.
    pub mig: Option<Arc<MigDevice>>,
    /// The number of its processes in the last list; 0 after the last process has ended.
    pub processes: u64,
    /// Bytes in use now. `None` while the memory of one of its processes is unknown, and after the last one has ended.
    pub used: Option<u64>,
    /// Bytes in use now by the processes whose memory is known, while that of another one is unknown: a lower bound. `None` while
    /// `used` is known, while nothing is, and after the last one has ended.
    pub at_least: Option<u64>,
    /// Bytes: the highest sum within the peak window; 0 if the last process ended before the window began.
    pub window_peak: Option<u64>,
    /// Whether `window_peak` is a lower bound that calls tell, because no reading shows as much. `None` if calls have never told
    /// of a peak.
    pub is_peak_of_calls: Option<bool>,
    /// Bytes: the highest sum ever read.
    pub peak: Option<u64>,
    /// What limits its memory on this device, sorted by source; empty if nothing does. A limit that no longer applies
    /// is kept for its time, as long as the workload is.
    pub limits: Vec<WorkloadLimit>,
    /// Its share of the energy of the GPU. `None` if the energy is not apportioned, or the driver does not report whose
    /// kernels run.
    pub energy: Option<EnergyShare>,
}

/// What was apportioned to a workload by its share of the time of the SMs: an estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyShare {
    /// When nothing had been apportioned yet: when the workload was first seen.
    pub counted_since: SystemTime,
    /// Joules since then, while the workload was one of those that are shown.
    pub joules: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_at_least_five_seconds() {
        assert_eq!(longest_gap(Duration::from_secs(1)), Duration::from_secs(5));
        assert_eq!(longest_gap(Duration::from_secs(10)), Duration::from_secs(30));
    }
}
