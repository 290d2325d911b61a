//! The profiling counters: what is added to them, when they are absent, and that nothing is added for a gap.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::faults::refusals::{reacquire, release};
use crate::faults::{faults, faults_but_slow};
use crate::harness::{Exporter, Machine, Scrape, until};

/// The shortest interval, so that the tests are short.
const OFTEN: &str = "--profiling.interval=500ms";
/// Values are not shown once they are older than this.
const STALE: [&str; 2] = ["--memory.stale-after=2s", "--memory.idle-rate=10"];

/// One GPU, half utilized.
const HALF: &str = r#"
[[gpu]]
model = "H200"
profiling = { tensor = 0.8, fp64 = 0.0, memory_bandwidth = 0.5, occupancy = 0.6, pcie_received = "100MiB", nvlink_transmitted = "10MiB" }
[[process]]
start = "-1h"
command = ["train"]
memory = "1GiB"
utilization = 0.5
"#;

const BANDWIDTH: &str = "gpu_memory_bandwidth_active_seconds_total";
const MIB: f64 = 1_048_576.0;

/// Every profiling series with its value, for one GPU.
fn profiling(scrape: &Scrape, gpu: &str) -> BTreeMap<String, f64> {
    const OTHERS: [&str; 4] = ["_engine_", "_pipe_", "_memory_bandwidth_active_", "_sm_occupancy_"];
    let is_one = |name: &str| {
        OTHERS.iter().any(|part| name.contains(part))
            || ["pcie", "nvlink", "c2c"].iter().any(|link| name.contains(link) && name.ends_with("_bytes_total"))
    };
    let series = scrape.series.iter().filter(|s| s.label("gpu") == Some(gpu) && is_one(&s.name));
    series.map(|s| (format!("{}{:?}", s.name, s.labels), s.value)).collect()
}

fn bandwidth(scrape: &Scrape, gpu: &str) -> Option<f64> {
    scrape.value(BANDWIDTH, &[("gpu", gpu)])
}

/// A machine with this scenario, an exporter on it, and the first scrape with counters of GPU 0.
fn counting(scenario: &str, flags: &[&str]) -> (Machine, Exporter, Scrape) {
    let (machine, exporter) = Machine::running(scenario, &[&[OFTEN], flags].concat());
    let first = exporter.scrape_until("the counters", |s| bandwidth(s, "0").is_some());
    (machine, exporter, first)
}

/// Waits until a GPU's counter of memory bandwidth has grown by `by` seconds since the scrape.
fn grown(exporter: &Exporter, since: &Scrape, gpu: &str, by: f64) -> Scrape {
    let before = bandwidth(since, gpu).unwrap_or(0.0);
    exporter.scrape_until("the counters grow", |s| bandwidth(s, gpu).is_some_and(|now| now >= before + by))
}

#[test]
fn constant_activity_adds_its_share_of_the_time() {
    let begin = Instant::now();
    let exporter = Machine::new(HALF).export(&[OFTEN]);
    let first = exporter.scrape_until("the counters", |s| bandwidth(s, "0").is_some());
    let last = grown(&exporter, &first, "0", 0.6);
    // Every metric covers the same time, and its activity is the utilization, one half, times its own share.
    let rise =
        |name: &str, labels: &[(&str, &str)]| last.value(name, labels).unwrap() - first.value(name, labels).unwrap();
    let seconds = rise("gpu_engine_active_seconds_total", &[("engine", "graphics")]) / 0.5;
    assert!(seconds > 2.0, "{seconds}");
    let near = |found: f64, share: f64| assert!((found / seconds - share).abs() < 1e-6 * share, "{found} of {seconds}");
    near(rise(BANDWIDTH, &[]), 0.25);
    near(rise("gpu_pipe_active_seconds_total", &[("pipe", "tensor")]), 0.4);
    near(rise("gpu_pcie_received_bytes_total", &[]), 50.0 * MIB);
    near(rise("gpu_nvlink_transmitted_bytes_total", &[]), 5.0 * MIB);
    assert_eq!(rise("gpu_pipe_active_seconds_total", &[("pipe", "fp64")]), 0.0, "measured, and zero");
    assert_eq!(last.value("gpu_sm_occupancy_ratio", &[]), Some(0.3));
    assert!(last.all("gpu_c2c_transmitted_bytes_total").next().is_none(), "never filled");
    let graphics = last.value("gpu_engine_active_seconds_total", &[("engine", "graphics")]).unwrap();
    assert!(graphics <= 0.5 * begin.elapsed().as_secs_f64(), "{graphics} in {:?}", begin.elapsed());
    // An interval can end between the two scrapes of a pair, but not in all pairs. A scrape that added something would
    // make every pair differ.
    until("two scrapes within an interval", || {
        profiling(&exporter.scrape(), "0") == profiling(&exporter.scrape(), "0")
    });
}

