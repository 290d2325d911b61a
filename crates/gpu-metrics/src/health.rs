//! What the driver says about repairs of a GPU, and the state of its PCIe link.

use std::sync::LazyLock;

use super::exposition::Exposition;
use super::family::{Cadence, Family, GPU, Row, Series};
use super::label::Labels;
use super::section::{Pass, Section};
use super::view::GpuView;
use gpu_readings::snapshot::{RecoveryAction, SPARE_ROWS};

const FAST: Series = Series::new(Cadence::Fast, GPU);
const SLOW: Series = Series::new(Cadence::Slow, GPU);

static RECOVERY_ACTION: Family = Series::new(Cadence::Fast, &["gpu", "uuid", "action"]).family(
    "gpu_recovery_action",
    "1 for the action that the driver requires to recover the GPU, 0 for the others. Driver 565 and later; drain_and_reset since 570, recover_imex_domain since 595, bus_reset and system_reboot since 615. Absent for an action that the exporter does not know.",
);
static ROW_REMAP_BANKS: Family = Series::new(Cadence::Slow, &["gpu", "uuid", "available"]).family(
    "gpu_row_remap_banks",
    "Memory banks by the share of their spare rows that is left for repairs: max is all of them, none is no row. Driver 455 and later, Ampere and later, on GPUs that remap rows.",
);

type Reading = fn(&GpuView<'_>) -> Option<u32>;

static LINK: &[Row<Reading>] = &[
    FAST.row(
        "gpu_pcie_link_generation",
        "Current generation of the PCIe link. An idle GPU may lower it to save power.",
        |gpu| gpu.fast?.pcie_generation,
    ),
    SLOW.row(
        "gpu_pcie_link_generation_max",
        "Highest generation of the PCIe link that the GPU and the machine allow.",
        |gpu| gpu.slow?.pcie_generation_max,
    ),
    FAST.row("gpu_pcie_link_width", "Current number of lanes of the PCIe link.", |gpu| gpu.fast?.pcie_width),
    SLOW.row(
        "gpu_pcie_link_width_max",
        "Highest number of lanes of the PCIe link that the GPU and the machine allow.",
        |gpu| gpu.slow?.pcie_width_max,
    ),
];

pub(super) static SECTION: Section = Section {
    title: "Recovery, spare rows and PCIe link",
    intro: "A family is absent if the driver is older than its description says, or if the GPU does not have what it describes.",
    families: &[&RECOVERY_ACTION, &ROW_REMAP_BANKS, &LINK],
    collect,
};

/// For each series of a family, the label that distinguishes it from the others of the same GPU, as the text that
/// follows the labels of the GPU. These texts are the same at every scrape.
fn own_labels<'v>(name: &str, values: impl Iterator<Item = &'v str>) -> Vec<String> {
    values.map(|value| format!(",{}", Labels::default().and(name, value).as_str())).collect()
}

static ACTIONS: LazyLock<Vec<String>> =
    LazyLock::new(|| own_labels("action", RecoveryAction::ALL.iter().map(|action| action.label())));
static AVAILABLE: LazyLock<Vec<String>> = LazyLock::new(|| own_labels("available", SPARE_ROWS.into_iter()));

fn collect(&Pass { gpus, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    let actions = gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), gpu.fast?.recovery_action?)));
    let actions = actions.flat_map(|(labels, required)| {
        let all = RecoveryAction::ALL.iter().zip(&*ACTIONS);
        all.map(move |(&action, own)| ([labels, own], f64::from(action == required)))
    });
    out.add(&RECOVERY_ACTION, actions);
    let banks = gpus.iter().filter_map(|gpu| Some((gpu.labels.as_str(), gpu.slow?.row_remap_banks?)));
    let banks = banks.flat_map(|(labels, banks)| {
        AVAILABLE.iter().zip(banks).map(move |(own, banks)| ([labels, own], f64::from(banks)))
    });
    out.add(&ROW_REMAP_BANKS, banks);
    for Row { family, read } in LINK {
        out.add(family, gpus.iter().filter_map(|gpu| Some((&gpu.labels, f64::from(read(gpu)?)))));
    }
}
