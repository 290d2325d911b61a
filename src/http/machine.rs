//! The machine as plain values: the documents that the API returns and `--once` prints.
//!
//! Invariant: a value is present only if a scrape would show it now; all rules for this are in [`GpuView`].

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::metrics::{GpuView, Parts, Reporting, Settings};
use crate::recorder::{Visit, Visits};
use crate::snapshot::{self, GpuProcesses, MemoryFigures, MigDevice, Other, WorkloadUse};

/// The version of the documents. It is incremented when the meaning of a field changes or a field is removed.
const VERSION: u8 = 1;

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
#[derive(Debug, Serialize)]
pub struct Driver {
    /// Whether it is open.
    pub up: bool,
    /// Why it is not open; absent while it is being opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// The highest CUDA version that it supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
}

/// One GPU.
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// NVML's index.
    pub gpu: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it responds and its last sample is recent.
    pub up: bool,
    /// Its memory.
    #[serde(flatten)]
    pub memory: Option<Memory>,
    /// Used memory that no visible process holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattributed_bytes: Option<u64>,
    /// Used memory minus what allocators reserved but did not allocate; absent if no process reports that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_bytes: Option<u64>,
    /// The share of time during which a kernel ran, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_ratio: Option<f64>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// Watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Watts: the enforced limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// The MIG devices.
    pub mig_devices: Vec<Mig>,
    /// The live processes, the largest first; absent if they were not requested or could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    /// The number of processes beyond `process.series-limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_left_out: Option<u64>,
    /// The number of processes that `/proc` does not show, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_invisible: Option<u64>,
}

/// The memory of a GPU or MIG device, in bytes.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// All memory.
    pub total_bytes: u64,
    /// Reserved by the driver and the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Total minus reserved.
    pub allocatable_bytes: u64,
    /// Allocated.
    pub used_bytes: u64,
    /// Free to be allocated.
    pub free_bytes: u64,
    /// The highest use within the peak window.
    pub window_peak_bytes: u64,
    /// The highest use since the exporter started.
    pub peak_bytes: u64,
}

/// A MIG device.
#[derive(Debug, Serialize)]
pub struct Mig {
    /// Its index on its GPU.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Its memory.
    #[serde(flatten)]
    pub memory: Option<Memory>,
    /// Used memory of the GPU instance that no visible process holds. Present only for the instance's first MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattributed_bytes: Option<u64>,
}

/// A process on a GPU, or on one of its MIG devices.
#[derive(Debug, Serialize)]
pub struct Process {
    /// The pid in the exporter's pid namespace.
    pub pid: u32,
    /// `compute`, `graphics` or `mps`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The index of the MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_index: Option<u32>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user's name, or the uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The kind of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_kind: Option<&'static str>,
    /// Memory in use, in bytes; absent if it is unknown or the process has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The highest use within the peak window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_peak_bytes: Option<u64>,
    /// The highest use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Bytes in live tensors or buffers of its frameworks; absent if the process does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator_allocated_bytes: Option<u64>,
    /// Bytes that the allocators of its frameworks obtained from the driver and still hold; absent if the process does
    /// not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator_reserved_bytes: Option<u64>,
    /// Used memory outside its allocators; absent if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_allocator_bytes: Option<u64>,
    /// Seconds since it last worked on the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<f64>,
    /// When it started: Unix time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<f64>,
    /// Whether it is on the GPU.
    pub alive: bool,
    /// The minimum number of seconds since it left the GPU; absent while it is on the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<f64>,
    /// When it was on the GPU; absent if nothing is recorded about it.
    #[serde(flatten)]
    pub visit: Option<Visit>,
}

