//! The memory of whole GPUs: figures, peaks, pressure, churn, unattributed memory, and BAR1.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Row, Section, Unit};
use super::openmetrics::Counted;
use super::view::GpuView;
use crate::snapshot::{GpuMemory, MemoryFigures, PRESSURE_RATIOS, SlowTelemetry};

const GPU: &[&str] = &["gpu", "uuid"];

static PRESSURE: Family = Family::counter(
    "gpu_memory_pressure_seconds_total",
    Unit::Seconds,
    Cadence::MemoryLane,
    &["gpu", "uuid", "ratio"],
    "Seconds spent with used / (total - reserved) at or above the ratio, weighted by real time. The ratios are nested: do not sum over them. Where gpu_memory_reserved_bytes is absent, reserved memory counts as used.",
);
static UNATTRIBUTED: Family = Family::gauge(
    "gpu_memory_unattributed_bytes",
    Unit::Bytes,
    Cadence::ProcessLane,
    GPU,
    "Used memory in bytes that neither a visible process nor a vGPU holds, at least 0. Absent while the memory of any process or vGPU on the GPU is unknown.",
);

/// A gauge of the memory lane.
const fn figure(
    name: &'static str,
    meaning: &'static str,
    read: fn(&MemoryFigures) -> Option<u64>,
) -> Row<MemoryFigures, u64> {
    Row::new(Family::gauge(name, Unit::Bytes, Cadence::MemoryLane, GPU, meaning), read)
}

static FIGURES: &[Row<MemoryFigures, u64>] = &[
    figure("gpu_memory_total_bytes", "All device memory of the GPU in bytes.", |m| Some(m.total)),
    figure(
        "gpu_memory_reserved_bytes",
        "Device memory kept by driver and firmware in bytes; it cannot be allocated. Absent where the driver does not report it: gpu_memory_used_bytes includes it there.",
        |m| m.reserved,
    ),
    figure(
        "gpu_memory_used_bytes",
        "Allocated device memory in bytes. Reserved memory is left out, but is included where gpu_memory_reserved_bytes is absent.",
        |m| Some(m.used),
    ),
    figure("gpu_memory_free_bytes", "Device memory that can still be allocated in bytes.", |m| Some(m.free)),
    figure(
        "gpu_memory_window_peak_bytes",
        "Highest used memory in bytes within the last vram_exporter_peak_window_seconds. The window slides, and no scrape resets it. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
        |m| Some(m.window_peak),
    ),
    figure(
        "gpu_memory_peak_bytes",
        "Highest used memory in bytes since the exporter started. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
        |m| Some(m.peak),
    ),
];

/// A counter of the memory lane.
const fn churn(name: &'static str, meaning: &'static str, read: fn(&GpuMemory) -> Option<u64>) -> Row<GpuMemory, u64> {
    Row::new(Family::counter(name, Unit::Bytes, Cadence::MemoryLane, GPU, meaning), read)
}

static CHURN: &[Row<GpuMemory, u64>] = &[
    churn(
        "gpu_memory_increase_bytes_total",
        "Sum of all rises of used memory between samples in bytes. A rise and fall between two samples is not seen.",
        |m| Some(m.increase),
    ),
    churn(
        "gpu_memory_decrease_bytes_total",
        "Sum of all falls of used memory between samples in bytes. A rise and fall between two samples is not seen.",
        |m| Some(m.decrease),
    ),
];

/// A gauge of the slow readings.
const fn bar1(
    name: &'static str,
    meaning: &'static str,
    read: fn(&SlowTelemetry) -> Option<u64>,
) -> Row<SlowTelemetry, u64> {
    Row::new(Family::gauge(name, Unit::Bytes, Cadence::Slow, GPU, meaning), read)
}

static BAR1: &[Row<SlowTelemetry, u64>] = &[
    bar1(
        "gpu_bar1_memory_total_bytes",
        "Size of the BAR1 aperture, through which the host reaches device memory, in bytes. It is address space, not device memory.",
        |s| s.bar1_total,
    ),
    bar1(
        "gpu_bar1_memory_used_bytes",
        "Mapped part of the BAR1 aperture in bytes. It is address space, not device memory.",
        |s| s.bar1_used,
    ),
];

pub(super) static SECTION: Section = Section {
    title: "GPU memory",
    intro: "One series for each GPU. total = reserved + used + free where the driver reports reserved memory.",
    families: &[&FIGURES, &PRESSURE, &CHURN, &UNATTRIBUTED, &BAR1],
};

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    // A GPU that shares the system's memory has no figures, and so none of the values computed from them.
    let measured: Vec<_> =
        gpus.iter().filter_map(|gpu| gpu.memory.and_then(|m| m.figures.as_ref().map(|f| (gpu, m, f)))).collect();
    for Row { family, read } in FIGURES {
        out.add(family, measured.iter().filter_map(|(gpu, _, f)| Some((&gpu.labels, read(f)? as f64))));
    }
    for Row { family, read } in CHURN {
        let counted = |m: &GpuMemory| Some(Counted::since(m.counted_since, read(m)? as f64));
        out.add(family, measured.iter().filter_map(|(gpu, m, _)| Some((&gpu.labels, counted(m)?))));
    }
    out.add(
        &PRESSURE,
        measured.iter().flat_map(|(gpu, m, _)| {
            PRESSURE_RATIOS.iter().zip(m.pressure_seconds).map(|(ratio, seconds)| {
                let labels = gpu.labels.with_room(1).and("ratio", &ratio.to_string());
                (labels, Counted::since(m.counted_since, seconds))
            })
        }),
    );
    out.add(&UNATTRIBUTED, gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.processes?.unattributed? as f64))));
    for Row { family, read } in BAR1 {
        out.add(family, gpus.iter().filter_map(|gpu| Some((&gpu.labels, read(gpu.slow?)? as f64))));
    }
}
