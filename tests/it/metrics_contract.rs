//! The contract of the metrics, checked on hand-built snapshots: names, types, absence, unique series.

mod allocators;
mod budgets;
mod machine;
mod open_metrics;
mod scrape;

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use exposition::Series;
use generated_files::assert_committed;
use gpu_metrics::{Format, Kind, Unit, families, reference};
use gpu_readings::faults::{Reason, Source};
use gpu_readings::snapshot::*;
use vram_exporter::config::{ApiServer, Config, Probes};
use vram_exporter::internals::metrics_settings;

use crate::golden::assert_promtool_accepts;
use machine::*;
use scrape::Scrape;

// ---- the table
// -------------------------------------------------------------------------------------------------------

#[test]
fn every_family_of_the_table_is_emitted_and_nothing_else() {
    let scrape = everything().scrape();
    let table: BTreeSet<_> = families().map(|family| family.name).collect();
    let without_limit = scrape.names().contains("process_max_fds");
    let expected: BTreeSet<_> = table.into_iter().filter(|name| without_limit || *name != "process_max_fds").collect();
    assert_eq!(scrape.names(), expected);
}

#[test]
fn type_help_and_labels_are_those_of_the_table() {
    let scrape = everything().scrape();
    for shown in &scrape.families {
        let family = families().find(|family| family.name == shown.name).unwrap();
        assert_eq!(shown.kind, family.kind.word(), "{}", family.name);
        assert_eq!(shown.help, family.help(), "{}", family.name);
        let labels = shown.series.iter().flat_map(|series| series.labels.keys().map(String::as_str));
        // The labels of pods have the names that the configuration gives them.
        let labels = labels.map(|label| if label.starts_with("label_") { "label_*" } else { label });
        let emitted: BTreeSet<_> = labels.filter(|label| !(family.kind == Kind::Histogram && *label == "le")).collect();
        // Only a part that is down has a reason, and only a release has a commit.
        let told = option_env!("VRAM_EXPORTER_REVISION").is_some();
        let is_shown = |label: &&str| match (family.name, *label) {
            ("vram_exporter_probes_up", "reason") => false,
            ("vram_exporter_build_info", "revision") => told,
            _ => true,
        };
        assert_eq!(emitted, family.labels.iter().copied().filter(is_shown).collect(), "labels of {}", family.name);
    }
}

#[test]
fn names_follow_the_rules() {
    let mut seen = HashSet::new();
    for family in families() {
        let name = family.name;
        assert!(seen.insert(name), "{name} appears twice in the table");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
        let stem = name.strip_suffix("_total");
        assert_eq!(stem.is_some(), family.kind == Kind::Counter, "{name}");
        assert!(stem.unwrap_or(name).ends_with(family.unit.suffix()), "{name} must end in {}", family.unit.suffix());
        let unit_words = ["_bytes", "_seconds", "_ratio", "_celsius", "_watts", "_joules", "_hertz", "_info"];
        let has_unit = unit_words.iter().any(|unit| stem.unwrap_or(name).ends_with(unit));
        assert!(family.unit != Unit::Number || !has_unit, "{name} has a unit in its name");
        assert!(family.meaning().ends_with('.'), "the help of {name} is not a sentence");
        // Prometheus adds these labels to each target, and would rename a metric's own labels with the same names.
        assert!(["job", "instance"].iter().all(|taken| !family.labels.contains(taken)), "{name}");
        // What a lane did for a GPU has no uuid.
        if family.labels.contains(&"gpu") && family.labels.first() != Some(&"lane") {
            assert!(family.labels.starts_with(&["gpu", "uuid"]), "{name}");
        }
    }
}

#[test]
fn the_reference_document_is_fresh() {
    assert_committed(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")), &reference());
}

#[test]
fn promtool_finds_nothing_wrong() {
    if workspace_skips::missing("promtool", Command::new("promtool").arg("--version").output().is_ok()) {
        return;
    }
    let mut hostile = everything();
    hostile.processes[0].processes.push(process(5, HOSTILE));
    for machine in [everything(), hostile, Machine::of(&[])] {
        assert_promtool_accepts(&machine.text());
    }
}

// ---- what is absent, and when
// ----------------------------------------------------------------------------------------

#[test]
fn without_a_driver_only_the_exporters_own_series_are_left() {
    let mut machine = Machine::of(&[]);
    machine.driver = Driver { problem: Some("no library".to_owned()), ..Driver::default() };
    let scrape = machine.scrape();
    assert_eq!(scrape.value("vram_exporter_nvml_up", &[]), "0");
    assert_eq!(scrape.starting("gpu_"), [""; 0]);
    assert_eq!(scrape.starting("nvidia_"), [""; 0]);
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "library")]), "0");
}

#[test]
fn values_that_the_driver_does_not_report_have_no_series() {
    let mut machine = Machine::one();
    let figures = machine.memory[0].figures.as_mut().unwrap();
    figures.reserved = None;
    machine.processes[0].unattributed = None;
    machine.processes[0].processes = vec![Process::for_tests(7, Owner::default())];
    machine.telemetry[0].fast = FastTelemetry { utilization: Some(f64::NAN), ..FastTelemetry::default() };
    machine.telemetry[0].slow = SlowTelemetry::default();
    machine.profiling[0].figures = ProfilingFigures::default();
    machine.xids[0].errors = None;
    let scrape = machine.scrape();
    let expected = [
        "gpu_info",
        "gpu_memory_decrease_bytes_total",
        "gpu_memory_free_bytes",
        "gpu_memory_increase_bytes_total",
        "gpu_memory_peak_bytes",
        "gpu_memory_pressure_seconds_total",
        "gpu_memory_total_bytes",
        "gpu_memory_used_bytes",
        "gpu_memory_window_peak_bytes",
        "gpu_process_info",
        "gpu_up",
    ];
    assert_eq!(scrape.starting("gpu_"), expected);
    let info = scrape.of("gpu_process_info").next().unwrap();
    assert_eq!(info.labels.keys().collect::<Vec<_>>(), ["gpu", "pid", "uuid"]);
    assert_eq!(scrape.of("gpu_info").next().unwrap().labels.len(), 2);
}

