//! What the driver says about repairs of a GPU, and the state of its PCIe link.

use super::exposition::Exposition;
use super::family::{Family, Section, Unit, When};
use super::label::Labels;
use super::view::GpuView;
use crate::snapshot::{RecoveryAction, SPARE_ROWS};

const GPU: &[&str] = &["gpu", "uuid"];

static RECOVERY_ACTION: Family = Family::gauge(
    "gpu_recovery_action",
    Unit::Number,
    When::Quick,
    &["gpu", "uuid", "action"],
    "1 for the action that the driver requires to recover the GPU, 0 for the others. Driver 565 and later; drain_and_reset since 570, recover_imex_domain since 595, bus_reset and system_reboot since 615. Absent for an action that the exporter does not know.",
);
static ROW_REMAP_BANKS: Family = Family::gauge(
    "gpu_row_remap_banks",
    Unit::Number,
    When::Slow,
    &["gpu", "uuid", "available"],
    "Memory banks by the share of their spare rows that is left for repairs: max is all of them, none is no row. Driver 455 and later, Ampere and later, on GPUs that remap rows.",
);
static GENERATION: Family = Family::gauge(
    "gpu_pcie_link_generation",
    Unit::Number,
    When::Quick,
    GPU,
    "Current generation of the PCIe link. An idle GPU may lower it to save power.",
);
static GENERATION_MAX: Family = Family::gauge(
    "gpu_pcie_link_generation_max",
    Unit::Number,
    When::Slow,
    GPU,
    "Highest generation of the PCIe link that the GPU and the machine allow.",
);
static WIDTH: Family =
    Family::gauge("gpu_pcie_link_width", Unit::Number, When::Quick, GPU, "Current number of lanes of the PCIe link.");
static WIDTH_MAX: Family = Family::gauge(
    "gpu_pcie_link_width_max",
    Unit::Number,
    When::Slow,
    GPU,
    "Highest number of lanes of the PCIe link that the GPU and the machine allow.",
);

pub(super) static SECTION: Section = Section {
    title: "Recovery, spare rows and PCIe link",
    intro: "A family is absent if the driver is older than its description says, or if the GPU does not have what it describes.",
    families: &[&RECOVERY_ACTION, &ROW_REMAP_BANKS, &GENERATION, &GENERATION_MAX, &WIDTH, &WIDTH_MAX],
};

pub(super) fn collect(gpus: &[GpuView<'_>], out: &mut Exposition<'_>) {
    let fast: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.fast?))).collect();
    let slow: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.labels, gpu.slow?))).collect();
    let actions = fast.iter().filter_map(|(labels, fast)| Some((labels, fast.recovery_action?)));
    let actions = actions.flat_map(|(labels, required)| {
        RecoveryAction::ALL
            .iter()
            .map(move |&action| (labels.with_room(1).and("action", action.label()), f64::from(action == required)))
    });
    out.add(&RECOVERY_ACTION, actions);
    let banks = slow.iter().filter_map(|(labels, slow)| Some((labels, slow.row_remap_banks?)));
    let banks = banks.flat_map(|(labels, banks)| {
        let left = SPARE_ROWS.iter().zip(banks);
        left.map(move |(left, banks)| (labels.with_room(1).and("available", left), f64::from(banks)))
    });
    out.add(&ROW_REMAP_BANKS, banks);
    number(&GENERATION, &fast, |fast| fast.pcie_generation, out);
    number(&GENERATION_MAX, &slow, |slow| slow.pcie_generation_max, out);
    number(&WIDTH, &fast, |fast| fast.pcie_width, out);
    number(&WIDTH_MAX, &slow, |slow| slow.pcie_width_max, out);
}

fn number<T>(family: &'static Family, gpus: &[(&Labels, &T)], read: fn(&T) -> Option<u32>, out: &mut Exposition<'_>) {
    out.add(family, gpus.iter().filter_map(|(labels, part)| Some((*labels, f64::from(read(part)?)))));
}
