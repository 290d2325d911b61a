//! What the workloads may hold, how long they held more, and what is promised on each GPU.
//!
//! Invariant: no two series of a family have the same labels. Of two workloads with the same labels, such as those on two
//! MIG devices that are not identified yet, no limit is shown unless both have the same one.

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Series};
use super::label::{Labels, distinct};
use super::openmetrics::Counted;
use super::section::{Pass, Section};
use super::view::GpuView;
use super::workloads;
use gpu_readings::snapshot::WorkloadLimit;

const LIMITED: Series = Series::new(
    Cadence::ProcessLane,
    &["gpu", "uuid", "mig_uuid", "workload", "kind", "namespace", "pod", "container", "source"],
);

static LIMIT: Family = LIMITED.family(
    "gpu_workload_memory_limit_bytes",
    "Bytes of device memory that the workload may hold on this GPU or MIG device according to source. Nothing is enforced by the exporter. Absent where no source declares a limit, while the limit is unknown, and after the last process ended.",
);
static OVER_LIMIT: Family = LIMITED.family(
    "gpu_workload_memory_over_limit_seconds_total",
    "Seconds in which the workload held more than the limit that source declared at that moment. Starts at 0 when the limit is first known, and stays for the peak window and process.linger after the last process ended. Time without readings, longer than three times process.interval and 5 seconds, is left out. Absent for a share (source=\"time_slicing\").",
);
static PROMISED: Family = Series::new(Cadence::Scrape, GPU).family(
    "gpu_memory_promised_bytes",
    "Bytes of the GPU's memory that are promised: the sum of the lowest limits of all containers that the kubelet or a scheduler has placed on it, started or not, and of all other workloads that run on it; each with at most the GPU's memory. What a claim consumes counts once for all its containers, in place of their other limits. The annotation and the environment count where no scheduler and no driver sets a limit. A container whose GPU is not known counts once it runs; workloads beyond process.series-limit count only if their GPU is known from Kubernetes. Shares and MIG devices promise nothing. Absent where nothing is promised, while the API server or the kubelet does not answer although a budget depends on it, and while it is not known yet which GPU a claim has.",
);

pub(super) static SECTION: Section = Section {
    title: "Budgets",
    intro: "What workloads may hold, as something outside the exporter declares it; the exporter enforces nothing. `source` is \
            `annotation` (the pod's `vram-exporter/gpu-memory-limit`), `claim` (what the container's claims consume of a GPU that several claims share; all containers of a claim share it), `driver` (the hard limit that the driver enforces for the workload's \
            cgroup; NVML 13.5 and later, not tested on a GPU), `environment` (`VRAM_EXPORTER_GPU_MEMORY_LIMIT` in the environment of \
            every process of the workload on the device; the highest if they differ), `hami`, `kai`, `mig` (the MIG device's total memory) or `time_slicing` (the \
            device's total memory times the container's part of the replicas: a share, not a limit). A container's budget applies to each GPU that it uses, unless the source names one.",
    families: &[&LIMIT, &OVER_LIMIT, &PROMISED],
    collect,
};

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let limits: Vec<_> = gpus.iter().flat_map(limits).collect();
    if !limits.is_empty() {
        out.add(&LIMIT, limits.iter().filter_map(|(labels, limit)| Some((labels, limit.bytes?))));
        let counted = |limit: &WorkloadLimit| Some(Counted::since(Some(limit.since), limit.over?.as_secs_f64()));
        out.add(&OVER_LIMIT, limits.iter().filter_map(|(labels, limit)| Some((labels, counted(limit)?))));
    }
    out.add(&PROMISED, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.promised?))));
}

/// The limits of the GPU's workloads, sorted by their labels, with each set of labels once.
fn limits(gpu: &GpuView<'_>) -> Vec<(Labels, WorkloadLimit)> {
    let workloads = gpu.processes.map_or(&[][..], |part| &part.workloads);
    let mut limits = Vec::new();
    for workload in workloads.iter().filter(|workload| !workload.limits.is_empty()) {
        let labels = workloads::labels(&gpu.labels, &workload.workload, workload.mig.as_deref());
        let of = |limit: &WorkloadLimit| (labels.with_room(1).and("source", limit.source.label()), *limit);
        limits.extend(workload.limits.iter().map(of));
    }
    distinct(limits, |limit, other| {
        limit.bytes = limit.bytes.filter(|bytes| other.bytes == Some(*bytes));
        (limit.over, limit.since) = (limit.over.max(other.over), limit.since.min(other.since));
    })
}
