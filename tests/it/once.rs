//! `vram` alone, as a table and as JSON: what a person reads at a terminal, or what a script reads.

use serde_json::Value;

use crate::harness::{Machine, assert_refused, ended, tool};

const NO_LIBRARY: &str = "--nvml.library=/nonexistent/libnvidia-ml.so.1";

fn once(scenario: &str, format: &str) -> String {
    let ended = ended(&mut Machine::built_in(scenario).tool(&["--format", format]));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    ended.out
}

fn table(scenario: &str) -> String {
    once(scenario, "table")
}

fn json(scenario: &str) -> Value {
    serde_json::from_str(&once(scenario, "json")).unwrap()
}

#[test]
fn a_table_has_a_block_for_each_gpu_with_its_processes_and_the_rest() {
    let table = table("busy-h200");
    assert!(table.starts_with("SIMULATED"), "{table}");
    let gpu = table.split_once("GPU 0  NVIDIA H200").unwrap().1;
    let rows: Vec<&str> = gpu.lines().skip_while(|line| !line.contains("PID")).skip(1).collect();
    let processes = rows.iter().filter(|row| row.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(processes.count(), 16, "{table}");
    assert!(rows.last().unwrap().contains("unattributed 128 MiB"), "{table}");
    assert!(gpu.contains("window peak") && gpu.contains("utilization") && gpu.contains("°C"), "{table}");
    assert!(!table.contains('\u{1b}'), "colour although standard output is no terminal");
}

#[test]
fn a_table_shows_mig_devices_and_what_the_driver_does_not_report() {
    let sliced = table("mig-h100");
    assert_eq!(sliced.lines().filter(|line| line.trim_start().starts_with("MIG ")).count(), 7, "{sliced}");
    assert!(sliced.contains("(MIG 5)"), "{sliced}");
    let unified = table("unified-memory");
    assert!(unified.contains("at least 24.51 GiB of 119.0 GiB used"), "{unified}");
    assert!(table("idle-h200").contains("no processes"));
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let table = table("hostile-names");
    assert!(table.contains("\\u{1b}[31mred"), "{table}");
    assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{table:?}");
    let json = json("hostile-names");
    let names = json["gpus"][0]["processes"].as_array().unwrap().iter().filter_map(|process| process["name"].as_str());
    assert!(names.into_iter().any(|name| name.contains("\u{1b}[31mred")), "{json}");
}

#[test]
fn json_holds_the_same_as_the_exposition() {
    let machine = Machine::built_in("busy-h200");
    let scrape = machine.once(&[]);
    let json = json("busy-h200");
    assert_eq!((json["version"].as_u64(), json["simulated"].as_bool()), (Some(1), Some(true)));
    let gpu = &json["gpus"][0];
    for (field, family) in [
        ("total_bytes", "gpu_memory_total_bytes"),
        ("reserved_bytes", "gpu_memory_reserved_bytes"),
        ("used_bytes", "gpu_memory_used_bytes"),
        ("free_bytes", "gpu_memory_free_bytes"),
        ("peak_bytes", "gpu_memory_peak_bytes"),
        ("window_peak_bytes", "gpu_memory_window_peak_bytes"),
        ("unattributed_bytes", "gpu_memory_unattributed_bytes"),
    ] {
        assert_eq!(gpu[field].as_f64(), scrape.value(family, &[]), "{field}");
    }
    let processes = gpu["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 16);
    for process in processes {
        let pid = process["pid"].to_string();
        let value = |family| scrape.value(family, &[("pid", &pid)]);
        assert_eq!(process["used_bytes"].as_f64(), value("gpu_process_memory_used_bytes"), "{process}");
        assert_eq!(process["peak_bytes"].as_f64(), value("gpu_process_memory_peak_bytes"), "{process}");
    }
}

#[test]
fn a_value_that_is_unknown_is_absent() {
    let json = json("unified-memory");
    let gpu = json["gpus"][0].as_object().unwrap();
    assert!(!gpu.contains_key("used_bytes") && !gpu.contains_key("unattributed_bytes"), "{json}");
    let absent = |process: &Value| !process.as_object().unwrap().contains_key("used_bytes");
    assert_eq!(gpu["processes"].as_array().unwrap().iter().filter(|process| absent(process)).count(), 1, "{json}");
}

#[test]
fn without_a_driver_the_status_is_2_except_for_a_scrape() {
    let machine = Machine::built_in("idle-h200");
    // The flag cannot be added here, because it would then be given twice: the harness already names a library.
    let machine = machine.with_library(NO_LIBRARY.split_once('=').unwrap().1.into());
    for (mut command, status, text) in [
        (machine.tool(&[]), 2, "no driver: no NVML library"),
        (machine.tool(&["--format=json"]), 2, "\"up\": false"),
        (machine.command(&["--log.level=error", "--once"]), 0, "vram_exporter_nvml_up 0"),
    ] {
        let ended = ended(&mut command);
        assert!(ended.status == Some(status) && ended.out.contains(text), "{command:?}: {ended:?}");
    }
}

#[test]
fn a_typing_error_is_answered_with_what_was_meant() {
    for (args, meant) in
        [(&["reprot", "--job=1"][..], "'report'"), (&["--fromat=json"], "'--format'"), (&["rum"], "'run'")]
    {
        let said = assert_refused(&mut tool(args), &[meant, "see vram --help"]).err;
        assert!(said.starts_with("vram: ") && said.lines().count() == 1, "{said}");
    }
    assert_refused(&mut tool(&["--demo=nosuch"]), &[]);
    for args in [&["help", "run"][..], &["run", "--help"]] {
        let ended = ended(&mut tool(args));
        assert!(ended.status == Some(0) && ended.out.contains("--rate"), "{args:?}");
    }
    let version = ended(&mut tool(&["--version"])).out;
    assert_eq!(version.trim_end(), concat!("vram ", env!("CARGO_PKG_VERSION")));
}
