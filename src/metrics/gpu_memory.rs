//! The memory of whole GPUs: figures, peaks, pressure, churn, unattributed memory, and BAR1.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Section, Unit};
use super::openmetrics::Counted;
use super::view::GpuView;
use crate::snapshot::{GpuMemory, MemoryFigures, PRESSURE_RATIOS, SlowTelemetry};

const GPU: &[&str] = &["gpu", "uuid"];

static TOTAL: Family = Family::gauge(
    "gpu_memory_total_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "All device memory of the GPU in bytes.",
);
static RESERVED: Family = Family::gauge(
    "gpu_memory_reserved_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Device memory kept by driver and firmware in bytes; it cannot be allocated. Absent where the driver does not report it: gpu_memory_used_bytes includes it there.",
);
static USED: Family = Family::gauge(
    "gpu_memory_used_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Allocated device memory in bytes. Reserved memory is left out, but is included where gpu_memory_reserved_bytes is absent.",
);
static FREE: Family = Family::gauge(
    "gpu_memory_free_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Device memory that can still be allocated in bytes.",
);
static WINDOW_PEAK: Family = Family::gauge(
    "gpu_memory_window_peak_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Highest used memory in bytes within the last vram_exporter_peak_window_seconds. The window slides, and no scrape resets it. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
);
static PEAK: Family = Family::gauge(
    "gpu_memory_peak_bytes",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Highest used memory in bytes since the exporter started. Includes reserved memory where gpu_memory_reserved_bytes is absent.",
);
static PRESSURE: Family = Family::counter(
    "gpu_memory_pressure_seconds_total",
    Unit::Seconds,
    Cadence::MemoryLane,
    &["gpu", "uuid", "ratio"],
    "Seconds spent with used / (total - reserved) at or above the ratio, weighted by real time. The ratios are nested: do not sum over them. Where gpu_memory_reserved_bytes is absent, reserved memory counts as used.",
);
static GROWN: Family = Family::counter(
    "gpu_memory_increase_bytes_total",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Sum of all rises of used memory between samples in bytes. A rise and fall between two samples is not seen.",
);
static SHRUNK: Family = Family::counter(
    "gpu_memory_decrease_bytes_total",
    Unit::Bytes,
    Cadence::MemoryLane,
    GPU,
    "Sum of all falls of used memory between samples in bytes. A rise and fall between two samples is not seen.",
);
static UNATTRIBUTED: Family = Family::gauge(
    "gpu_memory_unattributed_bytes",
    Unit::Bytes,
    Cadence::ProcessLane,
    GPU,
    "Used memory in bytes that neither a visible process nor a vGPU holds, at least 0. Absent while the memory of any process or vGPU on the GPU is unknown.",
);
static BAR1_TOTAL: Family = Family::gauge(
    "gpu_bar1_memory_total_bytes",
    Unit::Bytes,
    Cadence::Slow,
    GPU,
    "Size of the BAR1 aperture, through which the host reaches device memory, in bytes. It is address space, not device memory.",
);
static BAR1_USED: Family = Family::gauge(
    "gpu_bar1_memory_used_bytes",
    Unit::Bytes,
    Cadence::Slow,
    GPU,
    "Mapped part of the BAR1 aperture in bytes. It is address space, not device memory.",
);

pub(super) static SECTION: Section = Section {
    title: "GPU memory",
    intro: "One series for each GPU. total = reserved + used + free where the driver reports reserved memory.",
    families: &[
        &TOTAL,
        &RESERVED,
        &USED,
        &FREE,
        &WINDOW_PEAK,
        &PEAK,
        &PRESSURE,
        &GROWN,
        &SHRUNK,
        &UNATTRIBUTED,
        &BAR1_TOTAL,
        &BAR1_USED,
    ],
};

/// A family and how to read its value.
type Reading<T> = (&'static Family, fn(&T) -> Option<u64>);

static FIGURES: [Reading<MemoryFigures>; 6] = [
    (&TOTAL, |m| Some(m.total)),
    (&RESERVED, |m| m.reserved),
    (&USED, |m| Some(m.used)),
    (&FREE, |m| Some(m.free)),
    (&WINDOW_PEAK, |m| Some(m.window_peak)),
    (&PEAK, |m| Some(m.peak)),
];
static CHURN: [Reading<GpuMemory>; 2] = [(&GROWN, |m| Some(m.increase)), (&SHRUNK, |m| Some(m.decrease))];
static BAR1: [Reading<SlowTelemetry>; 2] = [(&BAR1_TOTAL, |s| s.bar1_total), (&BAR1_USED, |s| s.bar1_used)];

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    // A GPU that shares the system's memory has no figures, and so none of the values computed from them.
    let measured: Vec<_> =
        gpus.iter().filter_map(|gpu| gpu.memory.and_then(|m| m.figures.as_ref().map(|f| (gpu, m, f)))).collect();
    for (family, read) in &FIGURES {
        out.add(family, measured.iter().filter_map(|(gpu, _, f)| Some((&gpu.labels, read(f)? as f64))));
    }
    for (family, read) in &CHURN {
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
    for (family, read) in &BAR1 {
        out.add(family, gpus.iter().filter_map(|gpu| Some((&gpu.labels, read(gpu.slow?)? as f64))));
    }
}
