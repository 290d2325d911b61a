//! Facts about dcgm-exporter's default list of fields, and whether the exporter's text agrees with them.

use std::collections::{BTreeMap, BTreeSet};

use super::Served;

/// A field in the default list of dcgm-exporter, as `default-fields.csv` describes it.
pub(super) struct Fact {
    number: &'static str,
    pub(super) name: &'static str,
    new_name: &'static str,
    pub(super) kind: &'static str,
    unit: &'static str,
    served: &'static str,
}

pub(super) fn facts() -> Vec<Fact> {
    let lines = include_str!("../../fixtures/dcgm/default-fields.csv").lines().filter(|line| !line.starts_with('#'));
    let fact = |line: &'static str| {
        let parts: Vec<_> = line.split(", ").collect();
        let [number, name, new_name, kind, unit, served] = parts.try_into().unwrap();
        Fact { number, name, new_name, kind, unit, served }
    };
    lines.map(fact).collect()
}

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
        let facts = facts();
        for fact in facts.iter().filter(|fact| fact.kind != "label" && fact.served != "elsewhere") {
            let expected = (fact.served == "yes").then_some(fact.kind);
            assert_eq!(families.get(name(fact)).copied(), expected, "{naming}: {} ({})", name(fact), fact.number);
        }
        let known: BTreeSet<_> = facts.iter().map(name).collect();
        assert!(families.keys().all(|family| known.contains(family)), "{naming}: {families:?}");
        let version = if renamed { "DCGM_FI_SYSTEM_DRIVER_VERSION" } else { "DCGM_FI_DRIVER_VERSION" };
        for series in &scrape.series {
            for (label, value) in
                [("device", format!("nvidia{}", series.label("gpu").unwrap())), (hostname, "gpu-node-1".into())]
            {
                assert_eq!(series.label(label), Some(value.as_str()), "{naming}: {series:?}");
            }
            assert!(series.label("UUID").unwrap().starts_with("GPU-"), "{series:?}");
            let has = |label: &&str| series.label(label).is_some();
            assert!(["modelName", "pci_bus_id", version].iter().all(has), "{series:?}");
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
    // An H200 has 143771 MiB in all: used, free and reserved are rounded down.
    let memory = ["FB_USED", "FB_FREE", "FB_RESERVED"]
        .map(|name| scrape.value(&format!("DCGM_FI_DEV_{name}"), &[("gpu", "0")]).unwrap());
    assert!((143_769.0..=143_771.0).contains(&memory.iter().sum::<f64>()), "{memory:?}");
    // The last Xid, with its code as a label, and 0 where there was none.
    assert_eq!(scrape.value("DCGM_FI_DEV_XID_ERRORS", &[("gpu", "2"), ("err_code", "79")]), Some(79.0));
    assert_eq!(scrape.value("DCGM_FI_DEV_XID_ERRORS", &[("gpu", "0"), ("err_code", "0")]), Some(0.0));
    for fact in facts() {
        let (range, is_whole) = match fact.unit {
            "megahertz" => (100.0..=10_000.0, false),
            "celsius" => (10.0..=150.0, false),
            "percent" => (0.0..=100.0, true),
            "ratio" => (0.0..=1.0, false),
            "switch" => (0.0..=1.0, true),
            "watts" => (1.0..=2_000.0, false),
            "mebibytes" => (0.0..=143_771.0, true),
            _ => (0.0..=f64::MAX, false),
        };
        for series in scrape.all(fact.name) {
            let fits = range.contains(&series.value) && (!is_whole || series.value.fract() == 0.0);
            assert!(fits, "{series:?} is not in {}", fact.unit);
        }
    }
}