/// What goes wrong on a machine.
type Harm = fn(&mut Machine);

/// What does not depend on the driver: the identity, the kubelet's allocations and what was recorded.
const REMEMBERED: [&str; 7] = [
    "gpu_allocatable_devices",
    "gpu_allocation_info",
    "gpu_info",
    "gpu_memory_incidents_total",
    "gpu_memory_last_incident_timestamp_seconds",
    "gpu_up",
    "gpu_workload_memory_last_shortage_timestamp_seconds",
];

#[test]
fn a_gpu_that_does_not_answer_keeps_only_its_name() {
    let harms: [(&str, Harm); 6] = [
        ("stale", |m| m.memory[0].at = ago(2.5)),
        ("never good", |m| m.memory[0].at = None),
        ("stalled", |m| m.memory[0].state = GpuState::Stalled),
        ("unreadable", |m| m.memory[0].state = GpuState::Unreadable),
        ("unsampled", |m| m.memory[0].state = GpuState::Unsampled),
        ("unknown to the lane", |m| drop(m.memory.remove(0))),
    ];
    for (name, harm) in harms {
        let mut machine = without_calls();
        harm(&mut machine);
        let scrape = machine.scrape();
        assert_eq!(scrape.value("gpu_up", &[("gpu", "0")]), "0", "{name}");
        assert_eq!(scrape.value("gpu_up", &[("gpu", "1")]), "1", "{name}");
        let also = [
            "gpu_xid_class_errors_total",
            "gpu_xid_errors_total",
            "vram_exporter_missed_ticks_total",
            "vram_exporter_sample_age_seconds",
        ];
        assert_eq!(scrape.with("gpu", "0"), REMEMBERED.into_iter().chain(also).collect(), "{name}");
        assert_eq!(scrape.count("gpu_memory_used_bytes"), 1, "the other GPU is not affected: {name}");
    }
}