#[test]
fn gpus_without_counters_show_none_and_count_no_fault() {
    const MODELS: &str = include_str!("../fixtures/scenarios/profiling-models.toml");
    let exporter = Machine::new(MODELS).export(&[OFTEN]);
    let scrape =
        exporter.scrape_until("Hopper and Blackwell", |s| bandwidth(s, "0").is_some() && bandwidth(s, "4").is_some());
    // Longer than the five intervals after which a GPU that fills no metric is no longer sampled.
    std::thread::sleep(Duration::from_secs(4));
    let later = exporter.scrape();
    for scrape in [scrape, later] {
        assert_eq!(bandwidth(&scrape, "0"), Some(0.0), "idle, and measured");
        for gpu in ["1", "2", "3"] {
            assert_eq!(profiling(&scrape, gpu), BTreeMap::new(), "{gpu}");
        }
        assert_eq!(faults_but_slow(&scrape), 0.0, "{}", exporter.log());
    }
}

#[test]
fn without_the_calls_or_switched_off_nothing_is_shown() {
    let missing = format!("calls_missing = [\"nvmlGpmQueryDeviceSupport\", \"nvmlGpmSampleGet\"]\n{HALF}");
    let hanging = Machine::new(HALF);
    // A call that hangs would take the GPU down.
    hanging.control("[[fault]]\ncall = [\"nvmlGpmQueryDeviceSupport\", \"nvmlGpmSampleAlloc\"]\nkind = \"hang\"\n");
    for (machine, flags) in [
        (Machine::built_in("old-driver"), &[][..]),
        (Machine::new(&missing), &[]),
        (hanging, &["--profiling.enabled=false"]),
    ] {
        let scrape = machine.once(flags);
        assert_eq!((profiling(&scrape, "0"), scrape.value("gpu_up", &[])), (BTreeMap::new(), Some(1.0)), "{flags:?}");
    }
}

#[test]
fn a_driver_that_does_not_know_the_newer_metrics_gives_the_others() {
    let machine = Machine::new(&HALF.replace("tensor = 0.8", "known_ids = 21, tensor = 0.8"));
    let scrape = machine.once(&[]);
    let shown = profiling(&scrape, "0");
    assert!(shown.keys().any(|name| name.starts_with("gpu_pcie_received")), "{shown:?}");
    assert!(!shown.keys().any(|name| name.contains("nvlink")), "{shown:?}");
    assert_eq!(faults(&scrape, "telemetry", "invalid_argument"), 0.0);
}

#[test]
fn a_gpu_whose_comparison_writes_nothing_shows_nothing_and_not_what_another_gpu_left() {
    let scenario = format!("{HALF}[[gpu]]\nmodel = \"H200\"\nprofiling = {{ untouched = true }}\n");
    let (_, exporter, first) = counting(&scenario, &[]);
    let later = grown(&exporter, &first, "0", 0.5);
    for scrape in [first, later] {
        assert_eq!(profiling(&scrape, "1"), BTreeMap::new());
        assert_eq!(
            (scrape.value("gpu_up", &[("gpu", "1")]), faults(&scrape, "telemetry", "implausible")),
            (Some(1.0), 0.0)
        );
    }
}

#[test]
fn a_comparison_that_is_refused_for_a_while_does_not_end_the_newer_metrics() {
    let (machine, exporter, _) = counting(HALF, &[]);
    machine.control("[[fault]]\ncall = \"nvmlGpmMetricsGet\"\nkind = \"error\"\ncode = \"INVALID_ARGUMENT\"\n");
    let failing = exporter.scrape_until("the fault", |s| faults(s, "telemetry", "invalid_argument") >= 1.0);
    machine.control("");
    let back = grown(&exporter, &failing, "0", 0.01);
    assert!(back.value("gpu_nvlink_transmitted_bytes_total", &[]).is_some());
}

#[test]
fn a_failed_call_adds_nothing_and_the_counters_go_on() {
    let (machine, exporter, first) = counting(HALF, &STALE);
    for call in ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"] {
        let before = faults(&exporter.scrape(), "telemetry", "unknown");
        machine.control(&format!("[[fault]]\ncall = \"{call}\"\nkind = \"error\"\ncode = \"UNKNOWN\"\n"));
        let failing = exporter.scrape_until("the fault", |s| faults(s, "telemetry", "unknown") > before);
        let kept = exporter.scrape_until("values too old", |s| {
            let known = bandwidth(&failing, "0");
            assert!(bandwidth(s, "0").is_none() || bandwidth(s, "0") == known, "added during {call}");
            profiling(s, "0").is_empty()
        });
        assert_eq!(kept.value("gpu_up", &[]), Some(1.0));
        machine.control("");
        let back = exporter.scrape_until("the counters again", |s| bandwidth(s, "0").is_some());
        // The failed intervals are not made up for: at most one interval has been added since.
        let added = bandwidth(&back, "0").unwrap() - bandwidth(&failing, "0").unwrap();
        assert!((0.0..=0.6).contains(&added), "{added}");
    }
    assert!(bandwidth(&exporter.scrape(), "0") >= bandwidth(&first, "0"));
}

