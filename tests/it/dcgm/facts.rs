//! Facts about dcgm-exporter's default list of fields, and whether the exporter's text agrees with them.

use std::collections::{BTreeMap, BTreeSet};

use vram_exporter::dcgm::{MISSING, on_request};

use super::{Served, assert_refused, bare};
use crate::declared_once::assert_part;

/// A field in the default list of dcgm-exporter, as `default-fields.csv` describes it.
pub(super) struct Fact {
    number: &'static str,
    /// The name and the unit up to 4.8.
    pub(super) old: (&'static str, &'static str),
    /// Those in 4.9.
    pub(super) new: (&'static str, &'static str),
    pub(super) kind: &'static str,
    pub(super) served: &'static str,
}

impl Fact {
    /// The name and the unit with the names of a release.
    fn of(&self, naming: &str) -> (&'static str, &'static str) {
        if naming == "exporter-4.9" { self.new } else { self.old }
    }
}

pub(super) fn facts() -> Vec<Fact> {
    let lines = include_str!("../../fixtures/dcgm/default-fields.csv").lines().filter(|line| !line.starts_with('#'));
    let fact = |line: &'static str| {
        let parts: Vec<_> = line.split(", ").collect();
        let [number, old, old_unit, new, new_unit, kind, served] = parts.try_into().unwrap();
        Fact { number, old: (old, old_unit), new: (new, new_unit), kind, served }
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
    for (naming, version, hostnames) in [
        ("exporter-4.8", "DCGM_FI_DRIVER_VERSION", &["Hostname", "hostname"][..]),
        ("exporter-4.9", "DCGM_FI_SYSTEM_DRIVER_VERSION", &["hostname"][..]),
    ] {
        let scrape = Served::start(&[&format!("--dcgm.names={naming}")]).settled();
        let name = |fact: &Fact| fact.of(naming).0;
        let families: BTreeMap<_, _> =
            scrape.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let facts = facts();
        for fact in facts.iter().filter(|fact| fact.kind != "label" && fact.served != "elsewhere") {
            let is_served = fact.served == "yes" || (fact.served == "since 4.9" && naming == "exporter-4.9");
            let expected = is_served.then_some(fact.kind);
            assert_eq!(families.get(name(fact)).copied(), expected, "{naming}: {} ({})", name(fact), fact.number);
        }
        let known: BTreeSet<_> = facts.iter().map(name).collect();
        assert!(families.keys().all(|family| known.contains(family)), "{naming}: {families:?}");
        for series in &scrape.series {
            let device = format!("nvidia{}", series.label("gpu").unwrap());
            assert_eq!(series.label("device"), Some(device.as_str()), "{naming}: {series:?}");
            let named = ["Hostname", "hostname"].map(|label| (label, hostnames.contains(&label)));
            for (label, is_present) in named {
                assert_eq!(series.label(label), is_present.then_some("gpu-node-1"), "{naming}: {series:?}");
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
    let newer = Served::start(&["--dcgm.names=exporter-4.9"]).settled();
    // In bytes the parts are the whole, and each rounds down to the older value.
    let bytes = ["USED", "FREE", "RESERVED", "CAPACITY"]
        .map(|name| newer.value(&format!("DCGM_FI_DEV_FB_{name}_BYTES"), &[("gpu", "0")]).unwrap());
    assert_eq!(bytes[..3].iter().sum::<f64>(), bytes[3]);
    assert_eq!(bytes.map(|bytes| (bytes / 1_048_576.0).floor())[..3], memory);
    for (older, newer_name, factor) in [("SM_CLOCK", "SM_CLOCK_HERTZ", 1e6), ("GPU_TEMP", "GPU_TEMP_CELSIUS", 1.0)] {
        let value = scrape.value(&format!("DCGM_FI_DEV_{older}"), &[("gpu", "0")]).map(|value| value * factor);
        assert_eq!(newer.value(&format!("DCGM_FI_DEV_{newer_name}"), &[("gpu", "0")]), value, "{older}");
    }
    for (naming, scrape) in [("exporter-4.8", &scrape), ("exporter-4.9", &newer)] {
        for fact in facts() {
            let (name, unit) = fact.of(naming);
            let (range, is_whole) = match unit {
                "megahertz" => (100.0..=10_000.0, false),
                "hertz" => (1e8..=1e10, true),
                "celsius" => (10.0..=150.0, false),
                "percent" => (0.0..=100.0, true),
                "ratio" => (0.0..=1.0, false),
                "switch" => (0.0..=1.0, true),
                "watts" => (1.0..=2_000.0, false),
                "mebibytes" => (0.0..=143_771.0, true),
                "bytes" => (0.0..=143_771.0 * 1_048_576.0, true),
                _ => (0.0..=f64::MAX, false),
            };
            for series in scrape.all(name) {
                let fits = range.contains(&series.value) && (!is_whole || series.value.fract() == 0.0);
                assert!(fits, "{series:?} is not in {unit}");
            }
        }
    }
}

#[test]
fn a_name_that_was_removed_is_an_error_with_the_name_to_write() {
    for (removed, instead) in [("exporter-main", "exporter-4.8"), ("dcgm-4.6", "exporter-4.9")] {
        let said = format!("must be exporter-4.8 or exporter-4.9; write \"{instead}\" instead");
        assert_refused(&mut bare(&["--check-config", &format!("--dcgm.names={removed}")]), &["dcgm.names", &said]);
    }
}

/// Both tables of the page are complete: a unit test holds the tables of the program against a list of every field.
#[test]
fn the_page_says_which_fields_are_served_and_which_are_missing() {
    let on_request = on_request().map(|(old, new)| {
        let new = if new == old { String::new() } else { format!("`{new}`") };
        format!("| `{old}` | {new} |\n")
    });
    let mark = "\n| only with a collectors file | in 4.9, if different |\n|---|---|\n";
    assert_part("docs/from-dcgm.md", mark, "\n\n", on_request.collect::<String>().trim_end());
    let missing = MISSING.iter().map(|missing| {
        let names: Vec<_> = missing.names.iter().map(|name| format!("`{name}`")).collect();
        format!("| {} | {} |\n", names.join(", "), missing.reason)
    });
    let mark = "\n| fields | why they are missing |\n|---|---|\n";
    assert_part("docs/from-dcgm.md", mark, "\n\n", missing.collect::<String>().trim_end());
}
