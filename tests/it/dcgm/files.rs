//! The collectors file: what it selects, what the log says about the rest, and what is refused.

use std::collections::BTreeSet;
use std::fs;

use vram_exporter::dcgm::on_request;

use super::facts::facts;
use super::{SCENARIO, Served};
use crate::harness::{Machine, Scrape, assert_refused, bare, ended, eventually};

fn list(folder: &tempfile::TempDir, text: &str) -> String {
    let path = folder.path().join("counters.csv");
    fs::write(&path, text).unwrap();
    format!("--dcgm.collectors-file={}", path.display())
}

#[test]
fn a_file_selects_names_types_and_help_texts() {
    let folder = tempfile::tempdir().unwrap();
    let text = "# my list\nDCGM_FI_DEV_GPU_TEMP_CELSIUS, counter, \"Warm, \\ or \"\"hot\"\"\"\n\
                DCGM_FI_DEV_FB_TOTAL, gauge, Total\nDCGM_FI_DEV_FB_USED_PERCENT, gauge, Ratio\n\
                DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Bits\nDCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, Errors\n\
                DCGM_FI_DEV_RETIRED_DBE, counter, Pages\nDCGM_EXP_XID_ERRORS_TOTAL, counter, Errors\n\
                DCGM_FI_DEV_VBIOS_VERSION, label, Version\n";
    let served = Served::with(SCENARIO, &[&list(&folder, text)]);
    let scrape = eventually("all families", || {
        let scrape = served.scrape();
        let whole = |scrape: &Scrape| scrape.text.lines().filter(|line| line.starts_with("# TYPE")).count() == 7;
        whole(&scrape).then_some(scrape)
    });
    assert!(scrape.text.contains("# HELP DCGM_FI_DEV_GPU_TEMP_CELSIUS Warm, \\\\ or \"hot\"\n"), "{}", scrape.text);
    assert!(scrape.text.contains("# TYPE DCGM_FI_DEV_GPU_TEMP_CELSIUS counter\n"), "{}", scrape.text);
    let of = |name: &str, gpu: &str| scrape.value(name, &[("gpu", gpu)]);
    assert_eq!(of("DCGM_FI_DEV_FB_TOTAL", "0"), Some(143_771.0));
    let ratio = of("DCGM_FI_DEV_FB_USED_PERCENT", "0").unwrap();
    assert!((0.6..0.7).contains(&ratio), "{ratio}");
    assert_eq!(of("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "0"), Some(3.0));
    assert_eq!(of("DCGM_FI_DEV_RETIRED_DBE", "2"), Some(5.0));
    // A series for each code that has occurred, and none for a GPU without errors.
    let errors: Vec<_> = scrape.all("DCGM_EXP_XID_ERRORS_TOTAL").collect();
    assert!(errors.iter().all(|series| series.label("gpu") == Some("2") && series.value >= 1.0), "{errors:?}");
    assert!(errors.iter().any(|series| series.label("xid") == Some("79")), "{errors:?}");
    assert!(scrape.series.iter().all(|series| series.label("DCGM_FI_DEV_VBIOS_VERSION").is_some()));
    assert!(scrape.series.iter().all(|series| series.label("DCGM_FI_DRIVER_VERSION").is_none()), "not in the file");
}

#[test]
fn a_number_that_does_not_change_is_a_family_or_a_label() {
    let folder = tempfile::tempdir().unwrap();
    let names =
        ["DEV_COUNT", "DEV_NVML_INDEX", "DEV_MINOR_NUMBER", "CUDA_GPU_COMPUTE_CAPABILITY", "CUDA_DRIVER_VERSION"];
    let of_kind = |kind: &str| names.map(|name| format!("DCGM_FI_{name}, {kind}, Text\n")).concat();
    // NVML's index of GPU 2 of three; an L4 has compute capability 8.9; the simulated driver supports CUDA 13.0.
    let expected = [3.0, 2.0, 2.0, f64::from((8 << 16) | 9), 13_000.0];
    let gauges = Served::with(SCENARIO, &[&list(&folder, &of_kind("gauge"))]).scrape();
    let values = names.map(|name| gauges.value(&format!("DCGM_FI_{name}"), &[("gpu", "2")]));
    assert_eq!(values, expected.map(Some));
    let labels = format!("{}DCGM_FI_DEV_GPU_TEMP, gauge, Text\n", of_kind("label"));
    let labelled = Served::with(SCENARIO, &[&list(&folder, &labels)]).scrape();
    let series = labelled.all("DCGM_FI_DEV_GPU_TEMP").find(|series| series.label("gpu") == Some("2")).unwrap();
    let texts = names.map(|name| series.label(&format!("DCGM_FI_{name}")).map(str::to_owned));
    assert_eq!(texts, expected.map(|value| Some(value.to_string())));
}

#[test]
fn what_is_not_served_is_named_once_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let facts = facts();
    let lines = facts.iter().map(|fact| format!("{}, {}, Text\n", fact.old.0, fact.kind));
    let text: String = lines.chain(["DCGM_EXP_XID_ERRORS_COUNT, gauge, Text\n".to_owned()]).collect();
    let served = Served::with(SCENARIO, &[&list(&folder, &text)]);
    let scrape = served.settled();
    served.get("/metrics");
    assert!(scrape.all("DCGM_FI_DEV_FB_TOTAL").count() > 0);
    let log = served.exporter.log();
    let said: Vec<_> = log.lines().filter(|line| line.contains("are not served")).collect();
    let [said] = said[..] else { panic!("{log}") };
    for name in ["DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT"] {
        assert!(said.contains(name), "{said}");
    }
    assert!(said.contains("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION (it needs telemetry.energy=true)"), "{said}");
    assert!(!said.contains("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "{said}");
    assert!(!said.contains("DCGM_FI_DEV_FB_USED") && said.contains("docs/from-dcgm.md"), "{said}");
}

/// A field that has no value while a key is off must name the key, so that a warning tells it to a user who lists the field.
#[test]
fn every_field_that_a_key_switches_off_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let facts = facts();
    let of_list = facts.iter().filter(|fact| fact.served != "no").flat_map(|fact| [fact.old.0, fact.new.0]);
    let names: BTreeSet<_> = of_list.chain(on_request().map(|(old, _)| old)).collect();
    let flag = list(&folder, &names.iter().map(|name| format!("{name}, gauge, Text\n")).collect::<String>());
    let families = |served: &Served, until: &str| -> BTreeSet<String> {
        let scrape = eventually("every reading", || {
            Some(served.scrape())
                .filter(|scrape| scrape.all(until).count() > 0 && scrape.all("DCGM_FI_DEV_BAR1_TOTAL").count() > 0)
        });
        scrape.series.into_iter().map(|series| series.name).collect()
    };
    let keys = ["telemetry.energy", "telemetry.performance-state", "profiling.enabled"];
    let flags = |on: bool| keys.map(|key| format!("--{key}={on}"));
    let with: Vec<_> = flags(true).into_iter().chain([flag.clone(), "--profiling.interval=500ms".to_owned()]).collect();
    let on = families(
        &Served::with(SCENARIO, &with.iter().map(String::as_str).collect::<Vec<_>>()),
        "DCGM_FI_PROF_SM_ACTIVE",
    );
    let without: Vec<_> = flags(false).into_iter().chain([flag]).collect();
    let served = Served::with(SCENARIO, &without.iter().map(String::as_str).collect::<Vec<_>>());
    let off = families(&served, "DCGM_FI_DEV_GPU_TEMP");
    let switched: Vec<_> = on.difference(&off).collect();
    assert!(switched.len() > 15 && on.contains("DCGM_FI_DEV_PSTATE"), "{switched:?}");
    let log = served.exporter.log();
    let silent: Vec<_> = switched.iter().filter(|name| !log.contains(&format!("{name} (it needs "))).collect();
    assert!(silent.is_empty(), "{silent:?} have no value and no warning:\n{log}");
    assert!(log.contains("DCGM_FI_DEV_PSTATE (it needs telemetry.performance-state=true)"), "{log}");
}

/// The readings that only a list needs, each with its unit, on a board with fans; a refused call costs its own field alone.
#[test]
fn fields_that_only_a_list_needs_have_the_values_of_the_driver_until_it_refuses_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let calls = [
        ("DCGM_FI_DEV_FAN_SPEED", "nvmlDeviceGetFanSpeed"),
        ("DCGM_FI_DEV_MAX_SM_CLOCK", "nvmlDeviceGetMaxClockInfo"),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "nvmlDeviceGetPowerManagementLimit"),
        ("DCGM_FI_DEV_POWER_USAGE_INSTANT", "nvmlDeviceGetFieldValues"),
    ];
    let names = calls.map(|(name, _)| format!("{name}, gauge, Text\n")).concat();
    let text =
        format!("{names}DCGM_FI_DEV_FAN_SPEED_RATIO, gauge, Text\nDCGM_FI_DEV_SM_MAX_CLOCK_HERTZ, gauge, Text\n");
    let machine = Machine::new("[[gpu]]\nmodel = \"RTX 4090\"\ntemperature = 70\npower = 200\n");
    let listed = list(&folder, &text);
    let flags = [listed.as_str(), "--telemetry.interval=100ms", "--telemetry.slow-interval=100ms"];
    let served = Served::on_with(&machine, &flags);
    let read = |scrape: &Scrape, name: &str| scrape.value(name, &[("gpu", "0")]);
    let all = |scrape: &Scrape| calls.map(|(name, _)| read(scrape, name));
    let good = eventually("all fields", || Some(served.scrape()).filter(|scrape| !all(scrape).contains(&None)));
    let [fan, clock, limit, power] = all(&good).map(Option::unwrap);
    assert_eq!((limit, power), (450.0, 200.0));
    assert!((1.0..=100.0).contains(&fan) && read(&good, "DCGM_FI_DEV_FAN_SPEED_RATIO") == Some(fan / 100.0), "{fan}");
    assert_eq!(read(&good, "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ"), Some(clock * 1e6));
    for (name, call) in calls {
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
        let refused = eventually(name, || Some(served.scrape()).filter(|scrape| read(scrape, name).is_none()));
        let others = calls.iter().filter(|(_, other)| *other != call);
        others.for_each(|(other, _)| assert!(read(&refused, other).is_some(), "{call} costs {other}"));
        machine.control("");
        eventually("all fields again", || Some(served.scrape()).filter(|scrape| !all(scrape).contains(&None)));
    }
}

