//! An incident: a frozen copy of what was recorded around a moment that matters. The API and the files use this format.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::chart::{Chart, ChartPoint};
use super::event::{Event, Failure};
use super::exit_status::Exit;
use super::heap_use::HeapUse as _;
use super::process_ref::ProcessRef;
pub use crate::snapshot::IncidentKind as Kind;

/// The version of the format. It changes when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// The sentence stating that the recording of an incident is shorter than that of others.
const INTERRUPTED: &str = "The exporter ended less than ten seconds later, so the recording ends there.";

/// An incident. All times are Unix times in seconds, and all memory is in bytes. A value that is not known is absent.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// [`VERSION`].
    pub version: u32,
    /// Unique on this machine; usable as a file name.
    pub id: String,
    /// Why it was recorded.
    pub kind: Kind,
    /// The moment around which it was recorded.
    pub at: f64,
    /// The number of moments: this one, and its repeats by the same workload on the same device.
    #[serde(default = "super::peak::one")]
    pub count: u64,
    /// The last of these moments; absent if there was only one. Everything else is about the first.
    pub last_at: Option<f64>,
    /// The workload of the process that ended or reported a failure, or for `near_limit` of the process that held the
    /// most; absent if there is none or it is unknown.
    pub workload: Option<String>,
    /// Whose share of the kept incidents it uses; absent if it is the device's own.
    pub tenant: Option<String>,
    /// Whether the recording has ended: ten seconds after the moment, or when the exporter ended.
    pub complete: bool,
    /// Whether the exporter ended before the ten seconds after the moment had passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// What was seen, in one or two sentences.
    pub summary: String,
    /// The machine's name; absent if it is unknown.
    pub host: Option<String>,
    /// Whether the GPUs are simulated. If they are, no number is a measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The GPU, and the MIG device if the incident is about one. `peak` and `memory` are about that device.
    pub gpu: IncidentGpu,
    /// What the process reported, for the kind `out_of_memory`.
    pub out_of_memory: Option<Failure>,
    /// What the figures of the failed allocation prove, one sentence each. Names in them are shown as text that a terminal
    /// can print.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
    /// The GPU's highest memory use in the seconds before the moment.
    pub peak: Option<Peak>,
    /// The processes, starting with those that held the most at the peak.
    pub processes: Vec<Holder>,
    /// The number of processes that were left out because others held more.
    pub more_processes: usize,
    /// The pids of processes that grew in the ten seconds before the GPU's peak, starting with those that grew the
    /// most.
    pub grew_most: Vec<u32>,
    /// What happened in the recorded time, oldest first.
    pub events: Vec<Event>,
    /// The GPU's memory over the recorded time.
    pub memory: Chart,
}

impl Incident {
    /// The device and the kind, of which a bounded number is kept.
    pub(crate) fn group(&self) -> String {
        format!("{} {}", self.gpu.device_uuid(), self.kind.label())
    }

    /// Who uses its share: the tenant, otherwise the device.
    pub(crate) fn tenant(&self) -> String {
        self.tenant.clone().unwrap_or_else(|| format!("device:{}", self.gpu.device_uuid()))
    }

    /// Ends the recording of an incident whose ten seconds the exporter did not live to see.
    pub(crate) fn interrupt(&mut self) {
        (self.complete, self.interrupted) = (true, true);
        self.summary.push(' ');
        self.summary.push_str(INTERRUPTED);
    }

    /// An upper estimate of the memory that it uses.
    pub fn bytes(&self) -> usize {
        const POINT: usize = size_of::<ChartPoint>();
        const NAMES: usize = 512;
        let holders = self.processes.iter().map(|holder| holder.memory.points.capacity() * POINT + NAMES);
        let texts = self.summary.capacity() + self.facts.heap_use() + self.out_of_memory.heap_use();
        size_of::<Self>()
            + self.memory.points.capacity() * POINT
            + holders.sum::<usize>()
            + self.events.capacity() * NAMES
            + texts
    }
}

/// The GPU of an incident.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IncidentGpu {
    /// NVML's index of the GPU at the time of the incident.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product name.
    pub name: Option<String>,
    /// The MIG device; absent if the incident is about the GPU.
    #[serde(flatten)]
    pub mig: Option<IncidentMig>,
    /// The memory of the device that can be allocated: total minus reserved.
    pub allocatable_bytes: Option<u64>,
}

/// The MIG device of an incident: the first one of its GPU instance.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentMig {
    /// `MIG-…`.
    pub mig_uuid: String,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id.
    pub compute_instance: u32,
    /// The profile, such as `1g.10gb`.
    pub profile: Option<String>,
}

impl IncidentGpu {
    /// The UUID of the MIG device, or of the GPU.
    pub fn device_uuid(&self) -> &str {
        self.mig_uuid().unwrap_or(&self.uuid)
    }

    /// The UUID of the MIG device; `None` if the incident is about the GPU.
    pub fn mig_uuid(&self) -> Option<&str> {
        self.mig.as_ref().map(|mig| mig.mig_uuid.as_str())
    }
}

/// The device's highest memory use.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// When it was first reached.
    pub at: f64,
    /// The last time, up to the incident, at which as much was in use; absent in files of earlier versions.
    pub until: Option<f64>,
    /// Used memory.
    pub used_bytes: u64,
    /// The memory that could still be allocated.
    pub left_bytes: Option<u64>,
    /// When the list that `processes` refers to was read. It is the last list before the memory use changed again.
    pub listed_at: Option<f64>,
    /// The sum of the memory of all processes in that list, including those that are left out of `processes`.
    pub listed_bytes: Option<u64>,
}

/// A process in an incident.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Which process.
    #[serde(flatten)]
    pub who: ProcessRef,
    /// The memory that it held at the GPU's peak.
    pub used_bytes: Option<u64>,
    /// Its own highest memory use up to the end of the recorded time.
    pub peak_bytes: Option<u64>,
    /// When it first reached its own highest memory use.
    pub peak_at: Option<f64>,
    /// The last time at which its memory use was at its own peak.
    pub at_peak_until: Option<f64>,
    /// How much more it held at the GPU's peak than 1, 10 and 60 seconds earlier; negative if it held less. A value is
    /// absent if its memory at either time is not known. A process that did not exist yet counts as holding 0.
    pub grew: Growth,
    /// When it started; absent if unknown.
    pub started_at: Option<f64>,
    /// The two times between which it left the GPU.
    pub ended: Option<Between>,
    /// How it ended.
    #[serde(flatten)]
    pub exit: Exit,
    /// Its memory over the recorded time.
    pub memory: Chart,
}

/// The growth of a process's memory use, in bytes.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// In the last second.
    #[serde(rename = "1s")]
    pub second: Option<i64>,
    /// In the last ten seconds.
    #[serde(rename = "10s")]
    pub ten_seconds: Option<i64>,
    /// In the last minute.
    #[serde(rename = "60s")]
    pub minute: Option<i64>,
}

/// A time that is known only to lie between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Between {
    /// When the last list that contained the process was read.
    pub after: f64,
    /// When the first list that did not contain it was read.
    pub by: f64,
}
