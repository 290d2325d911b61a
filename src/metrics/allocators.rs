//! What processes report about their memory allocators: how much of the memory that a process takes is in use.
//!
//! Invariant: in one scrape, the used memory of a process is the sum of what is outside its allocators, what they
//! reserved without allocating it, and what they allocated. No two series of a family have the same labels.

use std::collections::BTreeMap;

use super::exposition::Exposition;
use super::family::{Cadence, Family, Row, Section, Unit};
use super::label::Labels;
use super::view::GpuView;
use super::{label_cache, workloads};
use crate::snapshot::{AllocatorFigures, AllocatorReport};

const PROCESS: &[&str] = &["gpu", "uuid", "mig_uuid", "pid", "process", "namespace", "pod", "container", "type"];
const FRAMEWORK: &[&str] =
    &["gpu", "uuid", "mig_uuid", "pid", "process", "namespace", "pod", "container", "type", "framework"];
const REGION: &[&str] =
    &["gpu", "uuid", "mig_uuid", "pid", "process", "namespace", "pod", "container", "type", "framework", "region"];
const WORKLOAD: &[&str] = &["gpu", "uuid", "mig_uuid", "workload", "kind", "namespace", "pod", "container"];

/// A gauge in bytes that a process reports.
const fn bytes(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Family {
    Family::gauge(name, Unit::Bytes, Cadence::Reported, labels, meaning)
}

static REGION_PEAK: Family = bytes(
    "gpu_process_allocator_region_peak_bytes",
    REGION,
    "Highest allocated memory of the framework in bytes in any run of a region of the program that its author measures. A lower bound where the framework does not report the peak of a region.",
);
static OUTSIDE: Family = bytes(
    "gpu_process_memory_outside_allocator_bytes",
    PROCESS,
    "gpu_process_memory_used_bytes minus what the allocators of the process reserved, in bytes: contexts, kernels and libraries such as NCCL. Absent where a framework in the process does not report what it reserved, and while more is reserved than the driver last reported.",
);
static WORKLOAD_ALLOCATED: Family = bytes(
    "gpu_workload_allocator_allocated_bytes",
    WORKLOAD,
    "Sum of gpu_process_allocator_allocated_bytes over those processes of the workload that report it, in bytes. Other processes of the workload are not included.",
);
static WORKLOAD_RESERVED: Family = bytes(
    "gpu_workload_allocator_reserved_bytes",
    WORKLOAD,
    "Sum of gpu_process_allocator_reserved_bytes over those processes of the workload that report it, in bytes. Other processes of the workload are not included.",
);
static NEEDED: Family = bytes(
    "gpu_memory_needed_bytes",
    &["gpu", "uuid"],
    "gpu_memory_used_bytes minus what allocators reserved without allocating it, in bytes: what would remain if every reporting process gave back what it does not need. Memory of processes that do not report counts as needed. Absent where no process reports both values.",
);

/// A gauge in bytes of one framework in a process.
const fn figure(
    name: &'static str,
    meaning: &'static str,
    read: fn(&AllocatorFigures) -> Option<u64>,
) -> Row<AllocatorFigures, u64> {
    Row::new(bytes(name, FRAMEWORK, meaning), read)
}

static READINGS: &[Row<AllocatorFigures, u64>] = &[
    figure(
        "gpu_process_allocator_allocated_bytes",
        "Memory in live tensors or buffers of the framework in bytes: what the program needs now.",
        |f| f.allocated,
    ),
    figure(
        "gpu_process_allocator_reserved_bytes",
        "Memory that the framework's allocator took from the driver in bytes. Reserved minus allocated is kept for later use. Absent where the framework does not report it.",
        |f| f.reserved,
    ),
    figure(
        "gpu_process_allocator_window_peak_bytes",
        "Highest allocated memory of the framework in bytes within the last vram_exporter_peak_window_seconds, including peaks between two reports where the framework reports them. The window slides, and no scrape resets it.",
        |f| f.window_peak,
    ),
    figure(
        "gpu_process_allocator_peak_bytes",
        "Highest allocated memory of the framework in bytes since the process started, as far as its client knows. It does not fall when the program resets the peak of the framework.",
        |f| f.peak,
    ),
    figure(
        "gpu_process_allocator_limit_bytes",
        "The most that the framework's allocator may take in bytes. Absent where it has no limit.",
        |f| f.limit,
    ),
    figure(
        "gpu_process_allocator_largest_free_block_bytes",
        "The largest block, in bytes, that the framework's allocator can return without a request to the driver. Absent where the framework does not report it.",
        |f| f.largest_free_block,
    ),
    figure(
        "gpu_process_allocator_inactive_split_bytes",
        "Free parts of segments that are partly in use, which cannot be returned to the driver, in bytes. Absent where the framework does not report it.",
        |f| f.inactive_split,
    ),
    Row::new(
        Family::counter(
            "gpu_process_allocator_retries_total",
            Unit::Number,
            Cadence::Reported,
            FRAMEWORK,
            "Allocations for which the framework had to return its cached memory to the driver first. Absent where the framework does not report it.",
        ),
        |f| f.retries,
    ),
    Row::new(
        Family::counter(
            "gpu_process_allocator_out_of_memory_total",
            Unit::Number,
            Cadence::Reported,
            FRAMEWORK,
            "Allocations of the framework that failed. Absent where the framework does not report it.",
        ),
        |f| f.out_of_memory,
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Allocators",
    intro: "What a client in the process reports over `allocator.socket` ([allocators.md](allocators.md)); without a \
            client, all of these families are absent. A process reports about itself only, and is shown only on a GPU or MIG device on \
            which the driver lists it. `framework` is `pytorch`, `jax`, `tensorflow` or another name. Absent after the process has been \
            silent for 5 s or has closed its connection, and while it reports over 64 MiB more reserved memory than the driver reports \
            for it. In each scrape, gpu_process_memory_used_bytes = gpu_process_memory_outside_allocator_bytes + (reserved - allocated) + \
            allocated.",
    families: &[&READINGS, &REGION_PEAK, &OUTSIDE, &WORKLOAD_ALLOCATED, &WORKLOAD_RESERVED, &NEEDED],
};

pub(super) fn collect(gpus: &[GpuView<'_>], process_series: bool, out: &mut Exposition<'_>) {
    if gpus.iter().all(|gpu| gpu.reporting.is_empty()) {
        return;
    }
    if process_series {
        of_processes(gpus, out);
    }
    of_workloads(gpus, out);
    out.add(&NEEDED, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.needed? as f64))));
}