#[test]
fn what_is_missing_or_old_takes_its_own_families_alone() {
    type Counts<'a> = &'a [(&'a str, usize)];
    fn allocated(machine: &mut Machine, age: f64) {
        machine.jobs = JobAllocations::default();
        (machine.allocations.at, machine.allocations.up) = (ago(age), Some(false));
    }
    fn read(machine: &mut Machine, fast: f64, slow: f64) {
        (machine.telemetry[0].fast_at, machine.telemetry[0].slow_at) = (ago(fast), ago(slow));
    }
    const OF_MIG: &str = "gpu_mig_memory_bandwidth_active_seconds_total";
    const BAR1: &str = "gpu_bar1_memory_used_bytes";
    // What happens to a machine with everything, and how many series some families have then.
    let rows: [(&str, Harm, Counts<'_>); 13] = [
        ("nothing", |_| (), &[(OF_MIG, 1), ("gpu_power_watts", 2), (BAR1, 2), ("gpu_process_info", 3)]),
        (
            "shared system memory",
            |m| m.memory[0].figures = None,
            &[
                ("gpu_up", 2),
                ("gpu_memory_used_bytes", 1),
                ("gpu_memory_peak_bytes", 1),
                ("gpu_memory_unattributed_bytes", 2),
                ("gpu_process_memory_used_bytes", 4),
            ],
        ),
        (
            "an old reading of a MIG device",
            |m| m.memory[1].mig[0].at = ago(2.5),
            &[("gpu_mig_memory_used_bytes", 0), ("gpu_memory_used_bytes", 2)],
        ),
        // The part was published before the removal.
        (
            "a removed MIG device",
            |m| {
                let gpu = Gpu { mig: Vec::new(), ..(*m.driver.gpus[1]).clone() };
                m.driver.gpus[1] = Arc::new(gpu);
            },
            &[(OF_MIG, 0), ("gpu_memory_bandwidth_active_seconds_total", 2)],
        ),
        (
            "no series of processes",
            |m| m.settings.process_series = false,
            &[
                ("gpu_process_info", 0),
                ("gpu_process_memory_used_bytes", 0),
                ("vram_exporter_process_series_dropped", 0),
                ("gpu_workload_memory_used_bytes", 2),
                ("gpu_memory_unattributed_bytes", 2),
                // The sums of what processes report stay too.
                ("gpu_workload_allocator_allocated_bytes", 1),
                ("gpu_memory_needed_bytes", 2),
            ],
        ),
        ("a list of 5.8 s", |m| m.processes[0].at = ago(5.8), &[("gpu_process_info", 3)]),
        (
            "a list of 6.2 s",
            |m| m.processes[0].at = ago(6.2),
            &[("gpu_process_info", 2), ("gpu_memory_unattributed_bytes", 1), ("gpu_memory_used_bytes", 2)],
        ),
        ("telemetry of 2.8 s and 44 s", |m| read(m, 2.8, 44.0), &[("gpu_power_watts", 2), (BAR1, 2)]),
        ("telemetry of 3.2 s and 44 s", |m| read(m, 3.2, 44.0), &[("gpu_power_watts", 1), (BAR1, 2)]),
        ("telemetry of 0 s and 46 s", |m| read(m, 0.0, 46.0), &[("gpu_power_watts", 2), (BAR1, 1)]),
        ("a kubelet's answer of 29 s", |m| allocated(m, 29.0), &[("gpu_allocation_info", 3)]),
        ("a kubelet's answer of 31 s", |m| allocated(m, 31.0), &[("gpu_allocation_info", 0)]),
        (
            "no answer of the kubelet",
            |m| {
                allocated(m, 0.0);
                m.allocations.at = None;
            },
            &[("gpu_allocation_info", 0), ("vram_exporter_pod_resources_up", 1)],
        ),
    ];
    for (what, harm, counts) in rows {
        let mut machine = everything();
        harm(&mut machine);
        let scrape = machine.scrape();
        for (family, count) in counts {
            assert_eq!(scrape.count(family), *count, "{what}: {family}");
        }
        assert_eq!(scrape.series().any(|series| series.labels.contains_key("pid")), what != "no series of processes");
    }
}

#[test]
fn a_gpu_within_its_limit_is_up_and_shows_its_ages() {
    let mut machine = Machine::one();
    machine.memory[0].at = ago(1.5);
    machine.processes[0].at = ago(2.5);
    machine.telemetry[0].fast_at = None;
    let scrape = machine.scrape();
    assert_eq!(scrape.value("gpu_up", &[]), "1");
    let age = |lane: &str| scrape.value("vram_exporter_sample_age_seconds", &[("lane", lane)]).parse::<f64>().unwrap();
    assert!((1.5..2.0).contains(&age("memory")));
    assert!((2.5..3.0).contains(&age("process")));
    assert_eq!(scrape.count("vram_exporter_sample_age_seconds"), 2);
}

#[test]
fn without_its_driver_a_gpu_has_no_values() {
    let mut machine = without_calls();
    machine.driver.up = false;
    let scrape = machine.scrape();
    // Pods have their labels whatever the driver does.
    let mut remembered = REMEMBERED.to_vec();
    remembered.push("gpu_pod_labels_info");
    remembered.sort_unstable();
    assert_eq!(scrape.starting("gpu_"), remembered);
    assert!(scrape.of("gpu_up").all(|series| series.value == "0"));
    assert_eq!(scrape.count("nvidia_driver_info"), 0);
}

// ---- processes
// -------------------------------------------------------------------------------------------------------

#[test]
fn an_ended_process_keeps_its_peaks_and_its_name() {
    let mut machine = Machine::one();
    let ended = Process { alive: false, ..process(8, "gone") };
    machine.processes[0].processes = vec![ended, process(9, "here")];
    let scrape = machine.scrape();
    let peaks = ["gpu_process_info", "gpu_process_memory_peak_bytes", "gpu_process_memory_window_peak_bytes"];
    assert_eq!(scrape.with("pid", "8"), BTreeSet::from(peaks));
    assert_eq!(scrape.with("pid", "9").len(), 7);
    assert_eq!(scrape.value("gpu_process_start_time_seconds", &[("pid", "9")]), "1700000000.5");
    assert_eq!(scrape.value("gpu_process_sm_utilization_ratio", &[("pid", "9")]), "0.25");
    let idle: f64 = scrape.value("gpu_process_idle_seconds", &[("pid", "9")]).parse().unwrap();
    assert!((7.0..8.0).contains(&idle));
}

#[test]
fn processes_beyond_the_limit_are_summed_and_counted() {
    let mut machine = everything();
    machine.processes[1].processes.push(process(1, "other"));
    let scrape = machine.scrape();
    let sum: Vec<_> =
        scrape.series().filter(|s| s.has(&[("process", "other")]) && !s.labels.contains_key("pid")).collect();
    let [sum] = sum[..] else { panic!("{sum:?}") };
    assert_eq!((sum.name.as_str(), sum.value.as_str()), ("gpu_process_memory_used_bytes", "13958643712"));
    assert_eq!(sum.labels.keys().collect::<Vec<_>>(), ["gpu", "process", "uuid"]);
    assert_eq!(scrape.value("vram_exporter_process_series_dropped", &[("gpu", "0")]), "12");
    assert_eq!(scrape.value("vram_exporter_process_series_dropped", &[("gpu", "1"), ("uuid", "GPU-1")]), "0");

    let mut machine = everything();
    machine.processes[0].other = Some(Other { entries: 2, processes: 0, used: None });
    let scrape = machine.scrape();
    assert!(scrape.of("gpu_process_memory_used_bytes").all(|series| series.labels.contains_key("pid")));
    assert_eq!(scrape.value("vram_exporter_process_series_dropped", &[("gpu", "0")]), "2");
}

#[test]
fn a_workload_has_its_names_and_no_pid() {
    let mut machine = Machine::one();
    let unit = Workload { name: "unit:ollama.service".to_owned(), kind: WorkloadKind::Systemd, pod: None };
    let gone = WorkloadUse { processes: 0, used: None, ..workload(of_pod("gone"), 7) };
    machine.processes[0].workloads = vec![workload(of_pod("nb"), GIB), workload(Arc::new(unit), 5), gone];
    let scrape = machine.scrape();
    let nb = [("workload", "team-b/nb/main"), ("namespace", "team-b"), ("pod", "nb"), ("container", "main")];
    assert_eq!(scrape.value("gpu_workload_memory_used_bytes", &nb), "1073741824");
    assert_eq!(scrape.value("gpu_workload_processes", &nb), "2");
    let system = scrape.of("gpu_workload_memory_peak_bytes").find(|s| s.labels["kind"] == "systemd").unwrap();
    assert_eq!(system.labels.keys().collect::<Vec<_>>(), ["gpu", "kind", "uuid", "workload"]);
    // After its last process has ended, a workload keeps only its peaks.
    let peaks = ["gpu_workload_memory_peak_bytes", "gpu_workload_memory_window_peak_bytes"];
    assert_eq!(scrape.with("pod", "gone"), BTreeSet::from(peaks));
}

#[test]
fn long_pod_names_stay_different_and_are_equal_in_every_family() {
    let mut machine = Machine::one();
    let pods = ["-abcde", "-fghij"].map(|end| "p".repeat(140) + end);
    machine.processes[0].workloads = pods.iter().map(|pod| workload(of_pod(pod), GIB)).collect();
    let device = device(DeviceName::Gpu("GPU-0".to_owned()), None);
    let held = pods.iter().map(|pod| Allocation { holder: pod_container(pod), device: device.clone() });
    let (at, allocated) = (ago(0.0), Arc::new(held.collect()));
    machine.allocations = Allocations { up: Some(true), at, allocated, ..Allocations::default() };
    let scrape = machine.scrape();
    let pods = |family| scrape.of(family).map(|s| s.labels["pod"].clone()).collect::<BTreeSet<_>>();
    assert_eq!(pods("gpu_workload_memory_used_bytes").len(), 2);
    assert_eq!(pods("gpu_workload_memory_used_bytes"), pods("gpu_allocation_info"));
}

#[test]
fn workloads_with_equal_labels_are_summed() {
    let mut machine = Machine::one();
    let nul = |name: &str| Arc::new(Workload { name: name.to_owned(), kind: WorkloadKind::Systemd, pod: None });
    let ended = |used, peak| WorkloadUse { processes: 0, used, peak: Some(peak), ..workload(of_pod("c"), 9) };
    machine.processes[0].workloads = vec![
        // On two MIG devices that have not been identified yet.
        workload(of_pod("a"), 5),
        workload(of_pod("a"), 6),
        // The names differ in a character that the text format cannot represent.
        workload(nul("unit:\0"), 20),
        WorkloadUse { used: None, ..workload(nul("unit:\u{FFFD}"), 30) },
        // One of the two has ended.
        ended(None, 100),
        workload(of_pod("c"), 40),
    ];
    let on = |used| Process { used: Some(used), window_peak: Some(used), peak: Some(used + 1), ..process(7, "p") };
    machine.processes[0].processes = vec![on(50), on(60), Process { alive: false, used: None, ..on(1000) }];
    let scrape = machine.scrape();
    let value = |family: &str, workload: &str| {
        let found = scrape.of(family).find(|s| s.labels["workload"] == workload);
        found.map(|s| s.value.parse::<u64>().unwrap())
    };
    let all = |workload| {
        ["memory_used_bytes", "memory_window_peak_bytes", "memory_peak_bytes", "processes"]
            .map(|family| value(&format!("gpu_workload_{family}"), workload))
    };
    assert_eq!(all("team-b/a/main"), [Some(11), Some(11), Some(11), Some(4)]);
    assert_eq!(all("unit:\u{FFFD}"), [None, Some(31), Some(32), Some(4)], "a sum with an unknown part is unknown");
    assert_eq!(all("team-b/c/main"), [Some(40), Some(41), Some(100), Some(2)]);
    let of_process = |family: &str| scrape.value(&format!("gpu_process_memory_{family}"), &[("pid", "7")]);
    assert_eq!((of_process("used_bytes"), of_process("window_peak_bytes")), ("110", "110"));
    assert_eq!(of_process("peak_bytes"), "110");
}

#[test]
fn workloads_beyond_the_limit_are_summed_and_counted() {
    let scrape = everything().scrape();
    let other = [("workload", "other")];
    assert_eq!(scrape.value("gpu_workload_memory_used_bytes", &other), (5 * GIB).to_string());
    assert_eq!(scrape.value("gpu_workload_processes", &other), "4");
    let of_other = scrape.of("gpu_workload_processes").find(|s| s.labels["workload"] == "other").unwrap();
    assert_eq!(of_other.labels.keys().collect::<Vec<_>>(), ["gpu", "uuid", "workload"]);
    assert_eq!(scrape.value("vram_exporter_workload_series_dropped", &[("gpu", "0")]), "3");
}

#[test]
fn every_form_of_a_devices_name_finds_its_gpu() {
    let minor = |minor, gpu_instance| DeviceName::Minor { minor, gpu_instance };
    let index = |gpu, mig| DeviceName::Index { gpu, mig };
    let instance =
        |gpu: &str, gpu_instance| DeviceName::Instance { gpu: gpu.into(), gpu_instance, compute_instance: 0 };
    let cases = [
        (DeviceName::Gpu("GPU-0".into()), Some("gpu=0 uuid=GPU-0")),
        (DeviceName::Mig("MIG-a".into()), Some("gpu=1 mig_uuid=MIG-a uuid=GPU-1")),
        (minor(3, None), Some("gpu=1 uuid=GPU-1")),
        (minor(3, Some(7)), Some("gpu=1 mig_uuid=MIG-a uuid=GPU-1")),
        (index(1, None), Some("gpu=1 uuid=GPU-1")),
        (index(1, Some(0)), Some("gpu=1 mig_uuid=MIG-a uuid=GPU-1")),
        (instance("GPU-1", 7), Some("gpu=1 mig_uuid=MIG-a uuid=GPU-1")),
        // For devices that the driver does not list, a UUID from the cluster is shown, but a number is not, because it
        // identifies nothing.
        (DeviceName::Gpu("GPU-9".into()), Some("uuid=GPU-9")),
        (DeviceName::Mig("MIG-9".into()), Some("mig_uuid=MIG-9")),
        (minor(1, None), None),
        (minor(3, Some(6)), None),
        (index(2, None), None),
        (index(0, Some(0)), None),
        (instance("GPU-9", 7), None),
        (instance("GPU-1", 6), None),
    ];
    for (name, expected) in cases {
        let mut machine = everything();
        machine.jobs = JobAllocations::default();
        let device = device(name.clone(), None);
        machine.allocations.allocated = Arc::new(vec![Allocation { holder: pod_container("nb"), device }]);
        machine.allocations.claimed = Arc::default();
        let scrape = machine.scrape();
        let place = |s: &Series| {
            assert!(s.has(&[("pod", "nb"), ("resource", "nvidia.com/gpu")]), "{s:?}");
            let place = s.labels.iter().filter(|(key, _)| ["gpu", "uuid", "mig_uuid"].contains(&key.as_str()));
            place.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let found: Vec<_> = scrape.of("gpu_allocation_info").map(place).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name:?}");
    }
}

#[test]
fn held_replicas_are_separate_and_allocatable_ones_are_counted() {
    let mut machine = Machine::one();
    let replica = |n: &str| device(DeviceName::Gpu("GPU-0".into()), Some(n));
    let held = |n: &str| Allocation { holder: pod_container("nb"), device: replica(n) };
    machine.allocations = Allocations {
        up: Some(true),
        at: ago(0.0),
        allocated: Arc::new(vec![held("0"), held("1"), held("1")]),
        allocatable: Some(Arc::new((0..4).map(|n| replica(&n.to_string())).collect())),
        ..Allocations::default()
    };
    let scrape = machine.scrape();
    assert_eq!(scrape.count("gpu_allocation_info"), 2);
    assert_eq!(scrape.value("gpu_allocatable_devices", &[("uuid", "GPU-0")]), "4");
}

#[test]
fn a_job_has_its_devices_while_the_reading_is_fresh_and_never_a_divided_gpu_by_its_number() {
    let index = |gpu| DeviceName::Index { gpu, mig: None };
    let shown = |age| {
        let mut machine = everything();
        machine.allocations = Allocations::default();
        let devices = [index(0), index(1), DeviceName::Mig("MIG-a".into()), DeviceName::Gpu("GPU-9".into())];
        machine.jobs = jobs(&devices.map(|device| ("900", device)));
        machine.driver.gpus[1] = Arc::new(Gpu { mig_mode: Some(true), ..(*machine.driver.gpus[1]).clone() });
        machine.jobs.at = age;
        let scrape = machine.scrape();
        let of = |series: &Series| {
            let labels = series.labels.iter().map(|(key, value)| format!("{key}={value}"));
            labels.collect::<Vec<_>>().join(" ")
        };
        scrape.of("gpu_allocation_info").map(of).collect::<BTreeSet<_>>()
    };
    let expected = [
        "gpu=0 kind=slurm resource=gres/gpu uuid=GPU-0 workload=slurm:900",
        "gpu=1 kind=slurm mig_uuid=MIG-a resource=gres/gpu uuid=GPU-1 workload=slurm:900",
        "kind=slurm resource=gres/gpu uuid=GPU-9 workload=slurm:900",
    ];
    assert_eq!(shown(ago(29.0)), expected.map(str::to_owned).into());
    assert_eq!((shown(ago(31.0)).len(), shown(None).len()), (0, 0));
}

#[test]
fn of_entries_with_equal_labels_the_living_then_the_larger_is_shown() {
    let long = "x".repeat(128);
    let with = |name: &str, alive, peak| Process { alive, peak: Some(peak), ..process(5, name) };
    let mut machine = Machine::one();
    machine.processes[0].processes = vec![
        with("same", false, 900),
        with("same", true, 10),
        with("same", true, 20),
        with("same", false, 800),
        with("ended", false, 30),
        with("ended", false, 40),
        with("ended", false, 35),
        // Different names with a long common prefix.
        with(&(long.clone() + "a"), true, 50),
        with(&(long.clone() + "b"), true, 60),
        // Different types are different series, but one process.
        Process { kind: ProcessKind::Graphics, ..with("same", true, 70) },
        Process { kind: ProcessKind::Mps, owner: Arc::default(), ..with("", true, 80) },
        Process { owner: Arc::default(), ..with("", true, 90) },
    ];
    // The reader refuses a series that appears twice.
    let scrape = machine.scrape();
    let peak =
        |name: &str, kind: &str| scrape.value("gpu_process_memory_peak_bytes", &[("process", name), ("type", kind)]);
    assert_eq!(peak("same", "compute"), (2 * GIB).to_string(), "at least what both hold now");
    assert_eq!(peak("ended", "compute"), "40");
    assert_eq!(peak("same", "graphics"), "70");
    assert_eq!(scrape.count("gpu_process_memory_peak_bytes"), 7);
    assert_eq!(scrape.count("gpu_process_info"), 5);
    assert!(scrape.of("gpu_process_info").all(|series| !series.labels.contains_key("type")));
}

#[test]
fn the_info_is_that_of_the_living_process_whatever_its_type() {
    let owner =
        |user: &str| Arc::new(Owner { name: Some("p".to_owned()), user: Some(user.to_owned()), ..Owner::default() });
    let mut machine = Machine::one();
    machine.processes[0].processes = vec![
        Process { alive: false, owner: owner("before"), ..process(5, "p") },
        Process { kind: ProcessKind::Graphics, owner: owner("now"), ..process(5, "p") },
    ];
    let scrape = machine.scrape();
    assert_eq!(scrape.value("gpu_process_info", &[("user", "now")]), "1");
    assert_eq!(scrape.count("gpu_process_info"), 1);
}

/// A process name that is meant to break a scraper.
const HOSTILE: &str = "a\"} 1\n# TYPE x counter\nx{y=\"\\\\n\r\t\u{1b}[31m\0\u{2028}é,=}";

// ---- values
// ----------------------------------------------------------------------------------------------------------

#[test]
fn bytes_are_exact_and_print_as_integers() {
    let mut machine = Machine::one();
    let exact = (1_u64 << 53) - 1;
    machine.memory[0].figures = Some(MemoryFigures {
        total: exact,
        reserved: Some(644_939_776),
        used: 0,
        free: Some(1),
        window_peak: 2,
        is_peak_of_calls: None,
        peak: 150_754_820_096,
    });
    machine.memory[0].increase = 1 << 53;
    machine.memory[0].pressure_seconds = [9.5, 8.0, 7.0, 6.0, 5.0, 4.0, 0.125];
    let scrape = machine.scrape();
    assert_eq!(scrape.value("gpu_memory_total_bytes", &[("gpu", "0"), ("uuid", "GPU-0")]), "9007199254740991");
    assert_eq!(scrape.value("gpu_memory_reserved_bytes", &[]), "644939776");
    assert_eq!(scrape.value("gpu_memory_used_bytes", &[]), "0");
    assert_eq!(scrape.value("gpu_memory_peak_bytes", &[]), "150754820096");
    assert_eq!(scrape.value("gpu_memory_increase_bytes_total", &[]), "9007199254740992");
    assert_eq!(scrape.value("gpu_memory_pressure_seconds_total", &[("ratio", "0.98")]), "0.125");
    assert_eq!(scrape.value("gpu_memory_pressure_seconds_total", &[("ratio", "0.5")]), "9.5");
    assert_eq!(scrape.count("gpu_memory_pressure_seconds_total"), 7);
}

#[test]
fn labels_that_no_golden_scrape_has() {
    let scrape = everything().scrape();
    assert_eq!(scrape.value("gpu_process_info", &[("command", "vllm serve"), ("user", "ada"), ("uid", "1000")]), "1");

    let mut real = Machine::one();
    real.driver.driver_version = Some("580".to_owned());
    let gpu = Gpu { mig_mode: Some(false), ..(*real.driver.gpus[0]).clone() };
    real.driver.gpus[0] = Arc::new(gpu);
    let scrape = real.scrape();
    assert_eq!(scrape.value("gpu_info", &[("mig_mode", "disabled")]), "1");
    assert!(scrape.series().all(|series| !series.labels.contains_key("simulated")));
    assert_eq!(scrape.value("nvidia_driver_info", &[("driver_version", "580")]), "1");
}

#[test]
fn compute_instances_of_one_gpu_instance_show_its_memory_once() {
    let device = |index| {
        let uuid = format!("MIG-{index}");
        Arc::new(MigDevice { index, uuid, gpu_instance: 7, compute_instance: index, profile: None })
    };
    let devices = [device(0), device(1)];
    let sliced = Gpu { mig_mode: Some(true), mig: devices.to_vec(), ..(*gpu(0)).clone() };
    let mut machine = Machine::of(&[Arc::new(sliced)]);
    let shown = |device: &Arc<MigDevice>| MigMemory {
        at: ago(0.0),
        figures: Some(figures(5)),
        ..MigMemory::unsampled(device.clone())
    };
    machine.memory[0].mig = devices.iter().map(shown).collect();
    let scrape = machine.scrape();
    assert_eq!(scrape.count("gpu_mig_memory_used_bytes"), 1);
    assert_eq!(scrape.value("gpu_mig_memory_used_bytes", &[("mig_uuid", "MIG-0")]), "5");
}

#[test]
fn telemetry_is_split_by_its_own_label() {
    let scrape = Machine::one().scrape();
    for (name, label, expected) in [
        ("gpu_ecc_errors_total", "type", vec![("corrected", "3"), ("uncorrected", "0")]),
        ("gpu_remapped_rows", "cause", vec![("correctable", "1"), ("uncorrectable", "2")]),
        ("gpu_retired_pages", "cause", vec![("double_bit", "5"), ("multiple_single_bit", "4")]),
        ("gpu_xid_errors_total", "xid", vec![("31", "2"), ("79", "1")]),
        (
            "gpu_xid_class_errors_total",
            "class",
            vec![("application", "2"), ("hardware", "1"), ("memory", "0"), ("unknown", "0")],
        ),
        (
            "gpu_temperature_threshold_celsius",
            "threshold",
            vec![("gpu_max", "87"), ("shutdown", "95"), ("slowdown", "89")],
        ),
        ("gpu_fan_speed_ratio", "fan", vec![("0", "0.3"), ("1", "1.02")]),
        (
            "gpu_clock_limited_seconds_total",
            "reason",
            vec![("board_limit", "0"), ("power", "1.5"), ("thermal", "0.25")],
        ),
        ("gpu_clock_hertz", "clock", vec![("graphics", "345000000"), ("memory", "3201000000"), ("sm", "345000000")]),
    ] {
        let found: BTreeSet<_> = scrape.of(name).map(|s| (s.labels[label].as_str(), s.value.as_str())).collect();
        assert_eq!(found, BTreeSet::from_iter(expected), "{name}");
    }
    let active: BTreeSet<_> =
        scrape.of("gpu_throttle_active").filter(|s| s.value == "1").map(|s| s.labels["reason"].as_str()).collect();
    assert_eq!(active, BTreeSet::from(["gpu_idle", "hw_thermal_slowdown"]));
    assert_eq!(scrape.count("gpu_throttle_active"), THROTTLE_REASONS.len());
    assert_eq!((scrape.value("gpu_row_remap_pending", &[]), scrape.value("gpu_row_remap_failed", &[])), ("1", "0"));
    assert_eq!(scrape.value("gpu_bar1_memory_total_bytes", &[]), "274877906944");
    assert_eq!(scrape.value("gpu_driver_energy_joules_total", &[]), "1234.5");
    assert_eq!(scrape.value("gpu_energy_joules_total", &[]), "4321.5");
    assert_eq!(scrape.value("gpu_energy_unmeasured_seconds_total", &[]), "1.25");
}

#[test]
fn the_parts_of_the_energy_are_shown_with_the_whole_alone() {
    let scrape = everything().scrape();
    let of = |workload: &str| scrape.value("gpu_workload_energy_joules_total", &[("workload", workload)]).to_owned();
    assert_eq!((of("team-b/ended/main"), of("other")), ("1500.5".to_owned(), "20.5".to_owned()));
    assert_eq!(scrape.value("gpu_idle_energy_joules_total", &[]), "1000.25");
    let harms: [(&str, Harm); 3] = [
        ("the power is unknown", |m| m.telemetry[0].fast.energy = None),
        ("old readings", |m| m.telemetry[0].fast_at = ago(9.0)),
        ("not apportioned", |m| m.processes[0].energy = None),
    ];
    for (name, harm) in harms {
        let mut machine = everything();
        harm(&mut machine);
        let scrape = machine.scrape();
        assert_eq!(scrape.count("gpu_workload_energy_joules_total"), 0, "{name}");
        assert_eq!(scrape.count("gpu_idle_energy_joules_total"), 0, "{name}");
    }
}

// ---- the exporter itself
// ---------------------------------------------------------------------------------------------

#[test]
fn the_build_names_its_compiler_and_only_a_commit_that_it_was_told() {
    let scrape = Machine::one().scrape();
    let build = scrape.of("vram_exporter_build_info").next().unwrap();
    assert_eq!(build.labels["version"], env!("CARGO_PKG_VERSION"));
    assert!(build.labels["rustversion"].starts_with("1."), "{:?}", build.labels);
    let told = option_env!("VRAM_EXPORTER_REVISION");
    assert_eq!(build.labels.get("revision").map(String::as_str), told);
}

#[test]
fn the_histogram_is_cumulative_and_ends_in_its_count() {
    let scrape = Machine::one().scrape();
    let name = "vram_exporter_lane_duration_seconds_bucket";
    let at = |le: &str| scrape.value(name, &[("lane", "memory"), ("le", le)]);
    assert_eq!((at("5e-06"), at("1e-05"), at("1.0"), at("+Inf")), ("0", "1", "1", "2"));
    assert_eq!(scrape.value("vram_exporter_lane_duration_seconds_count", &[("lane", "memory")]), "2");
    assert_eq!(scrape.value("vram_exporter_lane_duration_seconds_sum", &[("lane", "memory")]), "9.000007");
    assert_eq!(scrape.count("vram_exporter_lane_duration_seconds_count"), 3);
    assert_eq!(scrape.value("vram_exporter_missed_ticks_total", &[("lane", "process"), ("gpu", "0")]), "5");
}

/// The series of a family, each as its label values and its value.
fn rows<'s>(scrape: &'s Scrape, family: &'s str) -> Vec<Vec<&'s str>> {
    // The labels are sorted by name: `reason` before `source`.
    let row = |s: &'s Series| s.labels.values().chain([&s.value]).map(String::as_str).collect();
    scrape.of(family).map(row).collect()
}

#[test]
fn every_source_in_use_has_a_count_of_faults_from_the_start() {
    let always = ["library", "topology", "memory", "process", "telemetry", "attribution", "budget", "recorder", "http"];
    let scrape = Machine::one().scrape();
    assert_eq!(rows(&scrape, "vram_exporter_faults_total"), always.map(|source| vec![source, "0"]));
    assert_eq!(scrape.count("vram_exporter_faults_by_reason_total"), 0);

    let mut configured = Machine::one();
    let mut config = Config::default();
    config.web.config_file = Some("web-config.yml".into());
    config.kubernetes.pod_resources = Some("kubelet.sock".into());
    config.kubernetes.api_server = Some(ApiServer::InCluster);
    config.slurm.allocations = Some("allocations".into());
    config.allocator.socket = Some("allocator.sock".into());
    config.memory.probes = Probes::Refusals;
    config.otlp.endpoint = Some("http://localhost:4318".into());
    configured.settings = metrics_settings(&config, None);
    let scrape = configured.scrape();
    let all: Vec<_> = Source::ALL.iter().map(|source| vec![source.label(), "0"]).collect();
    assert_eq!(rows(&scrape, "vram_exporter_faults_total"), all);
}

#[test]
fn a_fault_is_in_the_total_of_its_source_and_under_its_reason() {
    let machine = Machine::one();
    let error = std::io::Error::other("lost");
    machine.faults.raise(Source::Memory, Reason::GpuIsLost, Some(0), &error);
    machine.faults.raise(Source::Memory, Reason::GpuIsLost, Some(0), &error);
    machine.faults.raise(Source::Memory, Reason::Stalled, Some(0), &error);
    // No fault is hidden, not even one from a source that the configuration does not use.
    machine.faults.raise(Source::WebConfig, Reason::Malformed, None, &error);
    let scrape = machine.scrape();
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "memory")]), "3");
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "process")]), "0");
    assert_eq!(scrape.value("vram_exporter_faults_total", &[("source", "web_config")]), "1");
    let expected = [["gpu_is_lost", "memory", "2"], ["stalled", "memory", "1"], ["malformed", "web_config", "1"]];
    assert_eq!(rows(&scrape, "vram_exporter_faults_by_reason_total"), expected);
    assert_eq!(scrape.value("vram_exporter_peak_window_seconds", &[]), "60");
}