/// A workload on a GPU, or on one of its MIG devices.
#[derive(Debug, Serialize)]
pub struct Workload {
    /// Its name.
    pub workload: String,
    /// Its kind.
    pub kind: &'static str,
    /// The index of the MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_index: Option<u32>,
    /// The number of its processes; 0 after the last one has ended.
    pub processes: u64,
    /// Memory in use, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The highest sum of its processes' memory within the peak window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_peak_bytes: Option<u64>,
    /// The highest sum of its processes' memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

impl<T> Document<T> {
    fn of(parts: &Parts, content: T) -> Self {
        let snapshot::Driver { up, problem, driver_version, cuda_version, simulated, .. } = (*parts.driver).clone();
        let driver = Driver { up, problem, driver_version, cuda_version };
        Self { version: VERSION, at: unix(SystemTime::now()).unwrap_or_default(), simulated, driver, content }
    }
}

/// The GPUs, without their processes.
pub fn gpus(parts: &Parts, settings: &Settings) -> Document<Gpus> {
    let gpus = parts.gpus(settings).iter().map(gpu).collect();
    Document::of(parts, Gpus { gpus })
}

/// The GPUs, each with its live processes.
pub fn gpus_with_processes(parts: &Parts, settings: &Settings) -> Document<Gpus> {
    let live = |view: &GpuView<'_>, listed: &GpuProcesses| {
        let live = listed.processes.iter().filter(|process| process.alive);
        let mut live: Vec<Process> = live.map(|found| process(found, view, parts.now)).collect();
        live.sort_by_key(|process| (std::cmp::Reverse(process.used_bytes), process.pid));
        live
    };
    let views = parts.gpus(settings);
    let described =
        views.iter().map(|view| Gpu { processes: view.processes.map(|list| live(view, list)), ..gpu(view) });
    Document::of(parts, Gpus { gpus: described.collect() })
}

/// The processes of all GPUs, at most `most`.
pub fn processes(parts: &Parts, settings: &Settings, visits: &Visits, most: usize) -> Document<Processes> {
    let views = parts.gpus(settings);
    let described = |view: &GpuView<'_>, found: &snapshot::Process| Process {
        visit: visits.of(&view.gpu.uuid, found),
        ..process(found, view, parts.now)
    };
    let mut processes =
        placed(&views, |view, listed| listed.processes.iter().map(|found| described(view, found)).collect());
    processes.sort_by_key(|placed| {
        let Process { alive, used_bytes, peak_bytes, pid, .. } = placed.what;
        (!alive, std::cmp::Reverse(if alive { used_bytes } else { peak_bytes }), pid)
    });
    let more_processes = left_out(&views, |listed| listed.other) + processes.len().saturating_sub(most) as u64;
    processes.truncate(most);
    Document::of(parts, Processes { processes, more_processes })
}

/// The workloads of all GPUs, at most `most`.
pub fn workloads(parts: &Parts, settings: &Settings, most: usize) -> Document<Workloads> {
    let views = parts.gpus(settings);
    let mut workloads = placed(&views, |_, listed| listed.workloads.iter().map(workload).collect());
    workloads.sort_by_key(|placed| std::cmp::Reverse((placed.what.used_bytes, placed.what.peak_bytes)));
    let more_workloads =
        left_out(&views, |listed| listed.other_workloads) + workloads.len().saturating_sub(most) as u64;
    workloads.truncate(most);
    Document::of(parts, Workloads { workloads, more_workloads })
}

fn placed<T>(views: &[GpuView<'_>], read: impl Fn(&GpuView<'_>, &GpuProcesses) -> Vec<T>) -> Vec<Placed<T>> {
    let listed = views.iter().filter_map(|view| Some((view, view.processes?)));
    listed
        .flat_map(|(view, listed)| {
            let gpu = view.gpu;
            read(view, listed).into_iter().map(|what| Placed { gpu: gpu.index, uuid: gpu.uuid.clone(), what })
        })
        .collect()
}

