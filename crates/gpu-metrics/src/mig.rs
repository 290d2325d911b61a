//! The memory of MIG devices.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Rows, Series};
use super::gpu_memory::pressure;
use super::label::Labels;
use super::section::{Pass, Section};
use super::view::GpuView;
use gpu_readings::snapshot::{MemoryFigures, MigDevice};

const MIG: &[&str] = &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile"];
const MIG_RATIO: &[&str] = &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile", "ratio"];
const SAMPLED: Series = Series::new(Cadence::MemoryLane, MIG);

static PRESSURE: Family = Series::new(Cadence::MemoryLane, MIG_RATIO).family(
    "gpu_mig_memory_pressure_seconds_total",
    "Seconds spent with used / (total - reserved) of the MIG device at or above the ratio, weighted by real time. The ratios are nested: do not sum over them. Where gpu_mig_memory_reserved_bytes is absent, reserved memory counts as used.",
);
static UNATTRIBUTED: Family = Series::new(Cadence::ProcessLane, MIG).family(
    "gpu_mig_memory_unattributed_bytes",
    "Used memory of the MIG device in bytes that no visible process holds, at least 0. Absent while the memory of any process on it is unknown.",
);

static FIGURES: Rows<MemoryFigures, u64> = &[
    SAMPLED.row("gpu_mig_memory_total_bytes", "All memory of the MIG device in bytes.", |m| Some(m.total)),
    SAMPLED.row(
        "gpu_mig_memory_reserved_bytes",
        "Memory of the MIG device kept by driver and firmware in bytes. Absent where the driver does not report it: gpu_mig_memory_used_bytes includes it there.",
        |m| m.reserved,
    ),
    SAMPLED.row(
        "gpu_mig_memory_used_bytes",
        "Allocated memory of the MIG device in bytes. Reserved memory is left out, but is included where gpu_mig_memory_reserved_bytes is absent.",
        |m| Some(m.used),
    ),
    SAMPLED.row(
        "gpu_mig_memory_free_bytes",
        "Memory of the MIG device that can still be allocated in bytes.",
        |m| m.free,
    ),
    SAMPLED.row(
        "gpu_mig_memory_window_peak_bytes",
        "Highest used memory of the MIG device in bytes within the last vram_exporter_peak_window_seconds. The window slides, and no scrape resets it. Includes reserved memory where gpu_mig_memory_reserved_bytes is absent.",
        |m| Some(m.window_peak),
    ),
    SAMPLED.row(
        "gpu_mig_memory_peak_bytes",
        "Highest used memory of the MIG device in bytes since the exporter started. Includes reserved memory where gpu_mig_memory_reserved_bytes is absent.",
        |m| Some(m.peak),
    ),
];

pub(super) static SECTION: Section = Section {
    title: "MIG devices",
    intro: "One series for each GPU instance. `uuid` is the parent GPU's, `mig_uuid` the MIG device's own. Compute instances \
            of one GPU instance share its memory, which is shown once, for the first of them. The parent GPU keeps its own \
            families where the driver reports them.",
    families: &[&FIGURES, &UNATTRIBUTED, &PRESSURE],
    collect,
};

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let devices: Vec<_> = gpus
        .iter()
        .flat_map(|gpu| {
            gpu.mig().filter(|mig| gpu.gpu.is_first_of_its_instance(&mig.device)).map(move |mig| (gpu, mig))
        })
        .filter_map(|(gpu, mig)| Some((labels(gpu, &mig.device), mig.figures?, mig)))
        .collect();
    out.add_rows(FIGURES, devices.iter().map(|(labels, f, _)| (labels, f)));
    let pressures =
        devices.iter().flat_map(|(labels, _, mig)| pressure(labels, mig.counted_since, mig.pressure_seconds));
    out.add(&PRESSURE, pressures);
    let unattributed = gpus.iter().flat_map(|gpu| {
        let known = gpu.processes.map_or(&[][..], |part| &part.mig_unattributed);
        known.iter().map(move |(device, bytes)| (labels(gpu, device), *bytes))
    });
    out.add(&UNATTRIBUTED, unattributed);
}

/// The labels of a MIG device's series.
pub(super) fn labels(gpu: &GpuView<'_>, device: &MigDevice) -> Labels {
    and_device(gpu.labels.with_room(4), device)
}

/// The labels of a GPU's series, and those of a MIG device on it.
pub(super) fn and_device(gpu: Labels, device: &MigDevice) -> Labels {
    gpu.and("mig_uuid", &device.uuid)
        .and_number("gpu_instance", device.gpu_instance)
        .and_number("compute_instance", device.compute_instance)
        .and_known("profile", device.profile.as_deref())
}
