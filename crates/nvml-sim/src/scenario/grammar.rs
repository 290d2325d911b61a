//! The keys of a scenario or control file. An unknown key anywhere is an error.

mod links;
mod profiling;

use serde::Deserialize;

pub(crate) use links::{C2c, Fabric, Nvlink};
pub(crate) use profiling::Profiling;

use super::bytes::Bytes;
use super::curves::{Curve, Ratio};
use super::units::{Size, Span};

/// A scenario file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scenario {
    pub(crate) seed: u32,
    pub(crate) driver: Driver,
    /// Calls that this driver lacks because it is too old.
    pub(crate) calls_missing: Vec<String>,
    pub(crate) host: Option<Host>,
    pub(crate) gpu: Vec<Gpu>,
    pub(crate) process: Vec<Process>,
    pub(crate) container: Vec<Container>,
    pub(crate) memory_limit: Vec<MemoryLimit>,
    pub(crate) vgpu: Vec<Vgpu>,
    pub(crate) xid: Vec<Xid>,
    pub(crate) fault: Vec<Fault>,
}

/// A container of a pod, as a cluster would name it. A process runs in it if the process's cgroup contains its id.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) name: String,
    /// The GPUs that were allocated to it.
    #[serde(default)]
    pub(crate) gpus: Vec<u32>,
    /// If present, the container has the MIG device with this index on each of these GPUs instead of the whole GPUs.
    pub(crate) mig: Option<u32>,
    /// The claim through which it has them; with a device plugin if absent.
    pub(crate) claim: Option<String>,
    /// What the claim consumes of each; not limited if absent.
    pub(crate) claim_memory: Option<Size>,
    /// Whether the claim is for monitoring only, and holds nothing.
    #[serde(default)]
    pub(crate) admin_access: bool,
}

/// A control file: what happens in addition to the scenario.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Control {
    pub(crate) process: Vec<Process>,
    pub(crate) memory_limit: Vec<MemoryLimit>,
    pub(crate) vgpu: Vec<Vgpu>,
    pub(crate) xid: Vec<Xid>,
    pub(crate) fault: Vec<Fault>,
}

/// The driver's versions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Driver {
    pub(crate) version: String,
    /// `None`: CUDA's major version, followed by the driver's version.
    pub(crate) nvml: Option<String>,
    /// As NVML reports it: 13000 is 13.0.
    pub(crate) cuda: u32,
}

impl Default for Driver {
    fn default() -> Self {
        Self { version: "580.159.04".to_owned(), nvml: None, cuda: 13_000 }
    }
}

/// The memory that the CPU shares with a GPU of a model with unified memory.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Host {
    /// What the programs on the CPU hold; nothing if absent.
    pub(crate) used: Option<Curve<Size>>,
    pub(crate) used_cycle: bool,
    pub(crate) swap_free: Option<Size>,
    /// The reserved huge pages of 2 MiB: all of them, and those that are free.
    pub(crate) huge_pages: Option<[u32; 2]>,
}

/// GPUs of one model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gpu {
    pub(crate) model: String,
    pub(crate) count: Option<u32>,
    /// Only for a single GPU; derived from the seed if absent.
    pub(crate) uuid: Option<String>,
    /// Profiles of the MIG devices by index; an empty string is a hole. If the list is present, even empty, MIG is on.
    pub(crate) mig: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) accounting: bool,
    /// Whether the GPU hosts vGPUs.
    #[serde(default)]
    pub(crate) vgpu_host: bool,
    #[serde(default)]
    pub(crate) memory_unsupported: bool,
    /// Degrees Celsius, fixed.
    pub(crate) temperature: Option<f64>,
    /// Watts, fixed.
    pub(crate) power: Option<f64>,
    /// Calls that return `NOT_SUPPORTED`.
    #[serde(default)]
    pub(crate) unsupported: Vec<String>,
    /// Under load; the model's own if absent.
    #[serde(default)]
    pub(crate) link: Link,
    /// The model's own if absent.
    pub(crate) addressing_mode: Option<AddressingMode>,
    /// The position on the baseboard; 0 is none. The model's own if absent.
    pub(crate) module_id: Option<u32>,
    /// No NVLinks if absent.
    pub(crate) nvlink: Option<Nvlink>,
    /// No C2C links if absent.
    pub(crate) c2c: Option<C2c>,
    /// In no fabric if absent.
    pub(crate) fabric: Option<Fabric>,
    #[serde(default)]
    pub(crate) errors: Errors,
    #[serde(default)]
    pub(crate) profiling: Profiling,
}

/// What differs in a GPU's PCIe link from that of its model.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Link {
    pub(crate) generation: Option<u32>,
    pub(crate) width: Option<u32>,
    pub(crate) max_generation: Option<u32>,
    pub(crate) max_width: Option<u32>,
}

/// How a GPU addresses the CPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AddressingMode {
    None,
    Hmm,
    Ats,
}

