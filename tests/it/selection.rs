//! `metrics.include` and `metrics.exclude`: which families are served, and which alerts need them.

use std::collections::{BTreeMap, BTreeSet};

use gpu_metrics::families;
use serde::Deserialize;

use crate::alerts::shipped;
use crate::faults::{faults, rounds};
use crate::harness::{Answer, CALM, Exporter, Machine, Scrape, assert_refused, bare, ended, eventually, eventually_or};

/// The names in the TYPE lines. Each has a HELP line too.
fn served(scrape: &Scrape) -> BTreeSet<String> {
    let of = |begin: &'static str| {
        let lines = scrape.text.lines().filter_map(move |line| line.strip_prefix(begin));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(of("# TYPE "), of("# HELP "));
    of("# TYPE ")
}

#[test]
fn only_the_chosen_families_are_served() {
    let machine = Machine::built_in("mig-h100");
    let all = served(&machine.once(&[CALM]));
    assert!(all.len() > 60, "{all:?}");
    let of = |wanted: &dyn Fn(&str) -> bool| all.iter().filter(|name| wanted(name)).cloned().collect::<BTreeSet<_>>();
    for (flags, expected) in [
        (&["--metrics.include=gpu_m*", "--metrics.exclude=gpu_mig_*"][..], {
            of(&|name| name.starts_with("gpu_m") && !name.starts_with("gpu_mig_"))
        }),
        // A histogram, and the families of the registry.
        (
            &["--metrics.include=vram_exporter_lane_duration_seconds"],
            of(&|name| name == "vram_exporter_lane_duration_seconds"),
        ),
        (&["--metrics.include=vram_exporter_build_inf?"], of(&|name| name == "vram_exporter_build_info")),
    ] {
        assert_eq!(served(&machine.once(&[&[CALM], flags].concat())), expected, "{flags:?}");
    }
}

#[test]
fn an_excluded_family_costs_no_driver_call_that_only_it_needs() {
    let machine = Machine::built_in("busy-h200");
    // Each of these calls is refused, which counts as a fault if it is made.
    let refuse = |call: &str| format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n");
    let rows = "gpu_remapped_rows,gpu_row_remap_pending";
    for (call, exclude, is_made) in [
        ("nvmlDeviceGetTemperature", "gpu_power_watts", true),
        ("nvmlDeviceGetTemperature", "gpu_temperature_celsius", false),
        ("nvmlDeviceGetRemappedRows", rows, true),
        ("nvmlDeviceGetRemappedRows", &format!("{rows},gpu_row_remap_failed"), false),
        ("nvmlDeviceGetPcieReplayCounter", "gpu_pcie_replays_total", false),
        // Only on request.
        ("nvmlDeviceGetPerformanceState", "gpu_power_watts", false),
    ] {
        machine.control(&refuse(call));
        let exporter = machine.export(&[
            &format!("--metrics.exclude={exclude}"),
            "--telemetry.interval=100ms",
            "--telemetry.slow-interval=100ms",
        ]);
        let refused = |scrape: &Scrape| faults(scrape, "telemetry", "unknown");
        let scrape =
            exporter.scrape_until("some rounds", |s| rounds(s, "telemetry") >= 5.0 && (!is_made || refused(s) > 0.0));
        assert_eq!(refused(&scrape) > 0.0, is_made, "{call} without {exclude}");
    }
}

#[test]
fn what_is_served_does_not_change_the_rest() {
    let machine = Machine::built_in("busy-h200");
    let exporter = machine.export(&["--metrics.include=gpu_up"]);
    assert_eq!(served(&exporter.scrape()), BTreeSet::from(["gpu_up".to_owned()]));
    // The list of processes is read after the memory.
    eventually_or("the memory and the processes", || {
        let gpus = exporter.get("/api/v1/gpus").unwrap().body;
        let is_whole = gpus.contains("used_bytes") && gpus.contains("unattributed_bytes");
        if is_whole { Ok(()) } else { Err(gpus) }
    });
    assert!(exporter.get("/").unwrap().body.contains("NVIDIA H200"));
    exporter.logged("metrics.include");
}

