//! The memory of whole GPUs: figures, peaks, pressure, churn, unattributed memory, and BAR1.

use std::time::SystemTime;

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Rows, Series};
use super::label::Labels;
use super::openmetrics::Counted;
use super::section::{Pass, Section};
use gpu_readings::snapshot::{GpuMemory, MemoryFigures, PRESSURE_RATIOS, SlowTelemetry};

const SAMPLED: Series = Series::new(Cadence::MemoryLane, GPU);
const SLOW: Series = Series::new(Cadence::Slow, GPU);

static PRESSURE: Family = Series::new(Cadence::MemoryLane, &["gpu", "uuid", "ratio"]).family(
    "gpu_memory_pressure_seconds_total",
    "Seconds spent with used / (total - reserved) at or above the ratio, weighted by real time. The ratios are nested: do not sum over them. Where gpu_memory_reserved_bytes is absent, reserved memory counts as used. Where gpu_info has memory=\"unified\", total is the machine's memory, which the CPU can fill before: see gpu_memory_available_bytes.",
);
static UNATTRIBUTED: Family = Series::new(Cadence::ProcessLane, GPU).family(
    "gpu_memory_unattributed_bytes",
    "Used memory in bytes that neither a visible process nor a vGPU holds, at least 0. Absent while the memory of any process or vGPU on the GPU is unknown.",
);

static WHOLE: Rows<GpuMemory, u64> = &[
    SAMPLED.row(
        "gpu_memory_total_bytes",
        "All device memory of the GPU in bytes. Where gpu_info has memory=\"unified\": the memory of the machine (MemTotal of /proc/meminfo), which the CPU uses too.",
        |m| m.total(),
    ),
    SAMPLED.row(
        "gpu_memory_available_bytes",
        "Memory in bytes that a process on the GPU can still allocate, where gpu_info has memory=\"unified\": MemAvailable plus SwapFree of /proc/meminfo or the free huge pages, whichever is more. The CPU takes from it too. With swap it can exceed gpu_memory_total_bytes.",
        |m| m.shared.map(|shared| shared.available),
    ),
];

static AT_LEAST: Family = Series::new(Cadence::ProcessLane, GPU).family(
    "gpu_memory_used_at_least_bytes",
    "What the processes on the GPU hold in bytes, without those whose memory the driver does not report: a lower bound of the used memory. Present only where gpu_info has memory=\"unified\", and only while the memory of one process is known and that of another is not.",
);

static FIGURES: Rows<MemoryFigures, u64> = &[
    SAMPLED.row(
        "gpu_memory_reserved_bytes",
        "Device memory kept by driver and firmware in bytes; it cannot be allocated. Absent where the driver does not report it: gpu_memory_used_bytes includes it there.",
        |m| m.reserved,
    ),
    SAMPLED.row(
        "gpu_memory_used_bytes",
        "Allocated device memory in bytes. Reserved memory is left out, but is included where gpu_memory_reserved_bytes is absent. Where gpu_info has memory=\"unified\": the sum over the processes in the driver's lists, which are read in the background when the machine's memory changes and at least once per process.interval; absent while the memory of a process is unknown.",
        |m| Some(m.used),
    ),
    SAMPLED.row(
        "gpu_memory_free_bytes",
        "Device memory that can still be allocated in bytes. Absent where gpu_info has memory=\"unified\": see gpu_memory_available_bytes.",
        |m| m.free,
    ),
    SAMPLED.row(
        "gpu_memory_window_peak_bytes",
        "Highest used memory in bytes within the last vram_exporter_peak_window_seconds. The window slides, and no scrape resets it. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
        |m| Some(m.window_peak),
    ),
    SAMPLED.row(
        "gpu_memory_window_peak_from_calls",
        "1 if gpu_memory_window_peak_bytes is a lower bound made of calls, because no reading within the window shows as much, else 0. Absent unless memory.probes=all has told of a peak.",
        |m| m.is_peak_of_calls.map(u64::from),
    ),
    SAMPLED.row(
        "gpu_memory_peak_bytes",
        "Highest used memory in bytes since the exporter started. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
        |m| Some(m.peak),
    ),
];

static CHURN: Rows<GpuMemory, Counted<'static>> = &[
    SAMPLED.row(
        "gpu_memory_increase_bytes_total",
        "Sum of all rises of used memory between samples in bytes. A rise and fall between two samples is not seen.",
        |m| Some(Counted::since(m.counted_since, m.increase as f64)),
    ),
    SAMPLED.row(
        "gpu_memory_decrease_bytes_total",
        "Sum of all falls of used memory between samples in bytes. A rise and fall between two samples is not seen.",
        |m| Some(Counted::since(m.counted_since, m.decrease as f64)),
    ),
];

static BAR1: Rows<SlowTelemetry, u64> = &[
    SLOW.row(
        "gpu_bar1_memory_total_bytes",
        "Size of the BAR1 aperture, through which the host reaches device memory, in bytes. It is address space, not device memory.",
        |s| s.bar1_total,
    ),
    SLOW.row(
        "gpu_bar1_memory_used_bytes",
        "Mapped part of the BAR1 aperture in bytes. It is address space, not device memory.",
        |s| s.bar1_used,
    ),
];

pub(super) static SECTION: Section = Section {
    title: "GPU memory",
    intro: "One series for each GPU. total = reserved + used + free where the driver reports reserved memory. \
            A GPU that shares the memory of the machine with the CPU (`gpu_info{memory=\"unified\"}`) has no memory of its own.",
    families: &[&WHOLE, &FIGURES, &AT_LEAST, &PRESSURE, &CHURN, &UNATTRIBUTED, &BAR1],
    collect,
};

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    out.add_rows(WHOLE, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.memory?))));
    // A GPU that shares the machine's memory has no figures while the memory of its processes is unknown, and so none of the
    // values computed from them.
    let measured: Vec<_> = gpus
        .iter()
        .filter_map(|gpu| gpu.memory.and_then(|m| m.figures.as_ref().map(|f| (&gpu.labels, m, f))))
        .collect();
    out.add_rows(FIGURES, measured.iter().map(|&(labels, _, f)| (labels, f)));
    out.add(&AT_LEAST, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.processes?.held?.at_least()?))));
    out.add_rows(CHURN, measured.iter().map(|&(labels, m, _)| (labels, m)));
    let pressures = measured.iter().flat_map(|(labels, m, _)| pressure(labels, m.counted_since, m.pressure_seconds));
    out.add(&PRESSURE, pressures);
    out.add(&UNATTRIBUTED, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.processes?.unattributed?))));
    out.add_rows(BAR1, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.slow?))));
}

/// The series of a GPU's or MIG device's pressure: the seconds at or above each ratio.
pub(super) fn pressure(
    labels: &Labels,
    since: Option<SystemTime>,
    seconds: [f64; PRESSURE_RATIOS.len()],
) -> impl Iterator<Item = (Labels, Counted<'static>)> {
    PRESSURE_RATIOS.iter().zip(seconds).map(move |(ratio, seconds)| {
        (labels.with_room(1).and("ratio", &ratio.to_string()), Counted::since(since, seconds))
    })
}