#[test]
fn a_scrape_changes_nothing_but_its_own_count() {
    let mut machine = everything();
    // On a busy machine, seconds can pass between two scrapes, and no value may become too old in them.
    let settings = &mut machine.settings;
    for age in [
        &mut settings.stale_after,
        &mut settings.process_interval,
        &mut settings.pod_resources_interval,
        &mut settings.telemetry_interval,
        &mut settings.telemetry_slow_interval,
        &mut settings.profiling_interval,
    ] {
        *age = std::time::Duration::from_secs(3600);
    }
    let metrics = Arc::new(machine.metrics());
    let read = |text: Vec<u8>| {
        let scrape = Scrape::parse(&String::from_utf8(text).unwrap());
        let moves = |name: &str| {
            name.starts_with("process_") || name.ends_with("_age_seconds") || name.ends_with("_idle_seconds")
        };
        let still = scrape.series().filter(|s| !moves(&s.name) && s.name != "vram_exporter_scrapes_total");
        let still: Vec<_> = still.map(|s| (s.name.clone(), s.labels.clone(), s.value.clone())).collect();
        (scrape.value("vram_exporter_scrapes_total", &[]).to_owned(), still)
    };
    let first = read(metrics.scrape(Format::Text).unwrap().whole());
    let second = read(metrics.scrape(Format::Text).unwrap().whole());
    let third = read(metrics.encode(Format::Text).unwrap());
    assert_eq!((first.0.as_str(), second.0.as_str(), third.0.as_str()), ("1", "2", "2"));
    assert!(first.1.len() > 200);
    for (one, other) in [(&first.1, &second.1), (&second.1, &third.1)] {
        let differing: Vec<_> = one.iter().zip(other).filter(|(one, other)| one != other).collect();
        assert!(one.len() == other.len() && differing.is_empty(), "{} and {}: {differing:?}", one.len(), other.len());
    }
}

