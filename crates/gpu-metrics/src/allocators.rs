//! What processes report about their memory allocators: how much of the memory that a process takes is in use.
//!
//! Invariant: in one scrape, the used memory of a process is the sum of what is outside its allocators, what they
//! reserved without allocating it, and what they allocated. No two series of a family have the same labels.

use std::collections::BTreeMap;

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Row, Rows, Series};
use super::label::Labels;
use super::processes::process_labels;
use super::section::{Pass, Section};
use super::view::GpuView;
use super::{label_cache, processes, workloads};
use gpu_readings::snapshot::{AllocatorFigures, AllocatorReport, AllocatorSites};

const FRAMEWORK: Series = Series::new(Cadence::Reported, process_labels!("framework"));
const REGION: Series = Series::new(Cadence::Reported, process_labels!("framework", "region"));
const ROLE: Series = Series::new(Cadence::Reported, process_labels!("framework", "role"));
const SITE: Series = Series::new(Cadence::Reported, process_labels!("framework", "site", "role"));
const WORKLOAD: Series = Series::new(Cadence::Reported, workloads::LABELS);

static REGION_PEAK: Family = REGION.family(
    "gpu_process_allocator_region_peak_bytes",
    "Highest allocated memory of the framework in bytes in any run of a region of the program that its author measures. A lower bound where the framework does not report the peak of a region.",
);
static ROLE_BYTES: Family = ROLE.family(
    "gpu_process_allocator_role_bytes",
    "Live memory of the framework in bytes by what it is to the program, when its client last looked, at most 2 minutes ago: parameters, gradients, optimizer_state, activations, kv_cache, other (held for none of these) or unknown. A role that the client does not look for is absent. Only with allocator.sites.",
);
static SITE_BYTES: Family = SITE.family(
    "gpu_process_allocator_site_bytes",
    "Live memory of the framework in bytes by the line of code that allocated it, when its client last looked, at most 2 minutes ago. At most 10 call sites of a framework on a device; site=\"other\" is the rest, and site=\"not recorded\" what was allocated while no call sites were recorded: both have role=\"any\". Only with allocator.sites; the process chose the text.",
);
static OUTSIDE: Family = Series::new(Cadence::Reported, processes::LABELS).family(
    "gpu_process_memory_outside_allocator_bytes",
    "gpu_process_memory_used_bytes minus what the allocators of the process reserved, in bytes: contexts, kernels and libraries such as NCCL. Absent where a framework in the process does not report what it reserved, and while more is reserved than the driver last reported.",
);
static NEEDED: Family = Series::new(Cadence::Reported, GPU).family(
    "gpu_memory_needed_bytes",
    "gpu_memory_used_bytes minus what allocators reserved without allocating it, in bytes: what would remain if every reporting process gave back what it does not need. Memory of processes that do not report counts as needed. Absent where no process reports both values.",
);

/// The sums over the processes of a workload.
static SUMS: Rows<AllocatorFigures, u64> = &[
    WORKLOAD.row(
        "gpu_workload_allocator_allocated_bytes",
        "Sum of gpu_process_allocator_allocated_bytes over those processes of the workload that report it, in bytes. Other processes of the workload are not included.",
        |f| f.allocated,
    ),
    WORKLOAD.row(
        "gpu_workload_allocator_reserved_bytes",
        "Sum of gpu_process_allocator_reserved_bytes over those processes of the workload that report it, in bytes. Other processes of the workload are not included.",
        |f| f.reserved,
    ),
];

