//! What `--once` read, as plain values: the JSON form is this struct, the table is written from it. `docs/run.md`
//! describes every field.
//!
//! Invariant: a value is present only if a scrape would show it now; all rules about that are in [`GpuView`].

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::metrics::{GpuView, Parts, Settings};
use crate::snapshot::{self, GpuProcesses, MemoryFigures, MigDevice};

/// The version of the JSON form. It rises when a field changes its meaning or is removed.
const VERSION: u8 = 1;

/// The machine.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    version: u8,
    pub(super) simulated: bool,
    pub(super) driver: Driver,
    pub(super) gpus: Vec<Gpu>,
}

/// The driver, or why there is none.
#[derive(Debug, Serialize)]
pub(super) struct Driver {
    pub(super) up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cuda_version: Option<String>,
}

/// One GPU.
#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    pub(super) gpu: u32,
    pub(super) uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) up: bool,
    #[serde(flatten)]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unattributed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) utilization_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) power_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) power_limit_watts: Option<f64>,
    pub(super) mig_devices: Vec<Mig>,
    /// `None` if the processes could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<Vec<Process>>,
    /// Processes beyond `process.series-limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processes_left_out: Option<u64>,
    /// Processes that `/proc` does not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processes_invisible: Option<u64>,
}

/// The memory of a GPU or MIG device.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    total_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_bytes: Option<u64>,
    pub(super) allocatable_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) window_peak_bytes: u64,
    pub(super) peak_bytes: u64,
}

/// A MIG device.
#[derive(Debug, Serialize)]
pub(super) struct Mig {
    pub(super) index: u32,
    uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<String>,
    #[serde(flatten)]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unattributed_bytes: Option<u64>,
}

/// A process on the GPU, or on one of its MIG devices.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mig_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_seconds: Option<f64>,
}

impl Machine {
    /// What the parts hold.
    pub(super) fn of(parts: &Parts, settings: &Settings) -> Self {
        let snapshot::Driver { up, problem, driver_version, cuda_version, simulated, .. } = (*parts.driver).clone();
        Self {
            version: VERSION,
            simulated,
            driver: Driver { up, problem, driver_version, cuda_version },
            gpus: parts.gpus(settings).iter().map(|view| gpu(view, parts.now)).collect(),
        }
    }
}

fn gpu(view: &GpuView<'_>, now: Instant) -> Gpu {
    let listed = view.processes;
    let fast = view.fast;
    Gpu {
        gpu: view.gpu.index,
        uuid: view.gpu.uuid.clone(),
        name: view.gpu.name.clone(),
        up: view.up,
        memory: view.memory.and_then(|memory| memory.figures.as_ref()).map(memory),
        unattributed_bytes: listed.and_then(|listed| listed.unattributed),
        utilization_ratio: fast.and_then(|fast| fast.utilization),
        temperature_celsius: fast.and_then(|fast| fast.temperature),
        power_watts: fast.and_then(|fast| fast.power),
        power_limit_watts: fast.and_then(|fast| fast.power_limit),
        mig_devices: view.mig().map(|device| mig(&device.device, device.figures.as_ref(), listed)).collect(),
        processes: listed.map(|listed| processes(listed, now)),
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

/// The living processes, the largest first.
fn processes(listed: &GpuProcesses, now: Instant) -> Vec<Process> {
    let living = listed.processes.iter().filter(|process| process.alive);
    let mut processes: Vec<Process> = living
        .map(|process| {
            let owner = &process.owner;
            let idle = process.last_active.map(|at| now.saturating_duration_since(at));
            Process {
                pid: process.pid,
                kind: process.kind.label(),
                mig_index: process.mig.as_ref().map(|mig| mig.index),
                name: owner.name.clone(),
                user: owner.user.clone().or_else(|| owner.uid.map(|uid| uid.to_string())),
                workload: owner.workload.as_ref().map(|workload| workload.name.clone()),
                workload_kind: owner.workload.as_ref().map(|workload| workload.kind.label()),
                used_bytes: process.used,
                peak_bytes: process.peak,
                idle_seconds: idle.map(|idle| idle.as_secs_f64()),
            }
        })
        .collect();
    processes.sort_by_key(|process| (std::cmp::Reverse(process.used_bytes), process.pid));
    processes
}