#[test]
fn repeated_lines_are_a_warning_and_the_names_of_1x_keep_their_values() {
    let folder = tempfile::tempdir().unwrap();
    // A list for dcgm-exporter 1.x, with a line that is there twice as in the list that Datadog recommends.
    let text = "dcgm_sm_clock, gauge, Clock\ndcgm_fb_used, gauge, Used\ndcgm_fi_prof_pcie_tx_bytes, counter, Sent\n\
                DCGM_FI_DEV_FB_USED ,gauge ,\ndcgm_fi_prof_pcie_tx_bytes, counter, Again\n";
    let flag = list(&folder, text);
    let served = Served::with(SCENARIO, &[&flag]);
    let said = "dcgm_fi_prof_pcie_tx_bytes (line 5, first in 3)";
    served.exporter.logged(said);
    let scrape = eventually("values", || {
        Some(served.scrape()).filter(|scrape| scrape.all("dcgm_fi_prof_pcie_tx_bytes").count() > 0)
    });
    assert_eq!(scrape.value("dcgm_sm_clock", &[("gpu", "0")]), Some(1980.0));
    let used = scrape.value("DCGM_FI_DEV_FB_USED", &[("gpu", "0")]);
    assert!(used.is_some() && scrape.value("dcgm_fb_used", &[("gpu", "0")]) == used, "{used:?}");
    assert_eq!(scrape.text.matches("# TYPE dcgm_fi_prof_pcie_tx_bytes ").count(), 1);
    let checked = ended(bare(&["--check-config", "--dcgm.listen-address=127.0.0.1:0"]).arg(&flag));
    assert!(checked.status == Some(0) && checked.err.contains(said), "{checked:?}");
}