#[test]
fn the_families_of_dcgm_exporter_are_chosen_too() {
    let flags = ["--demo=idle-h200", "--dcgm.listen-address=127.0.0.1:0", "--metrics.include=gpu_up,DCGM_FI_DEV_FB_*"];
    let exporter = Exporter::start(bare(&flags));
    let address = exporter.listener("listening for scrapes of dcgm-exporter");
    let text = eventually("the families", || {
        Some(Answer::get(address, "/metrics").unwrap().body).filter(|body| body.contains("DCGM_FI_DEV_FB_USED"))
    });
    let names = served(&Scrape::parse(&text));
    assert!(names.iter().all(|name| name.starts_with("DCGM_FI_DEV_FB_")) && names.len() >= 2, "{names:?}");
    assert_eq!(served(&exporter.scrape()), BTreeSet::from(["gpu_up".to_owned()]));
}

#[test]
fn a_name_of_no_family_is_refused_with_a_suggestion() {
    for (flags, said) in [
        (&["--metrics.include=gpu_memory_used_byte"][..], "did you mean \"gpu_memory_used_bytes\"?"),
        (&["--metrics.exclude=gpu_memmory_*"], "metrics.exclude = \"gpu_memmory_*\": matches no family"),
        (&["--metrics.exclude=gpu_memmory_*"], "did you mean \"gpu_memory_*\"?"),
        (&["--metrics.include=gpu_up,node_load1"], "metrics.include = \"node_load1\": matches no family"),
        // dcgm.listen-address is not set.
        (&["--metrics.include=DCGM_FI_DEV_GPU_TEMP"], "matches no family"),
        (&["--metrics.include=gpu_{up,info}"], "is not a name of letters"),
        (&["--metrics.exclude=gpu_[up"], "is not a name of letters"),
    ] {
        for action in ["--check-config", "--once"] {
            assert_refused(bare(flags).arg(action), &[said]);
        }
    }
    let good = ["--check-config", "--metrics.include=DCGM_FI_DEV_GPU_TEMP", "--dcgm.listen-address=:9400"];
    assert_eq!(ended(&mut bare(&good)).status, Some(0));
}

#[derive(Deserialize)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
}

/// The exporter's families that an expression reads, directly or through recorded series.
fn read_by(expr: &str, recorded: &BTreeMap<&str, &str>) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for word in expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
        let of_family = |family: &str| {
            word.strip_prefix(family).is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
        };
        found.extend(families().map(|family| family.name).filter(|family| of_family(family)));
        if let Some(expr) = recorded.get(word) {
            found.extend(read_by(expr, recorded));
        }
    }
    found
}

/// The families that each shipped alert reads, as a table in Markdown.
pub(crate) fn table_of_alerts() -> String {
    let files: Vec<File> = shipped::rules().iter().map(|(_, text)| serde_saphyr::from_str(text).unwrap()).collect();
    let rules: Vec<&Rule> = files.iter().flat_map(|file| &file.groups).flat_map(|group| &group.rules).collect();
    let recorded = rules.iter().filter_map(|rule| Some((rule.record.as_deref()?, rule.expr.as_str()))).collect();
    let mut alerts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for rule in &rules {
        let Some(alert) = rule.alert.as_deref() else { continue };
        alerts.entry(alert).or_default().extend(read_by(&rule.expr, &recorded));
    }
    assert!(alerts.len() > 10, "{alerts:?}");
    let row = |(alert, needed): (&&str, &BTreeSet<&str>)| {
        let names: Vec<_> = needed.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("| {alert} | {names} |\n")
    };
    format!("| alert | families |\n|---|---|\n{}", alerts.iter().map(row).collect::<String>())
}