static READINGS: Rows<AllocatorFigures, u64> = &[
    FRAMEWORK.row(
        "gpu_process_allocator_allocated_bytes",
        "Memory in live tensors or buffers of the framework in bytes: what the program needs now.",
        |f| f.allocated,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_reserved_bytes",
        "Memory that the framework's allocator took from the driver in bytes. Reserved minus allocated is kept for later use. Absent where the framework does not report it.",
        |f| f.reserved,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_window_peak_bytes",
        "Highest allocated memory of the framework in bytes within the last vram_exporter_peak_window_seconds, including peaks between two reports where the framework reports them. The window slides, and no scrape resets it.",
        |f| f.window_peak,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_peak_bytes",
        "Highest allocated memory of the framework in bytes since the process started, as far as its client knows. It does not fall when the program resets the peak of the framework.",
        |f| f.peak,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_limit_bytes",
        "The most that the framework's allocator may take in bytes. Absent where it has no limit.",
        |f| f.limit,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_largest_free_block_bytes",
        "The largest block, in bytes, that the framework's allocator can return without a request to the driver. Absent where the framework does not report it.",
        |f| f.largest_free_block,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_inactive_split_bytes",
        "Free parts of segments that are partly in use, which cannot be returned to the driver, in bytes. Absent where the framework does not report it.",
        |f| f.inactive_split,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_retries_total",
        "Allocations for which the framework had to return its cached memory to the driver first. Absent where the framework does not report it.",
        |f| f.retries,
    ),
    FRAMEWORK.row(
        "gpu_process_allocator_out_of_memory_total",
        "Allocations of the framework that failed. Absent where the framework does not report it.",
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
    families: &[&READINGS, &REGION_PEAK, &ROLE_BYTES, &SITE_BYTES, &OUTSIDE, &SUMS, &NEEDED],
    collect,
};

fn collect(&Pass { gpus, settings, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    if gpus.iter().all(|gpu| gpu.reporting.is_empty()) {
        return;
    }
    if settings.process_series {
        of_processes(gpus, out);
    }
    of_workloads(gpus, out);
    out.add(&NEEDED, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.needed?))));
}

fn of_processes(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let processes = gpus.iter().flat_map(|gpu| gpu.reporting.iter().map(move |reporting| (gpu, reporting)));
    let processes: Vec<_> = processes
        .map(|(gpu, reporting)| (label_cache::process_labels(&gpu.labels, reporting.process), reporting))
        .collect();
    let reports: Vec<(Labels, &AllocatorReport)> = processes
        .iter()
        .flat_map(|(labels, reporting)| reporting.reports.iter().map(move |&report| (labels, report)))
        .map(|(labels, report)| (labels.with_room(3).and("framework", &report.framework), report))
        .collect();
    out.add_rows(READINGS, reports.iter().map(|(labels, report)| (labels, &report.figures)));
    let regions = reports.iter().flat_map(|(labels, report)| {
        report.regions.iter().map(|region| (labels.with_room(1).and("region", &region.name), region.peak))
    });
    out.add(&REGION_PEAK, regions);
    let looks = || reports.iter().filter_map(|(labels, report)| Some((labels, &**report.sites.as_ref()?)));
    let roles = looks().flat_map(|(labels, look)| {
        look.roles().map(move |(role, bytes)| (labels.with_room(1).and("role", role.label()), bytes))
    });
    out.add(&ROLE_BYTES, roles);
    out.add(&SITE_BYTES, looks().flat_map(|(labels, look)| of_sites(labels, look)));
    out.add(&OUTSIDE, processes.iter().filter_map(|(labels, reporting)| Some((labels, reporting.outside()?))));
}

/// The series of a look at the call sites.
fn of_sites(labels: &Labels, look: &AllocatorSites) -> impl Iterator<Item = (Labels, u64)> {
    let series = |site: &str, role: &str, bytes| (labels.with_room(2).and("site", site).and("role", role), bytes);
    let rest = [("other", look.other), ("not recorded", look.unrecorded)];
    let rest = rest.into_iter().filter_map(move |(name, bytes)| Some(series(name, "any", bytes?)));
    look.sites.iter().map(move |site| series(&site.site, site.role.label(), site.bytes)).chain(rest)
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
                for (sum, Row { read, .. }) in sums.iter_mut().zip(SUMS) {
                    *sum = [*sum, read(figures)].into_iter().flatten().reduce(u64::saturating_add);
                }
            }
        }
    }
    for (position, Row { family, .. }) in SUMS.iter().enumerate() {
        out.add(family, sums.iter().filter_map(|(labels, sums)| Some((labels, sums[position]?))));
    }
}