#[test]
fn a_file_without_a_family_that_is_served_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let text = "# DCGM_FI_DEV_FB_USED, gauge, Text\nDCGM_FI_DRIVER_VERSION, label, Text\n";
    let served = Served::with(SCENARIO, &[&list(&folder, text)]);
    // The warning is logged before the addresses, so it is there once the exporter has started.
    assert_eq!(served.get("/metrics").body, "");
    served.exporter.logged("it lists no family that is served");
    let other = Served::with(SCENARIO, &[&list(&folder, "DCGM_FI_DEV_FB_USED, gauge, Text\n")]);
    assert!(!other.exporter.log().contains("lists no family"));
}

#[test]
fn a_file_that_cannot_be_used_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (text, why) in
        [("DCGM_FI_DEV_FB_USED, gauge\n", ", line 1: has 2 parts"), ("#\nrubbish, gauge, x\n", ", line 2: ")]
    {
        let flags = [list(&folder, text), "--dcgm.listen-address=127.0.0.1:0".to_owned()];
        let mut checked = bare(&["--check-config"]);
        let mut run = bare(&["--demo=idle-h200", "--web.listen-address=127.0.0.1:0"]);
        for command in [&mut checked, &mut run] {
            assert_refused(command.args(&flags), &["dcgm.collectors-file: ", "counters.csv", why]);
        }
    }
    let alone = ["--check-config", "--dcgm.collectors-file=/nonexistent.csv"];
    assert_refused(&mut bare(&alone), &["together with dcgm.listen-address"]);
}