fn of_processes(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let processes = gpus.iter().flat_map(|gpu| gpu.reporting.iter().map(move |reporting| (gpu, reporting)));
    let processes: Vec<_> = processes
        .map(|(gpu, reporting)| (label_cache::process_labels(&gpu.labels, reporting.process), reporting))
        .collect();
    let reports: Vec<(Labels, &AllocatorReport)> = processes
        .iter()
        .flat_map(|(labels, reporting)| reporting.reports.iter().map(move |&report| (labels, report)))
        .map(|(labels, report)| (labels.with_room(2).and("framework", &report.framework), report))
        .collect();
    for Row { family, read } in READINGS {
        out.add(family, reports.iter().filter_map(|(labels, report)| Some((labels, read(&report.figures)? as f64))));
    }
    let regions = reports.iter().flat_map(|(labels, report)| {
        report.regions.iter().map(|region| (labels.with_room(1).and("region", &region.name), region.peak as f64))
    });
    out.add(&REGION_PEAK, regions);
    out.add(&OUTSIDE, processes.iter().filter_map(|(labels, reporting)| Some((labels, reporting.outside()? as f64))));
}

fn of_workloads(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let mut sums: BTreeMap<Labels, [Option<u64>; 2]> = BTreeMap::new();
    for gpu in gpus {
        for reporting in &gpu.reporting {
            let process = reporting.process;
            let Some(workload) = &process.owner.workload else { continue };
            let labels = workloads::labels(&gpu.labels, workload, process.mig.as_deref());
            let sums = sums.entry(labels).or_default();
            for AllocatorReport { figures, .. } in &reporting.reports {
                for (sum, value) in sums.iter_mut().zip([figures.allocated, figures.reserved]) {
                    *sum = [*sum, value].into_iter().flatten().reduce(u64::saturating_add);
                }
            }
        }
    }
    for (position, family) in [&WORKLOAD_ALLOCATED, &WORKLOAD_RESERVED].into_iter().enumerate() {
        out.add(family, sums.iter().filter_map(|(labels, sums)| Some((labels, sums[position]? as f64))));
    }
}