#[test]
fn implausible_values_add_nothing_and_are_faults() {
    let (machine, exporter) = Machine::running(HALF, &[OFTEN]);
    let totals = |s: &Scrape| {
        let mut all = profiling(s, "0");
        all.retain(|name, _| name.contains("_total"));
        all
    };
    let mut good = exporter.scrape_until("the counters", |s| bandwidth(s, "0").is_some());
    for value in ["above", "ones"] {
        let before = faults(&exporter.scrape(), "telemetry", "implausible");
        machine.control(&format!(
            "[[fault]]\ncall = \"nvmlGpmMetricsGet\"\nkind = \"implausible\"\nvalue = \"{value}\"\n"
        ));
        let began = exporter.scrape_until("a fault", |s| faults(s, "telemetry", "implausible") > before);
        let more = exporter.scrape_until("more faults", |s| {
            // On a busy machine, the counters can become too old before the third fault.
            let now = totals(s);
            assert!(now.is_empty() || now == totals(&began), "added during {value}: {now:?}");
            faults(s, "telemetry", "implausible") >= before + 3.0
        });
        assert!(more.all("gpu_sm_occupancy_ratio").next().is_none(), "a gauge without a measured interval");
        machine.control("");
        let reached = if bandwidth(&began, "0").is_some() { &began } else { &good };
        good = grown(&exporter, reached, "0", 0.01);
    }
}

#[test]
fn values_that_are_no_numbers_from_the_start_are_absent_and_no_fault() {
    let machine = Machine::new(HALF);
    machine.control("[[fault]]\ncall = \"nvmlGpmMetricsGet\"\nkind = \"implausible\"\nvalue = \"ones\"\n");
    let exporter = machine.export(&[OFTEN]);
    std::thread::sleep(Duration::from_secs(2));
    let scrape = exporter.scrape();
    assert_eq!((profiling(&scrape, "0"), faults(&scrape, "telemetry", "implausible")), (BTreeMap::new(), 0.0));
}

#[test]
fn the_counters_outlive_a_reopening_which_adds_nothing() {
    let begin = Instant::now();
    let (_, exporter, first) = counting(HALF, &[]);
    let before = grown(&exporter, &first, "0", 0.3);
    let closed = release(&exporter);
    assert_eq!(profiling(&closed, "0"), BTreeMap::new());
    let closed = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    let closed = closed.elapsed();
    reacquire(&exporter);
    let back = exporter.scrape_until("the counters again", |s| bandwidth(s, "0").is_some());
    let (before, back) = (bandwidth(&before, "0").unwrap(), bandwidth(&back, "0").unwrap());
    assert!(back >= before, "{before} {back}");
    // The activity is a quarter of the time that passed, less the time during which the driver was closed.
    let most = 0.25 * (begin.elapsed() - closed).as_secs_f64();
    assert!(back <= most, "{back} of at most {most}");
}

#[test]
fn each_gpu_instance_has_counters_of_its_own() {
    const SLICED: &str = include_str!("../fixtures/scenarios/profiling-mig.toml");
    let exporter = Machine::new(SLICED).export(&[OFTEN]);
    const OF_MIG: &str = "gpu_mig_memory_bandwidth_active_seconds_total";
    let of = |s: &Scrape, profile: &str| s.value(OF_MIG, &[("profile", profile)]);
    let scrape = exporter.scrape_until("activity", |s| of(s, "3g.40gb") > Some(0.5));
    assert_eq!(of(&scrape, "2g.20gb"), Some(0.0));
    assert_eq!(scrape.all(OF_MIG).count(), 2);
    let series = scrape.all(OF_MIG).next().unwrap();
    let labels = ["gpu", "uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile"];
    assert!(labels.iter().all(|label| series.label(label).is_some()), "{series:?}");
    // The whole GPU is not the sum of its instances: it is measured on its own, against the whole GPU's peak.
    assert!(bandwidth(&scrape, "0") < of(&scrape, "3g.40gb"));
    assert!(scrape.value("gpu_mig_engine_active_seconds_total", &[("profile", "3g.40gb"), ("engine", "sm")]).is_some());
}

#[test]
fn a_call_that_hangs_takes_its_gpu_down_alone() {
    const TWO: &str = "[[gpu]]\nmodel = \"H200\"\ncount = 2\n[[process]]\ngpus = [0, 1]\nstart = \"-1h\"\ncommand = [\"train\"]\nmemory = \"1GiB\"\nutilization = 0.5\n";
    let (machine, exporter) = Machine::running(TWO, &[OFTEN, "--nvml.call-timeout=300ms"]);
    let first = exporter.scrape_until("the counters", |s| bandwidth(s, "0").is_some() && bandwidth(s, "1").is_some());
    machine.control("[[fault]]\ncall = \"nvmlGpmSampleGet\"\ngpu = 0\nkind = \"hang\"\n");
    let down = exporter.scrape_until("GPU 0 down", |s| s.value("gpu_up", &[("gpu", "0")]) == Some(0.0));
    assert_eq!(profiling(&down, "0"), BTreeMap::new());
    grown(&exporter, &first, "1", 0.4);
    machine.control("");
    let back = exporter.scrape_until("GPU 0 again", |s| bandwidth(s, "0").is_some());
    assert!(bandwidth(&back, "0") >= bandwidth(&first, "0"));
}
