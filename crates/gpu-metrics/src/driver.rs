//! The driver, its GPUs, and whether they respond.

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Series};
use super::label::Labels;
use super::section::{Pass, Section};
use gpu_readings::snapshot::AddressingMode;

const GPU_LABELS: &[&str] = &[
    "gpu",
    "uuid",
    "name",
    "pci_bus_id",
    "architecture",
    "vbios",
    "compute_capability",
    "addressing_mode",
    "memory",
    "module_id",
    "minor_number",
    "mig_mode",
    "simulated",
];
const DRIVER: Series = Series::new(Cadence::Opening, &["driver_version", "cuda_version", "nvml_version", "simulated"]);

static UP: Family = Series::new(Cadence::MemoryLane, GPU).family(
    "gpu_up",
    "1 while the GPU answers and its last good sample is recent; 0 if it is lost, stalled, unreadable or not sampled yet. At 0 the GPU has no value series.",
);
static GPU_INFO: Family = Series::new(Cadence::Opening, GPU_LABELS).family(
    "gpu_info",
    "Always 1; the labels identify the GPU. addressing_mode is none, hmm or ats (driver 580 and later); memory=\"unified\" marks a GPU that shares the memory of the machine with the CPU, and is left out for any other; module_id is the position of the GPU's module on its baseboard (driver 535 and later), left out for a GPU that is not on one. minor_number is that of the GPU's device file, /dev/nvidia<minor_number>. simulated=\"true\" marks a simulated GPU, whose values are not measurements.",
);
static DRIVER_INFO: Family = DRIVER.family(
    "nvidia_driver_info",
    "Always 1; the labels are the versions of the driver, and cuda_version is the highest that it supports. Absent while the driver is not open.",
);

pub(super) static SECTION: Section = Section {
    title: "The driver and its GPUs",
    intro: "`gpu_up` and `gpu_info` stay while a GPU does not answer.",
    families: &[&UP, &GPU_INFO, &DRIVER_INFO],
    collect,
};

fn collect(&Pass { parts, gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let driver = &parts.driver;
    let simulated = driver.simulated.then_some("true");
    out.add(&UP, gpus.iter().map(|gpu| (&gpu.labels, f64::from(gpu.up))));
    out.add(
        &GPU_INFO,
        gpus.iter().map(|view| {
            let gpu = view.gpu;
            let labels = view
                .labels
                .with_room(11)
                .and_known("name", gpu.name.as_deref())
                .and_known("pci_bus_id", gpu.pci_bus_id.as_deref())
                .and_known("architecture", gpu.architecture.as_deref())
                .and_known("vbios", gpu.vbios.as_deref())
                .and_known("compute_capability", gpu.compute_capability.as_deref())
                .and_known("addressing_mode", gpu.addressing_mode.map(AddressingMode::label))
                .and_known("memory", gpu.unified_memory.map(|_| "unified"))
                .and_known_number("module_id", gpu.module_id)
                .and_known_number("minor_number", gpu.minor)
                .and_known("mig_mode", gpu.mig_mode.map(|on| if on { "enabled" } else { "disabled" }))
                .and_known("simulated", simulated);
            (labels, 1.0)
        }),
    );
    // While the driver is closed, its last known versions may be those of a driver that has since been replaced.
    if driver.up {
        let labels = Labels::default()
            .and_known("driver_version", driver.driver_version.as_deref())
            .and_known("cuda_version", driver.cuda_version.as_deref())
            .and_known("nvml_version", driver.nvml_version.as_deref())
            .and_known("simulated", simulated);
        out.add(&DRIVER_INFO, [(labels, 1.0)]);
    }
}
