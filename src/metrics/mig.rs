//! The memory of MIG devices.

use super::exposition::Exposition;
use super::family::{Family, Section, Unit, When};
use super::view::GpuView;
use crate::snapshot::MemoryFigures;

const MIG: &[&str] = &["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile"];

static TOTAL: Family = Family::gauge(
    "gpu_mig_memory_total_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "All memory of the MIG device in bytes.",
);
static RESERVED: Family = Family::gauge(
    "gpu_mig_memory_reserved_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "Memory of the MIG device kept by driver and firmware in bytes. Absent where the driver does not tell it: used contains it there.",
);
static USED: Family = Family::gauge(
    "gpu_mig_memory_used_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "Allocated memory of the MIG device in bytes. Reserved memory is left out, but is contained where gpu_mig_memory_reserved_bytes is absent.",
);
static FREE: Family = Family::gauge(
    "gpu_mig_memory_free_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "Memory of the MIG device that is free to be allocated in bytes.",
);
static WINDOW_PEAK: Family = Family::gauge(
    "gpu_mig_memory_window_peak_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "Highest used memory of the MIG device in bytes within the last vram_exporter_peak_window_seconds. The window slides, and no scrape resets it. Contains reserved memory where gpu_mig_memory_reserved_bytes is absent.",
);
static PEAK: Family = Family::gauge(
    "gpu_mig_memory_peak_bytes",
    Unit::Bytes,
    When::MemoryLane,
    MIG,
    "Highest used memory of the MIG device in bytes since the exporter started. Contains reserved memory where gpu_mig_memory_reserved_bytes is absent.",
);

pub(super) static SECTION: Section = Section {
    title: "MIG devices",
    intro: "One series for each MIG device. `uuid` is the parent GPU's, `mig_uuid` the device's own. Compute instances of one \
            GPU instance share its memory, and each shows it: sum over `gpu_instance`, not over `compute_instance`. The \
            parent GPU keeps its own families where the driver gives them.",
    families: &[&TOTAL, &RESERVED, &USED, &FREE, &WINDOW_PEAK, &PEAK],
};

/// A family and where its value stands.
type Reading = (&'static Family, fn(&MemoryFigures) -> Option<u64>);

static FIGURES: [Reading; 6] = [
    (&TOTAL, |m| Some(m.total)),
    (&RESERVED, |m| m.reserved),
    (&USED, |m| Some(m.used)),
    (&FREE, |m| Some(m.free)),
    (&WINDOW_PEAK, |m| Some(m.window_peak)),
    (&PEAK, |m| Some(m.peak)),
];

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition) {
    let devices: Vec<_> = gpus
        .iter()
        .flat_map(|gpu| gpu.mig().map(move |mig| (gpu, mig)))
        .filter_map(|(gpu, mig)| {
            let labels = gpu
                .labels
                .with_room(4)
                .and("mig_uuid", &mig.device.uuid)
                .and_number("gpu_instance", mig.device.gpu_instance)
                .and_number("compute_instance", mig.device.compute_instance)
                .and_known("profile", mig.device.profile.as_deref());
            Some((labels, mig.figures?))
        })
        .collect();
    for (family, read) in &FIGURES {
        out.add(family, devices.iter().filter_map(|(labels, f)| Some((labels.clone(), read(f)? as f64))));
    }
}
