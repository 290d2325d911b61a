//! Facts about dcgm-exporter's default list of fields, and whether the exporter's text agrees with them.

use std::collections::{BTreeMap, BTreeSet};

use super::Served;

/// A field in the default list of dcgm-exporter 4.5 to 4.8 and of its main branch: its number in DCGM, its name up to
/// DCGM 4.5, its name in DCGM 4.6, its type in the list, its unit, and whether the exporter serves it on every machine.
pub(super) struct Fact {
    number: u16,
    pub(super) name: &'static str,
    new_name: &'static str,
    pub(super) kind: &'static str,
    unit: Unit,
    served: Shown,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Megahertz,
    Celsius,
    Watts,
    Millijoules,
    Count,
    Percent,
    Mebibytes,
    Switch,
    Ratio,
    BytesPerSecond,
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shown {
    /// On the machine of the test.
    Yes,
    /// On machines that the simulator of the test does not show, or with another key.
    Elsewhere,
    /// Never, because NVML does not give it.
    No,
}

const fn fact(
    number: u16,
    name: &'static str,
    new_name: &'static str,
    kind: &'static str,
    unit: Unit,
    served: Shown,
) -> Fact {
    Fact { number, name, new_name, kind, unit, served }
}

use Shown::{Elsewhere, No, Yes};
use Unit::{BytesPerSecond, Celsius, Count, Mebibytes, Megahertz, Millijoules, Percent, Ratio, Switch, Text, Watts};

pub(super) const DEFAULT: [Fact; 27] = [
    fact(100, "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK", "gauge", Megahertz, Yes),
    fact(101, "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "gauge", Megahertz, Yes),
    fact(140, "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "gauge", Celsius, Yes),
    fact(150, "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "gauge", Celsius, Yes),
    fact(155, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "gauge", Watts, Yes),
    fact(
        156,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        Millijoules,
        Elsewhere,
    ),
    fact(202, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "counter", Count, Yes),
    fact(203, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "gauge", Percent, Yes),
    fact(204, "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", Percent, Yes),
    fact(206, "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_ENC_UTIL", "gauge", Percent, Yes),
    fact(207, "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_DEC_UTIL", "gauge", Percent, Yes),
    fact(230, "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "gauge", Count, Yes),
    fact(251, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE", "gauge", Mebibytes, Yes),
    fact(252, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED", "gauge", Mebibytes, Yes),
    fact(253, "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED", "gauge", Mebibytes, Yes),
    fact(449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", "counter", Count, No),
    fact(526, "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", Switch, No),
    fact(
        393,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        "counter",
        Count,
        Yes,
    ),
    fact(
        394,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        "counter",
        Count,
        Yes,
    ),
    fact(395, "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED", "gauge", Switch, Yes),
    fact(1, "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "label", Text, Yes),
    fact(1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "gauge", Ratio, Yes),
    fact(1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "gauge", Ratio, Yes),
    fact(1005, "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", "gauge", Ratio, Yes),
    fact(1009, "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", BytesPerSecond, Yes),
    fact(1010, "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", BytesPerSecond, Yes),
    // Not in the list: a field that every user of a time-sliced GPU adds.
    fact(250, "DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_TOTAL", "gauge", Mebibytes, Elsewhere),
];

/// The labels of a series, in the order in which dcgm-exporter writes them.
const ORDER: [&str; 14] = [
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "hostname",
    "DCGM_FI_DRIVER_VERSION",
    "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "container",
    "err_code",
    "namespace",
];

#[test]
fn every_naming_has_the_families_types_and_labels_of_dcgm_exporter() {
    for (naming, renamed, hostname) in
        [("exporter-4.8", false, "Hostname"), ("exporter-main", false, "hostname"), ("dcgm-4.6", true, "hostname")]
    {
        let scrape = Served::start(&[&format!("--dcgm.names={naming}")]).settled();
        let name = |fact: &Fact| if renamed { fact.new_name } else { fact.name };
        let families: BTreeMap<_, _> =
            scrape.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        for fact in &DEFAULT {
            let found = families.get(name(fact)).copied();
            match fact.served {
                Yes if fact.kind != "label" => {
                    assert_eq!(found, Some(fact.kind), "{naming}: {} ({})", name(fact), fact.number)
                }
                No => assert_eq!(found, None, "{naming}: {}", name(fact)),
                _ => {}
            }
        }
        let known: BTreeSet<_> = DEFAULT.iter().map(name).collect();
        assert!(families.keys().all(|family| known.contains(family)), "{naming}: {families:?}");
        let version = if renamed { "DCGM_FI_SYSTEM_DRIVER_VERSION" } else { "DCGM_FI_DRIVER_VERSION" };
        for series in &scrape.series {
            for (label, value) in
                [("device", format!("nvidia{}", series.label("gpu").unwrap())), (hostname, "gpu-node-1".into())]
            {
                assert_eq!(series.label(label), Some(value.as_str()), "{naming}: {series:?}");
            }
            assert!(series.label("UUID").unwrap().starts_with("GPU-"), "{series:?}");
            assert!(
                ["modelName", "pci_bus_id", version].iter().all(|label| series.label(label).is_some()),
                "{series:?}"
            );
            assert_eq!(series.label("GPU_I_ID").is_some(), series.label("GPU_I_PROFILE").is_some(), "{series:?}");
        }
        for line in scrape.text.lines().filter(|line| !line.starts_with('#')) {
            let places: Vec<_> = ORDER.iter().filter_map(|label| line.find(&format!("{label}=\""))).collect();
            assert!(places.is_sorted() && places.len() >= 7, "{line}");
        }
    }
}

#[test]
fn values_have_the_units_of_dcgm_exporter() {
    let scrape = Served::start(&[]).settled();
    let value = |name: &str, gpu: &str| scrape.value(name, &[("gpu", gpu)]);
    assert_eq!(value("DCGM_FI_DEV_GPU_TEMP", "0"), Some(41.0));
    assert_eq!(value("DCGM_FI_DEV_POWER_USAGE", "0"), Some(214.5));
    assert_eq!(value("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0"), Some(7.0));
    assert_eq!(value("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "0"), Some(2.0));
    assert_eq!(value("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "0"), Some(1.0));
    assert_eq!(value("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0"), Some(0.0));
    // An H200 has 143771 MiB in all: used, free and reserved are rounded down.
    let memory = ["FB_USED", "FB_FREE", "FB_RESERVED"].map(|name| value(&format!("DCGM_FI_DEV_{name}"), "0").unwrap());
    assert!((143_769.0..=143_771.0).contains(&memory.iter().sum::<f64>()), "{memory:?}");
    // The last Xid, with its code as a label, and 0 where there was none.
    assert_eq!(scrape.value("DCGM_FI_DEV_XID_ERRORS", &[("gpu", "2"), ("err_code", "79")]), Some(79.0));
    assert_eq!(scrape.value("DCGM_FI_DEV_XID_ERRORS", &[("gpu", "0"), ("err_code", "0")]), Some(0.0));
    for fact in &DEFAULT {
        for series in scrape.all(fact.name) {
            let in_range = match fact.unit {
                Megahertz => (100.0..10_000.0).contains(&series.value),
                Celsius => (10.0..150.0).contains(&series.value),
                Percent => (0.0..=100.0).contains(&series.value) && series.value.fract() == 0.0,
                Ratio => (0.0..=1.0).contains(&series.value),
                Switch => [0.0, 1.0].contains(&series.value),
                Watts => (1.0..2_000.0).contains(&series.value),
                Mebibytes => series.value <= 143_771.0 && series.value.fract() == 0.0,
                Millijoules | Count | BytesPerSecond | Text => series.value >= 0.0,
            };
            assert!(in_range, "{series:?} is not in {:?}", fact.unit);
        }
    }
}