/// Error counters and states of a GPU, fixed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Errors {
    pub(crate) ecc_corrected: u64,
    pub(crate) ecc_uncorrected: u64,
    pub(crate) remapped_correctable: u32,
    pub(crate) remapped_uncorrectable: u32,
    pub(crate) remap_pending: bool,
    pub(crate) remap_failed: bool,
    pub(crate) pcie_replays: u32,
    /// What the driver says must be done: the code of `nvmlDeviceGpuRecoveryAction_t`.
    pub(crate) recovery_action: u32,
    /// Memory banks by the spare rows that are left: max, high, partial, low, none. All of the model's are at max if
    /// absent.
    pub(crate) remap_banks: Option<[u32; 5]>,
    /// Pages retired for single-bit and for double-bit errors. If present, the GPU retires pages instead of remapping
    /// rows.
    pub(crate) retired_pages: Option<[u32; 2]>,
}

/// One value or several.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T> OneOrMore<T> {
    /// All of them.
    pub(crate) fn all(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// What a process does on a GPU: NVML has a list for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessList {
    Compute = 1,
    Graphics = 2,
    Mps = 4,
}

/// One process, or `count` identical ones.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Process {
    /// Fixed if present; if absent, each run of the process has a different one.
    pub(crate) pid: Option<u32>,
    /// Its pid in a pid namespace of its own; in none if absent.
    pub(crate) namespace_pid: Option<u32>,
    pub(crate) count: Option<u32>,
    pub(crate) gpu: Option<u32>,
    pub(crate) gpus: Option<Vec<u32>>,
    /// Index of the MIG device.
    pub(crate) mig: Option<u32>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<OneOrMore<ProcessList>>,
    pub(crate) start: Option<Span>,
    pub(crate) end: Option<Span>,
    pub(crate) repeat: Option<Span>,
    pub(crate) command: Option<Vec<Bytes>>,
    pub(crate) comm: Option<Bytes>,
    /// The variables with which it was started, each as `NAME=value`.
    pub(crate) environment: Option<Vec<Bytes>>,
    pub(crate) user: Option<String>,
    pub(crate) uid: Option<u32>,
    pub(crate) cgroup: Option<Bytes>,
    /// What it allocates in addition to its context.
    pub(crate) memory: Option<Curve<Size>>,
    pub(crate) memory_cycle: bool,
    /// The memory that its context takes up.
    pub(crate) context: Option<Size>,
    pub(crate) utilization: Option<Curve<Ratio>>,
    pub(crate) utilization_cycle: bool,
    pub(crate) allocator: Option<Allocator>,
}

/// What a process would report about its memory allocator. NVML does not report it.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allocator {
    /// The name of the framework.
    pub(crate) framework: String,
    /// How much of the memory outside the context is in use, as a share.
    pub(crate) allocated: Ratio,
}

/// The driver's own limit for the processes in a cgroup and below it, on one GPU. The simulator reports it and does not
/// enforce it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryLimit {
    #[serde(default)]
    pub(crate) gpu: u32,
    /// The path of the cgroup, without `/sys/fs/cgroup`: `/system.slice/train.service`.
    pub(crate) cgroup: Bytes,
    /// Not limited if absent.
    pub(crate) hard: Option<Size>,
    /// Nothing is guaranteed if absent.
    pub(crate) soft: Option<Size>,
}

/// A vGPU of a virtual machine. Its memory is only reported: what the GPU has in use comes from the processes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vgpu {
    #[serde(default)]
    pub(crate) gpu: u32,
    /// The id of the virtual machine: a UUID, or the number of a domain.
    pub(crate) vm: String,
    /// How much of its frame buffer the virtual machine uses.
    pub(crate) memory: Size,
}

/// A critical error that the driver reports as an event.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xid {
    #[serde(default)]
    pub(crate) gpu: u32,
    pub(crate) at: Option<Span>,
    pub(crate) every: Option<Span>,
    pub(crate) code: u32,
}

/// Something that goes wrong.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// The name of a call, a list of names, or `*`.
    pub(crate) call: Option<OneOrMore<String>>,
    pub(crate) gpu: Option<u32>,
    /// Only calls on the GPU itself, not those on its MIG devices.
    #[serde(default)]
    pub(crate) skip_mig: bool,
    pub(crate) kind: FaultKind,
    /// For `error`: what the call returns.
    pub(crate) code: Option<String>,
    /// For `slow`: how much longer the call takes.
    pub(crate) delay: Option<Span>,
    /// For `grow`: by how many processes.
    pub(crate) by: Option<u32>,
    /// Only the MIG device with this index, or calls on it.
    pub(crate) mig: Option<u32>,
    /// For `implausible`: what kind of numbers.
    pub(crate) value: Option<Implausible>,
    pub(crate) from: Option<Span>,
    pub(crate) until: Option<Span>,
}

/// What the fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultKind {
    /// The call returns `code`.
    Error,
    /// The call does not return until the fault is over.
    Hang,
    /// The call takes `delay` longer.
    Slow,
    /// A process list grows between the call that requests its length and the call that fetches it.
    Grow,
    /// The GPU is not there: NVML counts one GPU fewer.
    Absent,
    /// The call returns numbers that cannot be true.
    Implausible,
    /// The MIG devices are replaced by others with the same ids.
    Recut,
}

/// Numbers that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Implausible {
    /// More memory in use than there is.
    Above,
    /// Every bit set.
    Ones,
    /// Zero, even for the total.
    Zeros,
}
