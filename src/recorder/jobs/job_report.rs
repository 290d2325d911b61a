//! The report about one workload: what the API and the file contain. All times are Unix times in seconds, and all
//! memory is in bytes. A value that is not known is absent.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::recorder::history::{Exit, Failure, HeapUse as _};
use crate::sizing;
use crate::snapshot::WorkloadKind;

/// The version of the format. It changes when a field changes its meaning or is removed.
pub(super) const VERSION: u32 = 1;

/// Whether the workload holds GPU memory at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its processes are on a GPU. The report covers the time until now.
    Running,
    /// All its processes have left the GPUs. If one returns soon, the report continues.
    Left,
    /// All its processes have left the GPUs, and the report is final.
    Ended,
    /// The report is final because the exporter stopped. The workload was still on a GPU.
    ExporterStopped,
}

/// What one workload did with the GPU memory of this machine.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// 1.
    pub version: u32,
    /// The workload's name.
    pub workload: String,
    /// The kind of the workload, as in the label `kind`.
    pub kind: WorkloadKind,
    /// The job's id, for a job of Slurm or of another scheduler.
    pub job: Option<String>,
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
    /// The container's name in the pod.
    pub container: Option<String>,
    /// The user of its first process: a name, or a uid.
    pub user: Option<String>,
    /// The machine's name.
    pub node: Option<String>,
    /// Whether the GPUs are simulated. If they are, no number is a measurement.
    pub simulated: bool,
    /// Whether the report is final.
    pub state: State,
    /// When its first process was on a GPU.
    pub start: f64,
    /// When its last process had left the GPUs; absent while one is on a GPU.
    pub end: Option<f64>,
    /// Seconds from the start to the end, or to now.
    pub seconds: f64,
    /// `false` if the workload was already on a GPU when the exporter began to read it: then the time before `start` is
    /// not part of the report.
    pub seen_from_start: bool,
    /// The number of its processes.
    pub processes: u64,
    /// How those of them ended for which that is known.
    pub exits: Vec<ExitCount>,
    /// The GPUs and MIG devices that it used, in the order of their first use.
    pub gpus: Vec<DeviceReport>,
}

/// How many processes ended in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCount {
    /// How they ended.
    #[serde(flatten)]
    pub exit: Exit,
    /// Their number.
    pub processes: u64,
}

/// What the workload held on one GPU or MIG device.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// The MIG device's UUID.
    pub mig_uuid: Option<String>,
    /// The product's name.
    pub name: Option<String>,
    /// Total minus reserved memory of the GPU or MIG device.
    pub allocatable_bytes: Option<u64>,
    /// The lowest of the workload's limits on the device, when one was last known. A share of a time-sliced GPU is no
    /// limit.
    pub budget_bytes: Option<u64>,
    /// What declares that limit, as in the label `source`.
    pub budget_source: Option<String>,
    /// Seconds for which its processes were on the device, as far as the device was read.
    pub seconds: f64,
    /// The number of process lists that contained its memory.
    pub samples: u64,
    /// Its highest memory.
    pub peak_bytes: Option<u64>,
    /// When it reached its highest memory.
    pub peak_at: Option<f64>,
    /// The mean of its memory, weighted by time.
    pub mean_bytes: Option<u64>,
    /// Its memory now, or when its last process left.
    pub last_bytes: Option<u64>,
    /// Seconds for which its memory was at or above the limit at that moment. Absent if no limit was known.
    pub seconds_at_budget: Option<f64>,
    /// Seconds for which at least 90 % of the device's allocatable memory was in use, by all processes together, while
    /// the workload was on the device.
    pub seconds_at_90_percent: Option<f64>,
    /// The same for 95 %.
    pub seconds_at_95_percent: Option<f64>,
    /// The same for 98 %.
    pub seconds_at_98_percent: Option<f64>,
    /// The share of the time in which none of its processes worked on the device, 0 to 1. The time for which the driver
    /// does not report this is left out.
    pub idle_ratio: Option<f64>,
    /// The energy of the device that was apportioned to it by SM time, an estimate. Absent unless the configuration enables
    /// this.
    pub energy_joules: Option<f64>,
    /// The number of failed allocations that its processes reported.
    pub out_of_memory: u64,
    /// How often a process of it ended at its peak while the device was nearly full (incidents of the kind
    /// `ended_at_peak`).
    #[serde(default)]
    pub ended_at_limit: u64,
    /// What it needs more than: its peak, if an allocation failed or a process ended at the limit. How much more is
    /// unknown.
    pub needs_more_than_bytes: Option<u64>,
    /// What everything else on the device held when a process last ended at the limit.
    pub others_bytes: Option<u64>,
    /// The last failed allocation of its processes, in short. Its incident has the rest.
    pub last_failure: Option<Box<Failure>>,
    /// The last incident of such an end, or of a failed allocation.
    pub incident: Option<String>,
    /// The highest memory that its allocators had allocated, as its processes reported: of all processes at one moment,
    /// or of one process if that was higher.
    pub allocated_peak_bytes: Option<u64>,
    /// What it needed at most, if a process reported about its allocators: for each process the highest allocated
    /// memory and what lasted outside the allocators, or all that it held if it did not report; of as many processes as
    /// were there at once, those that need most. Never more than the peak.
    pub needed_bytes: Option<u64>,
    /// The memory to request for another run, judging by this run alone: what it needed, or the peak if that is
    /// unknown, and a margin.
    pub advice_bytes: Option<u64>,
    /// The margin of the advice, as a share of what it needed or of the peak.
    pub advice_margin: Option<f64>,
    /// Why there is no advice.
    pub no_advice: Option<String>,
}