fn left_out(views: &[GpuView<'_>], other: impl Fn(&GpuProcesses) -> Option<Other>) -> u64 {
    views.iter().filter_map(|view| Some(other(view.processes?)?.entries)).sum()
}

fn gpu(view: &GpuView<'_>) -> Gpu {
    let listed = view.processes;
    let fast = view.fast;
    Gpu {
        gpu: view.gpu.index,
        uuid: view.gpu.uuid.clone(),
        name: view.gpu.name.clone(),
        up: view.up,
        memory: view.memory.and_then(|memory| memory.figures.as_ref()).map(memory),
        unattributed_bytes: listed.and_then(|listed| listed.unattributed),
        needed_bytes: view.needed,
        utilization_ratio: fast.and_then(|fast| fast.utilization),
        temperature_celsius: fast.and_then(|fast| fast.temperature),
        power_watts: fast.and_then(|fast| fast.power),
        power_limit_watts: fast.and_then(|fast| fast.power_limit),
        mig_devices: view.mig().map(|device| mig(&device.device, device.figures.as_ref(), listed)).collect(),
        processes: None,
        processes_left_out: listed.and_then(|listed| listed.other).map(|other| other.entries),
        processes_invisible: listed.map(|listed| listed.invisible).filter(|&count| count > 0),
    }
}

fn memory(figures: &MemoryFigures) -> Memory {
    Memory {
        total_bytes: figures.total,
        reserved_bytes: figures.reserved,
        allocatable_bytes: figures.total.saturating_sub(figures.reserved.unwrap_or(0)),
        used_bytes: figures.used,
        free_bytes: figures.free,
        window_peak_bytes: figures.window_peak,
        peak_bytes: figures.peak,
    }
}

fn mig(device: &Arc<MigDevice>, figures: Option<&MemoryFigures>, listed: Option<&GpuProcesses>) -> Mig {
    let unattributed = listed.into_iter().flat_map(|listed| &listed.mig_unattributed);
    Mig {
        index: device.index,
        uuid: device.uuid.clone(),
        profile: device.profile.clone(),
        memory: figures.map(memory),
        unattributed_bytes: unattributed.filter(|(of, _)| of.uuid == device.uuid).map(|&(_, bytes)| bytes).next(),
    }
}

fn process(process: &snapshot::Process, view: &GpuView<'_>, now: Instant) -> Process {
    let owner = &process.owner;
    let reporting = view.reporting.iter().find(|reporting| std::ptr::eq(reporting.process, process));
    let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
    Process {
        pid: process.pid,
        kind: process.kind.label(),
        mig_index: process.mig.as_ref().map(|mig| mig.index),
        name: owner.name.clone(),
        user: owner.user.clone().or_else(|| owner.uid.map(|uid| uid.to_string())),
        workload: owner.workload.as_ref().map(|workload| workload.name.clone()),
        workload_kind: owner.workload.as_ref().map(|workload| workload.kind.label()),
        used_bytes: process.used,
        window_peak_bytes: process.window_peak,
        peak_bytes: process.peak,
        allocator_allocated_bytes: reporting.and_then(Reporting::allocated),
        allocator_reserved_bytes: reporting.and_then(Reporting::reserved),
        outside_allocator_bytes: reporting.and_then(Reporting::outside),
        idle_seconds: process.last_active.map(since),
        started_at: owner.start.and_then(unix),
        alive: process.alive,
        ended_seconds: process.ended.map(|ended| since(ended.by)),
        visit: None,
    }
}

fn workload(workload: &WorkloadUse) -> Workload {
    Workload {
        workload: workload.workload.name.clone(),
        kind: workload.workload.kind.label(),
        mig_index: workload.mig.as_ref().map(|mig| mig.index),
        processes: workload.processes,
        used_bytes: workload.used,
        window_peak_bytes: workload.window_peak,
        peak_bytes: workload.peak,
    }
}

/// Unix time in seconds; `None` before 1970.
fn unix(time: SystemTime) -> Option<f64> {
    time.duration_since(UNIX_EPOCH).ok().as_ref().map(Duration::as_secs_f64)
}
