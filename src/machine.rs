//! The machine as plain values: the documents that the API returns and the tool `vram` prints.
//!
//! Invariant: a value is present only if a scrape would show it now; all rules for this are in [`GpuView`].

mod document;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use document::{Document, Driver, Gpu, Gpus, Memory, Mig, Placed, Process, Processes, Workload, Workloads};

use crate::recorder::Visits;
use crate::snapshot::{self, GpuMemory, GpuProcesses, Held, MemoryFigures, MigDevice, Other, WorkloadUse};
use gpu_metrics::{GpuView, Parts, Reporting, Settings};

/// The version of the documents. It is incremented when the meaning of a field changes or a field is removed.
const VERSION: u8 = 1;

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
        memory: view.memory.and_then(|memory| gpu_memory(memory, listed.and_then(|listed| listed.held))),
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

/// `None` if neither the driver nor the machine reports how much memory there is.
fn gpu_memory(memory: &GpuMemory, held: Option<Held>) -> Option<Memory> {
    let total_bytes = memory.total()?;
    let known = memory.figures.as_ref().map(|figures| figures_of(figures, memory.allocatable()));
    let available_bytes = memory.shared.map(|shared| shared.available);
    let used_at_least_bytes = held.and_then(Held::at_least);
    Some(Memory { total_bytes, used_at_least_bytes, available_bytes, ..known.unwrap_or_default() })
}

fn figures_of(figures: &MemoryFigures, allocatable: u64) -> Memory {
    Memory {
        total_bytes: figures.total,
        reserved_bytes: figures.reserved,
        allocatable_bytes: Some(allocatable),
        used_bytes: Some(figures.used),
        used_at_least_bytes: None,
        free_bytes: figures.free,
        available_bytes: None,
        window_peak_bytes: Some(figures.window_peak),
        peak_bytes: Some(figures.peak),
    }
}

fn mig(device: &Arc<MigDevice>, figures: Option<&MemoryFigures>, listed: Option<&GpuProcesses>) -> Mig {
    let unattributed = listed.into_iter().flat_map(|listed| &listed.mig_unattributed);
    Mig {
        index: device.index,
        uuid: device.uuid.clone(),
        gpu_instance: device.gpu_instance,
        compute_instance: device.compute_instance,
        profile: device.profile.clone(),
        memory: figures.map(|known| figures_of(known, snapshot::allocatable(known.total, known.reserved))),
        unattributed_bytes: unattributed.filter(|(of, _)| of.uuid == device.uuid).map(|&(_, bytes)| bytes).next(),
    }
}

fn process(process: &snapshot::Process, view: &GpuView<'_>, now: Instant) -> Process {
    let owner = &process.owner;
    let reporting = view.reporting.iter().find(|reporting| std::ptr::eq(reporting.process, process));
    let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
    Process {
        pid: process.pid,
        namespace_pid: owner.namespace_pid,
        kind: process.kind.label(),
        mig_index: process.mig.as_ref().map(|mig| mig.index),
        name: owner.name.clone(),
        user: owner.user_or_uid(),
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
        used_at_least_bytes: workload.at_least,
        window_peak_bytes: workload.window_peak,
        peak_bytes: workload.peak,
    }
}

/// Unix time in seconds; `None` before 1970.
fn unix(time: SystemTime) -> Option<f64> {
    time.duration_since(UNIX_EPOCH).ok().as_ref().map(Duration::as_secs_f64)
}