#[test]
fn calls_are_told_as_far_as_they_are_seen() {
    let with = |change: fn(&mut CallPart)| {
        let mut machine = everything();
        change(&mut machine.calls);
        machine.scrape()
    };
    let all = with(|_| {});
    assert_eq!(all.value("vram_exporter_probes_up", &[]), "1");
    assert_eq!(all.value("vram_exporter_probe_events_lost_total", &[("reason", "unlisted")]), "4");
    assert_eq!(all.value("gpu_memory_refused_requests_total", &[("gpu", "0")]), "3");
    let refused: Vec<_> = all.of("gpu_workload_memory_refused_requests_total").collect();
    let of = |series: &&Series| (series.labels.get("gpu").cloned(), series.labels.get("mig_uuid").cloned());
    let devices: Vec<_> = refused.iter().map(of).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(devices, [(text("0"), None), (text("1"), text("MIG-a")), (None, None)]);
    assert_eq!(all.value("gpu_workload_memory_calls_total", &[]), "40");
    assert_eq!(all.value("gpu_workload_memory_call_seconds_total", &[]), "1.5");
    let bucket = |le| all.value("gpu_memory_call_correction_bytes_bucket", &[("le", le)]).to_owned();
    assert_eq!([bucket("0.0"), bucket("1048576.0"), bucket("+Inf")], ["4", "7", "8"].map(str::to_owned));
    let refusals = with(|calls| calls.sees_all = false);
    for absent in ["gpu_workload_memory_calls_total", "gpu_memory_call_correction_bytes_sum"] {
        assert_eq!(refusals.count(absent), 0, "{absent}");
    }
    assert_eq!(refusals.value("gpu_memory_refused_requests_total", &[("gpu", "0")]), "3");
    let down = with(|calls| calls.state = CallState::Down(Reason::NotSupported));
    assert_eq!(down.value("vram_exporter_probes_up", &[("reason", "not_supported")]), "0");
    assert_eq!(down.count("gpu_memory_refused_requests_total"), 0);
}

#[test]
fn a_peak_of_calls_is_marked_where_calls_have_told_of_one() {
    let families =
        ["gpu_memory", "gpu_process_memory", "gpu_workload_memory"].map(|of| format!("{of}_window_peak_from_calls"));
    let scrape = |is_of_calls: Option<bool>| {
        let mut machine = Machine::one();
        machine.memory[0].figures.as_mut().unwrap().is_peak_of_calls = is_of_calls;
        machine.processes[0].processes[0].is_peak_of_calls = is_of_calls;
        machine.processes[0].workloads =
            vec![WorkloadUse { is_peak_of_calls: is_of_calls, ..workload(of_pod("vllm"), GIB) }];
        machine.scrape()
    };
    for (is_of_calls, shown) in [(Some(true), "1"), (Some(false), "0")] {
        let scrape = scrape(is_of_calls);
        assert!(families.iter().all(|family| scrape.value(family, &[]) == shown), "{is_of_calls:?}");
    }
    assert!(families.iter().all(|family| scrape(None).count(family) == 0));
}