/// Why there is no advice.
const NO_MEMORY: &str = "the driver does not report the memory of its processes";
const AT_LIMIT: &str = "it needs more than its peak, and how much more is unknown";
const TOO_LARGE: &str =
    "what it held or needed and a margin of 15 % are more than the device has: the next larger one, or several";

/// The memory to request after a run that needed this much at most, or held it if the need is unknown, on a device with
/// this much memory (0: unknown), and the margin in it as a share of the rest. `is_short`: whether a request failed, or a
/// process ended at the limit.
///
/// # Errors
/// The reason why there is no number.
pub(super) fn advice(peak: Option<u64>, allocatable: u64, is_short: bool) -> Result<(u64, f64), &'static str> {
    let peak = peak.ok_or(NO_MEMORY)?;
    if is_short {
        return Err(AT_LIMIT);
    }
    let bytes = sizing::request(peak, allocatable).ok_or(TOO_LARGE)?;
    Ok((bytes, sizing::MARGIN as f64 / 100.0))
}

impl JobReport {
    /// Whether the report is about this job and this workload; `None` accepts any.
    pub fn is_of(&self, job: Option<&str>, workload: Option<&str>) -> bool {
        job.is_none_or(|job| self.job.as_deref() == Some(job))
            && workload.is_none_or(|workload| self.workload == workload)
    }

    /// An upper estimate of the memory that the report uses.
    pub fn bytes(&self) -> usize {
        const NAMES: usize = 512;
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let names = [&self.job, &self.namespace, &self.pod, &self.container, &self.user, &self.node].map(text);
        let failures = self.gpus.iter().filter_map(|gpu| gpu.last_failure.as_deref());
        let failures = failures.map(|failed| size_of::<Failure>() + failed.heap_use()).sum::<usize>();
        let devices = self.gpus.capacity() * (size_of::<DeviceReport>() + NAMES) + failures;
        let exits = self.exits.capacity() * size_of::<ExitCount>();
        size_of::<Self>() + self.workload.capacity() + names.iter().sum::<usize>() + devices + exits + NAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_died_at_the_limit_does_not_fit_or_is_unknown_has_no_number() {
        assert_eq!(advice(Some(100), 115, false), Ok((115, 0.15)));
        assert_eq!(advice(Some(100), 1000, true), Err(AT_LIMIT));
        assert_eq!(advice(Some(101), 116, false), Err(TOO_LARGE));
        assert_eq!(advice(None, 1000, true), Err(NO_MEMORY));
    }
}
