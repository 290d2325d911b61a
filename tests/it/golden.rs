//! The whole exposition of each shipped scenario, line by line. `UPDATE_GOLDEN=1` rewrites the files under `golden/`.
//!
//! Values that change with time are written as `<…>`; names, labels, help and every other value must be the same.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use generated_files::assert_committed;

use crate::harness::{CALM, Machine, Scrape};

pub(crate) const SCENARIOS: [&str; 6] =
    ["idle-h200", "busy-h200", "mig-a100", "old-driver", "unified-memory", "hostile-names"];

/// Families whose values differ between two runs.
const MOVING: [&str; 14] = [
    "gpu_memory_pressure_seconds_total",
    "gpu_mig_memory_pressure_seconds_total",
    "gpu_memory_increase_bytes_total",
    "gpu_memory_decrease_bytes_total",
    "gpu_process_start_time_seconds",
    "gpu_process_idle_seconds",
    "gpu_energy_",
    "gpu_engine_active_seconds_total",
    "gpu_pipe_active_seconds_total",
    "gpu_memory_bandwidth_active_seconds_total",
    "vram_exporter_sample_age_seconds",
    "vram_exporter_lane_duration_seconds",
    "vram_exporter_missed_ticks_total",
    "process_",
];

/// Present only while the driver has a sample, which is a matter of chance in a single run.
pub(crate) const SAMPLED: &str = "gpu_process_sm_utilization_ratio";

/// Readings that the simulator varies.
const VARYING: [&str; 8] = [
    "gpu_utilization_ratio",
    "gpu_memory_bandwidth_utilization_ratio",
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_sm_occupancy_ratio",
    "gpu_pcie_transmitted_bytes_total",
    "gpu_pcie_received_bytes_total",
];

pub(crate) fn golden(scenario: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{scenario}.prom"))
}

pub(crate) fn settled(text: &str) -> String {
    let settle = |line: &str| {
        let moves = MOVING.iter().chain(&VARYING).any(|name| line.starts_with(name));
        match line.rsplit_once(' ') {
            Some((series, _)) if moves => format!("{series} <…>\n"),
            _ if line.starts_with("vram_exporter_build_info") => "vram_exporter_build_info{version=\"<…>\"} 1\n".into(),
            _ => format!("{line}\n"),
        }
    };
    text.lines().filter(|line| !line.contains(SAMPLED)).map(settle).collect()
}

fn scrape(scenario: &str) -> Scrape {
    Machine::built_in(scenario).once(&[CALM])
}

#[test]
fn every_scenario_gives_its_golden_scrape() {
    for scenario in SCENARIOS {
        assert_committed(&golden(scenario), &settled(&scrape(scenario).text));
    }
}

pub(crate) fn assert_promtool_accepts(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn a_busy_process_shows_its_work_with_the_drivers_first_sample() {
    let exporter = Machine::built_in("busy-h200").export(&[]);
    exporter.scrape_until("a busy process", |s| s.all(SAMPLED).any(|series| series.value > 0.0));
}

/// The series that are not about GPUs or their processes.
fn own(scrape: &Scrape) -> Vec<String> {
    let own = |name: &String| ["vram_exporter_", "process_"].iter().any(|prefix| name.starts_with(prefix));
    scrape.names().into_iter().filter(own).collect()
}

#[test]
fn an_idle_gpu_has_at_most_90_series_of_the_exporters_own() {
    let scrape = scrape("idle-h200");
    let about_gpus = scrape.names().len() - own(&scrape).len();
    assert!(own(&scrape).len() <= 90, "{}: {:#?}", own(&scrape).len(), own(&scrape));
    assert!(about_gpus > 50, "{about_gpus} series of the GPU");
}

#[test]
fn without_exporter_metrics_data_quality_and_version_are_left() {
    let machine = Machine::built_in("idle-h200");
    let (all, fewer) = (machine.once(&[CALM]), machine.once(&[CALM, "--web.disable-exporter-metrics"]));
    let families: BTreeSet<_> = own(&fewer).into_iter().map(|name| family(&name).to_owned()).collect();
    let expected = [
        "vram_exporter_build_info",
        "vram_exporter_host_pid_namespace",
        "vram_exporter_nvml_up",
        "vram_exporter_peak_window_seconds",
        "vram_exporter_process_series_dropped",
        "vram_exporter_processes_invisible",
        "vram_exporter_sample_age_seconds",
        "vram_exporter_workload_series_dropped",
    ];
    // The pid namespace is unknown on some machines, and its family is absent there.
    let expected = expected.iter().filter(|name| all.names().iter().any(|shown| family(shown) == **name));
    assert_eq!(families, expected.map(|name| (*name).to_owned()).collect());
    let others = |scrape: &Scrape| {
        let mut names = scrape.names();
        names.retain(|name| !own(scrape).contains(name) && !name.starts_with(SAMPLED));
        names
    };
    assert_eq!(others(&all), others(&fewer), "the series of the GPU are the same");
}

/// The name of a series without its labels.
fn family(series: &str) -> &str {
    series.split(['{', '[']).next().unwrap_or_default()
}
